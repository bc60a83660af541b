"""Distributions over answers against published numbers, and the model that knows them."""

import math

import pytest
import torch

from dllm_decode import ForwardInputs, StepEvent, decode
from eval.commands import evaluate as main
from eval.oracle.joint import Joint, left_to_right
from eval.oracle.oracle import OracleModel
from eval.tasks.lists import ListQuestion, valid_outputs
from samplers import ConfidenceThreshold, FixedSchedule

WORDS = {"replace_any": "new", "insert_any": "new", "remove_any": "", "shuffle": ""}


def listed(keyword: str, n: int) -> Joint:
    items = tuple(f"item{i}" for i in range(n))
    return Joint.uniform(valid_outputs(ListQuestion(keyword, items, word=WORDS[keyword])))


# Total correlation in bits and one-step accuracy, to the digits in which the table was published.
TABLE = {
    3: {"replace_any": (1.170, 0.4444), "remove_any": (0.252, 0.8889),
        "insert_any": (2.623, 0.1875), "shuffle": (2.170, 0.2222)},
    6: {"replace_any": (1.315, 0.4019), "remove_any": (1.552, 0.4938),
        "insert_any": (4.880, 0.0560), "shuffle": (6.018, 0.0154)},
}  # fmt: skip


@pytest.mark.parametrize("n", TABLE)
@pytest.mark.parametrize("keyword", WORDS)
def test_accuracies_and_total_correlations_are_the_closed_forms(keyword: str, n: int) -> None:
    joint = listed(keyword, n)
    bits, published = TABLE[n][keyword]
    assert joint.total_correlation == pytest.approx(bits, abs=6e-4)
    assert float(joint.accuracy(left_to_right(joint.length, joint.length))) == pytest.approx(
        published, abs=6e-5
    )


@pytest.mark.parametrize("sizes", [[5], [2, 2, 1], [1, 1, 1, 1, 1]])
@pytest.mark.parametrize("keyword", WORDS)
def test_accuracy_is_at_least_two_to_minus_the_lost_bits(keyword: str, sizes: list[int]) -> None:
    n = 4 if keyword == "insert_any" else 6 if keyword == "remove_any" else 5
    joint = listed(keyword, n)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    partition = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    accuracy, bound = float(joint.accuracy(partition)), 2 ** -joint.lost_bits(partition)
    assert accuracy >= bound - 1e-12
    if keyword == "shuffle" or (keyword == "replace_any" and len(sizes) == 1):
        assert accuracy == pytest.approx(bound)
    if max(sizes) == 1:
        assert joint.accuracy(partition) == 1
        assert bound == pytest.approx(1.0)


def test_the_model_gives_the_exact_conditionals_of_ragged_rows() -> None:
    """Row 0 is given the new item at position 1; row 1 is given nothing, after a longer prompt."""
    joint = listed("replace_any", 3)
    model = OracleModel(joint, noise=0.0)
    seen: list[StepEvent] = []
    templates = [[model.mask_id, next(iter(joint.answers))[0]], []]
    decode(
        model, [model.prompt(0), model.prompt(1, length=6)], FixedSchedule(1), gen_length=5,
        block_length=5, templates=templates, observers=[seen.append],
    )  # fmt: skip
    probabilities = seen[0].view.logits.exp()
    # The first answer is (new, item1, item2), so its first symbol, 0, is the new item.
    knowing = [answer for answer in joint.answers if answer[1] == 0]
    for row, answers in enumerate((knowing, list(joint.answers))):
        for position, symbols in enumerate(zip(*answers, strict=True)):
            share = [symbols.count(symbol) / len(answers) for symbol in range(4)]
            assert probabilities[row, position, :4].tolist() == pytest.approx(share)
    assert (probabilities[:, 3:, model.eos_ids[0]] == 1.0).all()


def test_rows_that_nothing_agrees_with_are_uniform() -> None:
    seen: list[StepEvent] = []
    model = OracleModel(Joint.uniform([(0, 1, 0), (1, 0, 1)]))
    out = decode(
        model, [model.prompt(0)], FixedSchedule(1), gen_length=3, block_length=3,
        templates=[[0, 0]], observers=[seen.append],
    )  # fmt: skip
    assert seen[-1].view.confidence[0, 2].item() == pytest.approx(1 / 3)
    assert not model.is_right(out.tokens[0].tolist())


def test_without_noise_tied_positions_all_take_the_same_token() -> None:
    """Argmax of exact ties: every position of a shuffle picks one and the same item."""
    joint = listed("shuffle", 4)
    for noise, right in ((0.0, 0.0), (1e-9, 24 / 256)):
        model = OracleModel(joint, noise=noise)
        prompts = [model.prompt(i) for i in range(1000)]
        out = decode(model, prompts, FixedSchedule(1), gen_length=4, block_length=4)
        share = sum(model.is_right(row) for row in out.tokens.tolist()) / 1000
        assert share == pytest.approx(right, abs=4.5 * math.sqrt(right * (1 - right) / 1000))


def test_a_query_that_does_not_see_a_column_does_not_know_its_token() -> None:
    """A shadow query at a committed position gets the leave-one-out distribution."""
    model = OracleModel(Joint.uniform([(0, 1), (1, 0), (1, 1)]), noise=0.0)
    prompt = model.prompt(0)
    tokens = torch.tensor([[*prompt, 0, 1, model.mask_id]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 3]])
    attend = torch.ones(1, 6, 6, dtype=torch.bool)
    attend[0, 5, 3] = False
    attend[0, :5, 5] = False
    wanted = torch.tensor([[3, 4, 5]])
    probabilities = model.predict(
        ForwardInputs(tokens=tokens, positions=positions, wanted=wanted, attend=attend)
    ).exp()
    assert probabilities[0, 0, :2].tolist() == [1.0, 0.0]
    assert probabilities[0, 1, :2].tolist() == [0.0, 1.0]
    assert probabilities[0, 2, :2].tolist() == pytest.approx([0.5, 0.5])


def test_the_model_refuses_what_it_cannot_answer() -> None:
    model = OracleModel(listed("replace_any", 3))
    with pytest.raises(ValueError, match="own prompts"):
        decode(model, [[0, 1]], ConfidenceThreshold(), gen_length=3, block_length=3)
    with pytest.raises(ValueError, match=r"NoCache\(\)"):
        model.new_kv_cache(1, 1)
    with pytest.raises(ValueError, match="at least 3"):
        model.prompt(0, length=2)


def test_samplers_that_do_not_fit_are_refused_before_anything_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exact accuracies had been printed already, and samplers before the wrong one decoded."""
    samplers = ["--sampler", "FixedSchedule(1)", "--sampler", "AcceptAndRenoise()"]
    assert main(["oracle", "lists/shuffle?n=3", "--rows", "2", *samplers]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "needs a uniform-state model" in printed.err
