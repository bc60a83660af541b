"""Command-line options of `train-filter` and `distil`. Nothing heavy is imported."""

from argparse import ArgumentParser

from eval.runs.arguments import DTYPES, add_machine, add_model
from eval.runs.options import add_options, number, positive, whole

LENGTHS = ("gen_length", "block_length")
ENDS = ("stop_at_eos", "truncate_at_eos")


def add_train_filter(parser: ArgumentParser) -> None:
    """Adds the options of `train-filter`."""
    add = parser.add_argument
    add_model(parser)
    _add_questions(parser, "word_problems?split=train&limit=500")
    add("--output", default="learn2pd.safetensors", metavar="FILE",
        help="the filter; what is needed to go on lies in FILE.run "
        "(default: learn2pd.safetensors)")  # fmt: skip
    _add_decoding(parser)
    add_options(parser, ENDS)
    add("--hidden", type=positive, nargs="*", default=[32], metavar="N",
        help="units of each hidden layer (default: 32)")  # fmt: skip
    add("--activation", choices=("relu", "tanh", "gelu"), default="relu",
        help="between the layers (default: relu)")  # fmt: skip
    add("--counted", choices=("all", "masked"), default="all",
        help="positions in the loss: a whole block, or its masks (default: all)")  # fmt: skip
    add("--steps", type=positive, default=5_000, metavar="N", help="updates (default: 5000)")
    add("--learning-rate", type=number, default=3e-3, metavar="RATE", help="default: 0.003")
    add("--threshold", type=number, nargs="+", default=[0.96, 0.9, 0.99], metavar="P",
        help="thresholds at which the filter is judged; the file names the first "
        "(default: 0.96 0.9 0.99)")  # fmt: skip
    add("--against", default="ConfidenceThreshold(0.9)", metavar="EXPR",
        help="the sampler it is compared with (default: ConfidenceThreshold(0.9))")  # fmt: skip
    add("--seed", type=whole, default=0, help="of weights and splits (default: 0)")
    add_machine(parser)


def add_distil(parser: ArgumentParser) -> None:
    """Adds the options of `distil`."""
    add = parser.add_argument
    add_model(parser)
    _add_questions(parser, "word_problems?split=train&limit=500")
    add("--output", default="runs/distil", metavar="FOLDER",
        help="for everything; the same command goes on where it stopped "
        "(default: runs/distil)")  # fmt: skip
    add("--method", choices=("dparallel", "d3llm"), default="dparallel",
        help="certainty forcing on random masks, or on the teacher's own states "
        "(default: dparallel)")  # fmt: skip
    _add_decoding(parser)
    teacher = parser.add_argument_group("the teacher, which is the model as it is")
    teacher.add_argument("--teacher-sampler", metavar="EXPR",
        help="how it answers (default: one token a step, the most confident)")  # fmt: skip
    teacher.add_argument("--keep-wrong", action="store_true",
        help="learn from answers that are not right, too, as d3LLM does")  # fmt: skip
    teacher.add_argument("--allow-code", action="store_true",
        help="run programs that it wrote, in a sandbox, to tell right from wrong")  # fmt: skip
    teacher.add_argument("--code-runner", metavar="RUNNER", default="auto",
        help="the sandbox, as in dllm-decode run (default: auto)")  # fmt: skip
    _add_training(parser)
    add("--sampler", default="EntropyThreshold(0.5)", metavar="EXPR",
        help="how held-out prompts are decoded (default: EntropyThreshold(0.5))")  # fmt: skip
    add("--evaluate-every", type=positive, default=200, metavar="STEPS",
        help="held-out prompts are decoded and a checkpoint is written (default: 200)")  # fmt: skip
    add("--seed", type=whole, default=0, help="of masks and of the order of rows (default: 0)")
    add("--log-with", nargs="+", choices=("tensorboard", "wandb"), default=[], metavar="NAME",
        help="log to tensorboard, in the output folder, or to wandb")  # fmt: skip
    machine = parser.add_argument_group(
        "the machine; several processes: torchrun or accelerate launch"
    )
    machine.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    machine.add_argument("--dtype", choices=DTYPES,
        help="of the weights (default: float32, with LoRA the checkpoint's)")  # fmt: skip
    machine.add_argument("--precision", choices=("no", "bf16"), default="no",
        help="compute in bfloat16 beside weights in float32 (default: no)")  # fmt: skip
    machine.add_argument("--threads", type=positive, help="processor threads")


def _add_training(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("the training").add_argument
    add("--lora-rank", type=whole, default=0, metavar="N",
        help="train additions of so low a rank instead of all weights; 128 in dParallel "
        "(default: 0, all weights)")  # fmt: skip
    add("--lora-alpha", type=positive, metavar="A", help="their scale (default: the rank)")
    add("--temperature", type=number, default=0.5, help="of the entropy in the loss (default: 0.5)")
    add("--entropy-weight", type=number, default=2.0, metavar="W",
        help="2 for LLaDA, 1 for Dream in the authors' code (default: 2)")  # fmt: skip
    add("--greatest-share", type=number, default=0.8, metavar="S",
        help="d3llm: the share of a block that is masked at most (default: 0.8)")  # fmt: skip
    add("--epochs", type=number, default=6.0, help="times each answer is learned (default: 6)")
    add("--minutes", type=number, help="train so long instead; two such runs differ")
    add("--rows", type=positive, default=1, metavar="N",
        help="answers in one forward of the training, per device (default: 1)")  # fmt: skip
    add("--forwards", type=positive, default=8, metavar="N",
        help="forwards of the training in one step, per device, whose gradients are averaged; the "
        "forwards that are measured and shown are those of decoding (default: 8)")  # fmt: skip
    add("--learning-rate", type=number, default=2e-5, metavar="RATE",
        help="highest rate of AdamW (default: 2e-5)")  # fmt: skip
    add("--muon", type=number, metavar="RATE",
        help="train the matrices of the layers with Muon at this rate, not AdamW")  # fmt: skip


def _add_questions(parser: ArgumentParser, default: str) -> None:
    add = parser.add_argument
    add("--task", default=default, metavar="ADDRESS",
        help="where prompts come from, such as 'gsm8k?path=FOLDER&split=train' or "
        f"'jsonl:FILE.jsonl' (default: {default})")  # fmt: skip
    add("--held-out", default="", metavar="ADDRESS",
        help="prompts that the result is judged on (default: every fifth of the task's, which is "
        "then not trained on)")  # fmt: skip
    add("--prompts", choices=("chat", "plain"), default="",
        help="plain prompts: in the chat template or not (default: the task's)")  # fmt: skip
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")


def _add_decoding(parser: ArgumentParser) -> None:
    add_options(parser, LENGTHS)
    parser.add_argument("--cache", default="NoCache()", metavar="EXPR",
        help="of every decode (default: NoCache())")  # fmt: skip
