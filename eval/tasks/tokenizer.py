"""The protocol of tokenizers that all packages of evaluation use."""

from typing import Protocol, runtime_checkable

from eval.tasks.base import Turn


@runtime_checkable
class Tokenizer(Protocol):
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
