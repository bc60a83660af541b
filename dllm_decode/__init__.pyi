from .batching import decode_many
from .blocks import (
    AdaptiveBlocks,
    BlockSchedule,
    MultiBlock,
    Opening,
    Phase,
    Sequential,
    SubBlocks,
)
from .caches import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PipelineCache,
    PrefixCache,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
)
from .canvas import Block, Canvas
from .generation import GenerateOutput, generate
from .loop import decode
from .models import CausalTarget, load_model
from .models.base import ForwardInputs, KVCache, MaskPredictor
from .models.targets.load import load_target
from .models.targets.own_weights import as_causal_target
from .observers import Gain, Gains, Observer, Revision, StepEvent, Trace
from .options import DecodeConfig
from .output import DecodeOutput
from .stopping import NeverStop, StopRule, StopStrings
from .streaming import PrefixStream, draft_observer, stream_to_terminal
from .verify import (
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    NoVerifier,
    PathSearch,
    Sampled,
    SelfVerify,
    Tree,
    Uniform,
    Verifier,
)
from .verify.ar_verify.column_cost import measure_column_cost

__version__: str

__all__ = [
    "ARVerify",
    "AdaptiveBlocks",
    "Block",
    "BlockSchedule",
    "CachePolicy",
    "Canvas",
    "CausalTarget",
    "DecodeConfig",
    "DecodeOutput",
    "DelayedCache",
    "Draft",
    "DraftLength",
    "Drafting",
    "DualCache",
    "ForwardInputs",
    "FreeCache",
    "Gain",
    "Gains",
    "GenerateOutput",
    "Guided",
    "KVCache",
    "MaskPredictor",
    "MultiBlock",
    "NGram",
    "NeverStop",
    "NoCache",
    "NoVerifier",
    "Observer",
    "Opening",
    "PathSearch",
    "Phase",
    "PipelineCache",
    "PrefixCache",
    "PrefixStream",
    "Revision",
    "Sampled",
    "SelfVerify",
    "Sequential",
    "SettledCache",
    "StepEvent",
    "StopRule",
    "StopStrings",
    "SubBlockCache",
    "SubBlocks",
    "SuffixWindow",
    "Trace",
    "Tree",
    "Uniform",
    "Verifier",
    "as_causal_target",
    "decode",
    "decode_many",
    "draft_observer",
    "generate",
    "load_model",
    "load_target",
    "measure_column_cost",
    "stream_to_terminal",
]
