"""The commands that evaluation and training add to `dllm-decode`.

Nothing heavy is imported, so that help is shown at once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from dllm_decode.settings.command_options import ConstraintOptions, PluginOptions
from dllm_decode.settings.commands import (
    GOES_ON,
    MACHINE,
    MODEL,
    PLUGINS,
    REST,
    Command,
    make_parser_of,
    run_line,
)
from dllm_decode.settings.options import LENGTHS, OptionGroup, OptionParser, decode_options
from eval.command_options import (
    BatchOptions,
    CalibrationOptions,
    HarnessOptions,
    OracleOptions,
    RecordingOptions,
    ReportOptions,
    RunOptions,
)
from eval.training.command_options import (
    FILTER_DECODING,
    DeviceOptions,
    DistilOptions,
    FilterOptions,
    PromptOptions,
    TeacherOptions,
    TrainingOptions,
)

_LOST = "Stopped; nothing is kept.\n"
_KEPT = "Stopped; records are kept, the same command goes on from here.\n"
_RECORDS = "records"
_BATCHES = OptionGroup(BatchOptions, REST)
_RECORDING = OptionGroup(RecordingOptions, _RECORDS)
_TRAINING = (MODEL, OptionGroup(PromptOptions), _BATCHES)
_DECODE_AND_RECORD = (decode_options(repeat=True), MACHINE, _RECORDING)
_TASK_AND_OUT = OptionGroup(RunOptions, names=("task", "out"))
_DEFAULT_SAMPLERS = {"sampler": '"FixedSchedule()" and "ConfidenceThreshold(0.9)"'}

EVAL_COMMANDS = {
    "run": Command(
        "decode and score one task with one or more samplers",
        "eval.sweeps.command:run",
        (_TASK_AND_OUT, MODEL, OptionGroup(PluginOptions, repeat=True, defaults=_DEFAULT_SAMPLERS),
         _BATCHES, *_DECODE_AND_RECORD, OptionGroup(ConstraintOptions, "constraint")),
        _KEPT,
    ),
    "sweep": Command(
        "run every combination that a TOML file names", "eval.sweeps.command:sweep",
        (OptionGroup(RunOptions, names=("config", "out", "model")), *_DECODE_AND_RECORD),
        _KEPT,
    ),
    "calibrate": Command(
        "find the fastest setting that keeps the accuracy, with a guarantee",
        "eval.calibration.command:run",
        (_TASK_AND_OUT, MODEL, OptionGroup(CalibrationOptions),
         OptionGroup(PluginOptions, names=("cache", "verifier", "blocks")), _BATCHES,
         decode_options(), MACHINE, _RECORDING),
        _KEPT,
    ),
    "report": Command(
        "write table, pictures and replays of a results folder", "eval.reports.command:report",
        (OptionGroup(ReportOptions, names=("folder", "replays", "cost")),), _LOST,
    ),
    "trace": Command(
        "show how one example was decoded", "eval.reports.command:trace",
        (OptionGroup(ReportOptions, names=("folder", "example")),), _LOST,
    ),
    "oracle": Command(
        "what samplers do on a model without errors of its own", "eval.oracle.command:run",
        (OptionGroup(OracleOptions),), _LOST,
    ),
    "lm": Command(
        "tasks of the Language Model Evaluation Harness", "eval.lm_harness.command:run",
        (MODEL, PLUGINS, OptionGroup(HarnessOptions), MACHINE,
         decode_options(defaults={"temperature": "the task's"})),
        _LOST,
    ),
}  # fmt: skip


def evaluate(words: Sequence[str] | None = None) -> int:
    """Runs `eval` and returns the exit status: 1 if examples failed, 2 if something was refused."""
    typed = list(sys.argv[1:] if words is None else words)
    return run_line(make_eval_parser(), EVAL_COMMANDS, typed)


def make_eval_parser() -> OptionParser:
    """Builds the command line of `eval`."""
    about = "Measures how well and how fast a decoder fills answers."
    examples = (Path(__file__).parent / "help/eval.txt").read_text(encoding="utf-8")
    return make_parser_of("dllm-decode eval", about, EVAL_COMMANDS, examples, epilog=examples)


EVAL = Command(
    "measure accuracy and speed: dllm-decode eval --help",
    "eval.commands:evaluate",
    takes_words=True,
    below=EVAL_COMMANDS.keys(),
)
TASKS = Command("list the tasks, each with a line", "eval.listing:show")
TRAIN_FILTER = Command(
    "train a Learn2PD filter and judge it on held-out prompts",
    "eval.training.filter_command:run",
    (
        *_TRAINING,
        OptionGroup(FilterOptions),
        MACHINE,
        decode_options(names=FILTER_DECODING),
    ),
    GOES_ON,
)
DISTIL = Command(
    "train a model to be sure of several tokens at a time: dParallel, d3LLM",
    "eval.training.distil_command:run",
    (*_TRAINING, OptionGroup(DistilOptions), decode_options(names=LENGTHS),
     OptionGroup(TeacherOptions, "the teacher, which is the model as it is"),
     OptionGroup(TrainingOptions, "the training"), OptionGroup(DeviceOptions, REST)),
    GOES_ON,
)  # fmt: skip
