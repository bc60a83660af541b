"""For authors of samplers: a view from logits, random blocks to decide, and the laws as functions.

`check_rule(MyRule())` puts a rule through all laws, and raises AssertionError with the law that is
broken; `view_with(logits)` makes a view by hand.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.calls import first_state, next_step, require_max_steps
from samplers.checks import require_plugin
from samplers.declared import require_declared
from samplers.facts import Fact
from samplers.logits.noise import row_keys
from samplers.logits.summary import Summary
from samplers.registry import parse
from samplers.state import SamplerState, take_state
from samplers.view import View

Style: TypeAlias = Literal["drifting", "constant", "alternating", "saturated", "excluded"]
"""How a model answers: logits of which some change from step to step; all equal; one token, then
another; nearly infinite; most tokens impossible."""

STYLES: tuple[Style, ...] = ("drifting", "constant", "alternating", "saturated", "excluded")


@dataclass(frozen=True)
class PlayedStep(Generic[SamplerState]):
    """One step of a played block: what the sampler was given, and what it returned."""

    view: View
    state: SamplerState
    decision: Decision
    next_state: SamplerState

    @property
    def written(self) -> Int[Tensor, "B W"]:
        """The tokens that are written where the decision commits."""
        return self.view.proposal if self.decision.tokens is None else self.decision.tokens


def view_with(
    logits: Float[Tensor, "B W V"], masked: Bool[Tensor, "B W"] | None = None, **options: Any
) -> View:
    """Returns a view of logits; the fields of `View` that are not given have plain values.

    Args:
        logits: Logits of each position of the window, at temperature 1; -inf excludes a token.
        masked: Positions that hold [MASK], which are eligible too; `None`: all. [MASK] is the token
            V, which no logit proposes, and the other positions hold token 0, unless `tokens` says
            otherwise.
        options: Further fields of `View`.
    """
    B, W, V = logits.shape
    masked = torch.ones(B, W, dtype=torch.bool, device=logits.device) if masked is None else masked
    plain: dict[str, Any] = {
        "tokens": torch.where(masked, V, 0), "masked": masked, "eligible": masked,
        "start": 0, "gen_length": W,
    }  # fmt: skip
    return View(summary=Summary(logits), **(plain | options))


def play(
    sampler: Sampler[SamplerState],
    seed: int,
    *,
    style: Style = "drifting",
    temperature: float = 0.0,
    dtype: torch.dtype = torch.float32,
    width: int = 7,
) -> Iterator[PlayedStep[SamplerState]]:
    """Lets a sampler finish a block of three random rows; the last has no mask in the block.

    Some tokens are given; the last of twelve is [MASK] and banned. With the scope "suffix" the
    window has columns after the block too, with "answer" columns before and after it.
    """
    B, V = 3, 12
    generator = torch.Generator().manual_seed(seed)
    margin = 0 if sampler.scope == "block" else 2
    before = margin if sampler.scope == "answer" else 0
    block, W = slice(before, before + width), before + width + margin
    masked = torch.rand(B, W, generator=generator) < 0.8
    masked[:, :before] = False
    masked[:-1, before] = True
    masked[-1, : block.stop] = False
    tokens = torch.where(masked, V - 1, torch.randint(0, V - 1, (B, W), generator=generator))
    in_block = torch.zeros(W, dtype=torch.bool)
    in_block[block] = True
    unsettled = masked
    state: Any = None
    for step in range(require_max_steps(sampler.max_steps(width), owner=sampler) + 1):
        view = View(
            tokens=tokens, summary=Summary(logits_of(style, seed, step, (B, W, V)).to(dtype)),
            masked=masked, eligible=unsettled & in_block, start=4, gen_length=4 + W + 2,
            num_committed=4 + (~masked).sum(-1), temperature=temperature,
            noise_keys=row_keys(seed, torch.arange(B)), block_start=before, block_length=width,
            leave_one_out=torch.rand(B, W, generator=generator) * ~masked
            if Fact.LEAVE_ONE_OUT in sampler.needs
            else None,
        )  # fmt: skip
        if step == 0:
            state = first_state(sampler, view)
        # Copied, because a rule that writes into its arguments must not change the step under test.
        played = PlayedStep(view, state, *next_step(sampler, *copy.deepcopy((view, state))))
        yield played
        decision, state = played.decision, played.next_state
        tokens = torch.where(decision.commit, played.written, tokens)
        masked = masked & ~decision.commit
        unsettled = unsettled & ~settled_by(decision)
        if decision.remask is not None:
            masked, unsettled = masked | decision.remask, unsettled | decision.remask
            tokens = torch.where(decision.remask, V - 1, tokens)
        if not (unsettled & in_block).any():
            return


def settled_by(decision: Decision) -> Bool[Tensor, "B W"]:
    """Returns the positions that a decision settles."""
    return decision.commit if decision.settle is None else decision.settle


def logits_of(
    style: Style, seed: int, step: int, shape: tuple[int, int, int]
) -> Float[Tensor, "B W V"]:
    """Returns logits that a model may give, in float64; the last token, [MASK], is excluded."""
    generator = torch.Generator().manual_seed(seed)
    B, W, V = shape
    base = torch.randn(shape, generator=generator).double()
    base = base * torch.tensor([0.3, 2.0, 6.0])[torch.randint(0, 3, (B, W, 1), generator=generator)]
    logits = torch.zeros_like(base)
    if style == "drifting":
        moving = torch.rand(B, W, 1, generator=generator) < 0.4
        generator.manual_seed(1000 * seed + step)
        logits = base + moving * torch.randn(shape, generator=generator)
    elif style == "alternating":
        logits[..., step % 2] = 8.0
    elif style == "saturated":
        logits = 1e4 * torch.nn.functional.one_hot(base[..., :-1].argmax(-1), V).double()
    elif style == "excluded":
        logits = base.masked_fill(torch.rand(shape, generator=generator) < 0.8, -torch.inf)
        logits[..., 0] = 0.0
    logits[..., -1] = -torch.inf
    return logits


def moves_every_row(played: PlayedStep[Any], sampler: Sampler[Any]) -> None:
    """A step commits, settles or re-masks in each row with an eligible position, and only there."""
    view, decision = played.view, played.decision
    allowed = view.eligible if sampler.scope == "block" else view.masked
    assert not (decision.commit & ~allowed).any(), "a position was committed that is not eligible"
    settled = settled_by(decision)
    empty = settled & view.masked & ~decision.commit
    assert not empty.any(), "a position was settled that holds no token"
    moves = decision.commit | settled
    if decision.remask is not None and Fact.ONE_STEP_A_FORWARD in sampler.needs:
        moves = moves | decision.remask
    moved, may_move = moves.any(-1), view.eligible.any(-1)
    assert not (may_move & ~moved).any(), "a row with eligible positions did not move"
    assert not (moved & ~may_move).any(), "a row without eligible positions must not move"


def writes_possible_tokens(played: PlayedStep[Any], sampler: Sampler[Any]) -> None:
    """A token that is committed has a finite logit; [MASK] and banned tokens have none."""
    commit, written, size = played.decision.commit, played.written, played.view.vocab_size
    is_token = (written >= 0) & (written < size)
    assert is_token[commit].all(), f"a token was written that is not in [0, {size})"
    logits = played.view.logits.gather(-1, written.clamp(0, size - 1)[..., None]).squeeze(-1)
    assert logits[commit].isfinite().all(), "an excluded token was written"


def decides_rows_alone(played: PlayedStep[Any], sampler: Sampler[Any]) -> None:
    """A row is decided without looking at its batch-mates."""
    for row in torch.arange(len(played.view.tokens))[:, None]:
        view, state = played.view.take(row), take_state(played.state, row)
        alone, after = sampler.step(view, state)
        require_same(alone, view, played, row, "a row is decided otherwise without the other rows")
        for actual, expected in zip(
            _tensors_in(after), _tensors_in(take_state(played.next_state, row)), strict=True
        ):
            # The last bit of a float32 power depends on the shape of the tensor.
            torch.testing.assert_close(
                actual, expected, equal_nan=True,
                msg=lambda text: f"a row has another state without the other rows: {text}",
            )  # fmt: skip


def is_pure(played: PlayedStep[Any], sampler: Sampler[Any]) -> None:
    """A step changes none of its arguments; the same view and state give the same result."""
    view_fields = {field.name: getattr(played.view, field.name) for field in fields(View)}
    view, state = View(**copy.deepcopy(view_fields)), copy.deepcopy(played.state)
    decision, after = sampler.step(view, state)
    for name, value in view_fields.items():
        if isinstance(value, Tensor):
            assert torch.equal(getattr(view, name), value), f"step changed {name} of the view"
    logits = (view.summary.logits, view_fields["summary"].logits)
    assert torch.equal(*logits), "step changed the logits of the view"
    _require_equal(state, played.state, "step changed the state that it was given")
    require_same(decision, view, played, ..., "the same view and state gave another decision")
    _require_equal(after, played.next_state, "the same view and state gave another next state")


Law: TypeAlias = Callable[[PlayedStep[Any], Sampler[Any]], None]

LAWS: tuple[Law, ...] = (moves_every_row, writes_possible_tokens, decides_rows_alone, is_pure)
"""Each raises AssertionError if a step breaks it."""


def ends_in_time(
    sampler: Sampler[Any], style: Style, seed: int, dtype: torch.dtype = torch.float32
) -> None:
    """A block is finished within `max_steps` of its number of masks."""
    steps = list(play(sampler, seed, style=style, dtype=dtype))
    most = max(sampler.max_steps(masks) for masks in steps[0].view.eligible.sum(-1).tolist())
    assert len(steps) <= most, f"a block took more than max_steps, {most}"
    last = steps[-1]
    assert not (last.view.eligible & ~settled_by(last.decision)).any(), "a block was not finished"


def re_masks_what_is_settled(sampler: Sampler[Any], steps: Sequence[PlayedStep[Any]]) -> None:
    """A rule that re-masks tokens does not look for them in `eligible`, where no settled one is."""
    decisions = [played.decision for played in steps]
    if any(d.settle is not None or d.remask is None or d.remask.any() for d in decisions):
        return
    for played in steps:
        view, state = copy.deepcopy((played.view, played.state))
        wide = replace(view, eligible=view.eligible | ~view.masked)
        remask = sampler.step(wide, state)[0].remask
        assert remask is None or not remask.any(), (
            "no token is ever re-masked, because `commit` settles tokens, which are not in "
            "view.eligible afterwards; return `settle` as MaskPredict does, so that tokens stay "
            "open, or keep the tokens that were committed in a state, as Wino does"
        )


def check_rule(sampler: Sampler[Any], *, seeds: tuple[int, ...] = (1, 2), width: int = 7) -> None:
    """Checks a sampler against all laws, on every style of logits and with noise.

    Samplers of uniform-state models have laws of their own, and are not covered.

    Args:
        sampler: The rule. Its repr must be an expression that `samplers.parse` reads back, if the
            rule is one of this package.
        seeds: Seeds of the random blocks.
        width: Positions of a block; for a rule such as `Learn2PD`, the filter's block length.

    Raises:
        AssertionError: If a law is broken; its text says which one, and where.
        RuntimeError: If the rule returns no decision, state or number of steps, as in a decode.
        ValueError: If the argument is no sampler, or one that is not declared as such.
    """
    require_plugin(
        "sampler", sampler, Sampler, "ConfidenceThreshold(0.9)",
        hint="`dllm_decode.testing.check_laws` takes every kind of plug-in.",
    )  # fmt: skip
    require_declared(sampler)
    if type(sampler).__module__.startswith("samplers."):
        assert parse(repr(sampler)) == sampler, f"{sampler!r} is not its configuration"
    plays: list[tuple[Style, float]] = [(style, 0.0) for style in STYLES]
    steps: list[PlayedStep[Any]] = []
    for style, temperature in [*plays, ("drifting", 1.3)]:
        for seed in seeds:
            where = f"{sampler!r}, {style} logits, temperature {temperature}, seed {seed}"
            for played in play(sampler, seed, style=style, temperature=temperature, width=width):
                steps.append(played)
                for law in LAWS:
                    with _law_named(law.__name__, where):
                        law(played, sampler)
            with _law_named("ends_in_time", where):
                ends_in_time(sampler, style, seed)
    with _law_named("re_masks_what_is_settled", repr(sampler)):
        re_masks_what_is_settled(sampler, steps)


@contextmanager
def _law_named(law: str, where: str) -> Iterator[None]:
    """Adds the broken law, and where it was broken, to the text of an AssertionError."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error} (law {law} of {where})") from error


def _tensors_in(state: Any) -> list[Tensor]:
    """Returns the tensors of a state, nested ones included."""
    if state is None:
        return []
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in _tensors_in(part)]
    return [state]


def _require_equal(state: Any, expected_state: Any, message: str) -> None:
    for actual, expected in zip(_tensors_in(state), _tensors_in(expected_state), strict=True):
        same = torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True)
        assert actual.shape == expected.shape and same, message  # noqa: PT018  # of one tensor


def require_same(
    decision: Decision, view: View, played: PlayedStep[Any], rows: Any, message: str
) -> None:
    """Raises unless a decision equals the played one in some rows; `...` means all rows."""
    commit = played.decision.commit[rows]
    assert torch.equal(decision.commit, commit), message
    tokens = view.proposal if decision.tokens is None else decision.tokens
    assert torch.equal(tokens[commit], played.written[rows][commit]), message
    for actual, expected in (
        (decision.remask, played.decision.remask), (decision.settle, played.decision.settle)
    ):  # fmt: skip
        if actual is None or expected is None:
            assert actual is expected, message
        else:
            assert torch.equal(actual, expected[rows]), message
