"""Plug-ins that fit together decode; others are refused by name, before any forward."""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from tiny_models import Spied, tiny
from toys import tiny_target

from dllm_decode import (
    S2D2,
    AdaptiveBlocks,
    ARVerify,
    BlockSchedule,
    CachePolicy,
    CertaintyCache,
    DelayedCache,
    DualCache,
    EntropyCache,
    FreeCache,
    Guided,
    MultiBlock,
    NoCache,
    NoVerifier,
    PathSearch,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    Sequential,
    SettledCache,
    SlidingWindow,
    SubBlockCache,
    SubBlocks,
    SuffixWindow,
    Verifier,
    decode,
    new_decoder,
)
from dllm_decode.blocks import Opening, block_of
from dllm_decode.core.columns import columns
from dllm_decode.engine.compatibility import facts_of, refusal_of
from dllm_decode.engine.look import look
from samplers import (
    T2M,
    ConfidenceThreshold,
    CreditDecoding,
    Decision,
    Factor,
    FixedSchedule,
    JointThreshold,
    Prophet,
    Sampler,
    View,
    Wino,
)
from samplers.facts import FACTS, Fact
from samplers.logits.statistics import highest_one

# Plug-ins that declare nothing; the verifier lets the sampler decide, and the sampler has a state.
SILENT = plugin(CachePolicy, columns_to_compute=lambda self, query: columns((0, query.end)))
WRITING = plugin(Verifier, look=lambda self, decoder, state: look(decoder, state))
SILENT_BLOCKS = plugin(
    BlockSchedule,
    opening=lambda self, row, block_length, shift: Opening.of_block(*block_of(row, block_length)),
)
COUNTING = plugin(
    Sampler,
    init=lambda self, view: torch.zeros_like(view.tokens[:, 0]),
    step=lambda self, view, state: (
        Decision(highest_one(view.confidence, view.eligible)), state + 1
    ),
)  # fmt: skip
CACHES: dict[str, CachePolicy] = {
    "no": NoCache(), "prefix": PrefixCache(), "prefix8": PrefixCache(refresh_every=8),
    "dual": DualCache(), "dual8": DualCache(refresh_every=8), "free": FreeCache(),
    "delayed": DelayedCache(), "settled": SettledCache(), "pipeline": PipelineCache(),
    "sub-block": SubBlockCache(), "window": SuffixWindow(PrefixCache(), 2), "silent": SILENT,
    "entropy": EntropyCache(), "certainty": CertaintyCache(),
}  # fmt: skip
EVERY = set(CACHES)
# "entropy" and "certainty" need Fact.LAST_LOOK of `NoVerifier`, "certainty" DECIDES_ON_PART too.
LOOKED = EVERY - {"certainty"}
ALL = LOOKED - {"entropy"}
EXACT = {"no", "prefix", "dual", "free", "window"}
SUFFIX = {
    "no", "prefix", "prefix8", "free", "delayed", "settled",
    "pipeline",
}  # fmt: skip
COMMITTED = ALL - {"delayed", "settled", "pipeline", "sub-block", "silent"}


