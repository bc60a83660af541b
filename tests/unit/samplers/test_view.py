"""A view with logits of some columns, and its statistics of the other columns."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_type_hints

import pytest
import torch
from plugins_under_test import plugin, view_with
from tiny_models import FAMILIES, Spied, tiny

from dllm_decode import decode
from dllm_decode.caches import CachePolicy, DelayedCache, DualCache, NoCache
from dllm_decode.core.observers import StepEvent
from dllm_decode.verify import NoVerifier, SelfVerify, Verifier
from samplers import CreditDecoding, Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact
from samplers.logits.statistics import highest_one
from samplers.logits.summary import Summary

MASKED = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
# The masks of the first row are out of order, as are the committed columns that fill up rows.
ASKED = torch.tensor([[3, 0, 2], [2, 4, 0], [1, 0, 3]])


def views() -> tuple[View, View]:
    """Returns a view with all logits, and the same view with logits of the asked columns alone."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(3, 5, 9, generator=generator)
    tokens = torch.where(MASKED, 8, torch.randint(0, 8, (3, 5), generator=generator))
    dense = view_with(logits, tokens=tokens, masked=MASKED)
    asked_logits = logits.gather(1, ASKED[..., None].expand(-1, -1, 9))
    return dense, replace(dense, summary=Summary(asked_logits, ASKED), reads_committed=False)


@pytest.mark.parametrize("kind", ["some", "all"])
def test_a_committed_token_is_certain_unless_the_sampler_reads_it(kind: str) -> None:
    dense, view = views()
    view = view if kind == "some" else replace(dense, reads_committed=False)
    there = ~MASKED
    tokens = view.tokens[there]
    assert torch.equal(view.most_likely[there], tokens)
    assert torch.equal(view.top_k(2).tokens[..., 0][there], tokens)
    assert torch.equal(view.logits.softmax(-1).argmax(-1)[there], tokens)
    assert (view.confidence[there] == 1.0).all()
    assert (view.margin[there] == 1.0).all()
    assert (view.entropy[there] == 0.0).all()
    assert (view.probability((view.tokens + 1) % 8)[there] == 0.0).all()
    assert (dense.confidence[there] < 1.0).any()


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [NoCache(), DualCache(), DelayedCache()], ids=repr)
def test_the_head_is_spared_what_nobody_reads(family: str, cache: CachePolicy) -> None:
    """With one token a step, the head takes the masked columns alone, rounded up to eights."""
    model, masks = Spied(tiny(family)), []

    def note(event: StepEvent) -> None:
        masked_and_rows = zip(event.before.masked, event.rows, strict=True)
        masks.append(max(int(masked[: row.opening.stop].sum()) for masked, row in masked_and_rows))

    def widths(sampler: FixedSchedule) -> list[int]:
        model.calls.clear()
        masks.clear()
        decode(
            model, [[3, 4, 5, 6]] * 2, sampler, cache=cache, gen_length=16, block_length=16,
            stop_at_eos=False, observers=[note],
        )  # fmt: skip
        return [call.wanted.shape[1] for call in model.calls]

    head_widths = widths(FixedSchedule(16))
    assert head_widths == [8 * -(-count // 8) for count in masks]
    assert set(head_widths) == {8, 16}
    if Fact.LOGITS_OF_COMMITTED in cache.gives:
        curious = plugin(FixedSchedule, steps_per_block=16, needs=frozenset(
            {Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED, Fact.WHOLE_BLOCKS}
        ))  # fmt: skip
        assert set(widths(curious)) == {16}


@dataclass(frozen=True)
class ReadsLogits(Sampler[None]):
    """Decides by the whole logits, as a newcomer would, and compares them with the statistics."""

    narrow: list[bool] = field(default_factory=list, compare=False)

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        self.narrow.append(view.summary.offsets is not None)
        assert view.logits.shape == (*view.tokens.shape, view.vocab_size)
        top = view.logits.softmax(-1).max(-1)
        torch.testing.assert_close(top.values.to(view.dtype), view.confidence)
        assert torch.equal(top.indices, view.proposal)
        entropy = torch.special.entr(view.logits.softmax(-1)).sum(-1)
        torch.testing.assert_close(entropy.to(view.dtype), view.entropy, atol=1e-6, rtol=1e-5)
        margin = view.logits.softmax(-1).topk(2).values
        torch.testing.assert_close((margin[..., 0] - margin[..., 1]).to(view.dtype), view.margin)
        return Decision(highest_one(top.values, view.eligible)), None


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_logits_are_whole_in_every_step_under_every_verifier(
    family: str, verifier: Verifier, wrapped: bool
) -> None:
    """A bug: only on a CPU, the logits had fewer columns from the second step on."""
    rule = ReadsLogits()
    sampler: Sampler = CreditDecoding(rule) if wrapped else rule
    options: dict[str, Any] = {"gen_length": 16, "block_length": 16, "stop_at_eos": False}
    out = decode(tiny(family), [[3, 4, 5], [6, 7, 8, 9]], sampler, verifier=verifier, **options)
    plain = decode(
        tiny(family), [[3, 4, 5], [6, 7, 8, 9]],
        CreditDecoding(FixedSchedule(16)) if wrapped else FixedSchedule(16), **options,
    )  # fmt: skip
    assert torch.equal(out.tokens, plain.tokens)
    assert len(rule.narrow) >= 16
    # If no columns were left out in any step, this test would show nothing.
    assert any(rule.narrow) == (verifier == NoVerifier())


def test_a_view_says_how_much_is_left() -> None:
    seen: list[View] = []
    templates = [[], [7] * 6]
    decode(
        tiny("llada"), [[3, 4, 5], [6, 7]], FixedSchedule(8), gen_length=12, block_length=8,
        templates=templates, stop_at_eos=False, observers=[lambda event: seen.append(event.view)],
    )  # fmt: skip
    first = seen[0]
    assert first.num_left.tolist() == [12, 6]
    assert first.progress.tolist() == [0.0, 0.5]
    assert first.in_answer.all()
    last = seen[-1]
    assert last.num_left.tolist() == [1] * len(last.tokens)


def test_the_help_of_each_property_says_its_shape() -> None:
    """`help` shows the types of methods, but not those of properties."""
    getters = [
        part.fget if isinstance(part, property) else part.func
        for name, part in vars(View).items()
        if isinstance(part, property | cached_property) and not name.startswith("_")
    ]
    shapes = [(one, getattr(get_type_hints(one)["return"], "dim_str", "")) for one in getters]
    assert sum(bool(shape) for _, shape in shapes) >= 12
    for getter, shape in shapes:
        assert not shape or f"`[{', '.join(shape.split())}]`" in getter.__doc__, getter
