"""Decode traces of the official implementations, step by step, on tiny checkpoints.

Each file in data/traces says which code at which commit it was recorded from. A run whose official
trace shows a defect of that code is compared with the trace of the same code with the defect
repaired, which the file holds too; [MASK] is never emitted, so that counts as such a defect.

To add a method: copy its file to data/traces, add one line to METHODS and write the page anew.

Recordings that were left out whole are in LEFT_OUT, with the reason. docs/golden.md is the table of
all that; `python tests/golden/test_traces.py` writes it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from official_bugs import EntryToken, StaleFreeCache, WithoutEntry
from tiny_models import recorded_model

import samplers
from dllm_decode import StepEvent, blocks, caches, new_decoder
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, DualCache, FreeCache, NoCache, PrefixCache
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.engine.loop import run as decode_requests
from dllm_decode.verify import NoVerifier, SelfVerify, Verifier
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Prophet, Sampler, View
from samplers.facts import Fact
from samplers.fixed_schedule import Order
from samplers.logits.statistics import highest
from samplers.prophet import Averaged
from samplers.state import SamplerState

DATA = Path(__file__).parent / "data"
PAGE = Path(__file__).parents[2] / "docs" / "golden.md"
# Float32 sums differ between machines; a stable run keeps its trace at logits off by 1e-4.
TOLERANCE = 1e-3
MASK_ID = 508
# The slow run compares all settings of a method.
NUM_SETTINGS = 3
# Where [MASK] has a share of the probability, the official confidence leaves it there.
MASK_SHARES = {
    "fast_dllm_v2/b16_sb4_n48_t0.9_subcache/p0": 3e-3,
    "fast_dllm_v2/b32_sb8_n64_t0.7_nocache/p0": 6e-2,
    "fast_dllm_v2/b32_sb8_n64_t0.9_nocache/p2": 2e-2,
    "fast_dllm_v2/b32_sb8_n64_t0.9_subcache/p0": 1e-2,
    "fast_dllm_v2/b32_sb8_n64_t1_subcache/p0": 2e-2,
    "fast_dllm_v2/b8_sb4_n32_t0.7_subcache/p0": 3e-3,
    "llada21_dllm/default_g32_b8/p4": 3e-2,
    "dkv_dream_decode/g48_s24_N4_unright/p2": 6e-3,
    "dream_native/entropy_g32_s8/p2": 3e-3,
    "fastdllm_dream_dual/g32_b16_t0.9/p2": 2e-2,
    "fastdllm_dream_dual/g32_b8_s16_entropy/p2": 3e-3,
    "fastdllm_dream_dual/g32_b8_s16_entropy/p4": 1e-2,
    "fastdllm_dream_dual/g48_b16_t0.5/p0": 3e-3,
    "fastdllm_dream_prefix/g32_b16_s32_entropy/p2": 4e-2,
    "fastdllm_dream_prefix/g32_b8_s16_entropy/p4": 8e-2,
    "fastdllm_dream_prefix/g48_b16_t0.5/p0": 2e-3,
    "freecache_dream/g48_b16_s24_entropy/p2": 8e-3,
    "llada2_dllm/fixed_g32_b8_s8/p0": 2e-2,
    "llada2_dllm/fixed_g32_b8_s8/p4": 5e-2,
    "llada2_dllm/t.95_g32_b8/p4": 2e-3,
    "llada2_hub/hub_t.95_g32_b8/p4": 2e-3,
}
# Steps of the repaired LLaDA code in which positions of confidence 0 compete.
TIED_AT_ZERO = {
    "g32_b16_s16_conf/p2", "g32_b16_s16_conf/p4", "g48_b48_s24_conf/p2", "g48_b48_s24_conf/p4",
}  # fmt: skip


class Step(NamedTuple):
    """Changes of one forward; `confidences` is empty if the file has none."""

    positions: list[int]
    tokens: list[int]
    remasked: list[int]
    confidences: list[float]
    edited: Sequence[Sequence[int]] = ()


class Run:
    """One recorded run."""

    def __init__(self, method: str, family: str, record: dict[str, Any]) -> None:
        self.method = method
        self.family = family
        self.id = f"{method}/{record['id']}"
        self.record = record
        self.params: dict[str, Any] = record["params"]
        self.gen_length: int = record["gen_length"]
        if "livelock" in (record["official_bug"] or "") and method == "fast_dllm_v2":
            # The official run never ends; the answer is as long as without the defect.
            self.gen_length = len(record["banned"]["tokens"])
        self.block_length: int = record["block_length"]

    @property
    def is_stable(self) -> bool:
        """True if rounding of the logits does not change the recorded tokens."""
        return bool(self.record["stable"] or self.record.get("repaired_stable", False))

    @property
    def steps_per_block(self) -> int:
        return self.params["steps"] // (self.gen_length // self.block_length)

    def official_steps(self) -> list[Step]:
        return [self._step(step) for step in self.record["steps"]]

    def _step(self, step: dict[str, Any]) -> Step:
        # Tokens after the block were filled in after an EOS, not decoded, except by Prophet and
        # by eager drafts.
        takes_all = step["block"] is None or step.get("exit", False)
        end = self.gen_length if takes_all else (step["block"] + 1) * self.block_length
        if self.family in ("llada2_moe", "fast_dllm_v2"):
            # Blocks count from the prompt, and the last block is filled up after the answer.
            end = self.gen_length + self.block_length
        if self.params.get("eager", False):
            end += self.block_length
        num_shown = sum(position < end for position in step["positions"])
        # Tokens that are filled in after an EOS may be in blocks that are not open; skip them.
        # With a repetition penalty, confidences are those after it.
        is_other = step.get("eos_filled") or self.params.get("penalty_lambda")
        confidences = [] if is_other else step.get("conf", [])
        committed = step["positions"][:num_shown], step["tokens"][:num_shown]
        edited = step.get("overwritten", [])
        return Step(*committed, step.get("remasked", []), confidences[:num_shown], edited)

    def sound_steps(self) -> list[Step] | None:
        """The official trace, or else the one with the defects repaired; None if there is none."""
        if self.repair is None:
            return None if self.record["official_bug"] else self.official_steps()
        padded = ([*step, [], [], []][:5] for step in self.repair["steps"])
        return [
            Step(positions, tokens, remasked, confidences, edited)
            for positions, tokens, remasked, edited, confidences in padded
        ]

    @property
    def repair(self) -> dict[str, Any] | None:
        """The trace of the same code with a defect repaired."""
        return self.record.get("banned", self.record.get("repaired"))


@dataclass(frozen=True)
class Case:
    """How `decode` is called for a run.

    `unfinished`: the official code stops before the answer is full, so ours goes on after it.
    `official`: compare with the official trace even where it shows a defect.
    `template`: given tokens of the answer.
    `options`: fields of the config.
    `confidences`: whether recorded confidences are of the same distribution as ours.
    `eos_id`: the token that ends the answer; `None` if no token does.
    `truncates`: whether positions after the EOS are filled at once.
    """

    sampler: Sampler
    cache: CachePolicy = field(default_factory=NoCache)
    verifier: Verifier = field(default_factory=NoVerifier)
    unfinished: bool = False
    official: bool = False
    template: Sequence[int] = ()
    options: dict[str, Any] = field(default_factory=dict)
    confidences: bool = True
    blocks: BlockSchedule = field(default_factory=Sequential)
    eos_id: int | None = None
    truncates: bool = True


Mapping = Callable[[Run], Case | str]
"""Says how a run is decoded, or why it is not compared."""

CACHES: dict[str, CachePolicy] = {
    "none": NoCache(), "nocache": NoCache(), "prefix": PrefixCache(), "dual": DualCache(),
}  # fmt: skip
OFFICIAL_ENTRIES: dict[str, CachePolicy] = {
    "prefix": WithoutEntry(PrefixCache()), "dual": WithoutEntry(DualCache()),
}  # fmt: skip
DREAM_ORDERS: dict[str, Order] = {
    "entropy": "entropy", "maskgit_plus": "confidence", "topk_margin": "margin",
}  # fmt: skip


def rule(sampler: type[Sampler], *names: str, cache: CachePolicy = CACHES["none"]) -> Mapping:
    """Maps a run to a sampler whose arguments are these parameters of the run."""
    return lambda run: Case(sampler(*(run.params[name] for name in names)), cache)


def fixed(run: Run, order: Order = "confidence") -> Case:
    scale = run.params.get("cfg_scale", 0.0)
    return Case(FixedSchedule(run.steps_per_block, order), options={"cfg_scale": scale})


def of_dream(run: Run) -> FixedSchedule:
    return FixedSchedule(run.params["steps"], DREAM_ORDERS[run.params["alg"]], "dream")


def dream_native(run: Run) -> Case | str:
    if "top_p" in run.params:
        return "after top-p many confidences are exactly 1: torch.topk decides the ties"
    return Case(of_dream(run))


def eos_options(run: Run) -> Case | str:
    params = run.params
    eos, turn = params["eos_id"], params["eot_id"]
    sampler = FixedSchedule(run.steps_per_block)
    if params.get("logits_eos_inf"):
        # The recorded confidences are those of before the ban.
        return Case(sampler, options={"banned_ids": (eos,)}, confidences=False)
    if run.id.removeprefix("llada_eos_options/") in TIED_AT_ZERO:
        return "several proposals are deferred at once: torch.topk decides the ties"
    return Case(sampler, options={"deferred_ids": (eos, turn)})


def fast_dream(run: Run) -> Case | str:
    if "masks_left" in (run.record["official_bug"] or ""):
        return "with one step a block the official code leaves masks"
    sampler: Sampler = FixedSchedule(run.steps_per_block, "entropy", "dream")
    if run.params["threshold"] is not None:
        sampler = ConfidenceThreshold(run.params["threshold"])
    cache = OFFICIAL_ENTRIES[run.params["cache"]]
    return Case(EntryToken(sampler), cache, official="banned" not in run.record)


def free_dave_dream(run: Run) -> Case:
    drafts = run.params["draft_steps"]
    return Case(
        EntryToken(FixedSchedule(run.block_length)),
        OFFICIAL_ENTRIES[run.params["cache"]],
        SelfVerify(drafts, "tree") if drafts else NoVerifier(),
        official=True,
        # Recorded confidences are of the column, not of the column that predicts it.
        confidences=False,
    )


def llada2(run: Run) -> Case | str:
    if "skips_block" in (run.record["official_bug"] or ""):
        return "after an EOS the official code leaves masks and goes on"
    params = run.params
    sampler = samplers.QuotaThreshold(params["threshold"], params["steps_per_block"])
    return Case(sampler, unfinished=params.get("eos_early_stop", False))


def fast_dllm(run: Run) -> Case:
    if run.params["threshold"] is not None:
        sampler: Sampler = ConfidenceThreshold(run.params["threshold"])
    elif run.params.get("factor") is not None:
        sampler = samplers.Factor(run.params["factor"], "inclusive")
    elif run.block_length % run.steps_per_block:
        sampler = quotas(run, run.official_steps(), "confidence")
    else:
        sampler = FixedSchedule(run.steps_per_block)
    return Case(sampler, CACHES[run.params["cache"]])


def dinfer_threshold(run: Run) -> Case:
    # In this code an EOS ends the decode after its block, with and without early stop.
    stops = run.params["eos_id"] in run.record["tokens"]
    return Case(ConfidenceThreshold(run.params["threshold"]), unfinished=stops, official=True)


def prophet(run: Run, gap: Averaged = "masked") -> Case:
    params = run.params
    constraints = {int(position): token for position, token in params["constraints"].items()}
    sampler = Prophet(
        FixedSchedule(run.steps_per_block),
        tuple(params["thresholds"][phase] for phase in ("early", "mid", "late")),
        answer_start=params["answer_start"],
        answer_length=params["answer_length"],
        gap=gap,
        num_steps=params["steps"],
    )
    template = [constraints.get(position, MASK_ID) for position in range(run.gen_length)]
    return Case(sampler, template=template if constraints else (), official=gap == "all")


def hierarchy(run: Run) -> Case:
    low, high = run.params["low_threshold"], run.params["threshold"]
    return Case(samplers.Hierarchy(low, 1.0 if high is None else high))


def klass(run: Run) -> Case:
    names = ("conf_threshold", "kl_threshold", "kl_history_length")
    return Case(samplers.Klass(*(run.params[name] for name in names), run.steps_per_block))


def dparallel(run: Run) -> Case:
    threshold = run.params["entropy_threshold"]
    if threshold is None:
        sampler: Sampler = FixedSchedule(run.steps_per_block, "entropy")
    else:
        sampler = samplers.EntropyThreshold(threshold)
    return Case(sampler, CACHES[run.params["cache"]])


@dataclass(frozen=True)
class Quotas(Sampler):
    """Commits the recorded number of tokens a step.

    FreeCache's code has a schedule of its own; dllm rounds an uneven one otherwise than LLaDA.
    """

    of_blocks: tuple[tuple[int, ...], ...]
    block_length: int
    order: Order

    def init(self, view: View) -> SamplerState:
        return torch.zeros_like(view.eligible.sum(-1))

    def step(self, view: View, state: SamplerState) -> tuple[Decision, SamplerState]:
        quotas = torch.tensor(self.of_blocks[int(view.positions[0, 0]) // self.block_length])
        scores = -view.entropy if self.order == "entropy" else view.confidence
        return Decision(highest(scores, view.eligible, quotas[state])), state + 1


def quotas(run: Run, steps: list[Step], order: Order) -> Quotas:
    sizes: list[list[int]] = [[] for _ in range(run.gen_length // run.block_length)]
    for step in steps:
        if step.positions:
            sizes[step.positions[0] // run.block_length].append(len(step.positions))
    return Quotas(tuple(map(tuple, sizes)), run.block_length, order)


def free_cache_dream(run: Run) -> Case | str:
    if {"banned", "repaired"} <= run.record.keys():
        return "two defects, and no trace that has both repaired"
    order = DREAM_ORDERS[run.params["alg"]]
    return Case(quotas(run, run.sound_steps() or [], order), FreeCache())


def free_cache_official(run: Run) -> Case | str:
    bug = run.record["official_bug"]
    if bug is None or "misaligned" in bug:
        return "nothing is frozen, or what is frozen is misplaced by another defect"
    if run.id == "freecache_dream/g32_b8_s32_entropy/p0":
        return "the share of [MASK] decides between two entropies 6e-4 apart"
    if run.family == "llada":
        return Case(FixedSchedule(run.steps_per_block), StaleFreeCache(), official=True)
    banned = "banned" in run.record
    steps = (run.sound_steps() or []) if banned else run.official_steps()
    sampler = quotas(run, steps, DREAM_ORDERS[run.params["alg"]])
    return Case(sampler, StaleFreeCache(), official=not banned)


def dkv_dream(run: Run) -> Case | str:
    shift_type = run.params["shift_type"]
    if shift_type == "right":
        return "the official code does not compute what predicts a mask"
    if shift_type == "un":
        return "freezes columns that are still [MASK], by the masks of a forward before"
    return Case(of_dream(run), caches.DelayedCache(run.params["cache_steps"], warm_up=1))


def free_dave(run: Run) -> Case:
    drafts = run.params["draft_steps"]
    threshold = run.params.get("confidence_threshold")
    if threshold is None:
        sampler: Sampler = FixedSchedule(run.block_length)
    else:
        sampler = ConfidenceThreshold(threshold)
    cache = CACHES[run.params["cache"]] if "cache" in run.params else FreeCache()
    if not drafts:
        return Case(sampler, cache)
    tree = run.params["draft_mode"] == "tree_attention"
    reach: Literal["block", "next"] = "next" if run.params["eager"] else "block"
    return Case(sampler, cache, SelfVerify(drafts, "tree" if tree else "batch", reach))


def streaming(run: Run) -> Case:
    threshold, decay = run.params["threshold"], run.params["confidence_alpha"]
    window = run.params["window_size"]
    sampler = samplers.DecayingThreshold(threshold, decay, window)
    # With an EOS in a finished block this code ends, whatever else the block holds.
    stops = any(step.get("eos_exit", False) for step in run.record["steps"])
    return Case(sampler, caches.SuffixWindow(PrefixCache(), window), unfinished=stops)


def d3llm(run: Run) -> Case:
    params = run.params
    refresh_every = params.get("refresh_interval", 0)
    return Case(
        samplers.EntropyThreshold(params["entropy_threshold"]),
        caches.PipelineCache(run.block_length, params["cache_delay_iter"], refresh_every)
        if "cache_delay_iter" in params
        else NoCache(),
        blocks=blocks.MultiBlock(
            run.block_length,
            params["block_add_threshold"],
            params["decoded_token_threshold"],
            order="entropy",
        ),
        eos_id=params["eos_id"] if params["early_stop"] else None,
    )


def ada_block(run: Run) -> Case:
    params = run.params
    threshold = params["delimiter_threshold"]
    return Case(
        ConfidenceThreshold(params["threshold"]),
        CACHES[params["cache"]],
        blocks=blocks.AdaptiveBlocks(
            () if threshold is None else tuple(params["delimiter_ids"]),
            0.0 if threshold is None else threshold,
            run.block_length,
        ),
    )


def fast_dllm_v2(run: Run) -> Case:
    params = run.params
    return Case(
        ConfidenceThreshold(float(params["threshold"])),
        caches.SubBlockCache() if params["use_block_cache"] else FreeCache(),
        blocks=blocks.SubBlocks(run.block_length, params["small_block_size"]),
        eos_id=params["stop_token"],
        truncates=False,
    )


def joint_threshold(run: Run) -> Case:
    params = run.params
    return Case(
        samplers.JointThreshold(
            params["threshold"],
            float(params.get("edit_threshold", params.get("editing_threshold", 0))),
            params.get("max_post_edit_steps", params.get("max_post_steps")),
            params.get("num_to_transfer", 1),
            float(params.get("penalty_lambda", 0)),
        ),
        FreeCache(),
        # With an EOS in a finished block dllm ends, whatever else the block holds.
        unfinished=params.get("eos_early_stop", False),
    )


def t2m(run: Run) -> Case:
    settings = {name: value for name, value in run.params.items() if name != "eos_id"}
    eos_id = run.params["eos_id"]
    return Case(
        samplers.T2M(**settings, eos_early_stop=eos_id is not None),
        StaleFreeCache() if run.method == "t2m_stale_cache" else NoCache(),
        eos_id=eos_id,
        truncates=False,
    )


METHODS: dict[str, Mapping] = {
    "adablock": ada_block,
    "fast_dllm_v2": fast_dllm_v2,
    "llada21_dllm": joint_threshold,
    "llada21_sglang": joint_threshold,
    "fastdllm_dream_dual": fast_dream,
    "fastdllm_dream_hybrid": lambda run: Case(
        samplers.QuotaThreshold(run.params["threshold"], run.params["steps"], "most")
    ),
    "fastdllm_dream_prefix": fast_dream,
    "freedave_dream": free_dave_dream,
    "llada2_dllm": llada2,
    "llada2_hub": llada2,
    "llada_eos_options": eos_options,
    "d3llm_multiblock": d3llm,
    "d3llm_multiblock_kv": d3llm,
    "streaming_dllm": streaming,
    "dkv_dream_decode": dkv_dream,
    "dkv_llada_decode": lambda run: Case(
        FixedSchedule(run.steps_per_block), caches.DelayedCache(run.params["cache_reloading_step"])
    ),
    "dparallel_dual": dparallel,
    "dparallel_prefix": dparallel,
    "fastdllm_dual": fast_dllm,
    "fastdllm_prefix": fast_dllm,
    "frechet_dual": rule(samplers.Frechet, "delta", cache=DualCache()),
    "frechet_prefix": rule(samplers.Frechet, "delta", cache=PrefixCache()),
    "freecache_dream": free_cache_dream,
    "freecache_llada": lambda run: Case(FixedSchedule(run.steps_per_block), FreeCache()),
    "freedave_llada": free_dave,
    "freedave_llada_extra": free_dave,
    "freedave_sdar": free_dave,
    "credit": lambda run: Case(
        samplers.CreditDecoding(
            ConfidenceThreshold(run.params["threshold"]),
            *(run.params[name] for name in ("alpha", "beta", "gamma")),
        )
    ),
    "dinfer_threshold": dinfer_threshold,
    "dllm_fastdllm": fast_dllm,
    "dparallel_entropy": rule(samplers.EntropyThreshold, "entropy_threshold"),
    "dream_native": dream_native,
    "eb": rule(samplers.EntropyBound, "gamma"),
    "factor": rule(samplers.Factor, "factor"),
    "fastdllm_nocache": fast_dllm,
    "frechet": rule(samplers.Frechet, "delta"),
    "hierarchy": hierarchy,
    "hierarchy_v2": hierarchy,
    "klass": klass,
    "llada_entropy": lambda run: fixed(run, "entropy"),
    "llada_low_confidence": fixed,
    "llada_margin": lambda run: fixed(run, "margin"),
    "localleap": rule(samplers.LocalLeap, "threshold", "relaxed_threshold", "radius"),
    "prophet": prophet,
    "t2m": t2m,
    "t2m_eos": t2m,
    "t2m_stale_cache": t2m,
    "wino": rule(samplers.Wino, "threshold", "threshold_back"),
}
# Modes that reproduce the official trace, its defects included.
OFFICIAL_MODES: dict[str, Mapping] = {
    "freecache_dream": free_cache_official,
    "freecache_llada": free_cache_official,
    "factor": lambda run: Case(samplers.Factor(run.params["factor"], "official"), official=True),
    "prophet": lambda run: prophet(run, "all"),
}
# Files that are not compared at all: how many runs they hold, and why.
LEFT_OUT = {
    "daedal": (21, "answers that grow while they are decoded are not offered"),
    "hierarchy_remask": (
        6,
        "official bug argmax_prob_for_committed in all runs: overwrites committed tokens by the "
        "probability of other ones; the rule without it is not offered",
    ),
}
# Compared by a test of its own.
IN_ONE_BATCH = "llada_batch_leftpad"


class Recorder:
    """Observer: the steps of each row, and its forwards."""

    def __init__(self) -> None:
        self.steps: dict[int, list[Step]] = defaultdict(list)

    def __call__(self, event: StepEvent) -> None:
        masked, remains = event.before.masked, event.after.masked
        seen = event.after.tokens.gather(1, event.columns).clamp(max=511)
        probability = event.view.probability(seen)
        for index, row in enumerate(event.request_indices.tolist()):
            prompt, first = int(event.before.prompt_lengths[index]), int(event.columns[index, 0])
            # Columns after the block were filled after an EOS, unless a sampler sees them.
            columns = event.columns[index]
            stop = event.rows[index].opening.phase[1]
            shown = columns[event.view.masked[index] | (columns < stop)]
            was, stays = masked[index], remains[index]
            committed = shown[(was & ~stays)[shown]]
            remasked = (~was & stays).nonzero().squeeze(-1)
            old, new = event.before.tokens[index], event.after.tokens[index]
            edited = (~was & ~stays & (old != new)).nonzero().squeeze(-1)
            edits = torch.stack([edited - prompt, old[edited], new[edited]], -1).tolist()
            step = Step(
                (committed - prompt).tolist(), new[committed].tolist(),
                (remasked - prompt).tolist(), probability[index, committed - first].tolist(), edits,
            )  # fmt: skip
            self.steps[row].append(step)


@cache
def runs_of(method: str) -> list[Run]:
    text = (DATA / "traces" / f"{method}.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return [Run(method, content["family"], record) for record in content["runs"]]


def reason_of(run: Run, mapping: Mapping) -> str | None:
    """Says why a run is not compared; `None` if it is."""
    case = mapping(run)
    if isinstance(case, str):
        return case
    if not run.is_stable:
        return "a near tie, which rounding decides"
    if case.official or run.sound_steps() is not None:
        return None
    return f"official bug {run.record['official_bug']}, recorded without a repair"


def comparable(method: str, mapping: Mapping) -> list[Run]:
    return [run for run in runs_of(method) if reason_of(run, mapping) is None]


def record(
    runs: list[Run],
    case: Case,
    prompts: Sequence[Sequence[int]] = (),
    *,
    num_rows: int | None = None,
) -> tuple[dict[int, list[Step]], dict[int, EndedRequest]]:
    """Returns steps and answers of runs that differ in prompt and length, on `num_rows` rows."""
    run, recorder = runs[0], Recorder()
    ends = case.eos_id is not None
    config = DecodeConfig(
        gen_length=max(run.gen_length for run in runs), block_length=run.block_length,
        stop_at_eos=ends, truncate_at_eos=case.truncates and ends, **case.options,
    )  # fmt: skip
    decoder = new_decoder(
        recorded_model(run.family, run.block_length, case.eos_id), case.sampler, cache=case.cache,
        verifier=case.verifier, blocks=case.blocks, config=config,
    )  # fmt: skip
    pairs = zip(runs, prompts or [run.record["prompt"] for run in runs], strict=True)
    requests = [
        decoder.request(prompt, index, gen_length=run.gen_length, template=case.template)
        for index, (run, prompt) in enumerate(pairs)
    ]
    queue = RequestQueue(iter(requests))
    ended = decode_requests(decoder, queue, num_rows or len(requests), [recorder])
    answers = {answer.index: answer for answer in ended}
    assert not any(answer.error for answer in answers.values())
    canvases = 2 if case.options.get("cfg_scale") else 1
    for row, answer in answers.items():
        nfe, most = int(answer.output.nfe[0]), canvases * len(recorder.steps[row])
        assert nfe == most or (nfe < most and Fact.ONE_STEP_A_FORWARD not in case.verifier.gives)
    return recorder.steps, answers


def assert_same_steps(got: list[Step], run: Run, case: Case) -> None:
    expected = run.official_steps() if case.official else run.sound_steps()
    # Forwards that change nothing are not run by this engine.
    expected = [step for step in expected if step.positions or step.remasked or step.edited]
    got = [step for step in got if step.positions or step.remasked or step.edited]
    got = got[: len(expected)] if case.unfinished else got
    if Fact.ONE_STEP_A_FORWARD not in case.verifier.gives:
        got = joined(got, [len(step.positions) for step in expected])
    if case.eos_id is not None:
        # Their code overwrites tokens committed after an EOS, which ends the answer.
        finish = ended if case.truncates else cut
        got, expected = (finish(steps, run, case.eos_id) for steps in (got, expected))
    assert [step[:3] for step in got] == [step[:3] for step in expected], run.id
    assert [[*step.edited] for step in got] == [[*step.edited] for step in expected], run.id
    tolerance = MASK_SHARES.get(run.id, TOLERANCE)
    for ours, theirs in zip(got, expected, strict=True):
        if theirs.confidences and case.confidences:
            assert ours.confidences == pytest.approx(theirs.confidences, abs=tolerance), run.id


def ended(steps: list[Step], run: Run, eos_id: int) -> list[Step]:
    """Replaces tokens committed after the answer's first EOS by the EOS."""
    last = run.record["tokens"].index(eos_id)
    return [
        step._replace(
            tokens=[
                eos_id if position > last else token
                for position, token in zip(step.positions, step.tokens, strict=True)
            ],
            edited=[edit for edit in step.edited if edit[0] <= last],
        )
        for step in steps
    ]


