"""Cache policies: which columns a forward computes, hence whose keys and values it refreshes."""

from dllm_decode.caches.base import CachePolicy, CacheQuery, NoCache
from dllm_decode.caches.certainty import CertaintyCache
from dllm_decode.caches.cut_at_eos import CutAtEos
from dllm_decode.caches.delayed import DelayedCache
from dllm_decode.caches.dual import DualCache
from dllm_decode.caches.entropy import EntropyCache
from dllm_decode.caches.free import FreeCache
from dllm_decode.caches.history import History
from dllm_decode.caches.pipeline import PipelineCache
from dllm_decode.caches.prefix import PrefixCache
from dllm_decode.caches.settled import SettledCache
from dllm_decode.caches.sub_block import SubBlockCache
from dllm_decode.caches.suffix_window import SuffixWindow

__all__ = [
    "CachePolicy",
    "CacheQuery",
    "CertaintyCache",
    "CutAtEos",
    "DelayedCache",
    "DualCache",
    "EntropyCache",
    "FreeCache",
    "History",
    "NoCache",
    "PipelineCache",
    "PrefixCache",
    "SettledCache",
    "SubBlockCache",
    "SuffixWindow",
]
