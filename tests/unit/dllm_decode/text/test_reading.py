"""Typed reads in Python: on trained weights, and against exact conditionals."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from served import QUESTIONS
from tiny_models import BLOCK_CAUSAL, logprobs_of_columns, tiny

from dllm_decode import load_model, read
from eval.oracle.joint import Joint
from eval.oracle.oracle import OracleModel

MODEL, LOADED = load_model("mini")
TOKENIZER: Any = LOADED
QUESTION = QUESTIONS[0]
ANSWER = "emma now has 12 + 30 = [41|42] . after giving some away emma has 42 - 8 = [34|33|4 2] ."
# Not independent: the last symbol depends on both others.
JOINT = Joint(
    {
        (0, 1, 2): Fraction(3, 10), (0, 1, 0): Fraction(1, 10), (0, 2, 1): Fraction(1, 10),
        (1, 0, 2): Fraction(1, 5), (2, 2, 2): Fraction(3, 10),
    }
)  # fmt: skip


class Symbols:
    """A tokenizer whose words are the numbers of symbols."""

    bos_token_id = None
    eos_token_id = None

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, token_ids))

    def apply_chat_template(self, *_: object, **__: object) -> str:
        raise NotImplementedError


ORACLE = OracleModel(JOINT, noise=0.0)


def probabilities(text: str) -> list[list[float]]:
    choices = read(ORACLE, Symbols(), text, ORACLE.prompt(0))
    return [[answer.probability for answer in choice.answers] for choice in choices]


def chance(*symbols: int | None) -> float:
    """Returns the probability of all answers that agree with some symbols."""
    return float(
        sum(
            share
            for answer, share in JOINT.answers.items()
            if all(want in (None, symbol) for want, symbol in zip(symbols, answer, strict=True))
        )
    )


def test_one_token_has_the_model_s_probability_given_the_rest() -> None:
    (choice,) = probabilities("0 [1|2|0] [MASK]")
    expected = [chance(0, symbol, None) / chance(0, None, None) for symbol in (1, 2, 0)]
    assert choice == pytest.approx(expected, abs=1e-9)
    (last,) = probabilities("0 1 [0|2]")
    assert last == pytest.approx([0.25, 0.75], abs=1e-9)


def test_several_tokens_are_exact_where_the_conditionals_are_those_of_one_distribution() -> None:
    pairs, last = probabilities("[0 1|0 2|1 0] [2|1]")
    expected = [chance(0, 1, None), chance(0, 2, None), chance(1, 0, None)]
    assert pairs == pytest.approx(expected, abs=1e-9)
    assert last == pytest.approx([chance(None, None, 2), chance(None, None, 1)], abs=1e-9)


def test_several_choices_are_marginal_and_not_a_joint_probability() -> None:
    first, last = probabilities("[0|2] [MASK] [1|2]")
    assert first[0] * last[0] == pytest.approx(0.5 * 0.1, abs=1e-9)
    assert chance(0, None, 1) == pytest.approx(0.1)


def test_a_model_reads_what_it_would_write() -> None:
    total, rest = read(MODEL, TOKENIZER, ANSWER, QUESTION)
    assert (total.best, rest.best) == ("42", "34")
    assert [answer.text for answer in rest.answers] == ["34", "33", "4 2"]
    for choice in (total, rest):
        assert sum(answer.share for answer in choice.answers) == pytest.approx(1.0)
        assert sum(answer.probability for answer in choice.answers) <= 1.0 + 1e-6


def test_a_text_alone_is_read_too() -> None:
    (choice,) = read(MODEL, TOKENIZER, "emma has 12 [apples|ben] .")
    assert choice.best == "apples"
    with pytest.raises(ValueError, match="no token that texts begin with"):
        read(ORACLE, Symbols(), "0 [1|2] 0")


@pytest.mark.parametrize("prompt_length", range(1, 10))
def test_a_block_causal_model_is_read_after_a_prompt_of_any_length(prompt_length: int) -> None:
    """A text that began within a block and reached into the next one raised an IndexError."""
    model, prompt = tiny(BLOCK_CAUSAL), [*range(20, 20 + prompt_length)]
    mask, length = model.mask_id, model.causal_block_length
    text = [*prompt, 5, mask, 7, mask]
    # The last block is full of masks, as the model was trained.
    canvas = torch.tensor([*text, *[mask] * (-len(text) % length)])
    distribution = logprobs_of_columns(model, canvas)[prompt_length:].exp()
    choices = read(model, Symbols(), "5 [6|9] 7 [12|13]", prompt)
    read_probabilities = [[answer.probability for answer in choice.answers] for choice in choices]
    assert read_probabilities[0] == pytest.approx(distribution[1, [6, 9]].tolist(), abs=1e-9)
    assert read_probabilities[1] == pytest.approx(distribution[3, [12, 13]].tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("emma has 12", r"must have a choice, such as \[yes\|no\], got 'emma has 12'"),
        ("emma has [12|] apples", r"must have at least one token, got \[12\|\]"),
        ("emma has [12|12] apples", r"must differ in their tokens, got \[12\|12\]"),
        (5, r"A read must be a text with choices such as \[yes\|no\], got 5"),
    ],
)
@pytest.mark.usefixtures("no_checks_of_types")
def test_a_text_that_cannot_be_read_is_refused(text: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(MODEL, TOKENIZER, text, QUESTION)


def test_a_read_is_of_one_input() -> None:
    with pytest.raises(ValueError, match="read takes one input, got 2"):
        read(MODEL, TOKENIZER, ANSWER, [QUESTION, QUESTION])
