"""Distils a model of ledgers so that it decides several tokens at a time: dParallel, or d3LLM.

    python examples/mini/distil_long.py --model runs/mini-long --method dparallel --minutes 12

The model first answers training questions, one token a step; answers that are right are kept (with
`--keep-wrong` all), with the order in which their tokens were committed. On these it is trained by
certainty forcing. What is measured on held-out numbers, before and on the way, is accuracy and
forwards an answer under the entropy rule. An interrupted run goes on with `--resume`, in either
part.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from dllm_decode import DualCache, Trace, decode, load_model
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.training import (
    FreshRows,
    Kind,
    Minutes,
    Objective,
    Pair,
    ProgressBar,
    Report,
    Settings,
    make_optimisers,
    train,
)
from dllm_decode.training.certainty import (
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
    TrajectoryLoss,
)
from eval.tasks import Example, Ledgers
from samplers import EntropyThreshold, FixedSchedule

BLOCK_LENGTH = 32
BATCH_SIZE = 50
GEN_LENGTH = 160


class Drawn(NamedTuple):
    """An answer of the teacher.

    Attributes:
        prompt: Token ids of the question.
        answer: Token ids of the answer, without EOS.
        ranks: Of each answer position, its first EOS included, in the order of commits.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ranks: tuple[int, ...]


def main() -> None:
    """Draws answers, distils, measures and writes the model."""
    options = make_parser().parse_args()
    torch.set_num_threads(options.threads)
    teacher, tokenizer = load_model(options.model, device=options.device, dtype=torch.float32)
    if tokenizer is None:
        sys.exit(f"A distilled model has a tokenizer, got none in {options.model}.")
    folder: Path = options.output / f"mini-long-{options.method}"
    drawn = draw_answers(teacher, tokenizer, options, options.output / "mini-long-answers.jsonl")
    if not drawn:
        sys.exit(f"Answers to learn from must be right, got none of {options.answers} from "
                 f"{options.model}; train it longer, or pass --keep-wrong.")  # fmt: skip
    model = teacher.train().requires_grad_(True)
    objective, advance = objective_of(options, model, drawn)
    pairs = [(each.prompt, each.answer) for each in drawn]

    def draw(rng: random.Random) -> Pair:
        return rng.choice(pairs)

    examples = Ledgers().examples("val", options.evaluate_on)
    settings = Settings(
        budget=Minutes(options.minutes),
        folder=options.output / f"mini-long-{options.method}-checkpoints",
        evaluate_every_s=60 * options.evaluate_every,
        autocast=True,
        seed=options.seed,
    )
    with ProgressBar(Console(), options.method) as bar:
        before = measure(model, tokenizer, examples, options.threshold)
        bar.say(f"before: {before}")

        def evaluate() -> dict[str, float]:
            save_model(model, folder, dtype=torch.bfloat16)
            tokenizer.save_pretrained(folder)
            found = measure(model, tokenizer, examples, options.threshold)
            bar.say(f"measured: {found}")
            return found

        def observe(report: Report) -> None:
            advance(report.spent)
            bar(report)

        progress = train(
            objective,
            make_optimisers(model, matrix_lr=options.matrix_lr, other_lr=options.other_lr),
            [Kind("answers", draw, 120, (GEN_LENGTH,), options.rows)],
            FreshRows(eos_id=model.eos_ids[0], seed=options.seed),
            settings,
            evaluate=evaluate,
            observe=observe,
            resume=options.resume,
        )
    record = {
        "settings": {k: v.name if isinstance(v, Path) else v for k, v in vars(options).items()},
        "answers": len(drawn),
        "samples": progress.samples,
        "steps": progress.step,
        "elapsed_s": round(progress.elapsed_s, 1),
        "before": before,
        "history": progress.history,
    }
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="embedded name, folder, or hub id")
    add("--output", type=Path, default=Path("runs"), help="folder for everything")
    add("--method", choices=("dparallel", "d3llm"), default="dparallel")
    add("--answers", type=int, default=1000, help="questions that the teacher answers")
    add("--keep-wrong", action="store_true", help="learn from wrong answers too, as d3LLM does")
    add("--minutes", type=float, default=12.0, help="of training")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--evaluate-every", type=float, default=3.0, help="in minutes")
    add("--evaluate-on", type=int, default=64, help="questions")
    add("--threshold", type=float, default=0.5, help="of the entropy rule, in nats")
    add("--temperature", type=float, default=0.5, help="of the entropy in the loss")
    add("--entropy-weight", type=float, default=2.0)
    add("--rows", type=int, default=16, help="answers a step")
    add("--matrix-lr", type=float, default=0.002, help="peak rate of Muon")
    add("--other-lr", type=float, default=0.0003, help="peak rate of AdamW")
    add("--threads", type=int, default=1, help="of torch on the CPU")
    add("--device", default="cpu")
    add("--seed", type=int, default=0)
    return parser