def cut(steps: list[Step], run: Run, eos_id: int) -> list[Step]:
    """Leaves out tokens that are committed, or filled, after the answer's first EOS."""
    end = run.record["tokens"].index(eos_id) + 1
    sizes = [sum(position < end for position in step.positions) for step in steps]
    return [
        Step(step.positions[:size], step.tokens[:size], step.remasked, step.confidences[:size])
        for step, size in zip(steps, sizes, strict=True)
    ]


def joined(steps: list[Step], sizes: list[int]) -> list[Step]:
    """Puts consecutive steps together so that each group commits the given number of tokens.

    The files tell which steps one forward verified, not their order.
    """
    remaining, groups = iter(steps), []
    for size in sizes:
        tokens: dict[int, int] = {}
        while len(tokens) < size:
            step = next(remaining)
            tokens |= dict(zip(step.positions, step.tokens, strict=True))
        groups.append(Step(sorted(tokens), [tokens[at] for at in sorted(tokens)], [], []))
    assert not list(remaining)
    return groups


def settings_of(mappings: dict[str, Mapping]) -> list[Any]:
    """Groups the runs that differ in the prompt only: one ragged batch each.

    A few settings of each method, evenly spread, are in the default run.
    """
    parameters = []
    for method, mapping in mappings.items():
        groups: dict[str, list[Run]] = defaultdict(list)
        for run in comparable(method, mapping):
            key = f"{method}/{run.record['setting']}/{run.gen_length}/{mapping(run)}"
            groups[key].append(run)
        # The first, the last and those between: settings alternate, with and without a cache.
        gap = (len(groups) - 1) / (NUM_SETTINGS - 1)
        in_default_run = {round(number * gap) for number in range(NUM_SETTINGS)}
        for place, (key, runs) in enumerate(groups.items()):
            marks = () if place in in_default_run else pytest.mark.slow
            parameters.append(pytest.param(runs, mapping, id=key.rsplit("/", 2)[0], marks=marks))
    return parameters


