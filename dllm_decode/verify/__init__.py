"""Verifiers decide how many steps one look at the model is used for, or whose tokens are kept."""

from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from dllm_decode.verify.any_subset import AnySubsetVerify
from dllm_decode.verify.ar_verify import ARVerify
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafting.draft_length import DraftLength
from dllm_decode.verify.drafting.linear_spec import LinearSpec
from dllm_decode.verify.drafting.ngram import NGram, Proxy, Uniform
from dllm_decode.verify.drafting.path_search import PathSearch
from dllm_decode.verify.drafting.pool import Pool
from dllm_decode.verify.drafting.recycling import Recycling
from dllm_decode.verify.drafting.sampled import Sampled
from dllm_decode.verify.drafting.tree import Tree
from dllm_decode.verify.drafts import Draft
from dllm_decode.verify.guided import Guided
from dllm_decode.verify.s2d2 import S2D2
from dllm_decode.verify.s2d2_routing import MinimumSpan, Router, ScoreThreshold
from dllm_decode.verify.self_verify import SelfVerify

__all__ = [
    "S2D2",
    "ARVerify",
    "AnySubsetVerify",
    "Draft",
    "DraftLength",
    "Drafting",
    "Guided",
    "LinearSpec",
    "MinimumSpan",
    "NGram",
    "NoVerifier",
    "PathSearch",
    "Pool",
    "Proxy",
    "Recycling",
    "Router",
    "Sampled",
    "ScoreThreshold",
    "SelfVerify",
    "Tree",
    "Uniform",
    "Verifier",
]