def objective_of(
    options: argparse.Namespace, model: MaskedTransformer, drawn: Sequence[Drawn]
) -> tuple[Objective, Callable[[float], None]]:
    """Returns the loss of the method, and what tells it how far the run is."""
    weights = (options.temperature, options.entropy_weight)
    if options.method == "dparallel":
        return CertaintyForcing(model, BLOCK_LENGTH, loss=CertaintyLoss(*weights)), lambda _: None
    ranks = {(*each.prompt, *each.answer): each.ranks for each in drawn}
    loss = TrajectoryLoss(*weights)
    forcing = TrajectoryForcing(model, ranks, curriculum=Curriculum(), loss=loss)
    return forcing, forcing.advance


def draw_answers(
    teacher: MaskedTransformer,
    tokenizer: PreTrainedTokenizerBase,
    options: argparse.Namespace,
    path: Path,
) -> list[Drawn]:
    """Lets the teacher answer, one token a step; goes on where the file ends."""
    task = Ledgers()
    examples = task.examples("train", options.answers, seed=options.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole lines only: a run that was killed may have left part of one.
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(lines), encoding="utf-8")
    starts = range(len(lines), len(examples), BATCH_SIZE)
    for start in track(starts, "answers", disable=not starts):
        batch = examples[start : start + BATCH_SIZE]
        with path.open("a", encoding="utf-8") as file:
            file.writelines(answer_lines(teacher, tokenizer, task, batch))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Drawn(*(tuple(record[name]) for name in Drawn._fields))
        for record in records[: options.answers]
        if record["right"] or options.keep_wrong
    ]


def answer_lines(
    teacher: MaskedTransformer,
    tokenizer: PreTrainedTokenizerBase,
    task: Ledgers,
    batch: Sequence[Example],
) -> list[str]:
    """Answers a batch; a line for each holds the answer, its order and whether it is right."""
    prompts = [encode(tokenizer, example) for example in batch]
    trace = Trace()
    output = decode(
        teacher,
        prompts,
        FixedSchedule(steps_per_block=BLOCK_LENGTH),
        cache=DualCache(),
        gen_length=GEN_LENGTH,
        block_length=BLOCK_LENGTH,
        observers=[trace],
    )
    found = []
    for i, answer in enumerate(output.answers()):
        right = task.score(batch[i], str(tokenizer.decode(answer)))["answer"] == 1.0
        steps = trace.steps[i][: len(answer) + 1]
        # Positions that were filled in behind a row's end come last.
        ranks = steps.masked_fill(steps < 0, GEN_LENGTH).argsort(stable=True).argsort().tolist()
        record = {"prompt": prompts[i], "answer": answer, "ranks": ranks, "right": right}
        found.append(json.dumps(record) + "\n")
    return found


def encode(tokenizer: PreTrainedTokenizerBase, example: Example) -> list[int]:
    """Encodes a question as the chat template has it."""
    text = f"{example.prompt} answer :"
    return list(tokenizer.encode(text, add_special_tokens=False))


def measure(
    model: MaskedTransformer,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    threshold: float,
) -> Mapping[str, float]:
    """Measures accuracy and forwards an answer under the entropy rule."""
    task = Ledgers()
    prompts = [encode(tokenizer, example) for example in examples]
    model.eval()
    output = decode(
        model,
        prompts,
        EntropyThreshold(threshold),
        gen_length=GEN_LENGTH,
        block_length=BLOCK_LENGTH,
    )
    model.train()
    answers = zip(examples, output.answers(), strict=True)
    scores = [task.score(e, str(tokenizer.decode(ids)))["answer"] or 0.0 for e, ids in answers]
    forwards = float(output.nfe.float().mean())
    return {"accuracy": sum(scores) / len(scores), "forwards": round(forwards, 2)}


if __name__ == "__main__":
    main()