# Needs the model's logits at committed positions.
CURIOUS = plugin(
    ConfidenceThreshold, needs=ConfidenceThreshold().needs | {Fact.LOGITS_OF_COMMITTED}
)
PLAIN, STEPWISE, JOINT = FixedSchedule(2), ConfidenceThreshold(0.9), JointThreshold(0.5, 0.0, 2)
TARGETS = [
    make(tiny_target(tiny("llada").vocab_size))
    for make in (ARVerify, partial(ARVerify, drafting=PathSearch(num_forwards=2)), Guided)
]
# Sampler, verifier, schedule and family; the caches with which they decode, found by hand.
KINDS: list[tuple[Sampler, Verifier, BlockSchedule, str, set[str]]] = [
    (PLAIN, NoVerifier(), Sequential(), "llada", LOOKED),
    (PLAIN, NoVerifier(), Sequential(), "dream", LOOKED),
    (PLAIN, NoVerifier(), Sequential(), "sdar", LOOKED),
    (STEPWISE, NoVerifier(), Sequential(), "dream", EVERY),
    (Prophet(PLAIN, answer_start=0), NoVerifier(), Sequential(), "llada", SUFFIX),
    (Prophet(PLAIN, answer_start=0, gap="all"), NoVerifier(), Sequential(), "llada",
     SUFFIX & COMMITTED),
    (Prophet(PLAIN, marker=(3,)), NoVerifier(), Sequential(), "llada", SUFFIX & COMMITTED),
    (Wino(0.3), NoVerifier(), Sequential(), "llada", {"no"}),
    (Wino(0.3), NoVerifier(), Sequential(), "dream", set()),
    (Wino(0.3), NoVerifier(), Sequential(), "sdar", set()),
    (Wino(0.3), SelfVerify(2), Sequential(), "llada", set()),
    (CURIOUS, NoVerifier(), Sequential(), "llada", COMMITTED),
    (JOINT, NoVerifier(), Sequential(), "llada", COMMITTED),
    (JOINT, SelfVerify(2), Sequential(), "llada", set()),
    (T2M(), NoVerifier(), Sequential(), "llada", COMMITTED),
    (T2M(), NoVerifier(), Sequential(), "dream", COMMITTED),
    (T2M(), SelfVerify(2), Sequential(), "llada", set()),
    (T2M(), NoVerifier(), MultiBlock(), "llada", set()),
    (PLAIN, SelfVerify(2), Sequential(), "llada", EXACT),
    (PLAIN, SelfVerify(2), Sequential(), "dream", EXACT),
    (PLAIN, SelfVerify(1), Sequential(), "llada", ALL),
    (PLAIN, WRITING, Sequential(), "llada", ALL),
    (Prophet(PLAIN, answer_start=0), WRITING, Sequential(), "llada", set()),
    (STEPWISE, NoVerifier(), MultiBlock(), "llada", EVERY),
    (CreditDecoding(STEPWISE), NoVerifier(), MultiBlock(), "dream", EVERY),
    (CreditDecoding(PLAIN), NoVerifier(), MultiBlock(), "llada", set()),
    (PLAIN, NoVerifier(), MultiBlock(), "llada", set()),
    (STEPWISE, SelfVerify(2), MultiBlock(), "llada", set()),
    (STEPWISE, WRITING, MultiBlock(), "llada", set()),
    (Prophet(STEPWISE, answer_start=0), NoVerifier(), MultiBlock(), "llada", set()),
    (Wino(0.3), NoVerifier(), MultiBlock(), "llada", set()),
    (STEPWISE, NoVerifier(), MultiBlock(), "sdar", EVERY),
    (STEPWISE, NoVerifier(), SubBlocks(), "sdar", EVERY),
    (JOINT, WRITING, Sequential(), "llada", set()),
    (PLAIN, S2D2(), Sequential(), "sdar", EXACT),
    (STEPWISE, S2D2(), MultiBlock(), "sdar", set()),
    (STEPWISE, SelfVerify(2), SILENT_BLOCKS, "llada", set()),
    (STEPWISE, NoVerifier(), SILENT_BLOCKS, "llada", EVERY),
    (STEPWISE, NoVerifier(), SILENT_BLOCKS, "sdar", set()),
    # A sampler with a state that forgot to need whole blocks was run by MultiBlock.
    (COUNTING, NoVerifier(), Sequential(), "llada", LOOKED),
    (COUNTING, NoVerifier(), MultiBlock(), "llada", set()),
    (CreditDecoding(COUNTING), NoVerifier(), MultiBlock(), "llada", set()),
    # Verifiers whose target writes; with two forwards a draft they overwrote given tokens.
    *(
        (sampler, verifier, blocks, "llada", fitting)
        for verifier in TARGETS
        for sampler, blocks, fitting in (
            (STEPWISE, Sequential(), ALL), (STEPWISE, MultiBlock(), set()),
            (STEPWISE, SubBlocks(4, 2), set()), (STEPWISE, AdaptiveBlocks((5,)), set()),
            (JOINT, Sequential(), set()), (Prophet(PLAIN), Sequential(), set()),
        )
    ),
    (STEPWISE, NoVerifier(), AdaptiveBlocks((5, 6)), "llada", EVERY),
    (STEPWISE, NoVerifier(), AdaptiveBlocks((5, 6)), "sdar", set()),
    (STEPWISE, NoVerifier(), SlidingWindow(), "sdar", set()),
    (STEPWISE, NoVerifier(), SlidingWindow(within="block"), "sdar", EVERY),
]  # fmt: skip


def run(model: Any, sampler: Sampler, **options: Any) -> Any:
    return decode(model, [[5, 6, 7, 8]], sampler, gen_length=8, block_length=4, **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind[:4])))
