"""A day on a GPU, of a quarter of an hour; runs on a CPU too.

Each part runs in a process of its own, takes a few minutes and writes FOLDER/PART.json; a part with
such a file is not run again. Each figure is added to FOLDER/PART.jsonl as soon as it is measured.
Without --parts all parts run, also after one that fails, until the quarter of an hour has passed.
"""

import json
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch._inductor import config as inductor

from benchmarks.contenders import CONTENDERS, REFERENCE, measure
from benchmarks.floor import measure_machine
from benchmarks.frame import Row, least_seconds, make_parser, origin, table_of
from benchmarks.graphs import rows_of
from benchmarks.setting import DEVICE, GEOMETRIES, Setting, decode_setting, parse_pair
from benchmarks.step import step_rows
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer
from dllm_decode.settings.files import write_json

Rows: TypeAlias = list[Row]
LIMIT_S = 480
DAY_S = 840
"""Seconds of a part, and of all parts."""
WAYS = ("eager", "compiled", "compiled, with graphs")
"""Graphs are those of CUDA that torch records; a CPU has none."""
ROOT = Path(__file__).parents[1]


def correctness(setting: Setting) -> Rows:
    """Float32 tokens and logits compared with the CPU's, eager, with the same weights."""
    setting = replace(setting, geometry="small", batch_size=4, gen_length=64, steps_per_block=8)
    model = replace(setting, device="cpu", dtype="float32").model()
    names = (*CONTENDERS[:5], "DualCache(), SelfVerify(4)")
    expected = {name: _answers(model, setting, name) for name in names}
    exact = _logits(model)
    model, rows = model.to(setting.device), []
    for way in WAYS[:2]:
        model.compiled = way != "eager"
        for name, tokens in expected.items():
            rows.append(_agreement(way, f"tokens, {name}", _answers(model, setting, name), tokens))
        logits = _logits(model)
        error = float((logits - exact).abs().max())
        rows.append(_agreement(way, "argmax", logits.argmax(-1), exact.argmax(-1)))
        rows[-1]["largest error"] = error
    # A twin: torch 2.11 runs compiled code of the old dtype after a change in place.
    model = deepcopy(model).to(torch.bfloat16)
    for way in WAYS[:2]:
        model.compiled = way != "eager"
        rows.append(_agreement(way, "bfloat16 argmax", _logits(model).argmax(-1), exact.argmax(-1)))
    return rows


def _agreement(way: str, what: str, actual: Tensor, expected: Tensor) -> Row:
    same = int((actual == expected).sum())
    return {"forwards": way, "what": what, "same": same, "of": expected.numel()}


def _answers(model: MaskedTransformer, setting: Setting, name: str) -> Tensor:
    cache, verifier = parse_pair(name)
    return decode_setting(model, setting, cache=cache, verifier=verifier).tokens.cpu()


def _logits(model: MaskedTransformer) -> Tensor:
    tokens = torch.randint(
        model.vocab_size - 2, (4, 256), generator=torch.Generator().manual_seed(0)
    )
    tokens = tokens.to(model.device)
    columns = torch.arange(tokens.shape[1], device=model.device).expand_as(tokens)
    return model.predict(ForwardInputs(tokens, columns, columns)).float().cpu()


def tests(setting: Setting) -> Rows:
    """The tests that need a GPU."""
    # pytest-benchmark warns when it is not used, and warnings are errors in the tests.
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark", "-m", "gpu", "-n", "4"]
    if torch.device(setting.device).type != "cuda":
        command += ["--collect-only", "tests/unit/dllm_decode/models/loading"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-20:]
    return [{"exit status": done.returncode, "says": line} for line in last]


def forward(setting: Setting) -> Rows:
    """Milliseconds of a forward of one block beside a cache, of a quarter of the layers."""
    if setting.geometry == "llada-8b":
        setting = replace(setting, geometry="8x4096")
    model, device, rows = setting.model(), torch.device(setting.device), []
    start, stop = setting.prompt_length, setting.prompt_length + setting.block_length
    for num_rows, way in product((1, 8), WAYS):
        columns = torch.arange(start, stop, device=device).expand(num_rows, -1)
        cache = model.new_kv_cache(num_rows, start + setting.gen_length)
        block = ForwardInputs(
            columns, columns, columns - start, kv_cache=cache, slots=slice(start, stop)
        )
        with inductor.patch({"triton.cudagraphs": way == "compiled, with graphs"}):
            model.compiled = False
            torch.compiler.reset()
            model.compiled = way != "eager"
            work = partial(model.predict, block)
            times_ms = [1000 * least_seconds(work, device, tries=20) for _ in range(3)]
        times_by_name = dict(zip(("ms", "again", "and again"), times_ms, strict=True))
        rows.append({"rows": num_rows, "forwards": way, **times_by_name})
    return rows


