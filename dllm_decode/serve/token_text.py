"""The text and the bytes of single tokens."""

from typing import Any

from dllm_decode.serve.errors import writable
from dllm_decode.text.prose import UNFINISHED


def text_and_bytes(tokenizer: Any, token: int) -> tuple[str, bytes]:
    r"""Returns the text of a token and its bytes.

    A token of a byte-level tokenizer that ends or begins within a character is named as OpenAI
    names it, such as `bytes:\xe2\x82`.
    """
    text = writable(tokenizer.decode([token]))
    content = text.encode()
    if UNFINISHED not in text:
        return text, content
    piece = tokenizer.convert_ids_to_tokens([token])[0]
    if not set(piece) <= set(_BYTES):
        return text, content
    raw = bytes(_BYTES[character] for character in piece)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + raw.decode(errors="backslashreplace"), raw
    # The token is this character itself, not a part of another one.
    return text, content


def _bytes() -> dict[str, int]:
    """Returns the byte that each character of byte-level tokenizers means, as in GPT-2."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(shown))
    byte_of = {chr(byte): byte for byte in shown}
    return byte_of | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _bytes()
