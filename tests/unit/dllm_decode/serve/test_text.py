"""Text that is sent piece by piece is the text of the whole answer."""

import pytest

from dllm_decode.serve.text import Prose


class Bytes:
    """A byte-level tokenizer: token n is byte n."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode("utf-8", "replace")

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
    whole = prose.whole(tokens)
    assert "".join(pieces) + prose.rest(tokens) == whole
    assert not any(stop in whole for stop in stops)
    assert Bytes().decode(prose.kept(tokens)).startswith(whole)


def test_the_tokens_that_are_kept_end_with_the_stop_string() -> None:
    prose = Prose(Bytes(), ["st"])
    assert prose.kept(list(b"a stop st")) == list(b"a st")
    assert prose.kept(list(b"a s")) == list(b"a s")
