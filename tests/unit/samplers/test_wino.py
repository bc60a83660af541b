"""Wino: what is committed and taken back, the bound, and the copy that verifies."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import HashModel

from dllm_decode import CachePolicy, ForwardInputs, StepEvent, decode
from dllm_decode.caches import PrefixCache
from dllm_decode.models import new_llada
from samplers import ConfidenceThreshold, View, Wino
from samplers.logits.summary import Summary
from samplers.wino import Committed

MASK_ID = 9


def view_of(
    tokens: list[int], confidences: list[float], leave_one_out: list[float], vocab_size: int = 10
) -> View:
    """One row; position i proposes token i % 8 with its confidence."""
    ids = torch.tensor([tokens])
    share = torch.tensor(confidences, dtype=torch.float64)
    logits = ((1 - share) / (vocab_size - 2)).log()[:, None].repeat(1, vocab_size)
    logits[torch.arange(len(tokens)), torch.arange(len(tokens)) % 8] = share.log()
    logits[:, MASK_ID] = -torch.inf
    masked = ids == MASK_ID
    return View(
        tokens=ids,
        computed=Summary(logits[None]),
        masked=masked,
        eligible=masked,
        start=0,
        gen_length=len(tokens),
        leave_one_out=torch.tensor([leave_one_out], dtype=torch.float64).masked_fill(masked, 0.0),
    )


def columns(where: Tensor | None) -> list[int]:
    assert where is not None
    return where[0].nonzero().squeeze(-1).tolist()


def after(given: list[int], last_accepts: int) -> Committed:
    """The state of a row in which some positions were given."""
    return Committed(torch.tensor([[bool(value) for value in given]]), torch.tensor([last_accepts]))


def test_what_exceeds_the_low_threshold_goes_in_and_equality_does_not() -> None:
    view = view_of([MASK_ID] * 4, [0.5, 0.75, 0.500001, 0.3], [0.0] * 4)
    decision, _ = Wino(low_threshold=0.5).step(view, Wino().init(view))
    assert columns(decision.commit) == [1, 2]


def test_the_single_best_goes_in_where_none_exceeds_it() -> None:
    view = view_of([MASK_ID] * 3, [0.2, 0.4, 0.4], [0.0] * 3)
    decision, _ = Wino().step(view, Wino().init(view))
    assert columns(decision.commit) == [1]


@pytest.mark.parametrize(("num_masks", "limit"), [(4, 4), (6, 5), (10, 7), (20, 14), (40, 20)])
def test_no_step_commits_more_than_its_limit(num_masks: int, limit: int) -> None:
    confidences = [0.9 + 0.001 * i for i in range(num_masks)]
    view = view_of([MASK_ID] * num_masks, confidences, [0.0] * num_masks)
    decision, _ = Wino().step(view, Wino().init(view))
    assert columns(decision.commit) == list(range(num_masks - limit, num_masks))


def test_weak_tokens_go_out_and_equality_with_the_high_threshold_stays() -> None:
    view = view_of([0, 1, 2, MASK_ID, MASK_ID], [0.9] * 5, [0.75, 0.7, 0.1, 0.0, 0.0])
    decision, _ = Wino(high_threshold=0.75).step(view, after([0] * 5, 4))
    assert columns(decision.remask) == [1, 2]


def test_fewer_go_out_than_the_last_step_let_in_the_weakest_first() -> None:
    view = view_of([0, 1, 2, MASK_ID, MASK_ID], [0.9] * 5, [0.3, 0.1, 0.2, 0.0, 0.0])
    for last_accepts, expected in [(1, []), (2, [1]), (3, [1, 2]), (4, [0, 1, 2])]:
        decision, _ = Wino().step(view, after([0] * 5, last_accepts))
        assert columns(decision.remask) == expected


def test_a_step_that_lets_in_one_token_takes_none_back() -> None:
    view = view_of([0, 1, 2, MASK_ID, MASK_ID], [0.9, 0.9, 0.9, 0.1, 0.2], [0.0] * 5)
    decision, _ = Wino().step(view, after([0] * 5, 4))
    assert columns(decision.commit) == [4]
    assert columns(decision.remask) == []


def test_given_tokens_do_not_go_out_and_take_no_place_of_others() -> None:
    view = view_of([0, 1, 2, MASK_ID, MASK_ID], [0.9] * 5, [0.1, 0.3, 0.2, 0.0, 0.0])
    decision, _ = Wino().step(view, after([1, 0, 0, 0, 0], 2))
    assert columns(decision.remask) == [2]


def test_the_quota_starts_anew_with_each_block() -> None:
    view = view_of([MASK_ID] * 3, [0.9] * 3, [0.0] * 3)
    _, state = Wino().step(view, Wino().init(view))
    assert isinstance(state, tuple)
    assert state[1].tolist() == [3]
    fresh = Wino().init(view_of([4, MASK_ID, MASK_ID], [0.9] * 3, [0.0] * 3))
    assert isinstance(fresh, tuple)
    assert fresh[0].tolist() == [[True, False, False]]
    assert fresh[1].tolist() == [1]


def play(length: int, confidences: Callable[[int], list[float]], trust: float) -> list[int]:
    """Decodes a block against a verifier of constant trust; returns the masks left by each step."""
    sampler = Wino()
    tokens = [MASK_ID] * length
    state: Any = None
    left = []
    while MASK_ID in tokens:
        view = view_of(tokens, confidences(len(left)), [trust] * length)
        decision, state = sampler.step(view, sampler.init(view) if not left else state)
        for column in columns(decision.commit):
            tokens[column] = column % 8
        for column in columns(decision.remask):
            tokens[column] = MASK_ID
        left.append(tokens.count(MASK_ID))
        assert len(left) <= length
    return left


@pytest.mark.parametrize("length", [1, 2, 7, 32, 128])
@pytest.mark.parametrize("seed", range(3))
def test_a_verifier_that_trusts_nothing_cannot_keep_a_block_from_ending(
    length: int, seed: int
) -> None:
    """Each step takes back less than the last one committed, so n steps leave n tokens for good."""
    generator = torch.Generator().manual_seed(seed)

    def confidences(step: int) -> list[float]:
        # Alternately much and little goes in, or at random.
        high = 0.99 if seed == 0 or (seed == 1 and step % 2 == 0) else 0.1
        noise = torch.rand(length, generator=generator).tolist()
        return noise if seed == 2 else [high - 1e-4 * value for value in noise]

    left = play(length, confidences, trust=0.0)
    assert all(masks <= length - step for step, masks in enumerate(left, 1))
    if length > 7 and seed == 0:
        assert len(left) > 10, "nothing was taken back"


def test_tokens_of_the_last_step_are_never_verified() -> None:
    left = play(4, lambda step: [0.99] * 4, trust=0.0)
    assert left == [0]


# ---- the copy that verifies ----


class Watched:
    """Passes calls on and keeps their inputs."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.seen: list[ForwardInputs] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.seen.append(inputs)
        return self.model.predict(inputs)


