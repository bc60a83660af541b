"""Samplers and caches that the laws are tested on, and views made by hand.

A sampler or cache policy without an entry here is tested with its defaults. More settings of it are
the text of an instance in `_SETTINGS`, or an instance in `_CACHES`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm_decode import caches
from samplers import ALL_SAMPLERS, Fact, Learn2PD, Sampler, SamplerState, View, parse
from samplers.testing import view_with

_SETTINGS: tuple[Sampler, ...] = tuple(map(parse, (
    "ConfidenceThreshold()", "ConfidenceThreshold(0.3)", "ConfidenceThreshold(0.6)",
    "DecayingThreshold(0.8, 0.9, 0)", "EntropyBound()", "EntropyBound(0.6, 'confidence')",
    "EntropyBound(inf, 'margin')", "EntropyThreshold()", "EoTP()",
    "EoTP(FixedSchedule(3), 0.2)", "Factor()", "Factor(0.75, 'inclusive')",
    "Factor(1.0, 'official')", "FixedSchedule(3)", "FixedSchedule(2, 'random')",
    "FixedSchedule(4, 'margin')", "FixedSchedule(5, 'entropy', 'dream')", "Frechet()",
    "Frechet(-inf)", "Hierarchy()", "Hierarchy(0.2, 1.0)", "JointThreshold()",
    "JointThreshold(0.7, 0.5, 3, 2, 1.5)", "JointThresholdInDel(0.3, 0.1, 4, 2, 5)",
    "JointThresholdInDel(0.2, 0.0, 0, 7, 3)",
    "JointThresholdInDel(0.3, 0.1, 4, 2, 5, rule='hub', steps=3)", "Klass(0.4, 0.05)",
    "Klass(0.9, 0.01, 1, 2)",
    "Klass(0.42, 0.5, 1, 13)", "Less()", "Less(0.3, 0.1, 1, 2)", "LocalLeap()",
    "LocalLeap(0.8, 0.3, 1)", "CreditDecoding(LocalLeap())", "MaskPredict(3)",
    "PC(3)", "PC(4, 0.0, 1.0)", "Prophet(FixedSchedule(3), answer_start=0, answer_length=3)",
    "RCR(4)", "ReMDM(6, 'cap', 0.3)",
    "ReMDM(5, 'rescale', 0.5)", "ReMDM(8, 'confidence')", "ReMDMLoop(4, 3)",
    "ReMDMLoop(32, 9, 2)", "ReMDMLoop(2, 4, 9)",
    "QuotaThreshold(0.4, 3)", "SchED(FixedSchedule(3), high=1.0, low=0.2, max_changed=0.5)",
    "QuotaThreshold(0.4, 5, 'most')", "T2M()",
    "T2M(0.3, 'low_prob', 0.9, 2, 1.0, 3, eos_early_stop=False)", "T2M(0.5, 't2t_remask', 0.3, 3)",
    "T2M(0.3, 'logit_diff', 0.1, 3, 0.5, 4)", "CreditDecoding(Klass(0.42, 0.5, 1, 13))",
    "Prophet(CreditDecoding(Klass(0.4, 0.05)), answer_start=1, answer_length=2)", "Wino(0.3)",
)))  # fmt: skip

_CACHES: tuple[caches.CachePolicy, ...] = (
    caches.PrefixCache(), caches.PrefixCache(refresh_every=3), caches.DualCache(),
    caches.DualCache(refresh_every=3, before=2, after=3), caches.FreeCache(),
    caches.DelayedCache(refresh_every=3, warm_up=1),
    caches.SettledCache(1), caches.SettledCache(2), caches.PipelineCache(4, 1, 3),
    caches.SubBlockCache(), caches.SuffixWindow(caches.PrefixCache(), 2),
    caches.SuffixWindow(caches.FreeCache(), 0),
    caches.SuffixWindow(caches.DelayedCache(refresh_every=3, warm_up=1), 1),
    caches.SuffixWindow(caches.NoCache(), 0, tail=0), caches.CutAtEos(),
    caches.CutAtEos(caches.DelayedCache(refresh_every=3, warm_up=1)),
    caches.EntropyCache(0.5, 2), caches.EntropyCache(1e9, 0), caches.CertaintyCache(2),
    caches.CertaintyCache(3, fill=4), caches.SuffixWindow(caches.CertaintyCache(3), 2),
)  # fmt: skip


_NOISE: tuple[Sampler, ...] = (
    parse("AcceptAndRenoise(0.5, 6, 0.1, 2.0, 1, 0.3)"), parse("DuoPosterior(4, kappa=0.7)"),
)  # fmt: skip

# Samplers whose filter reads blocks of one length, with this length.
OF_ONE_BLOCK_LENGTH: dict[Sampler, int] = {Learn2PD(): 32}


def _with_defaults(classes: Iterable[type], listed: Iterable[object]) -> list[Any]:
    """Returns an instance of each class that has none in a list."""
    return [one() for one in classes if one not in {*map(type, listed)}]


_EVERY: tuple[Sampler, ...] = (
    *_SETTINGS, *_NOISE, *_with_defaults(ALL_SAMPLERS, [*_SETTINGS, *_NOISE, *OF_ONE_BLOCK_LENGTH])
)  # fmt: skip

INSTANCES: tuple[Sampler, ...] = tuple(one for one in _EVERY if Fact.HAS_MASK in one.needs)

OF_NOISE: tuple[Sampler, ...] = tuple(one for one in _EVERY if Fact.UNIFORM_STATE in one.needs)
"""Samplers for uniform-state models, which have laws of their own."""

_POLICIES = {vars(caches)[name] for name in caches.__all__} - {
    caches.CachePolicy, caches.CacheQuery, caches.History
}  # fmt: skip

CACHES: tuple[caches.CachePolicy, ...] = (
    *_CACHES,
    *_with_defaults(sorted(_POLICIES, key=repr), [*_CACHES, caches.NoCache()]),
)


def one_of_each_kind(plugins: Iterable[Any]) -> list[Any]:
    """Leaves the first plug-in of each class to the default run, and the others to the slow run."""
    seen: set[type] = set()
    parameters = []
    for plugin in plugins:
        marks = pytest.mark.slow if type(plugin) in seen else ()
        seen.add(type(plugin))
        parameters.append(pytest.param(plugin, id=repr(plugin), marks=marks))
    return parameters


def plugin(base: type, **members: Any) -> Any:
    """Returns an instance of a new class `Own`, which has these members."""
    return dataclass(frozen=True)(type("Own", (base,), members))()


def rule(decide: Callable[[View], Any], **members: Any) -> Any:
    """Returns a sampler without a state."""
    return plugin(Sampler, step=lambda self, view, state: (decide(view), state), **members)


# For laws that decode many times: one sampler plans ahead, the other follows confidence.
FEW: tuple[Sampler, ...] = (parse("ConfidenceThreshold(0.6)"), parse("FixedSchedule(3)"))

_FILLERS = 40


def view_of(probabilities: Tensor, eligible: Tensor | None = None, **options: Any) -> View:
    """Makes a view of masks with these probabilities; ineligible positions hold token 0.

    One more token, [MASK], is appended; it is banned.
    """
    B, W, V = probabilities.shape
    eligible = torch.ones(B, W, dtype=torch.bool) if eligible is None else eligible
    logits = torch.cat([probabilities.log(), torch.full((B, W, 1), -torch.inf).double()], -1)
    options = {"masked": eligible, "tokens": torch.where(eligible, V, 0)} | options
    return view_with(logits, eligible=eligible, **options)


def with_confidences(*rows: Sequence[float], committed: Sequence[int] = ()) -> View:
    """Gives token 0 these probabilities, each at least 1/41; forty other tokens share the rest."""
    first = torch.tensor(rows, dtype=torch.float64)[..., None]
    fillers = ((1.0 - first) / _FILLERS).expand(-1, -1, _FILLERS)
    eligible = torch.ones(first.shape[:2], dtype=torch.bool)
    eligible[:, list(committed)] = False
    return view_of(torch.cat([first, fillers], -1), eligible)


def with_entropies(*rows: Sequence[float]) -> View:
    """Makes a view of two tokens with the given entropies, in nats."""
    first = torch.tensor([[_binary(entropy) for entropy in row] for row in rows]).double()
    return view_of(torch.stack([first, 1.0 - first], -1))


def with_gaps(
    tokens: Sequence[int],
    gaps: Sequence[float],
    *,
    block_length: int = 2,
    gen_length: int = 6,
    committed: int | None = None,
    **options: Any,
) -> View:
    """Makes one row: in column i token i leads by its gap. Of the twelve tokens, 11 is [MASK]."""
    row, columns = torch.tensor([tokens]), torch.arange(len(tokens))
    logits = torch.zeros(1, len(tokens), 12, dtype=torch.float64)
    logits[0, columns, columns] = torch.tensor(gaps, dtype=torch.float64)
    logits[..., 11] = -torch.inf
    masked = row == 11
    return view_with(
        logits, tokens=row, masked=masked, eligible=masked & (columns < block_length),
        gen_length=gen_length, block_length=block_length,
        num_committed=None if committed is None else torch.tensor([committed]), **options,
    )  # fmt: skip


def _binary(entropy: float) -> float:
    low, high = 0.5, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        rest = 1.0 - middle
        value = -middle * math.log(middle) - (rest * math.log(rest) if rest else 0.0)
        low, high = (low, middle) if value < entropy else (middle, high)
    return high


def pinned(view: View, **statistics: Sequence[Sequence[float]]) -> View:
    """Sets some statistics of a view to exactly these values, without the rounding of a softmax."""
    for name, values in statistics.items():
        # A cached property keeps its value here.
        view.__dict__[name] = torch.tensor(values, dtype=torch.float64)
    return view


def committed(sampler: Sampler, view: View, state: SamplerState = None) -> list[list[int]]:
    """Returns the positions of each row that a sampler commits in one step."""
    state = sampler.init(view) if state is None else state
    decision, _ = sampler.step(view, state)
    return positions(decision.commit)


def positions(selected: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in selected]


def run(sampler: Sampler, *views: View) -> list[list[list[int]]]:
    """Steps through views of one block; positions that were committed are closed afterwards."""
    state, closed, steps = sampler.init(views[0]), torch.zeros_like(views[0].eligible), []
    for view in views:
        view.eligible[closed] = False
        decision, state = sampler.step(view, state)
        closed |= decision.commit
        steps.append(positions(decision.commit))
    return steps


def still(*confidences: float, steps: int) -> list[View]:
    return [with_confidences(confidences) for _ in range(steps)]
