"""The facts by which samplers, caches, verifiers, block schedules and models fit together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from samplers.checks import CheckedFields

Giver: TypeAlias = Literal["model", "sampler", "cache", "verifier", "blocks"]


@dataclass(frozen=True, order=True)
class Fact(CheckedFields):
    """One statement about one kind of plug-in, on which the other plug-ins may rely.

    A plug-in that relies on something else defines a new `Fact`; other plug-ins give
    that fact by listing an equal `Fact`.

    Attributes:
        giver: The kind of plug-in that the statement is about.
        sentence: A plug-in of which the statement holds, worded to follow "needs".
        remedy: Plug-ins of which the statement holds, worded to follow "Use".
    """

    giver: Giver
    sentence: str
    remedy: str

    OWN_COLUMN_LOGITS: ClassVar["Fact"]
    SEES_BOTH_WAYS: ClassVar["Fact"]
    HAS_MASK: ClassVar["Fact"]
    UNIFORM_STATE: ClassVar["Fact"]
    ANY_SUBSET: ClassVar["Fact"]
    EVERY_COLUMN: ClassVar["Fact"]
    LOGITS_BEHIND_BLOCK: ClassVar["Fact"]
    LOGITS_OF_COMMITTED: ClassVar["Fact"]
    EXACT_REPLAY: ClassVar["Fact"]
    BEGINS_BLOCKS_ANEW: ClassVar["Fact"]
    SAMPLER_DECIDES: ClassVar["Fact"]
    ONE_STEP_A_FORWARD: ClassVar["Fact"]
    LAST_LOOK: ClassVar["Fact"]
    LEAVE_ONE_OUT: ClassVar["Fact"]
    STARTS_AS_NOISE: ClassVar["Fact"]
    WHOLE_BLOCKS: ClassVar["Fact"]
    DECIDES_ON_PART: ClassVar["Fact"]
    FINAL_TOKENS: ClassVar["Fact"]


Fact.OWN_COLUMN_LOGITS = Fact(
    "model",
    "a model whose logits at a column predict that column, not the next one",
    "a model such as LLaDA",
)
Fact.SEES_BOTH_WAYS = Fact(
    "model",
    "a model in which every column sees every other, not a block-causal one",
    "a model such as LLaDA or Dream",
)
Fact.HAS_MASK = Fact(
    "model",
    "a model of masked diffusion, whose canvas begins as [MASK]",
    "a model such as LLaDA, or AcceptAndRenoise() on this one",
)
Fact.UNIFORM_STATE = Fact(
    "model",
    "a uniform-state model, whose blocks begin as random tokens",
    "a model such as DiffusionGemma",
)
Fact.ANY_SUBSET = Fact(
    "model",
    "a model that predicts any tokens from any others, in every order",
    "an any-subset model such as XLNet",
)
Fact.EVERY_COLUMN = Fact(
    "cache",
    "a cache policy that computes every column in every forward",
    "NoCache()",
)
Fact.LOGITS_BEHIND_BLOCK = Fact(
    "cache",
    "a cache policy that computes all masked columns after the open block in every forward",
    "PrefixCache()",
)
Fact.LOGITS_OF_COMMITTED = Fact(
    "cache",
    "a cache policy that computes the committed columns of the window in every forward",
    "PrefixCache()",
)
Fact.EXACT_REPLAY = Fact(
    "cache",
    "a cache policy whose logits depend on the committed tokens, not on the number of forwards",
    "NoCache(), PrefixCache(), DualCache() or FreeCache(), without refresh_every",
)
Fact.BEGINS_BLOCKS_ANEW = Fact(
    "cache",
    "a cache policy that computes every column in the first forward of each block",
    "PrefixCache() or DualCache()",
)
Fact.SAMPLER_DECIDES = Fact(
    "verifier",
    "a verifier that lets the sampler decide every step",
    "NoVerifier() or SelfVerify()",
)
Fact.ONE_STEP_A_FORWARD = Fact(
    "verifier",
    "a verifier that runs a forward before every step",
    "NoVerifier()",
)
Fact.LAST_LOOK = Fact(
    "verifier",
    "a verifier that notes for the cache policy how confident each forward was",
    "NoVerifier()",
)
Fact.LEAVE_ONE_OUT = Fact(
    "verifier",
    "a verifier that lets the model predict each token without seeing it",
    "NoVerifier()",
)
Fact.STARTS_AS_NOISE = Fact(
    "verifier",
    "a verifier that begins a block as random tokens, and hands the sampler's belief to the model",
    "NoVerifier()",
)
Fact.WHOLE_BLOCKS = Fact(
    "blocks",
    "a block schedule that opens all masks of a block at once, after the block before",
    "blocks=Sequential()",
)
Fact.DECIDES_ON_PART = Fact(
    "sampler",
    "a sampler of scope 'block' that needs no whole blocks, because it is shown only those "
    "open positions that a forward computes",
    "a sampler such as ConfidenceThreshold(0.9)",
)
Fact.FINAL_TOKENS = Fact(
    "sampler",
    "a sampler that never changes a token after it was committed",
    "a sampler such as ConfidenceThreshold(0.9)",
)

FACTS: Mapping[str, Fact] = {
    name: fact for name, fact in vars(Fact).items() if isinstance(fact, Fact)
}
"""The facts of this package by name; if several are missing, the first one is reported."""


_Self = TypeVar("_Self", bound="PlugIn")


class PlugIn(CheckedFields):
    """A sampler, a cache policy, a verifier or a block schedule: needs facts and gives facts.

    A forgotten fact never leads to wrong tokens: if a fact is missing from `gives`, the engine
    refuses more combinations, and the author need not list needs that can be derived or noticed.
    """

    @property
    def needs(self) -> frozenset[Fact]:
        """Facts that the model and the other plug-ins must give; none unless overridden."""
        return frozenset()

    @property
    def gives(self) -> frozenset[Fact]:
        """Facts that hold of this plug-in; none unless overridden."""
        return frozenset()

    def with_tokenizer(self: _Self, tokenizer: Any, marker: str = "") -> _Self:
        """Returns the plug-in with token ids in place of texts; by default it has no texts.

        `generate`, `stream` and the commands call it for samplers and block schedules.

        Args:
            tokenizer: A tokenizer as transformers has them.
            marker: Text after which the result of an answer comes; empty if the task has none.
        """
        return self


def plugins_within(plugin: object) -> Iterator[object]:
    """Yields a plug-in and all that it holds, as arguments or in tuples of them."""
    yield plugin
    parts: Iterable[object] = plugin if isinstance(plugin, tuple) else ()
    if is_dataclass(plugin):
        parts = (getattr(plugin, field.name) for field in fields(plugin))
    for part in parts:
        yield from plugins_within(part)