def test_plug_ins_that_fit_together_are_these(kind: Any) -> None:
    sampler, verifier, blocks, family, fitting = kind
    compatible = {
        name
        for name, cache in CACHES.items()
        if refusal_of(tiny(family), sampler, cache, verifier=verifier, blocks=blocks) is None
    }
    assert compatible == fitting


@pytest.mark.exhaustive(40)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind[:4])))
def test_what_is_not_refused_decodes_and_a_refusal_costs_no_forward(kind: Any, cache: str) -> None:
    sampler, verifier, blocks, family, fitting = kind
    model, policy = Spied(tiny(family)), CACHES[cache]
    options = {"cache": policy, "verifier": verifier, "blocks": blocks}
    refusal = refusal_of(model, sampler, policy, verifier=verifier, blocks=blocks)
    if cache in fitting:
        out = run(model, sampler, **options)
        assert out.forwards == len(model.calls) > 0
        assert not (out.tokens == model.mask_id).any()
        return
    with pytest.raises(ValueError, match="got") as refused:
        run(model, sampler, **options)
    assert str(refused.value) == refusal
    assert not model.calls


# A sampler that needs `DECIDES_ON_PART` would give it.
@pytest.mark.parametrize("fact", sorted({*FACTS.values()} - {Fact.HAS_MASK, Fact.DECIDES_ON_PART}))
def test_a_refusal_names_both_sides_and_the_remedy(fact: Fact) -> None:
    sampler = plugin(ConfidenceThreshold, needs=frozenset({fact}), gives=frozenset())
    giving = plugin(Verifier, look=lambda self, decoder, state: ..., gives=frozenset({fact}))
    model = tiny("fast_dllm_v2")
    assert facts_of(model) == {Fact.HAS_MASK}
    cache, blocks = SubBlockCache(), SubBlocks()
    reprs = {
        "model": model.name, "sampler": repr(sampler), "cache": repr(cache),
        "verifier": repr(WRITING), "blocks": repr(blocks),
    }  # fmt: skip
    refusal = refusal_of(model, sampler, cache, verifier=WRITING, blocks=blocks)
    assert refusal == (
        f"{sampler!r} needs {fact.sentence}, got {reprs[fact.giver]}. Use "
        f"{fact.remedy}, or another sampler."
    )
    # A fact counts only if a plug-in of the right kind gives it.
    after = refusal_of(model, sampler, cache, verifier=giving, blocks=Sequential())
    assert (after is None) == (fact.giver in ("verifier", "blocks"))


def test_a_plug_in_that_declares_nothing_changes_no_token_of_what_needs_nothing() -> None:
    plain = run(tiny("llada"), STEPWISE).tokens
    for options in ({"cache": SILENT}, {"verifier": WRITING}, {"blocks": SILENT_BLOCKS}):
        assert torch.equal(run(tiny("llada"), STEPWISE, **options).tokens, plain)


def revising(also: str, needed: frozenset[Fact], given: frozenset[Fact]) -> Any:
    """Returns a sampler that commits one position a step, and settles or re-masks something."""

    def step(self: Any, view: View, state: None) -> tuple[Decision, None]:
        commit = highest_one(view.confidence, view.eligible)
        changed = commit if also == "settle" else torch.zeros_like(commit)
        return Decision(commit, **{also: changed}), None

    return plugin(Sampler, step=step, needs=needed | {Fact.HAS_MASK}, gives=given)


COMMITTED_LOGITS, NO_FACT = frozenset({Fact.LOGITS_OF_COMMITTED}), frozenset[Fact]()


