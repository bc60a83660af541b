"""Turns the harness' texts into token ids, and token ids into answers."""

from collections.abc import Sequence

from dllm_decode.text.prose import Prose
from eval.lm_harness.generation import Generation
from eval.lm_harness.settings import LmTokenizer
from eval.runs.prompts import require_template
from eval.tasks.base import Turn


class Codec:
    """A tokenizer that adds no special tokens to texts that have them.

    Such texts come from its chat template, or begin with a special token. `prefix_id` is the token
    before texts: BOS, or EOS if there is no BOS.
    """

    def __init__(self, tokenizer: LmTokenizer, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self._rendered: set[str] = set()
        bos_id = tokenizer.bos_token_id
        self.prefix_id = eos_id if bos_id is None else bos_id

    def render(self, turns: list[Turn], *, add_generation_prompt: bool) -> str:
        """Writes turns in the chat template; without generation prompt the last turn goes on."""
        require_template(self._tokenizer)
        text = self._tokenizer.apply_chat_template(
            turns,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        self._rendered.add(text)
        return text

    def encode(self, text: str, *, add_special_tokens: bool | None = None) -> list[int]:
        """Returns a text's ids; `None` adds special tokens unless the text has them."""
        bare = self._tokenizer.encode(text, add_special_tokens=False)
        if add_special_tokens is None:
            special = bool(bare) and bare[0] in self._tokenizer.all_special_ids
            add_special_tokens = not special and text not in self._rendered
        return self._tokenizer.encode(text) if add_special_tokens else bare

    def prompt(self, text: str) -> list[int]:
        """Returns a prompt's ids, at least one."""
        return self.encode(text) or [self.prefix_id]

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Returns the ids of a context and of its continuation, encoded as one text.

        Spaces at the end of the context belong to the continuation, because tokenizers attach them
        to the next word.
        """
        if not context:
            ids = self.encode(continuation, add_special_tokens=False)
            # A text may begin with the prefix.
            return ([self.prefix_id], ids) if ids[:1] != [self.prefix_id] else (ids[:1], ids[1:])
        stripped = context.rstrip()
        adds = None if context not in self._rendered else False
        all_ids = self.encode(context + continuation, add_special_tokens=adds)
        context_ids = self.encode(stripped, add_special_tokens=adds)
        return all_ids[: len(context_ids)], all_ids[len(context_ids) :]

    def answer(self, tokens: Sequence[int], generation: Generation) -> str:
        """Returns the text of an answer, cut at the first stop string."""
        return Prose(self._tokenizer, generation.until).whole([*tokens])
