"""Words of prompts that a tokenizer does not know: the model reads one token for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm_decode.core.prompts import Prompt

_NUM_SHOWN = 20


@dataclass(frozen=True)
class UnknownWords:
    """The words of some prompts that a tokenizer does not know.

    Attributes:
        words: The words, each once, in the order of the prompts.
        num_prompts: Number of prompts with an unknown word.
        token: Text of the token that the model reads for each unknown word.
    """

    words: tuple[str, ...] = ()
    num_prompts: int = 0
    token: str = ""

    def __str__(self) -> str:
        """Names the first words, and the token that the model reads for them."""
        shown = ", ".join(self.words[:_NUM_SHOWN])
        num_more = len(self.words) - _NUM_SHOWN
        more = f" and {num_more} more" if num_more > 0 else ""
        return (
            f"These words are not known to the tokenizer: {shown}{more}. The model reads "
            f"{self.token!r} for each."
        )


def unknown_id_of(tokenizer: Any) -> int | None:
    """Returns the id that a tokenizer of transformers reads for any unknown word, if it has one.

    Byte-level tokenizers know every word, but some name a token with another use as unknown.
    """
    unknown_id: int | None = getattr(tokenizer, "unk_token_id", None)
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "cls")]
    return None if unknown_id in others else unknown_id


def unknown_words(tokenizer: Any, texts: Sequence[str], prompts: Sequence[Prompt]) -> UnknownWords:
    """Finds the words of prompts where a tokenizer of transformers reads its unknown token."""
    unknown_id = unknown_id_of(tokenizer)
    words: dict[str, None] = {}
    num_prompts = 0
    for text, prompt in zip(texts, prompts, strict=True):
        if unknown_id is not None and unknown_id in prompt:
            words |= dict.fromkeys(_unknown_parts(tokenizer, text, unknown_id))
            num_prompts += 1
    if not words:
        return UnknownWords()
    return UnknownWords(tuple(words), num_prompts, tokenizer.decode([unknown_id]))


def _unknown_parts(tokenizer: Any, text: str, unknown_id: int) -> list[str]:
    """Returns the parts of a text for which a tokenizer reads its unknown token."""
    if not tokenizer.is_fast:
        # Slow tokenizers do not say where in the text a token is.
        words = [word for word in text.split() if word not in tokenizer.all_special_tokens]
        return [word for word in words if unknown_id in tokenizer(word)["input_ids"]]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [text[start:stop] for token, (start, stop) in spans if token == unknown_id]