@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("also", ["remask", "settle"])
def test_a_sampler_that_changes_tokens_but_gives_final_ones_is_named_at_the_step(
    also: str, verifier: Verifier
) -> None:
    """Tokens of a sampler that re-masks were shown as final to streams, caches and schedules."""
    sampler = revising(also, COMMITTED_LOGITS, frozenset({Fact.FINAL_TOKENS}))
    # The error also comes if the sampler is within a wrapper.
    for tested, name in (
        (sampler, "Own"), (CreditDecoding(sampler), "CreditDecoding"),
        (Prophet(sampler, (99.0,) * 3, answer_start=0), "Own"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=rf"^{name}\(.*gives FINAL_TOKENS, so its step"):
            run(tiny("llada"), tested, verifier=verifier)


@pytest.mark.parametrize("also", ["remask", "settle"])
def test_a_sampler_that_changes_tokens_without_their_logits_is_named_at_the_step(also: str) -> None:
    """A sampler that forgot `reads_committed` compared tokens with their own certainty."""
    with pytest.raises(RuntimeError, match=r"must need LOGITS_OF_COMMITTED or LEAVE_ONE_OUT"):
        run(tiny("llada"), revising(also, NO_FACT, NO_FACT))
    # A cache that freezes those logits is refused.
    sampler = revising(also, COMMITTED_LOGITS, NO_FACT)
    assert not (run(tiny("llada"), sampler).tokens == tiny("llada").mask_id).any()
    with pytest.raises(ValueError, match="computes the committed columns"):
        run(tiny("llada"), sampler, cache=DelayedCache())


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((), r"^eos_ids of .* must be one or more ids in \[0, 512\), got \(\)\. Set them"),
        ((3, 512), r"^eos_ids of .* must be one or more ids in \[0, 512\), got \(3, 512\)"),
        ((-1,), r"^eos_ids of .* must be one or more ids in \[0, 512\), got \(-1,\)"),
        ("mask", r"^mask_id of .* must not be one of its eos_ids, got \d+ in .* Take it out"),
    ],
)  # fmt: skip
def test_special_ids_that_cannot_end_an_answer_are_refused(ends: Any, message: str) -> None:
    """A [MASK] that is an EOS was left in answers, and empty eos_ids raised an IndexError."""
    model = Spied(tiny("llada"))
    model.eos_ids = (3, model.mask_id) if ends == "mask" else ends
    with pytest.raises(ValueError, match=message):
        run(model, STEPWISE)
    assert not model.calls


class Undecorated(Sampler[None]):
    def step(self, view: View, state: None) -> tuple[Decision, None]:
        return Decision(commit=view.eligible), None


class WithAField(ConfidenceThreshold):
    margin: float = 0.1


class Renamed(ConfidenceThreshold):
    pass


@dataclass
class Mutable(Sampler[None]):
    threshold: float = 0.5

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        return Decision(commit=view.eligible), None


@pytest.mark.parametrize("plugin", [Undecorated(), WithAField(), Mutable()], ids=type)
def test_a_plug_in_that_its_fields_do_not_name_is_refused(plugin: Sampler) -> None:
    """Records of a sampler without the decorator had its address, and were never found again."""
    for sampler in (plugin, CreditDecoding(plugin)):
        name = type(plugin).__name__
        with pytest.raises(ValueError, match=rf"^{name} must be a frozen dataclass, whose fields"):
            run(tiny("llada"), sampler)


def test_a_subclass_without_fields_of_its_own_needs_no_decorator() -> None:
    assert run(tiny("llada"), Renamed()).nfe.min() > 0


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ({"sampler": Factor(1.0)}, r"^Factor\(.*\) has no effect: Guided\(.* never asks"),
        ({"block_length": 4}, "^block_length=4 has no effect: Guided"),
        ({"cache": DualCache()}, r"^DualCache\(.*\) has no effect: Guided"),
        ({"cache": DelayedCache()}, r"^DelayedCache\(.*\) has no effect: Guided"),
    ],
)
def test_what_a_verifier_never_reads_is_warned_of(idle: dict[str, Any], said: str) -> None:
    model = tiny("llada")
    verifier = Guided(tiny_target(model.vocab_size))
    options: Any = {"sampler": ConfidenceThreshold(0.9), "verifier": verifier}
    options |= {"gen_length": 8} | idle
    with pytest.warns(UserWarning, match=said):
        decode(model, [[1]], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(model, [[1]], **{**options, "verifier": NoVerifier(), "cache": NoCache()})


def test_a_window_on_a_block_causal_model_is_warned_of() -> None:
    model = tiny("sdar")
    with pytest.warns(UserWarning, match="hides nothing: the blocks of sdar see no later ones"):
        new_decoder(model, ConfidenceThreshold(0.9), cache=SuffixWindow(NoCache(), 4))


def test_a_plug_in_may_need_a_fact_of_its_own() -> None:
    """Facts were a closed list, so that plug-ins of others could rely on nothing else."""
    fact = Fact("cache", "a cache policy that counts its forwards", "Counter()")
    sampler = plugin(ConfidenceThreshold, needs=frozenset({Fact.HAS_MASK, fact}))
    with pytest.raises(ValueError, match=r"needs a cache policy that counts .* Use Counter\(\)"):
        run(tiny("llada"), sampler)
    equal_fact = Fact("cache", "a cache policy that counts its forwards", "Counter()")
    giving = plugin(NoCache, gives=NoCache().gives | {equal_fact})
    assert run(tiny("llada"), sampler, cache=giving).forwards > 0
