"""Which samplers, caches, verifiers and models fit together: the one table of what is refused."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PipelineCache,
    PrefixCache,
    SettledCache,
    SubBlockCache,
)
from dllm_decode.models.base import MaskPredictor
from dllm_decode.verify.base import Verifier
from samplers.base import Sampler
from samplers.checks import shown
from samplers.view import Scope

Part: TypeAlias = Literal["sampler", "cache", "verifier", "model", "blocks"]

# What a sentence calls a part whose name is not its own word.
_WORDS = {"blocks": "block schedule"}


@dataclass(frozen=True)
class Demands:
    """What sampler, verifier and model ask of a decode.

    Attributes:
        scope: See `Sampler.scope`.
        leave_one_out: See `Sampler.leave_one_out`.
        looks_ahead: See `Verifier.looks_ahead`.
        asks_sampler: See `Verifier.asks_sampler`.
        is_shifted: The model's logits predict the next column.
        is_causal: The model attends in blocks.
        opens_parts: See `BlockSchedule.opens_parts`.
        ends_anywhere: See `BlockSchedule.ends_anywhere`.
        needs_whole_block: See `Sampler.needs_whole_block`.
        edits: See `Sampler.edits`.
        reads_committed: See `Sampler.reads_committed`.
    """

    scope: Scope = "block"
    leave_one_out: bool = False
    looks_ahead: bool = False
    asks_sampler: bool = True
    is_shifted: bool = False
    is_causal: bool = False
    opens_parts: bool = False
    ends_anywhere: bool = False
    needs_whole_block: bool = False
    edits: bool = False
    reads_committed: bool = False


@dataclass(frozen=True)
class Refusal:
    """A pair that would decode wrongly, silently.

    Attributes:
        pair: Who asks, and who cannot give it.
        applies: Whether a decode is of this kind.
        reason: The rest of the sentence that starts with who asks.
        fault: A clause on who cannot.
        remedy: What to do instead.
    """

    pair: tuple[Part, Part]
    applies: Callable[[Demands, CachePolicy], bool]
    reason: str
    fault: str
    remedy: str


REFUSALS = (
    Refusal(
        ("verifier", "sampler"),
        lambda demands, cache: (
            not demands.asks_sampler and (demands.leave_one_out or demands.scope != "block")
        ),
        "writes the answer from left to right and asks no sampler",
        "which would make every forward wider for nothing",
        "Use FixedSchedule().",
    ),
    Refusal(
        ("sampler", "model"),
        lambda demands, cache: demands.leave_one_out and demands.is_shifted,
        "needs logits that predict their own column",
        "whose logits predict the next: its verifying copy would see the token it verifies",
        "Use a sampler that never re-masks.",
    ),
    Refusal(
        ("sampler", "model"),
        lambda demands, cache: demands.leave_one_out and demands.is_causal,
        "needs a model that attends in both directions everywhere",
        "which attends in blocks",
        "Use a sampler that never re-masks.",
    ),
    Refusal(
        ("sampler", "cache"),
        lambda demands, cache: demands.leave_one_out and cache.needs_kv_cache,
        "needs every column at every forward, since it changes committed tokens",
        "which stores them and has no place for its verifying copy",
        "Use NoCache().",
    ),
    Refusal(
        ("sampler", "cache"),
        lambda demands, cache: demands.scope != "block" and not cache.computes_suffix,
        "needs logits behind the open block",
        "which freezes what is there",
        "Use PrefixCache().",
    ),
    Refusal(
        ("sampler", "cache"),
        lambda demands, cache: demands.scope == "answer" and not cache.recomputes_committed,
        "needs logits at committed positions",
        "which freezes them",
        "Use PrefixCache().",
    ),
    Refusal(
        ("verifier", "cache"),
        lambda demands, cache: (
            not demands.asks_sampler and demands.is_shifted and cache.commits_entry
        ),
        "decides itself what a block's first token is",
        "which commits that token in the block's first step",
        'Use entry="sampler".',
    ),
    Refusal(
        ("verifier", "cache"),
        lambda demands, cache: demands.looks_ahead and cache.is_path_dependent,
        "reproduces the sampler's own steps, so it needs a cache that depends on the committed "
        "tokens alone",
        "which depends on how many forwards led to them",
        "Use NoCache(), PrefixCache(), DualCache() or FreeCache(), without refresh_every.",
    ),
    Refusal(
        ("sampler", "verifier"),
        lambda demands, cache: demands.edits and (demands.looks_ahead or not demands.asks_sampler),
        "edits what it committed",
        "which keeps what it has accepted",
        "Use NoVerifier().",
    ),
    Refusal(
        ("sampler", "cache"),
        lambda demands, cache: demands.edits and not cache.recomputes_committed,
        "edits committed tokens, so it needs the model's logits there",
        "which freezes them",
        "Use PrefixCache().",
    ),
    Refusal(
        ("sampler", "cache"),
        lambda demands, cache: demands.reads_committed and not cache.recomputes_committed,
        "reads the model's logits at committed positions of the block",
        "which shows it certainty there once they are frozen",
        "Use PrefixCache() or DualCache().",
    ),
    Refusal(
        ("blocks", "verifier"),
        lambda demands, cache: (
            demands.opens_parts and (demands.looks_ahead or not demands.asks_sampler)
        ),
        "opens masks after each step of the sampler",
        "which takes several steps at once, or asks no sampler",
        "Use NoVerifier(), or blocks=Sequential().",
    ),
    Refusal(
        ("sampler", "blocks"),
        lambda demands, cache: demands.opens_parts and demands.scope != "block",
        "needs to see more than the open blocks",
        "which gives it the whole answer to work on, open or not",
        "Use blocks=Sequential().",
    ),
    Refusal(
        ("sampler", "blocks"),
        lambda demands, cache: demands.opens_parts and demands.leave_one_out,
        "re-masks, and so takes back the progress that opens masks",
        "which opens masks by the progress of those before",
        "Use blocks=Sequential().",
    ),
    Refusal(
        ("sampler", "blocks"),
        lambda demands, cache: demands.opens_parts and demands.needs_whole_block,
        "counts the masks or the steps of a block from its opening",
        "where masks open around those that it counts",
        "Use blocks=Sequential(), or a sampler that looks at each step alone.",
    ),
    Refusal(
        ("blocks", "cache"),
        lambda demands, cache: demands.opens_parts and demands.is_shifted and cache.commits_entry,
        "opens blocks, or parts of them, by a rule of its own",
        "which commits the first token of each block before any other",
        'Use entry="sampler".',
    ),
    Refusal(
        ("blocks", "model"),
        lambda demands, cache: demands.ends_anywhere and demands.is_causal,
        "ends blocks where the text does",
        "which attends in blocks of one length",
        "Use blocks=Sequential().",
    ),
)


_PARSERS = {"sampler": "samplers.parse", "blocks": "dllm_decode.blocks.parse"}


def require_plugins(
    model: object,
    sampler: object,
    cache: object,
    verifier: object,
    blocks: object = Sequential(),
) -> None:
    """Raises ValueError unless each plug-in is an instance of what its place wants."""
    wanted: tuple[tuple[str, object, type, str], ...] = (
        ("model", model, MaskPredictor, "the model that load_model returns"),
        ("sampler", sampler, Sampler, "a sampler such as ConfidenceThreshold(0.9)"),
        ("cache", cache, CachePolicy, "a cache policy such as DualCache()"),
        ("verifier", verifier, Verifier, "a verifier such as SelfVerify()"),
        ("blocks", blocks, BlockSchedule, "a block schedule such as MultiBlock()"),
    )
    for name, given, kind, example in wanted:
        if isinstance(given, type):
            raise ValueError(f"{name} must be {example}, got the class {given.__name__}.")
        if not isinstance(given, kind):
            raise ValueError(f"{name} must be {example}, got {shown(given)}.{_hint(name, given)}")


def _hint(name: str, given: object) -> str:
    """Says how to get the plug-in from what was given in its place."""
    if name == "model" and isinstance(given, tuple):
        return " load_model returns two: model, tokenizer = load_model(...)."
    if name == "model" or not isinstance(given, str):
        return ""
    reader = f"; {_PARSERS[name]} reads text" if name in _PARSERS else ""
    return f" Pass the object, not its text{reader}."


def check(
    model: MaskPredictor,
    sampler: Sampler,
    cache: CachePolicy,
    *,
    verifier: Verifier,
    blocks: BlockSchedule = Sequential(),
) -> None:
    """Refuses what does not fit together.

    Raises:
        ValueError: If it does not; names both sides and the remedy.
    """
    demands = Demands(
        scope=sampler.scope,
        leave_one_out=sampler.leave_one_out,
        looks_ahead=verifier.looks_ahead,
        asks_sampler=verifier.asks_sampler,
        is_shifted=model.logit_shift > 0,
        is_causal=model.causal_block_length > 0,
        opens_parts=blocks.opens_parts,
        ends_anywhere=blocks.ends_anywhere,
        needs_whole_block=sampler.needs_whole_block,
        edits=sampler.edits,
        reads_committed=sampler.reads_committed,
    )
    refusal = refusal_of(demands, cache)
    if refusal is None:
        return
    names = {
        "sampler": repr(sampler),
        "cache": repr(cache),
        "verifier": repr(verifier),
        "model": model.name,
        "blocks": repr(blocks),
    }
    asks, cannot = refusal.pair
    raise ValueError(
        f"{names[asks]} {refusal.reason}, got {names[cannot]}, {refusal.fault}. {refusal.remedy}"
    )


def refusal_of(demands: Demands, cache: CachePolicy) -> Refusal | None:
    """Returns the first reason to refuse a decode, if there is one."""
    return next((refusal for refusal in REFUSALS if refusal.applies(demands, cache)), None)


CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    PrefixCache(refresh_every=8),
    PrefixCache(entry="official"),
    DualCache(),
    DualCache(refresh_every=8),
    FreeCache("clean"),
    FreeCache("official"),
    DelayedCache(),
    SettledCache(),
    PipelineCache(),
    SubBlockCache(),
)
KINDS = {
    "a sampler that sees the open block only": Demands(),
    "a sampler that sees what lies behind the block: `Prophet()`": Demands(scope="suffix"),
    'a sampler that sees the whole answer: `Prophet(gap="all")`': Demands(scope="answer"),
    "a sampler that re-masks: `Wino()`": Demands(leave_one_out=True),
    "`Wino()`, and the model predicts the next column": Demands(
        leave_one_out=True, is_shifted=True
    ),
    "`Wino()`, and the model is block-causal": Demands(leave_one_out=True, is_causal=True),
    "a verifier that looks ahead: `SelfVerify()`": Demands(looks_ahead=True),
    "`SelfVerify()` with `Wino()`": Demands(looks_ahead=True, leave_one_out=True),
    "a verifier that writes: `ARVerify(...)`, `Guided(...)`": Demands(asks_sampler=False),
    "`ARVerify(...)` or `Guided(...)` with `Prophet()`": Demands(
        asks_sampler=False, scope="suffix"
    ),
    "`ARVerify(...)` or `Guided(...)`, and the model predicts the next column": Demands(
        asks_sampler=False, is_shifted=True
    ),
    "a sampler that reads committed positions: `Learn2PD()`": Demands(reads_committed=True),
    "a sampler that edits: `JointThreshold()`": Demands(edits=True),
    "`JointThreshold()` with `SelfVerify()`": Demands(edits=True, looks_ahead=True),
    "`MultiBlock()` with `SelfVerify()`": Demands(opens_parts=True, looks_ahead=True),
    "`MultiBlock()` with `Prophet()`": Demands(opens_parts=True, scope="suffix"),
    "`MultiBlock()` with `Wino()`": Demands(opens_parts=True, leave_one_out=True),
    "`MultiBlock()` with `FixedSchedule()`": Demands(opens_parts=True, needs_whole_block=True),
    "`MultiBlock()`, and the model predicts the next column": Demands(
        opens_parts=True, is_shifted=True
    ),
    "`AdaptiveBlocks(...)`": Demands(opens_parts=True, ends_anywhere=True),
    "`AdaptiveBlocks(...)`, and the model is block-causal": Demands(
        opens_parts=True, ends_anywhere=True, is_causal=True
    ),
}


def table() -> str:
    """Lays out every kind of decode against every cache, in Markdown."""
    notes: list[str] = []
    names = " | ".join(f"`{_short(cache)}`" for cache in CACHES)
    lines = [f"| decode | {names} |", "| --- |" + " --- |" * len(CACHES)]
    for kind, demands in KINDS.items():
        cells = [_cell(refusal_of(demands, cache), notes) for cache in CACHES]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *numbered]) + "\n"


def _short(cache: CachePolicy) -> str:
    """Returns the repr without the options that have their defaults."""
    options = [
        f"{option.name}={getattr(cache, option.name)!r}"
        for option in fields(cache)  # type: ignore[arg-type]  # policies are dataclasses
        if getattr(cache, option.name) != option.default
    ]
    return f"{type(cache).__name__}({', '.join(options)})"


def _cell(refusal: Refusal | None, notes: list[str]) -> str:
    if refusal is None:
        return "yes"
    asks, cannot = (_WORDS.get(part, part) for part in refusal.pair)
    note = f"The {asks} {refusal.reason}; this is a {cannot} {refusal.fault}. {refusal.remedy}"
    if note not in notes:
        notes.append(note)
    return f"no ({notes.index(note) + 1})"
