"""The base of cache policies that leave columns out of a forward, around any cache policy."""

from abc import abstractmethod
from dataclasses import dataclass, field

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.prefix import PrefixCache
from dllm_decode.core.columns import Columns, without
from samplers.facts import Fact


@dataclass(frozen=True)
class Hiding(CachePolicy):
    """Hides columns, and lets another policy say which of the remaining ones are computed.

    A subclass defines `hidden`, and `gives` without facts that no longer hold.

    Attributes:
        inner: The policy that says which of the remaining columns are computed.

    Raises:
        ValueError: If `inner` is not a cache policy, or hides columns itself.
    """

    inner: CachePolicy = field(default_factory=PrefixCache)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.inner).hidden is not CachePolicy.hidden:
            raise ValueError(
                f"inner must be a cache policy that hides no columns itself, got {self.inner!r}."
            )

    @property
    def needs(self) -> frozenset[Fact]:
        return self.inner.needs

    @abstractmethod
    def hidden(self, query: CacheQuery) -> Columns:
        """Returns columns that this forward neither computes nor attends to: none or one range."""

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        return without(self.inner.columns_to_compute(query), self.hidden(query))
