"""Text that is sent piece by piece is the text of the whole answer."""

import pytest

from dllm_decode.text.prose import Prose


class Bytes:
    """A byte-level tokenizer: token n is byte n, and token 256 is special."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        special = "" if skip_special_tokens else "<s>"
        runs = "".join(chr(token) for token in token_ids).split(chr(256))
        return special.join(run.encode("latin-1").decode("utf-8", "replace") for run in runs)

    def apply_chat_template(
        self, conversation: object, *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        raise NotImplementedError


@pytest.mark.parametrize("step", [1, 2, 3, 7])
@pytest.mark.parametrize("stops", [[], ["stop"], ["🙂!", "xx"], ["n", "never"]])
@pytest.mark.parametrize("text", ["", "añb", "🙂🙂!🙂", "a ststop b", "x xy xx", "�ok"])
def test_the_pieces_are_the_whole(text: str, stops: list[str], step: int) -> None:
    prose, tokens = Prose(Bytes(), stops), list(text.encode())
    pieces = [prose.more(tokens[:length]) for length in range(0, len(tokens), step)]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    full_text = prose.whole(tokens)
    assert "".join(pieces) + prose.rest(tokens) == full_text
    assert not any(stop in full_text for stop in stops)
    assert Bytes().decode(prose.kept(tokens)).startswith(full_text)


def test_the_tokens_that_are_kept_end_with_the_stop_string() -> None:
    prose = Prose(Bytes(), ["st"])
    assert prose.kept(list(b"a stop st")) == list(b"a st")
    assert prose.kept(list(b"a s")) == list(b"a s")


def test_a_stop_string_may_be_a_special_token() -> None:
    """The row ended at the special token, but the text that was sent went on."""
    prose, tokens = Prose(Bytes(), ["<s>"]), [*b"ab", 256, *b"cd"]
    assert prose.stops(tokens)
    assert prose.kept(tokens) == tokens[:3]
    assert [prose.more(tokens[:2]), prose.more(tokens), prose.rest(tokens)] == ["ab", "", ""]
    assert prose.whole(tokens) == "ab"


def test_a_stop_string_may_have_text_and_a_special_token() -> None:
    """The text of the stop string had stayed in the answer."""
    for string, text in (("b<s>", "a"), ("ab<s>c", ""), ("<s>c", "ab"), ("b<s>x", "abcd")):
        prose, tokens = Prose(Bytes(), [string]), [*b"ab", 256, *b"cd"]
        pieces = [prose.more(tokens[:length]) for length in range(1, 6)]
        assert "".join(pieces) + prose.rest(tokens) == prose.whole(tokens) == text
