"""The facts by which samplers, caches, verifiers, block schedules and models fit together."""

from enum import Enum
from typing import Literal, TypeAlias

Giver: TypeAlias = Literal["model", "sampler", "cache", "verifier", "blocks"]


class Fact(Enum):
    """One statement about one kind of plug-in, on which the other plug-ins may rely.

    Attributes:
        giver: The kind of plug-in that the statement is about.
        sentence: A plug-in of which the statement holds, to be read after "needs".
        remedy: Plug-ins of which it holds, to be read after "Use".
    """

    OWN_COLUMN_LOGITS = (
        "model",
        "a model whose logits at a column predict that column, not the next one",
        "a model such as LLaDA",
    )
    SEES_BOTH_WAYS = (
        "model",
        "a model in which every column sees every other, not a block-causal one",
        "a model such as LLaDA or Dream",
    )
    HAS_MASK = (
        "model",
        "a model of masked diffusion, whose canvas begins as [MASK]",
        "a model such as LLaDA, or AcceptAndRenoise() on this one",
    )
    UNIFORM_STATE = (
        "model",
        "a uniform-state model, whose canvas begins as random tokens",
        "a model such as DiffusionGemma",
    )
    READS_BELIEF = (
        "model",
        "a model that reads its own last logits",
        "a model such as DiffusionGemma",
    )
    ANY_SUBSET = (
        "model",
        "a model that predicts any tokens from any others, in every order",
        "an any-subset model such as XLNet",
    )
    EVERY_COLUMN = (
        "cache",
        "a cache policy that computes every column in every forward",
        "NoCache()",
    )
    LOGITS_BEHIND_BLOCK = (
        "cache",
        "a cache policy that computes all masked columns after the open block in every forward",
        "PrefixCache()",
    )
    LOGITS_OF_COMMITTED = (
        "cache",
        "a cache policy that computes the committed columns of the window in every forward",
        "PrefixCache()",
    )
    EXACT_REPLAY = (
        "cache",
        "a cache policy whose logits depend on the committed tokens, not on the number of forwards",
        "NoCache(), PrefixCache(), DualCache() or FreeCache(), without refresh_every",
    )
    BEGINS_BLOCKS_ANEW = (
        "cache",
        "a cache policy that computes every column in the first forward of each block",
        "PrefixCache() or DualCache()",
    )
    SAMPLER_DECIDES = (
        "verifier",
        "a verifier that lets the sampler decide every step",
        "NoVerifier() or SelfVerify()",
    )
    ONE_STEP_A_FORWARD = (
        "verifier",
        "a verifier that runs a forward before every step",
        "NoVerifier()",
    )
    LAST_LOOK = (
        "verifier",
        "a verifier that notes for the cache policy how confident each forward was",
        "NoVerifier()",
    )
    LEAVE_ONE_OUT = (
        "verifier",
        "a verifier that lets the model predict each token without seeing it",
        "NoVerifier()",
    )
    STARTS_AS_NOISE = (
        "verifier",
        "a verifier that begins a canvas as random tokens, and hands the sampler's belief to the "
        "model",
        "NoVerifier()",
    )
    WHOLE_BLOCKS = (
        "blocks",
        "a block schedule that opens all masks of a block at once, after the block before",
        "blocks=Sequential()",
    )
    ANY_PART = (
        "sampler",
        "a sampler of scope 'block' that needs no whole blocks, because it is shown only those "
        "open positions that a forward computes",
        "a sampler such as ConfidenceThreshold(0.9)",
    )
    FINAL_TOKENS = (
        "sampler",
        "a sampler that never changes a token after it was committed",
        "a sampler such as ConfidenceThreshold(0.9)",
    )

    def __init__(self, giver: Giver, sentence: str, remedy: str) -> None:
        self.giver = giver
        self.sentence = sentence
        self.remedy = remedy


class PlugIn:
    """A sampler, a cache policy, a verifier or a block schedule: needs facts and gives facts.

    A fact that is forgotten never leads to wrong tokens: a fact missing from `gives` makes more
    combinations be refused, and needs that can be derived or noticed are not left to the author.
    """

    @property
    def needs(self) -> frozenset[Fact]:
        """Facts that the model and the other plug-ins must give; none unless overridden."""
        return frozenset()

    @property
    def gives(self) -> frozenset[Fact]:
        """Facts that hold of this plug-in; none unless overridden."""
        return frozenset()