def look(prompts: list[list[int]], templates: list[list[int]] = []) -> tuple[View, ForwardInputs]:  # noqa: B006
    views: list[View] = []
    model = Watched(HashModel())
    decode(
        model,  # type: ignore[arg-type]
        prompts,
        Wino(),
        gen_length=8,
        block_length=4,
        templates=templates,
        stop_at_eos=False,
        observers=[lambda event: views.append(event.view)],
    )
    return views[0], model.seen[0]


def test_the_copy_stands_at_the_same_positions_and_hides_only_the_token_it_verifies() -> None:
    _, inputs = look([[5, 6, 7], [8]])
    length, width = 11, 4
    assert inputs.tokens.shape == (2, length + width)
    assert (inputs.tokens[:, length:] == 23).all()
    assert inputs.positions[:, length:].tolist() == [[3, 4, 5, 6], [1, 2, 3, 4]]
    assert inputs.attend is not None
    assert not inputs.attend[:, :length, length:].any(), "the canvas sees the copy"
    assert inputs.attend[:, length:, length:].all()
    hidden = ~inputs.attend[:, length:, :length]
    for row, prompt in enumerate([3, 1]):
        for copy in range(width):
            # The columns after the row's end are nobody's.
            unseen = [prompt + copy, *range(prompt + 8, length)]
            assert hidden[row, copy].nonzero().squeeze(-1).tolist() == unseen


def test_a_token_does_not_influence_its_own_verification_but_that_of_others() -> None:
    """With one layer; in deeper ones what other columns saw comes through, as in the paper."""
    model = new_llada(
        vocab_size=32, hidden_size=16, num_layers=1, num_heads=2, mlp_hidden_size=32,
        mask_id=30, eos_ids=(31,),
    ).double()  # fmt: skip
    for weight in model.parameters():
        weight.data.mul_(4.0)

    def shadows(token: int) -> Tensor:
        views: list[View] = []

        def watch(event: StepEvent) -> None:
            views.append(event.view)

        template = [[1, token, 3, 30, 30, 30]]
        decode(model, [[5, 6]], Wino(), gen_length=6, block_length=6, templates=template,
               stop_at_eos=False, observers=[watch])  # fmt: skip
        leave_one_out = views[0].leave_one_out
        assert leave_one_out is not None
        return leave_one_out[0]

    before, changed = shadows(2), shadows(7)
    assert before[1] != changed[1], "another token has another probability"
    assert before[0] != changed[0]
    assert before[2] != changed[2]
    # The distribution behind position 1 is the same: probabilities of all tokens sum to one.
    total = sum(shadows(token)[1] for token in range(32) if token != 30)
    assert float(total) == pytest.approx(1.0)


def test_the_canvas_is_predicted_as_if_there_were_no_copy() -> None:
    view, _ = look([[5, 6, 7]])
    seen: list[View] = []
    decode(HashModel(), [[5, 6, 7]], ConfidenceThreshold(), gen_length=8, block_length=4,
           observers=[lambda event: seen.append(event.view)])  # fmt: skip
    assert torch.equal(view.logits, seen[0].logits)


def test_query_positions_count_the_copy() -> None:
    out = decode(HashModel(), [[5, 6, 7]], Wino(), gen_length=8, block_length=4)
    assert out.query_positions.tolist() == [int(out.nfe) * (3 + 8 + 4)]


@pytest.mark.parametrize(
    ("model", "cache", "message"),
    [
        (HashModel(logit_shift=1, name="shifted"), None, "got shifted. Use a model such as LLaDA"),
        (HashModel(causal_block_length=4, name="by block"), None, "got by block. Use"),
        (HashModel(), PrefixCache(), r"got PrefixCache\(.*Use NoCache"),
    ],
)
def test_what_wino_cannot_work_with_is_refused_by_name_before_any_forward(
    model: HashModel, cache: CachePolicy | None, message: str
) -> None:
    watched = Watched(model)
    options = {} if cache is None else {"cache": cache}
    with pytest.raises(ValueError, match=message):
        decode(watched, [[1]], Wino(), gen_length=8, block_length=4, **options)  # type: ignore[arg-type]
    assert not watched.seen
