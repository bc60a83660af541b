from .blocks import (
    CLOSED,
    AdaptiveBlocks,
    BlockSchedule,
    MultiBlock,
    Opening,
    Row,
    Sequential,
    SlidingWindow,
    SubBlocks,
    block_of,
)
from .caches import (
    CachePolicy,
    CacheQuery,
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
from .core.canvas import Canvas
from .core.columns import Columns, columns
from .core.commits import Commits
from .core.model import ForwardInputs, KVCache, MaskPredictor
from .core.observers import Observer, StepEvent
from .core.options import DecodeConfig
from .core.output import DecodeOutput
from .core.passes import Branches, Pass
from .core.recorders import Gain, Gains, Revision, Trace
from .core.requests import Request, RequestQueue
from .core.rows import PluginNumbers
from .core.stopping import NeverStop, StopRule, StopStrings
from .core.window import Window
from .engine.decide import decide
from .engine.decoder import Decoder
from .engine.decoding import decode, decode_many, new_decoder
from .engine.forward import forward
from .engine.look import look, with_window
from .engine.loop import rounds, run
from .engine.state import State
from .engine.verifier import Look
from .engine.views import view_of
from .models import (
    CausalTarget,
    as_causal_target,
    load_drafter,
    load_model,
    load_target,
    replace_weights,
    save_model,
)
from .rollouts import (
    Canvases,
    Rollout,
    RolloutGroup,
    Scores,
    Write,
    read_rollouts,
    roll_out,
    save_rollouts,
    score,
)
from .text.answers import Answer, GenerateOutput, TokenCommit
from .text.constraints import JsonSchema, OneOf, Regex
from .text.generation import generate
from .text.reading import ReadAnswer, ReadChoice, read
from .text.stream import stream
from .text.streamer import PrefixStream
from .text.terminal import stream_to_terminal
from .verify import (
    S2D2,
    AnySubsetVerify,
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    Guided,
    LinearSpec,
    MinimumSpan,
    NGram,
    NoVerifier,
    PathSearch,
    Pool,
    Recycling,
    Sampled,
    ScoreThreshold,
    SelfVerify,
    Tree,
    Uniform,
    Verifier,
)

__version__: str

__all__ = [
    "CLOSED",
    "S2D2",
    "ARVerify",
    "AdaptiveBlocks",
    "Answer",
    "AnySubsetVerify",
    "BlockSchedule",
    "Branches",
    "CachePolicy",
    "CacheQuery",
    "Canvas",
    "Canvases",
    "CausalTarget",
    "CertaintyCache",
    "Columns",
    "Commits",
    "CutAtEos",
    "DecodeConfig",
    "DecodeOutput",
    "Decoder",
    "DelayedCache",
    "Draft",
    "DraftLength",
    "Drafting",
    "DualCache",
    "EntropyCache",
    "ForwardInputs",
    "FreeCache",
    "Gain",
    "Gains",
    "GenerateOutput",
    "Guided",
    "JsonSchema",
    "KVCache",
    "LinearSpec",
    "Look",
    "MaskPredictor",
    "MinimumSpan",
    "MultiBlock",
    "NGram",
    "NeverStop",
    "NoCache",
    "NoVerifier",
    "Observer",
    "OneOf",
    "Opening",
    "Pass",
    "PathSearch",
    "PipelineCache",
    "PluginNumbers",
    "Pool",
    "PrefixCache",
    "PrefixStream",
    "ReadAnswer",
    "ReadChoice",
    "Recycling",
    "Regex",
    "Request",
    "RequestQueue",
    "Revision",
    "Rollout",
    "RolloutGroup",
    "Row",
    "Sampled",
    "ScoreThreshold",
    "Scores",
    "SelfVerify",
    "Sequential",
    "SettledCache",
    "SlidingWindow",
    "State",
    "StepEvent",
    "StopRule",
    "StopStrings",
    "SubBlockCache",
    "SubBlocks",
    "SuffixWindow",
    "TokenCommit",
    "Trace",
    "Tree",
    "Uniform",
    "Verifier",
    "Window",
    "Write",
    "as_causal_target",
    "block_of",
    "columns",
    "decide",
    "decode",
    "decode_many",
    "forward",
    "generate",
    "load_drafter",
    "load_model",
    "load_target",
    "look",
    "new_decoder",
    "read",
    "read_rollouts",
    "replace_weights",
    "roll_out",
    "rounds",
    "run",
    "save_model",
    "save_rollouts",
    "score",
    "stream",
    "stream_to_terminal",
    "view_of",
    "with_window",
]
