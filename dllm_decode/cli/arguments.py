"""Options of the commands, as dataclasses. Nothing heavy is imported."""

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
        threads: Processor threads. `None`: torch's choice.
    """

    device: Name = "cpu"
    dtype: Dtype | None = None
    compile: bool = False
    threads: Threads | None = None


@dataclass(frozen=True)
class Plugins:
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
class Question:
    """Options of `generate`.

    Attributes:
        text: The question; - reads it from standard input.
        template: The answer with blanks to fill: [MASK:12] is twelve tokens, [MASK] one.
        regex: Regular expression that the answer must match.
        json_schema: JSON schema that the answer must follow.
        choice: A text that the answer may be; repeat the option to allow several texts.
        input: Prompts, one JSON object per line: text or messages, template, constraint, id,
            gen_length, temperature and so on.
        output: Answers to --input, one per line; prompts that have an answer are not decoded again.
        num_rows: Prompts of --input that are decoded together; 8 by default.
        live: Show the answer while it is decoded.
        plain: Take the text as it is, without the chat template.
    """

    text: str | None = field(default=None, metadata={"nargs": "?"})
    template: Annotated[str, "TEXT"] = ""
    regex: Expression = ""
    json_schema: File = ""
    choice: list[Annotated[str, "TEXT"]] = field(default_factory=list)
    input: File = ""
    output: File = ""
    num_rows: Positive | None = None
    live: bool = False
    plain: bool = False


@dataclass(frozen=True)
class Choices:
    """Options of `read`.

    Attributes:
        text: A text with choices such as [yes|no]; [MASK:3] is left open.
        question: The question that the text answers.
    """

    text: str
    question: Annotated[str, "TEXT"] | None = None


@dataclass(frozen=True)
class Named:
    """Options of `models`.

    Attributes:
        model: Embedded name, folder or hub id, whose config.json is read.
        revision: Branch, tag or commit of a hub id.
    """

    model: str | None = field(default=None, metadata={"nargs": "?"})
    revision: Name = ""


@dataclass(frozen=True)
class Export:
    """Options of `export`.

    Attributes:
        model: Embedded name, folder or hub id; 'FOLDER?adapter=FOLDER' merges an adapter.
        folder: Folder for the model; weights that are already in it are replaced.
        dtype: Precision of the weights on disk. `None`: the checkpoint's.
        revision: Branch, tag or commit of a hub id.
    """

    model: str
    folder: str
    dtype: Dtype | None = None
    revision: Name = ""


@dataclass(frozen=True)
class Server:
    """Options of `serve`.

    Attributes:
        served_name: Name of the model for clients. `None`: the last part of its address.
        host: Address on which the server listens; 0.0.0.0 lets other machines connect.
        port: Port on which the server listens; 0 takes any free port.
        api_key: Key that clients must send. `None`: no key.
        allow_sampler: A further sampler that requests may name; each sampler has its own batch.
        weights_root: Clients with the key of --api-key may replace the weights by those of
            folders below this folder. `None`: nobody may.
        quiet: Log neither requests nor the throughput.
    """

    served_name: Name | None = None
    host: Annotated[str, "HOST"] = "127.0.0.1"
    port: Port = 8000
    api_key: Annotated[str, "KEY"] | None = None
    allow_sampler: list[Annotated[str, "NAME=EXPR"]] = field(default_factory=list)
    weights_root: Annotated[str, "FOLDER"] | None = None
    quiet: bool = False
