"""Command-line options of `report` and `trace`."""

from argparse import ArgumentParser

from eval.runs.options import count


def add_report(parser: ArgumentParser) -> None:
    """Adds the options of `report`."""
    parser.add_argument("folder", help="results folder")
    parser.add_argument("--replays", type=count, default=30, help="pages per task (default: 30)")
    parser.add_argument("--before", metavar="FOLDER",
        help="also compare with another results folder, in comparison.html")  # fmt: skip


def add_trace(parser: ArgumentParser) -> None:
    """Adds the options of `trace`."""
    add = parser.add_argument
    add("folder", help="results folder")
    add("--example", default="", help="id, or the start of one (default: the first)")
    add("--html", metavar="FILE", help="write a replay page instead of showing the answer")
    add("--gif", metavar="FILE", help="write an animation: .gif, .png or .webp")
