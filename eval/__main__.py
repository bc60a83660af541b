"""The command line: python -m eval run | sweep | report | oracle | trace | cache-error | lm."""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

import torch
from rich.console import Console

from dllm_decode import decode, load_model, load_target
from eval.lm_harness import command as lm_command
from eval.metrics.statistics import wilson
from eval.metrics.summary import summarise
from eval.oracle.joint import left_to_right
from eval.oracle.oracle import OracleModel
from eval.oracle.theory import joint_of
from eval.reports.replay import replay_page
from eval.reports.report import write_report
from eval.reports.table import table
from eval.reports.terminal import picture_of
from eval.runs import cache_error
from eval.runs.names import parse_task
from eval.runs.progress import reporter_for
from eval.runs.records import Folder, Record, Settings
from eval.runs.runner import execute
from eval.runs.settings import Place, Tokenizer
from eval.runs.sweep import Sweep, read_sweep
from eval.sandbox.code_runner import NO_CODE, CodeRunner
from eval.sandbox.sandbox import Sandbox
from samplers import parse

_ORACLE_SAMPLERS = (
    "FixedSchedule(steps_per_block=16)",
    "FixedSchedule(steps_per_block=2)",
    "FixedSchedule(steps_per_block=1)",
    "ConfidenceThreshold(threshold=0.9)",
    "ConfidenceThreshold(threshold=0.5)",
    "Factor(factor=0.99)",
    "Factor(factor=1.3)",
)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_EXAMPLES = """\
tasks are addresses:
  word_problems?split=test&limit=200      word_problems?split=test_template
  lists/shuffle?n=6&limit=100             puzzles/sudoku4
  gsm8k?path=FOLDER&protocol=llada        jsonl:FILE.jsonl
  humaneval?path=FILE.jsonl.gz            mbpp?path=FOLDER&protocol=instruct
  writing/words_to_sentence?n=4           parallelbench:FOLDER#waiting_line/copy

samplers, caches and verifiers are expressions, as their repr shows them:
  "ConfidenceThreshold(0.9)"   "Factor(factor=1.0)"   "DualCache()"
  "SelfVerify(4)"   "ARVerify(CausalTarget('mini-ar'))"   "Guided(CausalTarget('mini-ar'))"

a run that was stopped goes on where it stopped: give the same command again.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 1 if examples failed, 2 if refused."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog} {options.name}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Stopped; records are kept, the same command goes on from here.\n")
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        description="Measures how well and how fast a decoder fills answers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    new = partial(
        commands.add_parser,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run(new("run", help="decode and score one task with one or more samplers"))
    _add_sweep(new("sweep", help="run every combination that a TOML file names"))
    _add_report(new("report", help="write table, pictures and replays of a results folder"))
    _add_oracle(new("oracle", help="what samplers do on a model without errors of its own"))
    _add_trace(new("trace", help="show how one example was decoded"))
    cache_error.add_arguments(new("cache-error", help="how far each cache is from exact"))
    lm_command.add_arguments(
        commands.add_parser("lm", help="tasks of the Language Model Evaluation Harness")
    )
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="address of the task, see below")
    add("out", help="results folder, made if need be")
    add("--model", default="mini", help="embedded name, folder or hub id (default: mini)")
    add("--revision", default="", help="branch, tag or commit of a hub id")
    add("--sampler", action="append", metavar="EXPR",
        help="repeat to compare; the first is the reference "
        '(default: "FixedSchedule()" and "ConfidenceThreshold(0.9)")')  # fmt: skip
    add("--cache", action="append", metavar="EXPR", help="repeat to compare (default: NoCache())")
    add("--verifier", action="append", metavar="EXPR",
        help="repeat to compare (default: NoVerifier())")  # fmt: skip
    add("--gen-length", type=int, default=0, help="answer length in tokens (default: the task's)")
    add("--block-length", type=int, default=0, help="tokens per block (default: the task's)")
    add("--temperature", type=float, default=0.0, help="of the proposals (default: 0, greedy)")
    add("--seed", type=int, action="append", metavar="N",
        help="of the noise; repeat to average over several (default: 0)")  # fmt: skip
    add("--batch-size", type=int, default=16, help="rows decoded together (default: 16)")
    add("--prompts", choices=("chat", "plain"), default="",
        help="plain prompts: in the chat template or not (default: the task's)")  # fmt: skip
    _add_machine(parser)
    parser.set_defaults(command=_run)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="TOML file, such as eval/sweeps/lists.toml")
    parser.add_argument("out", help="results folder, made if need be")
    parser.add_argument("--model", default="", help="instead of the file's model")
    _add_machine(parser)
    parser.set_defaults(command=lambda options: _measure(_sweep_of(options), options))


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cpu",
        help="cpu, cuda, cuda:1; 'cuda' is each process's own (default: cpu)")  # fmt: skip
    add("--dtype", choices=_DTYPES, help="of the parameters (default: the checkpoint's)")
    add("--threads", type=int, default=0, help="processor threads (default: torch's choice)")
    add("--no-trace", action="store_true",
        help="record no steps and confidences: for timings, since looking costs time")  # fmt: skip
    add("--allow-code", action="store_true",
        help="run programs that the model wrote, in a sandbox: humaneval, mbpp")  # fmt: skip
    add("--retry-errors", action="store_true", help="decode examples anew that raised an error")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="results folder")
    parser.add_argument("--replays", type=int, default=2, help="pages per task (default: 2)")
    parser.set_defaults(command=_report)


def _add_oracle(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="a list task or Latin square, such as 'lists/shuffle?n=4'")
    add("--sampler", action="append", metavar="EXPR", help="repeat to compare")
    add("--rows", type=int, default=1000, help="decodes of each sampler (default: 1000)")
    add("--temperature", type=float, default=0.0, help="of the proposals (default: 0)")
    parser.set_defaults(command=_oracle)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="results folder")
    add("--example", default="", help="id, or the start of one (default: the first)")
    add("--html", metavar="FILE", help="write a replay page instead of showing the answer")
    parser.set_defaults(command=_trace)


def _run(options: argparse.Namespace) -> int:
    sweep = Sweep(
        model=options.model,
        tasks=(options.task,),
        samplers=tuple(options.sampler or ("FixedSchedule()", "ConfidenceThreshold(0.9)")),
        caches=tuple(options.cache or ("NoCache()",)),
        verifiers=tuple(options.verifier or ("NoVerifier()",)),
        seeds=tuple(options.seed or (0,)),
        gen_length=options.gen_length,
        block_length=options.block_length,
        temperature=options.temperature,
        batch_size=options.batch_size,
        prompts=options.prompts,
        revision=options.revision,
    )
    return _measure(sweep, options)


def _sweep_of(options: argparse.Namespace) -> Sweep:
    sweep = read_sweep(options.config)
    return replace(sweep, model=options.model) if options.model else sweep


def _code_for(sweep: Sweep, place: Place, *, allow: bool) -> CodeRunner:
    """Returns what runs programs; refuses tasks that need one before a model is loaded."""
    sandbox = Sandbox()
    code = sandbox if allow else NO_CODE
    for address in sweep.tasks:
        parse_task(address, code).task.require_scorable()
    if allow and place.rank == 0 and sandbox.missing():
        lacking = ", ".join(sandbox.missing())
        sys.stderr.write(f"This machine's sandbox does not guard: {lacking}.\n")
    return code


def _measure(sweep: Sweep, options: argparse.Namespace) -> int:
    place = Place.of_launch()
    code = _code_for(sweep, place, allow=options.allow_code)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = f"cuda:{place.local_rank}" if options.device == "cuda" else options.device
    wanted = _DTYPES.get(options.dtype)
    model, tokenizer = load_model(
        sweep.model, device=device, dtype=wanted, revision=sweep.revision or None
    )
    if tokenizer is None:
        raise ValueError(f"Text needs a tokenizer, got none in {sweep.model}; add its files.")
    dtype = str(model.dtype).removeprefix("torch.")
    # Its own types are wider than what is used here.
    words = cast(Tokenizer, tokenizer)
    # Once for all runs that name the same target.
    target = lru_cache(lambda source: load_target(source, tokenizer, device=device, dtype=wanted))
    runs = list(
        sweep.runs(model, words, dtype=dtype, trace=not options.no_trace, target=target, code=code)
    )
    folder = execute(
        runs,
        options.out,
        place=place,
        reporter=reporter_for(Console(stderr=True)),
        retry_errors=options.retry_errors,
    )
    # Whichever process is last finds the folder complete.
    summary = summarise(folder)
    if any(row["num_missing"] for row in summary["rows"]):
        return 0
    return _show(folder, num_replays=2)


def _report(options: argparse.Namespace) -> int:
    return _show(Folder(options.folder), num_replays=options.replays)


def _show(folder: Folder, *, num_replays: int) -> int:
    path = write_report(folder, num_replays=num_replays)
    rows = summarise(folder)["rows"]
    console = Console()
    for task in dict.fromkeys(row["settings"]["task"] for row in rows):
        own = [row for row in rows if row["settings"]["task"] == task and row["num_records"]]
        console.print(f"{task}\n{table(own)}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Report: {path}", markup=False, highlight=False, soft_wrap=True)
    errors = sum(row["num_errors"] for row in rows)
    if errors:
        sys.stderr.write(f"{errors} examples raised an error; see {path}.\n")
    return 1 if errors else 0


def _oracle(options: argparse.Namespace) -> int:
    selection = parse_task(options.task)
    example = selection.task.examples(selection.split, 1, selection.examples_seed)[0]
    joint = joint_of(selection.task, example)
    write = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    write(f"{example.prompt}\n{len(joint.answers)} right answers of {joint.length} items; "
          f"total correlation {joint.total_correlation:.3f} bits\n")  # fmt: skip
    write("left to right at temperature 1, exactly:")
    for size in range(1, joint.length + 1):
        partition = left_to_right(joint.length, size)
        exact = joint.accuracy(partition)
        write(f"  {size} a step: accuracy {float(exact):.4f} = {exact}, "
              f"lost bits {abs(joint.lost_bits(partition)):.3f}")  # fmt: skip
    write(f"\nsamplers at temperature {options.temperature:g}, n = {options.rows}, 95 % interval:")
    for text in options.sampler or _ORACLE_SAMPLERS:
        model = OracleModel([joint])
        out = decode(
            model, [model.prompt(i) for i in range(options.rows)], parse(text),
            gen_length=joint.length, block_length=joint.length, temperature=options.temperature,
            stop_at_eos=False,
        )  # fmt: skip
        num_right = sum(model.is_right(row) for row in out.tokens.tolist())
        low, high = wilson(num_right, options.rows)
        write(f"  {text}: accuracy {num_right / options.rows:.3f} [{low:.3f}, {high:.3f}], "
              f"NFE {out.nfe.double().mean():.2f}")  # fmt: skip
    return 0


def _trace(options: argparse.Namespace) -> int:
    found = _examples_of(Folder(options.folder), options.example)
    if options.html:
        Path(options.html).write_text(replay_page(found), encoding="utf-8")
        Console().print(f"Replay: {options.html}", markup=False, highlight=False, soft_wrap=True)
        return 0
    console = Console()
    first = found[0][1]
    seeds = {settings.seed for settings, _ in found}
    console.print(f"{first['prompt']}\ntarget: {first['target']}\n", markup=False, highlight=False)
    for settings, record in found:
        counted = f"{record['length']} tokens in {record['nfe']} forwards"
        if record["target_nfe"]:
            counted += f" and {record['target_nfe']} of the target"
        parts = [*settings.parts, *([f"seed {settings.seed}"] if len(seeds) > 1 else [])]
        console.print(
            f"{' + '.join(parts)}: {counted}, {record['scores']}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        console.print(picture_of(record), end="\n\n")
    return 0


def _examples_of(folder: Folder, example: str) -> list[tuple[Settings, Record]]:
    records = [record for record in folder.records() if record["error"] is None]
    ids = [record["example"] for record in records if record["example"].startswith(example)]
    if not ids:
        raise ValueError(
            f"{folder.path} has no finished example whose id starts with {example!r}; "
            f"it has {', '.join(sorted({record['example'] for record in records})[:5]) or 'none'}."
        )
    by_key = {settings.key(""): settings for settings in folder.settings()}
    found = [(by_key[r["settings"]], r) for r in records if r["example"] == ids[0]]
    return [(settings, r) for settings, r in found if settings.task == found[0][0].task]


if __name__ == "__main__":
    sys.exit(main())
