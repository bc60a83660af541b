from .blocks import (
    CLOSED,
    AdaptiveBlocks,
    BlockSchedule,
    MultiBlock,
    Opening,
    Row,
    Sequential,
    SubBlocks,
    block_of,
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
from .core.canvas import Canvas
from .core.commits import Commits
from .core.model import ForwardInputs, KVCache, MaskPredictor
from .core.observers import Gain, Gains, Observer, Revision, StepEvent, Trace
from .core.options import DecodeConfig
from .core.output import DecodeOutput
from .core.passes import Pass, Window
from .core.rows import Request, RequestQueue
from .core.state import State
from .core.stopping import NeverStop, StopRule, StopStrings
from .engine.decoder import Decoder, Look
from .engine.loop import decode, decode_many, new_decoder, rounds, run
from .models import CausalTarget, load_model
from .models.targets.load import load_target
from .models.targets.own_weights import as_causal_target
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
from .text.streaming import PrefixStream, draft_observer, stream_to_terminal
from .verify import (
    S2D2,
    UCB,
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    Guided,
    Jacobi,
    MinimumSpan,
    NGram,
    NoVerifier,
    PathSearch,
    PromptLookup,
    Sampled,
    ScoreThreshold,
    SelfVerify,
    Tree,
    Uniform,
    Verifier,
)
from .verify.ar_verify.column_cost import measure_column_cost

__version__: str

__all__ = [
    "CLOSED",
    "S2D2",
    "UCB",
    "ARVerify",
    "AdaptiveBlocks",
    "Answer",
    "BlockSchedule",
    "CachePolicy",
    "Canvas",
    "Canvases",
    "CausalTarget",
    "Commits",
    "DecodeConfig",
    "DecodeOutput",
    "Decoder",
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
    "Jacobi",
    "JsonSchema",
    "KVCache",
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
    "PrefixCache",
    "PrefixStream",
    "PromptLookup",
    "ReadAnswer",
    "ReadChoice",
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
    "decode",
    "decode_many",
    "draft_observer",
    "generate",
    "load_model",
    "load_target",
    "measure_column_cost",
    "new_decoder",
    "read",
    "read_rollouts",
    "roll_out",
    "rounds",
    "run",
    "save_rollouts",
    "score",
    "stream",
    "stream_to_terminal",
]
