"""Speed and memory of decoding, compared with a plain reference loop, in one run.

Part "table" compares the plain loop with `decode`, its caches and its verifiers; "peers" compares
`decode` with official code, if `--peer` names a checkout of it. Every contender has a process of
its own.
`python -m benchmarks gpu --help`: figures of a GPU, part by part.
`python -m benchmarks real --help`: a checkpoint next to published figures.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks import gpu, real
from benchmarks.contenders import CONTENDERS, REFERENCE, call_in_own_process, measure
from benchmarks.frame import TableRow, make_parser, origin, table_of
from benchmarks.peers import PEERS, compare_with_peers, find_checkouts
from benchmarks.setting import DEFAULT_GEOMETRIES, DEVICE, GEOMETRIES, Setting
from dllm_decode.launch import run_main
from dllm_decode.settings.files import write_json
from dllm_decode.settings.options import documentation_of, first_sentence

HELP = {name: first_sentence(text) for name, text in documentation_of(Setting).items()}
OPTIONS = {
    **{field.name: (field.default, HELP[field.name]) for field in fields(Setting)},
    "device": (DEVICE, HELP["device"]),
    "geometry": ({DEFAULT_GEOMETRIES[DEVICE]: None, **GEOMETRIES}, HELP["geometry"]),
    "parts": (("table", "peers"), "parts to run"),
    "contenders": (list(CONTENDERS), "cache and verifier of each row"),
    "peer": ([], f"NAME=PATH of a checkout, NAME one of {', '.join(PEERS)}; may be repeated"),
    "peer_python": (sys.executable, "the interpreter that runs peers"),
    "rounds": (3, "of the peers"),
    "json": (Path, "also write the figures to this file"),
}


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = make_parser("benchmarks", __doc__ or "", OPTIONS).parse_args(words)
    setting = Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)})
    options.checkouts = find_checkouts(options.peer)
    record: TableRow = {
        **origin(" ".join(["python -m benchmarks", *words]), setting.device, setting.num_threads),
        "setting": asdict(setting),
    }
    for part in options.parts:
        if part == "peers" and not options.peer:
            continue
        print(f"\n{part}: {setting}, {record['hardware']}\n")
        for rows in rows_of(part, setting, options):
            record[part] = rows
            if options.json:
                write_json(options.json, record)
        print(table_of(rows), flush=True)


def rows_of(part: str, setting: Setting, options: Any) -> Iterator[list[TableRow]]:
    """Yields the rows of a part that are known so far."""
    if part == "table":
        yield from table_rows(setting, [REFERENCE, *options.contenders])
    else:
        yield from compare_with_peers(
            setting, options.checkouts, options.peer_python, options.rounds
        )


def table_rows(setting: Setting, names: Sequence[str]) -> Iterator[list[TableRow]]:
    """Yields the rows of the table that are known so far, compared with the first one."""
    rows: list[TableRow] = []
    first = None
    for name in names:
        row = call_in_own_process(measure, setting, name)
        first = first or row
        tokens = "same" if row["tokens"] == first["tokens"] else "differ"
        rows.append({**row, "speed-up": first["s"] / row["s"], "tokens": tokens})
        yield rows


if __name__ == "__main__":
    name, *words = sys.argv[1:] or [""]
    parts = {"gpu": gpu.main, "real": real.main}
    run_main(lambda: parts[name](words) if name in parts else main(sys.argv[1:]))
