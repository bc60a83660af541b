"""Command-line options of `oracle`."""

from argparse import ArgumentParser

from eval.runs.options import number, positive


def add_oracle(parser: ArgumentParser) -> None:
    """Adds the options of `oracle`."""
    add = parser.add_argument
    add("task", help="a list task or Latin square, such as 'lists/shuffle?n=4'")
    add("--sampler", action="append", metavar="EXPR", help="repeat to compare")
    add("--rows", type=positive, default=1000, help="decodes of each sampler (default: 1000)")
    add("--temperature", type=number, default=0.0, help="of the proposals (default: 0)")
