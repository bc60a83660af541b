"""From an example's prompt to token ids."""

from typing import Protocol, runtime_checkable

from eval.tasks.base import Example, Turn


@runtime_checkable
class Tokenizer(Protocol):
    """What evaluation needs of a tokenizer."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[Turn], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


def encode_prompt(tokenizer: Tokenizer, example: Example, *, chat: bool) -> list[int]:
    """Returns the token ids that a model continues with its answer.

    Args:
        tokenizer: The model's tokenizer.
        example: Its prompt is plain text or chat turns.
        chat: Put plain text into a user turn of the model's chat template. Turns always are.

    Raises:
        ValueError: If a chat template is wanted and the tokenizer has none.
    """
    if isinstance(example.prompt, str) and not chat:
        return tokenizer.encode(example.prompt)
    if not tokenizer.chat_template:
        raise ValueError(
            "A chat prompt needs a tokenizer with a chat template, got one without; "
            "choose plain prompts."
        )
    text = tokenizer.apply_chat_template(
        example.turns(), tokenize=False, add_generation_prompt=True
    )
    # The template has written every special token there is to be.
    return tokenizer.encode(text, add_special_tokens=False)
