"""The special tokens in a prompt, and the end of an answer's text."""

import re
from dataclasses import dataclass, field

import pytest

from eval.lm_harness.generation import Generation
from eval.lm_harness.text import Codec

WORDS = ("<bos>", "<eos>", "<turn>", "a", "b", "c", "\n")
BOS, EOS, TURN, A, B, C, LINE = range(7)


@dataclass
class Words:
    """A tokenizer of words that begins every text with <bos>, and whose template does too."""

    chat_template: str | None = "<bos><turn>"
    bos_token_id: int | None = BOS
    name_or_path: str = "some/words"
    all_special_ids: list[int] = field(default_factory=lambda: [BOS, EOS, TURN])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [WORDS.index(word) for word in re.findall(r"<\w+>|[abc\n]", text)]
        return [BOS, *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        ids = [i for i in token_ids if not skip_special_tokens or i not in self.all_special_ids]
        return " ".join(WORDS[i] for i in ids).replace(" \n", "\n").replace("\n ", "\n")

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> str:
        assert not tokenize
        assert add_generation_prompt != continue_final_message
        text = (self.chat_template or "") + " ".join(turn["content"] for turn in conversation)
        return f"{text} <turn>" if add_generation_prompt else text


def test_a_plain_prompt_gets_the_tokenizers_special_tokens_once() -> None:
    codec = Codec(Words(), EOS)
    assert codec.prompt("a b") == [BOS, A, B]
    assert codec.prompt("<bos> a b") == [BOS, A, B]
    assert codec.encode("a", add_special_tokens=False) == [A]
    assert codec.encode("<bos> a", add_special_tokens=True) == [BOS, BOS, A]
    assert codec.prompt("") == [BOS]


@pytest.mark.parametrize(("template", "head"), [("<bos><turn>", [BOS, TURN]), ("c ", [C])])
def test_the_chat_template_writes_all_special_tokens(template: str, head: list[int]) -> None:
    """Also a template that begins with no special token, whose text looks like any other."""
    codec = Codec(Words(chat_template=template), EOS)
    text = codec.render([{"role": "user", "content": "a b"}], add_generation_prompt=True)
    assert codec.prompt(text) == [*head, A, B, TURN]
    assert codec.pair(text, "c") == ([*head, A, B, TURN], [C])
    begun = codec.render([{"role": "assistant", "content": "a"}], add_generation_prompt=False)
    assert codec.prompt(begun) == [*head, A]


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("a", " b c", ([BOS, A], [B, C])),
        ("a  ", "b", ([BOS, A], [B])),
        ("", "<bos> b", ([BOS], [B])),
        ("a", "", ([BOS, A], [])),
    ],
)
def test_a_continuation_is_encoded_behind_its_context(
    context: str, continuation: str, expected: tuple[list[int], list[int]]
) -> None:
    assert Codec(Words(), EOS).pair(context, continuation) == expected
    # EOS comes before a text if the tokenizer has no BOS.
    assert Codec(Words(bos_token_id=None), EOS).pair("", "a") == ([EOS], [A])


@pytest.mark.parametrize(
    ("tokens", "until", "text"),
    [
        ([A, B, C], None, "a b c"),
        ([A, B, C], ["", "nothing"], "a b c"),
        # The text is cut, as in the server, which leaves the space.
        ([A, B, C], ["c", "b"], "a "),
        ([A, LINE, B], "\n", "a"),
        ([A, TURN, B], [], "a b"),
        # A special token leaves no trace in the text, and still ends it.
        ([A, TURN, B], ["<turn>"], "a"),
        ([A, B, LINE, C, TURN], ["<turn>", "c"], "a b\n"),
        ([A, B, C, A], ["c a", "b c"], "a "),
    ],
)
def test_an_answer_ends_at_a_stop_string(tokens: list[int], until: object, text: str) -> None:
    generation = Generation.of({"until": until}, block_length=8)
    assert Codec(Words(), EOS).answer(tokens, generation) == text
