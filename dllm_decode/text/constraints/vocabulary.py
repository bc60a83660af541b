"""The text of each token, in bytes, by the rules of its tokenizer."""

import json
import random
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

# Byte-level tokenizers write each byte as one visible character, as GPT-2 does.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = sorted(set(range(256)) - set(_SHOWN))
_BYTES = {chr(byte): byte for byte in _SHOWN}
_BYTES |= {chr(256 + number): byte for number, byte in enumerate(_OTHERS)}


@dataclass(frozen=True)
class Vocabulary:
    """The texts of tokens. An answer's text is that of its first token, then those of the others.

    Attributes:
        first: Text of each token at the beginning of an answer; `None` if it is part of no text.
        later: Text of each token after others; `None` likewise.
        eos_ids: Tokens that end an answer.
        digest: SHA-256 of the other fields.
    """

    first: tuple[bytes | None, ...] = field(compare=False)
    later: tuple[bytes | None, ...] = field(compare=False)
    eos_ids: tuple[int, ...] = field(compare=False)
    digest: str

    @staticmethod
    def of(
        first: list[bytes | None], later: list[bytes | None], eos_ids: tuple[int, ...]
    ) -> "Vocabulary":
        """Returns a vocabulary with its digest."""
        digest = sha256(repr(eos_ids).encode())
        for text in [*first, *later]:
            digest.update(b"-" if text is None else b"%d:%b" % (len(text), text))
        return Vocabulary(tuple(first), tuple(later), eos_ids, digest.hexdigest())


@lru_cache(maxsize=8)
def read_vocabulary(
    tokenizer: Any, vocab_size: int, eos_ids: tuple[int, ...], banned_ids: tuple[int, ...]
) -> Vocabulary:
    """Returns the texts of a model's tokens.

    Args:
        tokenizer: A tokenizer of transformers that the library tokenizers runs.
        vocab_size: Number of token ids, V.
        eos_ids: Tokens that end an answer.
        banned_ids: Tokens that are never proposed, [MASK] among them.

    Raises:
        ValueError: If the text of an answer is not the texts of its tokens, one after the other.
    """
    decoder = _TokenDecoder.of(tokenizer)
    special = {*tokenizer.all_special_ids, *eos_ids, *banned_ids}
    added = tokenizer.added_tokens_decoder
    special |= {token for token, added_token in added.items() if added_token.special}
    size = min(vocab_size, len(tokenizer))
    pieces = tokenizer.convert_ids_to_tokens(list(range(size)))
    first: list[bytes | None] = [None] * vocab_size
    later: list[bytes | None] = [None] * vocab_size
    for token, piece in enumerate(pieces):
        if piece is None or token in special:
            continue
        text = decoder.text_of(piece)
        later[token] = decoder.separator + text or None
        first[token] = text.removeprefix(b" ") if decoder.strips_first else text
    vocabulary = Vocabulary.of(first, later, eos_ids)
    _require_texts(tokenizer, vocabulary)
    return vocabulary


@dataclass(frozen=True)
class _TokenDecoder:
    """How a tokenizer joins pieces into a text.

    Attributes:
        is_byte_level: Each character of a piece is a byte.
        space: The character that pieces have in place of a space; empty if there is none.
        reads_bytes: A piece such as <0x0A> is a byte.
        separator: Text between two pieces.
        strips_first: A space at the beginning of the text is removed.
    """

    is_byte_level: bool = False
    space: str = ""
    reads_bytes: bool = False
    separator: bytes = b""
    strips_first: bool = False

    @staticmethod
    def of(tokenizer: Any) -> "_TokenDecoder":
        """Returns the rule of a tokenizer.

        Raises:
            ValueError: If the tokenizer's rule is not supported.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise _unknown(type(tokenizer).__name__)
        spec = json.loads(backend.to_str())["decoder"]
        if spec is None:
            return _TokenDecoder(separator=b" ")
        steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
        rules: dict[str, Any] = {}
        for step in steps:
            rules |= _rule_of(step)
        return _TokenDecoder(**rules)

    def text_of(self, piece: str) -> bytes:
        """Returns the text of a piece that follows another one, without the separator."""
        if self.is_byte_level and set(piece) <= _BYTES.keys():
            return bytes(_BYTES[character] for character in piece)
        if self.reads_bytes and len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        return (piece.replace(self.space, " ") if self.space else piece).encode()


def _rule_of(step: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of `_TokenDecoder` that one step of a decoder sets."""
    match step:
        case {"type": "ByteLevel"}:
            return {"is_byte_level": True}
        case {"type": "ByteFallback"}:
            return {"reads_bytes": True}
        case {"type": "Fuse"}:
            return {}
        case {"type": "Metaspace", "replacement": space}:
            return {"space": space, "strips_first": step.get("prepend_scheme") != "never"}
        case {"type": "Replace", "pattern": {"String": space}, "content": " "}:
            return {"space": space}
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return {"strips_first": True}
    raise _unknown(step["type"])


def _require_texts(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Raises ValueError unless the tokenizer decodes random tokens to the vocabulary's texts."""
    draw = random.Random(0)
    tokens = [token for token, text in enumerate(vocabulary.later) if text is not None]
    for _ in range(50 if tokens else 0):
        drawn = draw.choices(tokens, k=draw.randint(1, 12))
        texts = [vocabulary.first[drawn[0]], *(vocabulary.later[token] for token in drawn[1:])]
        try:
            expected = b"".join(text or b"" for text in texts).decode()
        except UnicodeDecodeError:
            continue
        if tokenizer.decode(drawn, skip_special_tokens=True) != expected:
            raise _unknown(f"one that makes {tokenizer.decode(drawn)!r} of {expected!r}")


def _unknown(got: str) -> ValueError:
    return ValueError(
        "A constraint needs a tokenizer whose texts are those of its tokens one after the other: "
        f"byte-level BPE, SentencePiece, or words with spaces between them, got {got}."
    )
