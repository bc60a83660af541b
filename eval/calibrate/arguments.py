"""Command-line options of `calibrate`."""

from argparse import ArgumentParser

from eval.runs.arguments import (
    PLAIN,
    add_batches,
    add_machine,
    add_model,
    add_plugins,
    add_recording,
)
from eval.runs.options import add_decoding, number

LADDERS = ("threshold", "entropy", "factor", "steps")
TESTS = ("both", "binomial", "betting")


def add_calibrate(parser: ArgumentParser) -> None:
    """Adds the options of `calibrate`."""
    add = parser.add_argument
    add("task", help="address of the task, see below; its prompts are used for the test alone")
    add("out", help="results folder, made if need be; records that it has are used")
    add_model(parser)
    add("--reference", default="FixedSchedule(10000)", metavar="EXPR",
        help="what the settings are compared with (default: one token a step)")  # fmt: skip
    add("--sampler", "--setting", dest="settings", action="append", metavar="EXPR",
        help="from cautious to bold; parts are joined by ' + ': "
        "\"ConfidenceThreshold(0.9) + DualCache()\"")  # fmt: skip
    add("--ladder", choices=LADDERS, help="a named list of samplers, instead of --sampler")
    parts = parser.add_argument_group("parts of settings that name none")
    add_plugins(parts, {name: PLAIN[name] for name in ("cache", "verifier", "blocks")})
    add("--max-drop", type=number, default=0.02,
        help="greatest drop of the accuracy, as a share (default: 0.02)")  # fmt: skip
    add("--confidence", type=number, default=0.95,
        help="probability with which the guarantee holds (default: 0.95)")  # fmt: skip
    add("--test", choices=TESTS, default="both",
        help="exact binomial on regressions, betting on the drop, both at half each")  # fmt: skip
    add("--agreement", action="store_true",
        help="certify that answers equal the reference's; no labels are needed")  # fmt: skip
    add("--order-on", type=int, default=0, metavar="N",
        help="learn the order on the first N prompts, which are not used for the test")  # fmt: skip
    add("--card", metavar="FILE", help="where the card goes (default: card.json in the folder)")
    add_batches(parser)
    add_decoding(parser)
    add_machine(parser)
    add_recording(parser)
