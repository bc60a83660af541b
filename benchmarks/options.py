"""The command line of `python -m benchmarks`."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.growth import BATCH_SIZES, PROMPT_LENGTHS
from benchmarks.setting import GEOMETRIES, Setting

PARTS = ("check", "table", "growth")
QUICK = {
    "prompt_length": 128,
    "gen_length": 32,
    "steps_per_block": 16,
    "prompt_lengths": [128, 512],
    "batch_sizes": [4],
}
"""Options that `--quick` changes, unless they are given."""

_HELP = {
    "geometry": "sizes of the model; llada-8b on an accelerator",
    "prompt_length": "tokens, in the table and where batches grow",
    "gen_length": "tokens of an answer, in the table",
    "block_length": "tokens",
    "steps_per_block": "forwards a block, in the table",
    "batch_size": "rows, in the table",
    "dtype": "of parameters and activations",
    "device": "where it runs; an accelerator if there is one",
    "num_threads": "of torch, on the CPU",
}


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        setting: Setting of the table, and the start of growth.
        parts: Names in `PARTS`.
        with_reference: True if the table has the plain loop.
        contenders: Caches and verifiers of the table.
        neighbour: Cache and verifier that run once more during a busy process; empty: none.
        prompt_lengths: Tokens, of the growth.
        batch_sizes: Rows, of the growth.
        json: File for the figures.
    """

    setting: Setting
    parts: list[str]
    with_reference: bool
    contenders: list[str]
    neighbour: str
    prompt_lengths: list[int]
    batch_sizes: list[int]
    json: Path | None


def read_options(description: str, words: list[str]) -> Options:
    """Reads a command line; `--quick` and the device choose defaults of the others."""
    parser = _parser(description)
    first = parser.parse_args(words)
    if torch.device(first.device).type != "cpu":
        parser.set_defaults(geometry="llada-8b")
    if first.quick:
        parser.set_defaults(**QUICK)
    given = vars(parser.parse_args(words))
    setting = Setting(**{field.name: given.pop(field.name) for field in fields(Setting)})
    given.pop("quick")
    return Options(setting, with_reference=not given.pop("no_reference"), **given)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="short answers, few points")
    for field in fields(Setting):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            choices=tuple(GEOMETRIES) if field.name == "geometry" else None,
            help=_HELP[field.name],
        )
    if torch.cuda.is_available():
        parser.set_defaults(device="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to do")
    parser.add_argument("--no-reference", action="store_true", help="leave out the plain loop")
    parser.add_argument(
        "--contenders", nargs="*", default=list(CONTENDERS), help="cache and verifier of each row"
    )
    parser.add_argument(
        "--neighbour", default="DualCache(), NoVerifier()", metavar="CONTENDER",
        help="runs once more while another process keeps one core busy; empty: none does",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-lengths", nargs="+", type=int, default=list(PROMPT_LENGTHS), help="of the growth"
    )
    parser.add_argument(
        "--batch-sizes", nargs="+", type=int, default=list(BATCH_SIZES), help="of the growth"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser
