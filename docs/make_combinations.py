"""Prints the table of docs/combinations.md: which plug-ins need a fact, and which give it.

PYTHONPATH=. python docs/make_combinations.py
"""

from dllm_decode.blocks import ALL_SCHEDULES, AdaptiveBlocks, BlockSchedule
from dllm_decode.caches import (
    CachePolicy,
    CertaintyCache,
    CutAtEos,
    DelayedCache,
    DualCache,
    EntropyCache,
    FreeCache,
    NoCache,
    PipelineCache,
    PrefixCache,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
)
from dllm_decode.engine.compatibility import facts_of_sampler
from dllm_decode.models.families import FAMILIES
from dllm_decode.verify import S2D2, AnySubsetVerify, NoVerifier, SelfVerify, Verifier
from samplers import ALL_SAMPLERS, Prophet, Sampler
from samplers.facts import FACTS, Fact, PlugIn

SAMPLERS: tuple[Sampler, ...] = (*(kind() for kind in ALL_SAMPLERS), Prophet(gap="all"))
CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    PrefixCache(refresh_every=8),
    DualCache(),
    DualCache(refresh_every=8),
    FreeCache(),
    DelayedCache(),
    SettledCache(),
    PipelineCache(),
    SubBlockCache(),
    SuffixWindow(),
    CutAtEos(),
    EntropyCache(),
    CertaintyCache(),
)
# `ARVerify` and `Guided` need a target to be constructed; they need no fact and give none.
VERIFIERS: tuple[Verifier, ...] = (
    NoVerifier(),
    SelfVerify(),
    SelfVerify(draft_steps=1),
    S2D2(),
    AnySubsetVerify(),
)
BLOCKS: tuple[BlockSchedule, ...] = tuple(
    AdaptiveBlocks((1,)) if kind is AdaptiveBlocks else kind() for kind in ALL_SCHEDULES
)
PLUGINS: tuple[PlugIn, ...] = (*SAMPLERS, *CACHES, *VERIFIERS, *BLOCKS)


def table() -> str:
    """Returns the table in Markdown, a row for each fact."""
    lines = ["| fact | what is needed | needed by | given by |", "| --- | --- | --- | --- |"]
    for name, fact in FACTS.items():
        needed = [_short(plugin) for plugin in PLUGINS if fact in plugin.needs]
        given = [_short(plugin) for plugin in PLUGINS if fact in plugin.gives]
        if fact == Fact.HAS_MASK:
            others = [_short(one) for one in SAMPLERS if fact not in one.needs]
            needed = [f"all samplers but {', '.join(others)}"]
        if fact.giver == "sampler":
            lacking = [_short(one) for one in SAMPLERS if fact not in facts_of_sampler(one)]
            given = [f"all samplers but {', '.join(lacking)}"]
        if fact.giver == "model":
            given = _models_that_give(fact)
        cells = (f"`{name}`", fact.sentence, ", ".join(needed), ", ".join(given))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _models_that_give(fact: Fact) -> list[str]:
    """Returns the families whose checkpoints give a fact about models."""
    if fact in (Fact.UNIFORM_STATE, Fact.READS_BELIEF):
        return ["DiffusionGemma"]
    if fact == Fact.ANY_SUBSET:
        return ["XLNet"]
    if fact == Fact.HAS_MASK:
        return ["all others"]
    return [
        family.name
        for family in FAMILIES.values()
        if not (family.logit_shift if fact == Fact.OWN_COLUMN_LOGITS else family.block_length)
    ] + ["DiffusionGemma", "XLNet"]


def _short(plugin: PlugIn) -> str:
    """Returns the repr without the options that have their defaults."""
    if isinstance(plugin, AdaptiveBlocks):
        return "`AdaptiveBlocks(...)`"
    usual = type(plugin)()
    options = [
        f"{name}={value!r}" for name, value in vars(plugin).items() if value != vars(usual)[name]
    ]
    return f"`{type(plugin).__name__}({', '.join(options)})`"


if __name__ == "__main__":
    print(table(), end="")
