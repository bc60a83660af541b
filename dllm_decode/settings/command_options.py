"""Options that several commands have, as dataclasses. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=2**16 - 1)]
# OpenMP ends the process if there is too little memory for its threads.
Threads: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
Expression: TypeAlias = Annotated[str, "EXPR"]
File: TypeAlias = Annotated[str, "FILE"]
Folder: TypeAlias = Annotated[str, "FOLDER"]
Name: TypeAlias = Annotated[str, "NAME"]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
CallParser: TypeAlias = Literal["auto", "hermes", "gemma4", "none"]
ReasoningParser: TypeAlias = Literal["auto", "qwen3", "deepseek_r1", "gemma4", "none"]


@dataclass(frozen=True)
class ModelOptions:
    """Which model is decoded.

    Attributes:
        model: Embedded name, folder or hub id; options follow a question mark, as in
            'FOLDER?family=my_module:MY_FAMILY&mask_id=5'; also block_length, adapter, quantize.
        revision: Branch, tag or commit of a hub id.
    """

    model: Annotated[str, "MODEL"] = "mini"
    revision: Name = ""


@dataclass(frozen=True)
class MachineOptions:
    """Where and how the model runs.

    Attributes:
        device: Device of the model: cpu, cuda, cuda:1, or auto, which spreads the model over all
            devices; with several processes, 'cuda' is another device for each.
        dtype: Precision of the parameters. `None`: the checkpoint's.
        compile: Run forwards through torch.compile; the first forwards then take long.
        graphs: Record forwards of few columns as CUDA graphs, and replay them.
        threads: Processor threads. `None`: torch's choice.
    """

    device: Name = "cpu"
    dtype: Dtype | None = None
    compile: bool = False
    graphs: bool = False
    threads: Threads | None = None


@dataclass(frozen=True)
class PluginOptions:
    """Plug-ins of a decode.

    Attributes:
        sampler: Which positions to commit. `None`: ConfidenceThreshold(0.9), on a uniform-state
            model AcceptAndRenoise().
        cache: Which columns to recompute.
        verifier: How to run the forwards of a round, and who decides.
        blocks: Block schedule: which positions are open.
    """

    sampler: Expression | None = None
    cache: Expression = "NoCache()"
    verifier: Expression = "NoVerifier()"
    blocks: Expression = "Sequential()"


@dataclass(frozen=True)
class ConstraintOptions:
    """Which texts an answer may be.

    Attributes:
        regex: Regular expression that the answer must match.
        json_schema: JSON schema that the answer must follow.
        choice: A text that the answer may be; repeat the option to allow several texts.
    """

    regex: Expression = ""
    json_schema: File = ""
    choice: list[Annotated[str, "TEXT"]] = field(default_factory=list)
