"""Texts and chats become token ids, through the tokenizer and its chat template."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from dllm_decode.core.prompts import Array, Prompt, Prompts, token_lists
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.text.unknown_words import unknown_words

Message: TypeAlias = Mapping[str, Any]
"""One turn of a chat: its "role", and its "content": a text, or parts {"type": "text", "text": ...}
as transformers has them."""

Input: TypeAlias = str | Message | Sequence[Message] | Prompt
"""A text, a turn of the one chat, a chat, or token ids."""

Inputs: TypeAlias = str | Iterable[Input] | Prompts
"""A text, texts, a chat, chats, or token ids in any form that `decode` takes; also a generator."""

ChatMode: TypeAlias = bool | Literal["auto"]
"""True: texts go through the chat template. "auto": if the tokenizer has a template."""


_ROLES = ("system", "developer", "user", "assistant", "tool")


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
    attention_mask: Any = None,
    *,
    chat: ChatMode = "auto",
) -> list[Prompt]:
    """Returns token ids of texts, chats or ids, one sequence per input; see `generate`.

    Raises:
        ValueError: If there is no input, the inputs are of different kinds, a text cannot be
            encoded, or a chat template is wanted and there is none.
    """
    is_array = isinstance(inputs, Array | Mapping)
    listed: Any = [inputs] if is_array or isinstance(inputs, str) else _list_of(inputs)
    first = listed[0]
    is_text = isinstance(first, str)
    if chat != "auto" and not is_text:
        raise ValueError(f"chat must be left out unless texts are given, got chat={chat!r}.")
    if is_array:
        return _list_of(token_lists(inputs, attention_mask))
    is_chat = isinstance(first, Mapping)
    is_chats = isinstance(first, Sequence) and len(first) > 0 and isinstance(first[0], Mapping)
    if attention_mask is not None and (is_text or is_chat or is_chats):
        raise ValueError(
            f"attention_mask must be given with token ids, got {'texts' if is_text else 'chats'}; "
            "leave it out, since texts are tokenized here, without padding."
        )
    if isinstance(first, int | np.integer):
        return token_lists({"input_ids": listed, "attention_mask": attention_mask})
    if not (is_text or is_chat or is_chats):
        return token_lists(listed, attention_mask)
    if is_text:
        texts, adds_special = _texts_of(tokenizer, listed, chat)
        questions = listed
    else:
        chats = [listed] if is_chat else listed
        texts = [_text_of_chat(tokenizer, turns) for turns in chats]
        adds_special = [False] * len(texts)
        questions = [_turn(turns[-1])["content"] for turns in chats]
    _warn_of_blank(questions)
    prompts: list[Prompt] = [
        text_ids(tokenizer, text, add_special_tokens=adds)
        for text, adds in zip(texts, adds_special, strict=True)
    ]
    warn_of_unknown_words(tokenizer, texts, prompts)
    return prompts


def _warn_of_blank(questions: Sequence[Any]) -> None:
    """Warns of texts without a character that is printed, and names their places."""
    places = [str(row) for row, text in enumerate(questions) if not str(text).strip()]
    if places:
        warn_user(
            f"inputs must hold a question each, got a blank text in row {', '.join(places)}; the "
            "model may answer anything."
        )


def text_ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Returns the token ids of a text.

    Raises:
        ValueError: If it cannot be encoded: half of a surrogate pair is no character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"A text must be one that UTF-8 can encode, got {text[error.start]!a} at character "
            f"{error.start}, which is half of a surrogate pair."
        ) from None
    return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def warn_of_unknown_words(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[Prompt]
) -> None:
    """Warns of words in the texts that the tokenizer does not know, and names the words."""
    unknown = unknown_words(tokenizer, texts, prompts)
    if unknown.words:
        warn_user(str(unknown))


def _list_of(inputs: Any) -> list[Any]:
    """Returns inputs as a list; a generator is read to its end."""
    if isinstance(inputs, bytes | bytearray) or not isinstance(inputs, Iterable):
        raise ValueError(f"inputs must be texts, chats or token ids, got {inputs!r}.")
    listed = list(inputs)
    if not listed:
        raise ValueError("inputs must hold at least one text, chat or prompt, got none.")
    return listed


def _require_kind(kind: type, value: Any, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"inputs must be of one kind, got {what} and {value!r}.")
    return value


def _texts_of(
    tokenizer: Tokenizer, inputs: Sequence[Any], chat: ChatMode
) -> tuple[list[str], list[bool]]:
    """Returns the texts, with the chat template if wanted, and which need special tokens."""
    if chat not in ("auto", True, False):
        raise ValueError(f'chat must be "auto", True or False, got {chat!r}.')
    texts: list[str] = [_require_kind(str, text, "a text") for text in inputs]
    special = tuple(getattr(tokenizer, "all_special_tokens", ()))
    is_done = [chat is not True and text.startswith(special) for text in texts]
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat is False and has_template and not all(is_done):
        warn_user(
            "The tokenizer has a chat template, and the texts are not put through it, as "
            "chat=False says; a model that was trained on chats may answer nothing."
        )
    wants_template = has_template if chat == "auto" else chat
    if wants_template:
        texts = [
            text if done else _text_of_chat(tokenizer, [{"role": "user", "content": text}])
            for text, done in zip(texts, is_done, strict=True)
        ]
    return texts, [not wants_template and not done for done in is_done]


def _text_of_chat(tokenizer: Tokenizer, chat: Any) -> str:
    if not _require_kind(Sequence, chat, "a chat"):
        raise ValueError("Every chat must have at least one message, got [].")
    turns = [_turn(message) for message in chat]
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "A chat must be given with a tokenizer that has a chat template, and this one has "
            "none. Pass texts instead, without chat=True."
        )
    text: str = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return text


def _turn(message: Any) -> Message:
    """Returns a turn whose content is a text: parts of a content are joined."""
    keys = set(_require_kind(Mapping, message, "a chat"))
    if not {"role", "content"} <= keys:
        raise ValueError(f'A message of a chat must have "role" and "content", got {sorted(keys)}.')
    if message["role"] not in _ROLES:
        raise ValueError(
            f"The role of a message must be one of {', '.join(_ROLES)}, got {message['role']!r}."
        )
    content = message["content"]
    if not isinstance(content, list | tuple):
        return {**message}
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(
                f'A part of a content must be {{"type": "text", "text": ...}}, got {part!r}; '
                "the models here read text alone."
            )
    return {**message, "content": "".join(part["text"] for part in content)}


def require_tokenizer(tokenizer: object) -> None:
    """Raises ValueError unless an object has the methods of a tokenizer."""
    if isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer must be the tokenizer that load_model returns, got {tokenizer!r}."
        )
