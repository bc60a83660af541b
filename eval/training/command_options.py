"""Options of `train-filter` and `distil`, as dataclasses. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from dllm_decode.settings.command_options import Count, Dtype, Expression, File, Folder, Positive
from dllm_decode.settings.options import LENGTHS

Amount: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9)]
Rate: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9), "RATE"]

FILTER_DECODING = (*LENGTHS, "stop_at_eos", "truncate_at_eos")


@dataclass(frozen=True)
class PromptOptions:
    """Options of the prompts.

    Attributes:
        task: Where prompts come from, such as 'gsm8k?path=FOLDER&split=train' or
            'jsonl:FILE.jsonl'.
        held_out: Prompts that the result is judged on. Empty: every fifth of the task's, which is
            then not trained on.
        cache: Which columns every decode recomputes.
    """

    task: Annotated[str, "ADDRESS"] = "word_problems?split=train&limit=500"
    held_out: Annotated[str, "ADDRESS"] = ""
    cache: Expression = "NoCache()"


@dataclass(frozen=True)
class FilterOptions:
    """Options of `train-filter`.

    Attributes:
        output: The filter; FILE.run has all that is needed to go on.
        hidden: Units of each hidden layer.
        steps: Updates.
        learning_rate: Learning rate of AdamW.
        threshold: Threshold at which the filter is judged.
        seed: Seed of weights and splits.
    """

    output: File = "learn2pd.safetensors"
    hidden: list[Positive] = field(default_factory=lambda: [32], metadata={"nargs": "*"})
    steps: Positive = 5_000
    learning_rate: Annotated[float, "RATE"] = 3e-3
    threshold: Annotated[float, Meta(ge=0.0, le=1.0), "P"] = 0.96
    seed: int = 0


@dataclass(frozen=True)
class DistilOptions:
    """Options of `distil`.

    Attributes:
        output: Folder for everything; the same command goes on where it stopped.
        method: Certainty forcing on random masks, or on the teacher's own states.
        sampler: How held-out prompts are decoded.
        evaluate_every: Steps after which held-out prompts are decoded and a checkpoint is written.
        seed: Seed of masks and of the order of rows.
    """

    output: Folder = "runs/distil"
    method: Literal["dparallel", "d3llm"] = "dparallel"
    sampler: Expression = "EntropyThreshold(0.5)"
    evaluate_every: Positive = 200
    seed: int = 0


@dataclass(frozen=True)
class TeacherOptions:
    """Options of the teacher, which is the model before its training.

    Attributes:
        teacher_sampler: How the teacher answers. `None`: one token a step, the most confident.
        keep_wrong: Learn from answers that are not right, too, as d3LLM does.
    """

    teacher_sampler: Expression | None = None
    keep_wrong: bool = False


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training.

    Attributes:
        lora_rank: Train additions of so low a rank instead of all weights, such as 128 in
            dParallel; 0 trains all weights.
        entropy_weight: Weight of the entropy in the loss: 2 for LLaDA, 1 for Dream in the authors'
            code.
        greatest_share: The share of a block that is masked at most, with --method d3llm.
        epochs: Times each answer is learned.
        rows: Answers in one forward of the training, per device.
        forwards: Forwards of the training in one step, per device, whose gradients are averaged;
            the forwards that are measured and shown are those of decoding.
        learning_rate: Highest rate of AdamW.
        muon: Train the matrices of the layers with Muon at this rate, not AdamW.
    """

    lora_rank: Count = 0
    entropy_weight: float = 2.0
    greatest_share: float = 0.8
    epochs: Amount = 6.0
    rows: Positive = 1
    forwards: Positive = 8
    learning_rate: Rate = 2e-5
    muon: Rate | None = None


@dataclass(frozen=True)
class DeviceOptions:
    """Options of the device and the precision of the training.

    Attributes:
        device: Where the model is trained.
        dtype: Precision of the weights. `None`: float32, with LoRA the checkpoint's.
        precision: Compute in bfloat16 beside weights in float32, or not.
        threads: Processor threads. `None`: torch's choice.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype | None = None
    precision: Literal["no", "bf16"] = "no"
    threads: Positive | None = None
