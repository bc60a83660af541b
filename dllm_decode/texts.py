"""Texts and chats become token ids, through the tokenizer and its chat template."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from dllm_decode.prompts import Prompt, Prompts, token_lists
from dllm_decode.unknown_words import unknown_words

Message: TypeAlias = Mapping[str, str]
"""One turn of a chat: its "role" and "content"."""

Inputs: TypeAlias = str | Sequence[str] | Sequence[Message] | Sequence[Sequence[Message]] | Prompts
"""A text, texts, a chat, chats, or token ids in any form that `decode` takes."""

UseTemplate: TypeAlias = bool | Literal["auto"]
"""True: texts go through the chat template. "auto": if the tokenizer has a template."""


@runtime_checkable
class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that `generate` calls."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


def prompt_ids(
    tokenizer: Tokenizer,
    inputs: Any,
    attention_mask: Tensor | None = None,
    *,
    chat: UseTemplate = "auto",
) -> list[Prompt]:
    """Returns token ids of texts, chats or ids, one sequence per input; see `generate`.

    Warns if the tokenizer does not know a word of a text or chat, and names it; also if texts are
    not put through the chat template that the tokenizer has.

    Raises:
        ValueError: If there is no input, the inputs are of different kinds, or a chat template is
            wanted and there is none.
    """
    if isinstance(inputs, str):
        return _ids_of_texts(tokenizer, [inputs], chat)
    if isinstance(inputs, Mapping | Tensor) or attention_mask is not None:
        return token_lists(inputs, attention_mask)
    if not len(inputs):
        raise ValueError("inputs must hold at least one text, chat or prompt, got none.")
    first: Any = inputs[0]
    if isinstance(first, str):
        return _ids_of_texts(tokenizer, [_require(str, text, "a text") for text in inputs], chat)
    if isinstance(first, Mapping):
        return _ids_of_chats(tokenizer, [inputs])
    if isinstance(first, Sequence) and first and isinstance(first[0], Mapping):
        return _ids_of_chats(tokenizer, inputs)
    if isinstance(first, int):
        return [inputs]
    return token_lists(inputs)


def _require(kind: type, value: Any, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"inputs must be of one kind, got {what} and {value!r}.")
    return value


def _ids_of_texts(tokenizer: Tokenizer, texts: Sequence[str], chat: UseTemplate) -> list[Prompt]:
    """Returns the ids of texts, each through the chat template or as it is; see `generate`."""
    if chat not in ("auto", True, False):
        raise ValueError(f'chat must be "auto", True or False, got {chat!r}.')
    special = tuple(getattr(tokenizer, "all_special_tokens", ()))
    is_done = [chat is not True and text.startswith(special) for text in texts]
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat is False and has_template and not all(is_done):
        warnings.warn(
            "The tokenizer has a chat template, and the texts are not put through it, as "
            "chat=False says; a model that was trained on chats may answer nothing.",
            stacklevel=4,
        )
    wants_template = has_template if chat == "auto" else chat
    if wants_template:
        texts = [
            text if done else _text_of_chat(tokenizer, [{"role": "user", "content": text}])
            for text, done in zip(texts, is_done, strict=True)
        ]
    return _ids_of(tokenizer, texts, [not wants_template and not done for done in is_done])


def _ids_of_chats(tokenizer: Tokenizer, chats: Sequence[Any]) -> list[Prompt]:
    texts = [_text_of_chat(tokenizer, chat) for chat in chats]
    return _ids_of(tokenizer, texts, [False] * len(texts))


def _ids_of(
    tokenizer: Tokenizer, texts: Sequence[str], adds_special: Sequence[bool]
) -> list[Prompt]:
    """Returns token ids; a text that a template has written has its special tokens already."""
    prompts: list[Prompt] = [
        list(tokenizer(text, add_special_tokens=adds)["input_ids"])
        for text, adds in zip(texts, adds_special, strict=True)
    ]
    unknown = unknown_words(tokenizer, texts, prompts)
    if unknown.words:
        warnings.warn(str(unknown), stacklevel=5)
    return prompts


def _text_of_chat(tokenizer: Tokenizer, chat: Any) -> str:
    for message in chat:
        keys = set(_require(Mapping, message, "a chat"))
        if not {"role", "content"} <= keys:
            raise ValueError(
                f'A message of a chat must have "role" and "content", got {sorted(keys)}.'
            )
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "A chat must be given with a tokenizer that has a chat template, and this one has "
            "none. Pass texts instead, without chat=True."
        )
    text: str = tokenizer.apply_chat_template(
        list(chat), add_generation_prompt=True, tokenize=False
    )
    return text


def require_tokenizer(tokenizer: object) -> None:
    """Raises ValueError unless an object has the methods of a tokenizer."""
    if isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer must be the tokenizer that load_model returns, got {tokenizer!r}."
        )