def assert_all_same_steps(runs: list[Run], mapping: Mapping) -> None:
    case = mapping(runs[0])
    steps, _ = record(runs, case)
    for row, run in enumerate(runs):
        assert_same_steps(steps[row], run, case)


# T2M has a test of its own, with more caches and rows that join.
IN_BATCHES = {name: mapping for name, mapping in METHODS.items() if mapping is not t2m}


@pytest.mark.parametrize(("runs", "mapping"), settings_of(IN_BATCHES))
def test_the_official_traces_are_reproduced(runs: list[Run], mapping: Mapping) -> None:
    assert_all_same_steps(runs, mapping)


@pytest.mark.parametrize(("runs", "mapping"), settings_of(OFFICIAL_MODES))
def test_official_defects_are_reproduced_on_request(runs: list[Run], mapping: Mapping) -> None:
    assert_all_same_steps(runs, mapping)


T2M_EXACT = (FreeCache(), NoCache(), PrefixCache(), DualCache())
T2M_CACHES: dict[str, tuple[CachePolicy, ...]] = {
    "t2m": T2M_EXACT, "t2m_eos": T2M_EXACT, "t2m_stale_cache": (StaleFreeCache(),),
}  # fmt: skip


# Part of the settings by default, and all of them in the slow run.
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", T2M_CACHES)
def test_every_step_of_t2m_is_reproduced_with_every_exact_cache(method: str, every: int) -> None:
    """Steps that change nothing included, and tokens after an EOS and after the answer's end."""
    settings: dict[str, list[Run]] = defaultdict(list)
    for run in comparable(method, t2m):
        settings[run.record["setting"]].append(run)
    num_remasked = 0
    policies = T2M_CACHES[method][: 1 if every > 1 else None]
    for runs, policy in product(list(settings.values())[every // 2 :: every], policies):
        steps, _ = record(runs, replace(t2m(runs[0]), cache=policy), num_rows=4)
        for index, run in enumerate(runs):
            got, expected = steps[index], run.sound_steps() or []
            assert [step[:3] for step in got] == [step[:3] for step in expected], run.id
            num_remasked += sum(len(step.remasked) for step in got)
            for ours, theirs in zip(got, expected, strict=True):
                assert ours.confidences == pytest.approx(theirs.confidences, abs=1e-4), run.id
    assert num_remasked


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["freedave_llada", "freedave_sdar"])
def test_self_verification_needs_the_forwards_of_the_authors(method: str, every: int) -> None:
    accepted = 0
    for run in comparable(method, METHODS[method])[::every]:
        case = free_dave(run)
        # Eager drafts go on into the next block, which saves forwards that are needed here.
        if Fact.ONE_STEP_A_FORWARD in case.verifier.gives or run.params["eager"]:
            continue
        steps, answers = record([run], case)
        forwards = answers[0].forwards
        # Storing keys and values of a finished block takes no forward of its own here.
        theirs = [step for step in run.record["steps"] if not step.get("store_kv", False)]
        if "confidence_threshold" in run.params:
            assert forwards <= len(theirs), run.id
        else:
            assert forwards == len(theirs), run.id
        accepted += len(steps[0]) - forwards
    assert accepted > 0


def test_a_left_padded_batch_is_reproduced_row_by_row() -> None:
    runs = runs_of(IN_ONE_BATCH)
    prompts = runs[0].params["batch_prompts"]
    assert len({len(prompt) for prompt in prompts}) == len(prompts) == len(runs)
    case = Case(FixedSchedule(runs[0].steps_per_block))
    steps, _ = record(runs, case, prompts)
    for run in runs:
        assert_same_steps(steps[run.params["batch_row"]], run, case)


def counts_of(method: str) -> tuple[int, int, int, str]:
    """Counts the runs of a recording, those reproduced and those repaired; why others are not."""
    if method in LEFT_OUT:
        number, reason = LEFT_OUT[method]
        return number, 0, 0, f"{number}: {reason}"
    mapping, runs = METHODS.get(method, fixed), runs_of(method)
    reasons = Counter(reason_of(run, mapping) for run in runs)
    compared = reasons.pop(None, 0)
    repaired = [run for run in comparable(method, mapping) if is_repaired(run, mapping)]
    left_out = "; ".join(f"{number}: {reason}" for reason, number in reasons.items())
    return len(runs), compared, len(repaired), left_out


def is_repaired(run: Run, mapping: Mapping) -> bool:
    case = mapping(run)
    return isinstance(case, Case) and not case.official and run.repair is not None


def table() -> str:
    """Lays out in Markdown the recordings with runs that are left out, and sums of the others."""
    rows = {name: counts_of(name) for name in sorted({*METHODS, IN_ONE_BATCH, *LEFT_OUT})}
    others = [cells for *cells, left_out in rows.values() if not left_out]
    totals = [sum(numbers) for numbers in [*zip(*rows.values(), strict=True)][:3]]
    shown = {name: cells for name, cells in rows.items() if cells[3]}
    shown[f"{len(others)} others"] = (*map(sum, zip(*others, strict=True)), "")
    shown["**all**"] = (*totals, "")
    lines = [
        "| recording | runs | reproduced | of these repaired | left out |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {name} | {' | '.join(map(str, cells))} |" for name, cells in shown.items()),
    ]
    return "\n".join(lines) + "\n"


def document() -> str:
    least, most = min(MASK_SHARES.values()), max(MASK_SHARES.values())
    return f"""# Recorded runs of official code

Step by step, what published implementations did on tiny checkpoints in float32, and whether this
package does the same: positions, tokens and their order are equal, and confidences agree within
{TOLERANCE:g}. In {len(MASK_SHARES)} of the runs the bound is wider, {least:g} to {most:g}: there
the official code leaves [MASK] a share of the probability, and this package does not.

"Repaired" runs are compared with the trace of the same code with a defect repaired, since its own
trace shows the defect; [MASK] written as a token is one. "Left out" counts runs and says why.
Names, sources and commits are in the files, `tests/golden/data/traces`. This page is written by
`PYTHONPATH=.:tests/helpers python tests/golden/test_traces.py`.

{table()}"""


def test_the_page_on_recorded_runs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()


def test_every_file_is_compared_and_no_run_is_left_out_silently() -> None:
    assert not LEFT_OUT.keys() & METHODS.keys()
    files = {path.stem for path in (DATA / "traces").glob("*.json")}
    assert files == {*METHODS, IN_ONE_BATCH}


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")
