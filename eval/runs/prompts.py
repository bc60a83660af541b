"""From an example's prompt to token ids."""

from eval.tasks.base import Example
from eval.tasks.tokenizer import Tokenizer

__all__ = ["Tokenizer", "encode_prompt", "require_template"]


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
    require_template(tokenizer)
    text = tokenizer.apply_chat_template(
        example.turns(), tokenize=False, add_generation_prompt=True
    )
    # The template has written every special token there is to be.
    return tokenizer.encode(text, add_special_tokens=False)


def require_template(tokenizer: Tokenizer) -> None:
    """Raises ValueError if a tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise ValueError(
            "A chat prompt needs a tokenizer with a chat template, got one without; "
            "choose plain prompts."
        )