def graphs(setting: Setting) -> Iterator[Row]:
    """Eager forwards beside recorded ones: tokens, then times."""
    return rows_of(setting)


def step(setting: Setting) -> Rows:
    """Where the time of a step goes, at one and eight rows."""
    return [
        {"rows": num_rows, **row}
        for num_rows in (1, 8)
        for row in step_rows(replace(setting, batch_size=num_rows))
    ]


def one_row(setting: Setting) -> Rows:
    """The table of contenders, at one row."""
    machine, rows = measure_machine(setting), []
    for name in (REFERENCE, *CONTENDERS[:4], CONTENDERS[7]):
        row = measure(setting, machine, name)
        rows.append({**row, "tokens": row["tokens"][0][:8]})
    return rows


def eight_rows(setting: Setting) -> Rows:
    """The table of contenders, at eight rows."""
    return one_row(replace(setting, batch_size=8))


PARTS: Mapping[str, Callable[[Setting], Iterable[Row]]] = {
    part.__name__.replace("_", "-"): part
    for part in (graphs, correctness, tests, forward, one_row, eight_rows, step)
}
"""In the order in which their findings are needed."""
OPTIONS = {
    "parts": (tuple(PARTS), "parts to run"),
    "folder": (Path("results/gpu"), "where the figures are kept"),
    "device": (DEVICE, "where the model runs"),
    "geometry": ({"llada-8b": None, **GEOMETRIES}, "sizes of the model"),
    "quick": (False, "a small model and short answers"),
    "again": (False, "run parts that are there already"),
}


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = make_parser("benchmarks gpu", __doc__ or "", OPTIONS).parse_args(words)
    setting = Setting(options.geometry, device=options.device)
    if options.quick:
        setting = replace(
            setting, geometry="tiny", prompt_length=24, gen_length=16, block_length=8,
            steps_per_block=4, dtype="float32", num_threads=1,
        )  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    failed, until_s = [], time.monotonic() + DAY_S
    for part in options.parts:
        path = options.folder / f"{part}.json"
        if options.again or not path.is_file():
            path.unlink(missing_ok=True)
            run(part, setting, path, min(LIMIT_S, until_s - time.monotonic()))
        if path.is_file():
            saved = json.loads(path.read_text())
            print(f"\n{part}: {saved['about']} ({saved['hardware']})\n\n{table_of(saved['rows'])}")
        else:
            failed.append(part)
    if failed:
        sys.exit(f"These parts must be run again: {', '.join(failed)}.")


def run(part: str, setting: Setting, path: Path, limit_s: float) -> None:
    """Runs a part in a process of its own, and writes its figures if it has not failed."""
    if limit_s <= 0:
        return
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (part, setting, path)
        result = pool.apply_async(measure_part, arguments, error_callback=traceback.print_exception)
        result.wait(limit_s)
        if not result.ready():
            print(f"{part} took longer than {limit_s:.0f} s, and was ended.")


def measure_part(part: str, setting: Setting, path: Path) -> None:
    """Writes the figures of a part: whole or not at all, because a file that is there is done."""
    torch.set_num_threads(setting.num_threads)
    started, rows = time.perf_counter(), []
    with path.with_suffix(".jsonl").open("w") as lines:
        for row in PARTS[part](setting):
            rows.append(row)
            lines.write(f"{json.dumps(row)}\n")
            lines.flush()
    record = {
        **origin(f"python -m benchmarks gpu --parts {part}", setting.device, setting.num_threads),
        "about": str(PARTS[part].__doc__), "seconds": time.perf_counter() - started,
        "setting": asdict(setting), "rows": rows,
    }  # fmt: skip
    write_json(path, record)
