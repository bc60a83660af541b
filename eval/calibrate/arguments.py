"""Command-line options of `calibrate`."""

from argparse import ArgumentParser

from eval.runs.arguments import add_machine, add_model, add_recording
from eval.runs.options import add_decoding, number, positive

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
    add("--cache", default="NoCache()", metavar="EXPR", help="of settings that name none")
    add("--verifier", default="NoVerifier()", metavar="EXPR", help="of settings that name none")
    add("--blocks", default="Sequential()", metavar="EXPR",
        help="block schedule of settings that name none")  # fmt: skip
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
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")
    add("--prompts", choices=("chat", "plain"), default="",
        help="put prompts into the chat template, or leave them plain "
        "(default: the task's)")  # fmt: skip
    add_decoding(parser)
    add_machine(parser)
    add_recording(parser)
