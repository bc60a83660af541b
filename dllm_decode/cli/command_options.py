"""Options of the commands of this package, as dataclasses. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Annotated

from dllm_decode.settings.command_options import (
    CallParser,
    Dtype,
    File,
    Name,
    Port,
    Positive,
    ReasoningParser,
)


@dataclass(frozen=True)
class QuestionOptions:
    """Options of `generate`.

    Attributes:
        text: The question; - reads it from standard input.
        template: The answer with blanks to fill: [MASK:12] is twelve tokens, [MASK] one.
        input: Prompts, one JSON object per line: text or messages, template, constraint, id,
            gen_length, temperature and so on.
        output: Answers to --input, one per line; prompts that have an answer are not decoded again.
        num_rows: Prompts of --input that are decoded together; 8 by default.
        live: Show the answer while it is decoded.
        plain: Take the text as it is, without the chat template.
    """

    text: str | None = field(default=None, metadata={"nargs": "?"})
    template: Annotated[str, "TEXT"] = ""
    input: File = ""
    output: File = ""
    num_rows: Positive | None = None
    live: bool = False
    plain: bool = False


@dataclass(frozen=True)
class ChoiceOptions:
    """Options of `read`.

    Attributes:
        text: A text with choices such as [yes|no]; [MASK:3] is a blank.
        question: The question that the text answers.
    """

    text: str
    question: Annotated[str, "TEXT"] | None = None


@dataclass(frozen=True)
class NamedModelOptions:
    """Options of `models`.

    Attributes:
        model: Embedded name, folder or hub id, whose config.json is read.
        revision: Branch, tag or commit of a hub id.
    """

    model: str | None = field(default=None, metadata={"nargs": "?"})
    revision: Name = ""


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export`.

    Attributes:
        folder: Folder for the model; the files of a model that is already in it are replaced.
        dtype: Precision of the weights on disk. `None`: the checkpoint's.
    """

    folder: str
    dtype: Dtype | None = None


@dataclass(frozen=True)
class ServerOptions:
    """Options of `serve`.

    Attributes:
        served_name: Name of the model for clients. `None`: the last part of its address.
        host: Address on which the server listens; 0.0.0.0 lets other machines connect.
        port: Port on which the server listens; 0 takes any free port.
        api_key: Key that clients must send. `None`: no key.
        allow_sampler: A further sampler that requests may name; each sampler has its own batch.
        tool_call_parser: How the model writes calls; auto: as its chat template does.
        reasoning_parser: How the model marks its reasoning; auto: as its chat template does.
        weights_root: Clients with the key of --api-key may replace the weights by those of
            folders below this folder. `None`: nobody may.
        quiet: Log no requests.
    """

    served_name: Name | None = None
    host: Annotated[str, "HOST"] = "127.0.0.1"
    port: Port = 8000
    api_key: Annotated[str, "KEY"] | None = None
    allow_sampler: list[Annotated[str, "NAME=EXPR"]] = field(default_factory=list)
    tool_call_parser: CallParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    weights_root: Annotated[str, "FOLDER"] | None = None
    quiet: bool = False
