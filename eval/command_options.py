"""Options of the commands of `eval`, as dataclasses. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from dllm_decode.settings.command_options import Count, Expression, File, Folder, Positive


@dataclass(frozen=True)
class BatchOptions:
    """Options of batches and prompts.

    Attributes:
        batch_size: Rows decoded together.
        prompts: Put prompts into the chat template, or leave them plain. `None`: the task's.
    """

    batch_size: Positive = 16
    prompts: Literal["chat", "plain"] | None = None


@dataclass(frozen=True)
class RecordingOptions:
    """Options of the records of a run.

    Attributes:
        no_trace: Record no steps and confidences: for timings, since looking costs time.
    """

    no_trace: bool = False


@dataclass(frozen=True)
class RunOptions:
    """The settings and examples that are decoded, and the folder of their records.

    Attributes:
        task: Address of the task, see below.
        config: TOML file, such as eval/sweeps/lists.toml.
        out: Results folder, made if need be; records that it has are used.
        model: Model instead of the file's; repeat to compare.
    """

    task: str
    config: str
    out: str
    model: list[Annotated[str, "MODEL"]] | None = None


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `calibrate`.

    Attributes:
        settings: From cautious to bold, one each time; parts are joined by ' + ', as in
            "ConfidenceThreshold(0.9) + DualCache()".
        ladder: A named list of samplers, instead of --sampler.
        reference: Setting that the others are compared with: one token a step.
        max_drop: Greatest drop of the accuracy, as a share.
        confidence: Probability with which the guarantee holds.
        card: File of the card. `None`: card.json in the folder.
    """

    settings: list[Expression] | None = field(
        default=None, metadata={"names": ("--sampler", "--setting")}
    )
    ladder: Literal["threshold", "entropy", "factor", "steps"] | None = None
    reference: Expression = "FixedSchedule(10000)"
    max_drop: float = 0.02
    confidence: float = 0.95
    card: File | None = None


@dataclass(frozen=True)
class OracleOptions:
    """Options of `oracle`.

    Attributes:
        task: A list task, such as 'lists/shuffle?n=4'.
        sampler: Repeat to compare. `None`: seven of several speeds.
        rows: Decodes of each sampler.
        temperature: Temperature of the proposals.
    """

    task: str
    sampler: list[Expression] | None = None
    rows: Positive = 1000
    temperature: float = 0.0


@dataclass(frozen=True)
class ReportOptions:
    """Options of `report` and `trace`.

    Attributes:
        folder: Results folder.
        replays: Pages per task.
        cost: Cost that bold, advice and picture go by. `None`: columns, or forwards if a verifier
            has a target.
        example: Id of an example, or the start of one. Empty: the first.
    """

    folder: str
    replays: Count = 30
    cost: Literal["forwards", "columns"] | None = None
    example: Annotated[str, "ID"] = ""


@dataclass(frozen=True)
class HarnessOptions:
    """Options of `lm`.

    Attributes:
        tasks: Names, joined by commas.
        include_path: Folder with task files of your own.
        limit: Examples of each task, or a share below 1. `None`: all.
        num_fewshot: Worked examples in a prompt. `None`: the task's.
        nll: Likelihood by a Monte-Carlo bound, or left to right.
        mc_num: Mask patterns an answer.
        batch_size: Rows of a forward.
        gen_length: Answer length in tokens. `None`: 256.
        apply_chat_template: Ask in the model's chat template.
        system_instruction: The first turn, in a chat.
        use_cache: Keep answers in files of this name, and use those of the same settings.
        output: Write results, samples and costs there.
        confirm_run_unsafe_code: Run programs that the model writes, where a task asks for that.
    """

    tasks: Annotated[str, "NAME,..."] = field(metadata={"required": True})
    include_path: Folder | None = None
    limit: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    num_fewshot: Count | None = None
    nll: Literal["mc", "l2r"] = "mc"
    mc_num: Positive = 128
    batch_size: Positive = 16
    gen_length: Positive | None = None
    apply_chat_template: bool = False
    system_instruction: Annotated[str, "TEXT"] | None = None
    use_cache: Annotated[str, "PATH"] | None = None
    output: Folder | None = None
    confirm_run_unsafe_code: bool = False
