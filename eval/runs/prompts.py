"""Encodes the prompts of examples, by any tokenizer."""

import sys
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from dllm_decode import MaskPredictor
from dllm_decode.text.blanks import template_ids
from dllm_decode.text.unknown_words import unknown_id_of, unknown_words
from eval.tasks.base import Example, Turn


@runtime_checkable
class PromptTokenizer(Protocol):
    """Encodes prompts, as they are or in the chat template, and decodes answers."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[Turn],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> str: ...


def encode_prompt(tokenizer: PromptTokenizer, example: Example, *, chat: bool) -> list[int]:
    """Returns the token ids that a model continues with its answer.

    With `chat` plain text becomes a user turn of the model's chat template; chat turns always use
    the template. Raises ValueError if a template is wanted and the tokenizer has none.
    """
    text = _text_of(tokenizer, example, chat=chat)
    # The chat template has written every special token already.
    is_plain = isinstance(example.prompt, str) and not chat
    return tokenizer.encode(text) if is_plain else tokenizer.encode(text, add_special_tokens=False)


def templates_of(
    tokenizer: Any, model: MaskPredictor, examples: Sequence[Example], gen_length: int
) -> list[list[int]]:
    """Returns each example's answer with blanks as `decode` takes it; [] if no example has blanks.

    EOS follows a template, up to the answer's length. Raises ValueError if a template is longer.
    """
    if not any(example.template for example in examples):
        return []
    templates = []
    for example in examples:
        tokens = template_ids(tokenizer, example.template, model) if example.template else []
        if len(tokens) > gen_length:
            raise ValueError(
                f"gen_length must be at least {len(tokens)}, the length of the template of the "
                f"example {example.id!r}, got {gen_length}."
            )
        templates.append(tokens and tokens + [model.eos_ids[0]] * (gen_length - len(tokens)))
    return templates


def warn_of_prompts(
    label: str, tokenizer: PromptTokenizer, examples: Sequence[Example], *, chat: bool
) -> None:
    """Warns on standard error of words in prompts that a tokenizer does not know.

    The warning begins with `label`, says what `generate` says, and counts the prompts.
    """
    if unknown_id_of(tokenizer) is None:
        return
    texts = [_text_of(tokenizer, example, chat=chat) for example in examples]
    prompts = [encode_prompt(tokenizer, example, chat=chat) for example in examples]
    unknown = unknown_words(tokenizer, texts, prompts)
    if not unknown.words:
        return
    share = f"{unknown.num_prompts} of {len(examples)} prompts"
    sys.stderr.write(
        f"WARNING: {label}: {unknown} They occur in {share} "
        f"({unknown.num_prompts / len(examples):.0%}).\n"
    )


def _text_of(tokenizer: PromptTokenizer, example: Example, *, chat: bool) -> str:
    if isinstance(example.prompt, str) and not chat:
        return example.prompt
    require_template(tokenizer)
    return tokenizer.apply_chat_template(
        example.turns(), tokenize=False, add_generation_prompt=True
    )


def require_template(tokenizer: PromptTokenizer) -> None:
    """Raises ValueError if a tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise ValueError(
            "A chat prompt needs a tokenizer with a chat template, got one without; "
            "choose plain prompts."
        )
