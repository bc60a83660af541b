"""Prefix and dual caching (Fast-dLLM)."""

from dataclasses import dataclass

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns, require_period


@dataclass(frozen=True)
class PrefixCache(CachePolicy):
    """Freezes all columns before the open block while it is open.

    The first forward of a block computes everything, the others the block and what follows it.
    Exact on block-causal models, where nothing before a block depends on it.

    Source: Wu et al. 2025, "Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV
    Cache and Parallel Decoding", https://arxiv.org/abs/2505.22618, key-value cache for block-wise
    decoding.
    Differs: On a model whose logits predict the next column, the authors commit a block's first
    token from the first forward, whatever its confidence; here the column before the block is
    computed too, and the token waits its turn. `refresh_every` is an extension.

    Attributes:
        refresh_every: Forwards of a block from one computation of everything to the next; 0: only
            the first.
    """

    refresh_every: int = 0

    def __post_init__(self) -> None:
        require_period(self.refresh_every, 0)

    @property
    def is_path_dependent(self) -> bool:
        return self.refresh_every > 0

    def recompute(self, forward: CacheQuery) -> Columns:
        if _refreshes(forward.step, self.refresh_every):
            return slice(0, forward.end)
        return slice(forward.needed.start, forward.end)


@dataclass(frozen=True)
class DualCache(CachePolicy):
    """Freezes all columns outside the open block while it is open, the masked suffix too.

    The first forward of a block computes everything, the others the block alone.

    Source: Wu et al. 2025, "Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV
    Cache and Parallel Decoding", https://arxiv.org/abs/2505.22618, DualCache. `refresh_every`,
    `before` and `after`: inclusionAI 2025, "dInfer: An Efficient Inference Framework for Diffusion
    Language Models", https://arxiv.org/abs/2510.08666, vicinity refresh.
    Differs: As `PrefixCache` on models whose logits predict the next column.

    Attributes:
        refresh_every: Forwards of a block from one computation of everything to the next; 0: only
            the first.
        before: Columns before the block that are computed with it.
        after: Columns behind the block that are computed with it.
    """

    refresh_every: int = 0
    before: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        require_period(self.refresh_every, 0)
        if min(self.before, self.after) < 0:
            raise ValueError(
                f"before and after are at least 0 columns, got {self.before} and {self.after}."
            )

    @property
    def computes_suffix(self) -> bool:
        return False

    @property
    def is_path_dependent(self) -> bool:
        return self.refresh_every > 0

    def recompute(self, forward: CacheQuery) -> Columns:
        if _refreshes(forward.step, self.refresh_every):
            return slice(0, forward.end)
        start = max(0, forward.needed.start - self.before)
        return slice(start, min(forward.end, forward.needed.stop + self.after))


def _refreshes(step: int, every: int) -> bool:
    return step % every == 0 if every else step == 0
