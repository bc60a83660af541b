"""Rows of one view at different places of their answers, with options of their own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import INSTANCES, OF_ONE_BLOCK_LENGTH, logits_of, raised, statistics
from torch import Tensor

from dllm_decode.caches.entry import entry_alone
from samplers import CreditDecoding, FixedSchedule, Klass, Prophet, Sampler, State, View
from samplers.facts import Fact
from samplers.logits.noise import row_keys
from samplers.logits.statistics import draw
from samplers.logits.summary import Summary
from samplers.logits.truncation import Truncation
from samplers.state import take_state
from samplers.view import Scope

DTYPES = (torch.float32, torch.float64)
SCOPES: tuple[Scope, ...] = ("block", "suffix", "answer")
V, MASK_ID = 12, 11

# A window inside the prompt, inside the answer, at its end, and of an answer that ends within
# the window; by row the window's first position, the answer's length and the temperature.
STARTS, GEN_LENGTHS = (-3, 40, 0, 16), (64, 96, 24, 20)
TEMPERATURES = (0.0, 0.7, 1.3, 0.0)

WIDER = (
    Prophet(FixedSchedule(3), gap="all"),
    Prophet(CreditDecoding(Klass(0.4, 0.05)), (2.0,), (), marker=(5,), answer_length=3),
    Prophet(Prophet(FixedSchedule(2), (3.0,), ()), (2.0,), (), gap="all", num_steps=12),
    CreditDecoding(Prophet(Klass(0.4, 0.05), (2.0,), (), answer_start=2, answer_length=4)),
)


def joined(
    width: int, block_length: int, block_starts: tuple[int, ...], dtype: torch.dtype, seed: int = 1
) -> View:
    """Four rows that differ in everything a row may have of its own."""
    generator = torch.Generator().manual_seed(seed)
    B = len(STARTS)
    columns = torch.arange(width)
    positions = torch.tensor(STARTS)[:, None] + columns
    gen_length, block_start = torch.tensor(GEN_LENGTHS), torch.tensor(block_starts)
    masked = torch.rand(B, width, generator=generator) < 0.7
    masked &= (positions >= 0) & (positions < gen_length[:, None])
    masked &= columns >= block_start[:, None]
    in_block = columns < block_start[:, None] + block_length
    tokens = torch.randint(0, MASK_ID, (B, width), generator=generator)
    return View(
        tokens=torch.where(masked, MASK_ID, tokens),
        computed=Summary(logits_of("drifting", seed, 0, (B, width, V)).to(dtype)),
        masked=masked,
        eligible=masked & in_block,
        start=torch.tensor(STARTS),
        gen_length=gen_length,
        committed=torch.tensor([4, 41, 2, 15]),
        temperature=torch.tensor(TEMPERATURES, dtype=torch.float64),
        noise_keys=row_keys(seed, torch.arange(B)),
        block_start=block_start,
        block_length=block_length,
        leave_one_out=torch.rand(B, width, generator=generator).to(dtype) * ~masked,
    )


def alone(view: View, row: int) -> View:
    """One row of a view, whose options are numbers."""
    part = view.take(torch.tensor([row]))
    numbers: dict[str, Any] = {
        name: getattr(part, name).item()
        for name in ("start", "gen_length", "temperature", "block_start")
    }
    return replace(part, **numbers)


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], row: int) -> None:
    for name, expected in one.items():
        torch.testing.assert_close(other[name][row], expected[0], rtol=0, atol=0, msg=name)


def told(view: View) -> dict[str, Tensor]:
    names = ("positions", "in_answer", "after_answer", "progress", "num_left", "margin", "masked")
    found = statistics(view) | {name: getattr(view, name) for name in names}
    found["likeliest"] = view.likeliest(3).probabilities[..., 2]
    found["eligible"] = view.eligible
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reads_committed", [False, True])
@pytest.mark.parametrize("with_logit_bias", [False, True])
def test_every_statistic_is_that_of_the_row_alone(
    dtype: torch.dtype, reads_committed: bool, with_logit_bias: bool
) -> None:
    view = replace(joined(10, 4, (3, 0, 2, 6), dtype), reads_committed=reads_committed)
    for deferred_ids in ((), (3, 7)):
        view = replace(view, deferred_ids=deferred_ids)
        together = told(raised(view) if with_logit_bias else view)
        for row in range(4):
            single = alone(view, row)
            assert single.is_greedy == (TEMPERATURES[row] == 0.0)
            assert_same(told(raised(single) if with_logit_bias else single), together, row)
            columns = torch.tensor([[2, 0, 5]])
            some = view.top_k(2, columns.expand(4, -1)).logits[row]
            assert torch.equal(some, single.top_k(2, columns).logits[0])
    drawn = view.proposal != view.most_likely
    assert drawn[[1, 2]].any(-1).all()
    assert not drawn[[0, 3]].any()
    assert not view.is_greedy


def test_rows_of_some_columns_are_drawn_as_the_row_alone() -> None:
    view = replace(joined(10, 4, (0, 0, 0, 0), torch.float64), reads_committed=False)
    asked = view.masked.sort(dim=-1, descending=True, stable=True).indices[:, :9]
    logits = view.computed.logits.gather(1, asked[..., None].expand(-1, -1, V))
    lean = replace(view, computed=Summary(logits, asked))
    for row in range(4):
        where = view.masked[row]
        assert torch.equal(lean.proposal[row, where], alone(view, row).proposal[0, where])


def test_a_draw_at_temperatures_is_that_at_each() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, keys = torch.randn(3, 50, 40, generator=generator), torch.arange(150).view(3, 50)
    temperatures = (0.3, 1.0, 3.3)
    together = draw(logits, torch.tensor(temperatures, dtype=torch.float64), keys)
    for row, temperature in enumerate(temperatures):
        assert torch.equal(together[row], draw(logits, temperature, keys)[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("block_starts", [(3, 0, 2, 6), (0, 4, 7, 9)], ids=str)
def test_the_part_of_a_scope_is_that_of_the_row_alone(
    block_starts: tuple[int, ...], scope: Scope, dtype: torch.dtype
) -> None:
    """The last starts have blocks that reach beyond the window."""
    view = joined(10, 4, block_starts, dtype)
    part = view.within(scope)
    together = told(part)
    assert part.tokens.shape[1] == (4 if scope == "block" else 10)
    for row, start in enumerate(block_starts):
        single = alone(view, row).within(scope)
        width = single.tokens.shape[1]
        assert width == {"block": 4, "suffix": 10 - start, "answer": 10}[scope]
        shown = {
            name: value[:, :width] if value.ndim > 1 else value for name, value in together.items()
        }
        assert_same(told(single), shown, row)
        first = 0 if scope == "answer" else start
        inside = min(10 - first, width)
        assert torch.equal(part.masked[row, :inside], view.masked[row, first : first + inside])
        assert torch.equal(part.tokens[row, :inside], view.tokens[row, first : first + inside])
        # Columns beyond the window are settled.
        assert not part.masked[row, inside:].any()
        assert not part.eligible[row, inside:].any()
        assert part.positions[row, 0] == STARTS[row] + first


@pytest.mark.parametrize("scope", SCOPES)
def test_values_of_a_part_are_put_back_where_they_were(scope: Scope) -> None:
    for block_starts in ((3, 0, 2, 6), (0, 4, 7, 9), (2, 2, 2, 2), (0, 0, 0, 0)):
        view = joined(10, 4, block_starts, torch.float64)
        if len(set(block_starts)) == 1:
            view = replace(view, block_start=block_starts[0])
        part = view.within(scope)
        assert torch.equal(view.widened(part.eligible, scope), view.eligible)
        marked = view.widened(part.tokens + 1, scope)
        columns, starts = torch.arange(10), torch.tensor(block_starts)[:, None]
        shown = (columns >= starts) & (columns < starts + (4 if scope == "block" else 10))
        shown |= torch.tensor(scope == "answer")
        assert torch.equal(marked, torch.where(shown, view.tokens + 1, 0))


def played(sampler: Sampler, view: View, block: Tensor) -> list[tuple[View, View]]:
    """Lets a sampler take steps in all rows together, and checks each against the row alone."""
    seen = []
    state: State = sampler.init(view)
    states = [sampler.init(alone(view, row)) for row in range(len(view.tokens))]
    for step in range(4):
        decision, state = sampler.step(view, state)
        written = view.proposal if decision.tokens is None else decision.tokens
        for row in range(len(view.tokens)):
            single = alone(view, row)
            expected, states[row] = sampler.step(single, states[row])
            wanted = single.proposal if expected.tokens is None else expected.tokens
            assert torch.equal(decision.commit[row], expected.commit[0])
            assert torch.equal(written[row, decision.commit[row]], wanted[0, expected.commit[0]])
            for name in ("remask", "settle"):
                ours, theirs = getattr(decision, name), getattr(expected, name)
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert torch.equal(ours[row], theirs[0])
            assert_same_state(take_state(state, torch.tensor([row])), states[row])
        masked = view.masked & ~decision.commit
        tokens = torch.where(decision.commit, written, view.tokens)
        logits = logits_of("drifting", 1, step + 1, tuple(view.logits.shape))  # type: ignore[arg-type]
        after = replace(
            view, tokens=tokens, masked=masked, eligible=masked & block,
            computed=Summary(logits.to(view.logits.dtype)),
            committed=view.committed + decision.commit.sum(-1),  # type: ignore[operator]
        )  # fmt: skip
        seen.append((view, after))
        view = after
    return seen


def assert_same_state(one: State, other: State) -> None:
    if isinstance(one, Tensor):
        # A power in float32 depends on the shape in its last bit.
        torch.testing.assert_close(one, other, equal_nan=True)
    elif isinstance(one, tuple):
        for ours, theirs in zip(one, other, strict=True):
            assert_same_state(ours, theirs)


@pytest.mark.exhaustive(24)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sampler", [*INSTANCES, *WIDER, *OF_ONE_BLOCK_LENGTH], ids=repr)
def test_every_sampler_decides_as_it_does_in_each_row_alone(
    sampler: Sampler, dtype: torch.dtype
) -> None:
    length = OF_ONE_BLOCK_LENGTH.get(sampler, 6)
    if sampler.scope == "block":
        width, block_starts = length, (0, 0, 0, 0)
    else:
        width, block_starts = 14, (0, 0, 0, 0) if sampler.scope == "suffix" else (3, 0, 2, 8)
    view = joined(width, length, block_starts, dtype)
    view = replace(view, leave_one_out=view.leave_one_out if sampler.leave_one_out else None)
    columns, starts = torch.arange(width), torch.tensor(block_starts)[:, None]
    block = (columns >= starts) & (columns < starts + length)
    if set(block_starts) == {0}:
        view = replace(view, block_start=torch.tensor(block_starts))
    seen = played(sampler, view, block)
    assert all(bool((before.masked & ~after.masked).any()) for before, after in seen[:1])


@pytest.mark.exhaustive(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sampler", [one for one in (*INSTANCES, *OF_ONE_BLOCK_LENGTH) if one.scope == "block"], ids=repr
)
def test_columns_that_are_nobodys_change_no_decision(sampler: Sampler, dtype: torch.dtype) -> None:
    """A short last block in a window of the usual length, against one of its own length."""
    length, own = OF_ONE_BLOCK_LENGTH.get(sampler, 9), 6
    generator = torch.Generator().manual_seed(3)
    masked = (torch.arange(length) < own).repeat(2, 1)
    masked[0, 2] = False
    tokens = torch.randint(0, MASK_ID, (2, length), generator=generator)
    tokens = torch.where(masked, MASK_ID, tokens)
    trust = torch.rand(2, length, generator=generator).to(dtype)
    state: State = None
    narrow_state: State = None
    for step in range(3):
        logits = logits_of("drifting", 4, step, (2, length, V)).to(dtype)
        view = View(
            tokens=tokens, computed=Summary(logits), masked=masked, eligible=masked,
            start=10, gen_length=10 + own, committed=10 + (~masked[:, :own]).sum(-1),
            block_length=length, reads_committed=(Fact.LOGITS_OF_COMMITTED in sampler.needs),
            leave_one_out=trust * ~masked if sampler.leave_one_out else None,
        )  # fmt: skip
        narrow = view._part(slice(0, own))
        narrow = replace(narrow, block_length=own)
        state = sampler.init(view) if step == 0 else state
        narrow_state = sampler.init(narrow) if step == 0 else narrow_state
        decision, state = sampler.step(view, state)
        expected, narrow_state = sampler.step(narrow, narrow_state)
        assert torch.equal(decision.commit[:, :own], expected.commit)
        assert not decision.commit[:, own:].any()
        for ours, theirs in (
            (decision.remask, expected.remask),
            (decision.settle, expected.settle),
        ):
            if ours is not None and theirs is not None:
                assert torch.equal(ours[:, :own], theirs)
                assert not ours[:, own:].any()
        masked = masked & ~decision.commit
        tokens = torch.where(decision.commit, view.proposal, tokens)


def test_an_entry_is_the_first_position_of_each_rows_block() -> None:
    view = joined(10, 4, (3, 0, 2, 8), torch.float64)
    entry = entry_alone(view)
    for row, start in enumerate((3, 0, 2, 8)):
        assert torch.equal(entry[row], entry_alone(alone(view, row))[0])
        assert torch.equal(entry[row], view.eligible[row] & (torch.arange(10) == start))
    # Columns of the prompt and after the answer are no entry.
    assert entry.any(-1).tolist() == [bool(view.masked[0, 3]), True, True, False]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_a_truncation_of_rows_is_that_of_each_row(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = (4 * torch.randn(5, 7, 600, generator=generator)).to(dtype)
    logits[..., 3] = -torch.inf
    temperatures, shares, counts = (
        (0.0, 0.7, 1.3, 0.4, 0.0),
        (1.0, 0.9, 0.3, 1.0, 0.5),
        (0, 3, 900, 1, 40),
    )
    wide = torch.tensor(temperatures, dtype=torch.float64), torch.tensor(shares).double()
    together = Truncation(*wide, torch.tensor(counts))(logits)
    for row, options in enumerate(zip(temperatures, shares, counts, strict=True)):
        found = Truncation(*options)(logits[row : row + 1])
        assert torch.equal(together[row], found[0])
        cut = found.isinf().sum() - logits[row].isinf().sum()
        assert bool(cut) == (options[1] < 1.0 or 0 < options[2] < 600)
