"""Speed and memory of decoding, compared with a plain reference loop, in one run.

Part "check", if there is an accelerator, compares its answers with the CPU's; "table" compares
the plain loop with `decode`, its caches and its verifiers; "families" compares kinds of models;
"growth" times a step by prompt, answer, rows and vocabulary, and draws it with `--picture`; "peers"
compares `decode` with official code, if `--peer` names a checkout of it.
Every contender has a process of its own. `python -m benchmarks gpu --help`: a day on a GPU.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu
from benchmarks.check import check_against_cpu
from benchmarks.contenders import CONTENDERS, REFERENCE, in_a_process_of_its_own, measure
from benchmarks.floor import Machine, measure_machine
from benchmarks.frame import Row, make_parser, origin, show
from benchmarks.growth import draw_growth, measure_growth, points_of, with_ratios
from benchmarks.peers import PEERS, compare_with_peers, find_checkouts
from benchmarks.setting import FAMILIES, GEOMETRIES, Setting
from dllm_decode.cli.options import documented, first_sentence
from dllm_decode.launch import run_main
from eval.runs.provenance import device_name

HELP = {name: first_sentence(text) for name, text in documented(Setting).items()}
OPTIONS = {
    "quick": (False, "short answers, few points"),
    **{field.name: (field.default, HELP[field.name]) for field in fields(Setting)},
    "geometry": (GEOMETRIES, HELP["geometry"]),
    "family": (dict.fromkeys(FAMILIES), HELP["family"]),
    "parts": (("check", "table", "families", "growth", "peers"), "parts to run"),
    "no_reference": (False, "leave out the plain loop"),
    "contenders": (list(CONTENDERS), "cache and verifier of each row"),
    "prompt_lengths": ([128, 256, 512, 1024, 2048, 4096], "of the growth"),
    "answer_lengths": ([64, 128, 256, 512, 1024], "of the growth"),
    "batch_sizes": ([1, 2, 4, 8, 16, 32], "of the growth"),
    "vocab_sizes": ([8192, 32_768, 126_464, 262_144], "of the growth"),
    "picture": (Path, "also draw the growth, as SVG, to this file"),
    "peer": ([], f"NAME=PATH of a checkout, NAME one of {', '.join(PEERS)}; may be repeated"),
    "peer_python": (sys.executable, "the interpreter that runs peers"),
    "rounds": (3, "of the peers"),
}
FAMILY_CONTENDERS = ("NoCache(), NoVerifier()", "DualCache(), NoVerifier()")
FAMILY_COLUMNS = ("contender", "s", "forwards", "columns", "ms a call", "not in models", "peak MB")
QUICK = {
    "prompt_length": 128,
    "gen_length": 32,
    "steps_per_block": 16,
    "prompt_lengths": [128, 512],
    "answer_lengths": [64],
    "batch_sizes": [4],
    "vocab_sizes": [8192],
}
"""Options that `--quick` changes, unless they are given."""


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = read(words)
    setting = Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)})
    options.checkouts = find_checkouts(options.peer, setting)
    machine = in_a_process_of_its_own(measure_machine, setting)
    found: Row = {
        **origin(" ".join(["python -m benchmarks", *words]), setting.device, setting.num_threads),
        "setting": asdict(setting), "machine": machine._asdict(),
    }  # fmt: skip
    is_there = {"check": torch.device(setting.device).type != "cpu", "peers": bool(options.peer)}
    for part in [part for part in options.parts if is_there.get(part, True)]:
        title = title_of(part, setting, machine)
        print(f"\n{title}\n")
        for rows in rows_of(part, setting, machine, options):
            found[part] = rows
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
        show(rows)
        if part == "growth" and options.picture:
            draw_growth(rows, options.picture, title.partition(": ")[2].partition(";")[0])


def read(words: list[str]) -> Any:
    """Reads a command line; `--quick` and the device choose defaults of the others."""
    parser = make_parser("benchmarks", __doc__ or "", OPTIONS)
    has_cuda = torch.cuda.is_available()
    parser.set_defaults(device="cuda" if has_cuda else "cpu", geometry=Setting.geometry)
    first = parser.parse_args(words)
    if torch.device(first.device).type != "cpu":
        parser.set_defaults(geometry="llada-8b")
    if first.quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args(words)


def title_of(part: str, setting: Setting, machine: Machine) -> str:
    """Names a part with its setting and the rates of the machine."""
    sizes = setting.sizes
    return (
        f"{part}: {sizes.num_layers} layers x {sizes.hidden_size}, {setting.dtype}, "
        f"{setting.device}, {setting.num_threads} threads; prompt {setting.prompt_length}, "
        f"answer {setting.gen_length}, blocks of {setting.block_length} in "
        f"{setting.steps_per_block} steps, batch {setting.batch_size}; copies "
        f"{machine.bytes_per_s / 1e9:.1f} GB/s, matrices {machine.flops_per_s / 1e9:,.0f} GFLOP/s; "
        f"{device_name(torch.device(setting.device))}"
    )


def rows_of(part: str, setting: Setting, machine: Machine, options: Any) -> Iterator[list[Row]]:
    """Yields the rows of a part that are known so far."""
    rows: list[Row] = []
    if part == "check":
        yield in_a_process_of_its_own(check_against_cpu, setting)
    if part == "table":
        names = [REFERENCE, *options.contenders][options.no_reference :]
        yield from table_rows(setting, machine, names)
    if part == "families":
        for family, name in product(FAMILIES, FAMILY_CONTENDERS):
            of_family = replace(setting, family=family)
            row = in_a_process_of_its_own(measure, of_family, machine, name).row
            rows.append({"family": family, **{column: row[column] for column in FAMILY_COLUMNS}})
            yield rows
    if part == "growth":
        grown = {
            "prompt_length": options.prompt_lengths, "gen_length": options.answer_lengths,
            "batch_size": options.batch_sizes, "vocab_size": options.vocab_sizes,
        }  # fmt: skip
        for point in points_of(setting, grown):
            rows += in_a_process_of_its_own(measure_growth, [point], machine)
            yield with_ratios(rows)
    if part == "peers":
        yield from compare_with_peers(
            setting, options.checkouts, options.peer_python, options.rounds
        )


def table_rows(setting: Setting, machine: Machine, names: Sequence[str]) -> Iterator[list[Row]]:
    """Yields the rows of the table that are known so far, compared with the first one."""
    rows: list[Row] = []
    first = None
    for name in names:
        found = in_a_process_of_its_own(measure, setting, machine, name)
        first = first or found
        tokens = "same" if found.tokens == first.tokens else "differ"
        speed_up = first.row["s"] / found.row["s"]
        rows.append({**found.row, "speed-up": speed_up, "tokens": tokens})
        yield rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:
        run_main(lambda: gpu.main(sys.argv[2:]))
    else:
        run_main(lambda: main(sys.argv[1:]))
