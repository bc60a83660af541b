"""Cache policies: which columns a forward computes, hence whose keys and values it refreshes."""

from dllm_decode.caches.base import CachePolicy, Columns, Forward, NoCache
from dllm_decode.caches.delayed import DelayedCache
from dllm_decode.caches.fast_dllm import DualCache, PrefixCache
from dllm_decode.caches.free_cache import FreeCache

__all__ = [
    "CachePolicy",
    "Columns",
    "DelayedCache",
    "DualCache",
    "Forward",
    "FreeCache",
    "NoCache",
    "PrefixCache",
]
