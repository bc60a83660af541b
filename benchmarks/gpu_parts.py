"""The measurements of a day on a GPU; each part returns rows of a table, and text."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import torch
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks import attention as kernels
from benchmarks.check import check_against_cpu
from benchmarks.contenders import CONTENDERS, decode_setting, measure, num_graphs, parse_pair
from benchmarks.floor import Columns, measure_machine
from benchmarks.frame import Row, least_seconds, wait_for
from benchmarks.growth import measure_growth, points_of
from benchmarks.setting import Setting
from dllm_decode import DualCache
from dllm_decode.models import ForwardInputs, MaskedTransformer

Found: TypeAlias = tuple[list[Row], str]
ROOT = Path(__file__).parents[1]


def attention(setting: Setting) -> Found:
    """Attention kernels: first call (with its plan), later calls, error; then matrices, gathers."""
    return kernels.backends(setting) + _products_and_gathers(setting), ""


def _products_and_gathers(setting: Setting) -> list[Row]:
    sizes, device = setting.sizes, torch.device(setting.device)
    hidden, inner = sizes.hidden_size, sizes.mlp_hidden_size
    machine, rows = measure_machine(setting), []
    for name, out, into in (
        ("qkv", 3 * hidden, hidden), ("output", hidden, hidden), ("gate and up", 2 * inner, hidden),
        ("down", hidden, inner), ("head", sizes.vocab_size, hidden),
    ):  # fmt: skip
        weight = torch.randn(out, into, device=device).to(setting.torch_dtype)
        floor_s = weight.nbytes / machine.bytes_per_s
        for num_rows in (32, 256):
            given = torch.randn(num_rows, into, device=device).to(setting.torch_dtype)
            seconds = least_seconds(lambda w=weight, g=given: F.linear(g, w), device)
            row: Row = {"what": f"matrix {name}", "rows": num_rows, "later, us": 1e6 * seconds}
            rows.append(row | {"times floor": seconds / floor_s})
    keys = torch.randn(8, sizes.num_heads, 448, hidden // sizes.num_heads, device=device)
    keys, index = keys.to(setting.torch_dtype), torch.tensor([0, 2, 3, 5, 7], device=device)
    seconds = least_seconds(lambda: keys[index], device)
    return [*rows, {"what": "gather of 5 of 8 rows", "keys": 448, "later, us": 1e6 * seconds}]


def collection(setting: Setting) -> Found:
    """Collects garbage between captures, and counts the bytes that a deleted model leaves."""
    device = torch.device(setting.device)
    rows: list[Row] = []
    before = _allocated(device)
    old = gc.get_threshold()
    for threshold in (700, 1):
        gc.set_threshold(threshold)
        model = setting.model()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                decode_setting(model, setting, cache=DualCache())
        captured, held = num_graphs(model), _allocated(device) - before
        del model
        gc.set_threshold(*old)
        rows.append(
            {"collects every": threshold, "graphs": captured, "held MB": held / 1e6,
             "MB after del": (_allocated(device) - before) / 1e6,
             "warnings": "; ".join(str(one.message) for one in caught)}
        )  # fmt: skip
        gc.collect()
    return rows, ""


def tests(setting: Setting) -> Found:
    """The tests that need a GPU; without beartype their types are not checked."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
    if find_spec("beartype") is None:
        command += ["-o", "addopts="]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    if torch.device(setting.device).type != "cuda":
        command += ["--collect-only", "-k", "test_cuda_graphs"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return [{"exit status": done.returncode}], "\n".join(done.stdout.splitlines()[-60:])


def correctness(setting: Setting) -> Found:
    """Tokens and logits compared with the CPU's, with the same weights."""
    return check_against_cpu(setting), ""


def split_attention(setting: Setting) -> Found:
    """Device time of attention over split keys, of torch's, and of reading keys and values."""
    return kernels.split(setting), ""


def step(setting: Setting) -> Found:
    """One block step, with and without graphs, fused kernels and cuDNN; profile of the first."""
    machine, rows, text = measure_machine(setting), [], ""
    model = setting.model()
    inputs = _block_step(model, setting)
    width = setting.prompt_length + setting.gen_length
    block = Columns(1, setting.block_length, attended=width, wanted=setting.block_length)
    floor_s = machine.seconds(setting, block)
    for graphs, fused, cudnn in (
        (True, True, False), (False, True, False), (False, True, True), (False, False, False),
    ):  # fmt: skip
        model.graphs = "auto" if graphs else False
        model.transformer.fused = "auto" if fused else False
        run = _with_cudnn(model, inputs) if cudnn else (lambda: model.predict(inputs))
        for _ in range(3):
            run()
        seconds = least_seconds(run, model.device)
        rows.append(
            {"graphs": graphs, "fused": fused, "cuDNN": cudnn, "step, ms": 1000 * seconds,
             "times floor": seconds / floor_s}
        )  # fmt: skip
        text = text or _profiled(run, model.device)
    return rows, text


def _block_step(model: MaskedTransformer, setting: Setting) -> ForwardInputs:
    prompts = torch.tensor(setting.prompts(), device=model.device)
    start = setting.prompt_length
    columns = torch.arange(start, device=model.device).expand_as(prompts)
    kv_cache = model.new_kv_cache(len(prompts), start + setting.gen_length)
    model.predict(
        ForwardInputs(prompts, columns, columns[:, :1], kv_cache=kv_cache, slots=slice(0, start))
    )
    block = torch.arange(setting.block_length, device=model.device).expand(len(prompts), -1)
    return ForwardInputs(
        torch.full_like(block, model.mask_id), block + start, block, kv_cache=kv_cache,
        slots=slice(start, start + setting.block_length),
    )  # fmt: skip


def _with_cudnn(model: MaskedTransformer, inputs: ForwardInputs) -> Callable[[], torch.Tensor]:
    is_cuda = model.device.type == "cuda"

    def run() -> torch.Tensor:
        allowed = sdpa_kernel(list(kernels.BACKENDS)) if is_cuda else nullcontext()
        with torch.inference_mode(), allowed:
            return model.transformer.head(model.transformer.forward_groups([inputs]))

    return run


def _profiled(run: Callable[[], object], device: torch.device) -> str:
    is_cuda = device.type == "cuda"
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if is_cuda else [])
    with profile(activities=kinds) as profiler:
        run()
        wait_for(device)
    order = "self_cuda_time_total" if is_cuda else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=60))


def no_cache(setting: Setting) -> Found:
    """Without a cache, batches of 1 and 8, graphs on and off."""
    return _decodes(setting, "NoCache(), NoVerifier()", (1, False), (8, False))


def batch(setting: Setting) -> Found:
    """DualCache, batches of 1 and 8, prompts of equal and of different length."""
    return _decodes(setting, "DualCache(), NoVerifier()", (1, False), (8, False), (8, True))


def free_cache(setting: Setting) -> Found:
    """FreeCache, ragged prompts, five times: graphs and memory must stop growing."""
    return _repeated(setting, "FreeCache(), NoVerifier()", 5)


def self_verify(setting: Setting) -> Found:
    """SelfVerify(4) with DualCache, batches of 1 and 8."""
    return _decodes(setting, "DualCache(), SelfVerify(4)", (1, False), (8, False))


def tree(setting: Setting) -> Found:
    """SelfVerify(4, "tree"), six times: buffers must not move after the first."""
    return _repeated(setting, 'DualCache(), SelfVerify(4, "tree")', 6)


def table(setting: Setting) -> Found:
    """Caches and verifiers in one table, each warmed up until no graph is added."""
    machine, rows = measure_machine(setting), []
    for index in (0, 2, 3, 7):
        rows.append(measure(setting, machine, CONTENDERS[index]).row)
        gc.collect()
    return rows, ""


def growth(setting: Setting) -> Found:
    """A step by prompt length and batch size."""
    lengths, sizes = (256, 1024, 4096), (1, 8, 32)
    if setting.geometry == "tiny":
        lengths, sizes = (24, 32, 40), (1, 2, 3)
    points = points_of(setting, {"prompt_length": lengths, "batch_size": sizes})
    return measure_growth(points, measure_machine(setting)), ""


def _decodes(setting: Setting, options: str, *cases: tuple[int, bool]) -> Found:
    """Times decodes by batch size and raggedness, on a warm model, with and without graphs."""
    model, rows = setting.model(), []
    for size, is_ragged in cases:
        case = replace(setting, batch_size=size)
        for graphs in ("auto", False):
            model.graphs = graphs
            cache, verifier = parse_pair(options, setting.target)
            for _ in range(3):
                out = decode_setting(
                    model, case, is_ragged=is_ragged, cache=cache, verifier=verifier
                )
            rows.append(
                {"what": options, "batch": size, "ragged": is_ragged, "graphs": graphs is not False,
                 "seconds": out.wall_s, "forwards": out.forwards,
                 "per forward, ms": 1000 * out.wall_s / out.forwards,
                 "tokens a s": out.tokens.numel() / out.wall_s}
            )  # fmt: skip
    return rows, ""


def _repeated(setting: Setting, options: str, num_times: int) -> Found:
    """Decodes again and again; counts graphs, and the bytes that are held."""
    model, rows = setting.model(), []
    case = replace(setting, batch_size=4)
    for number in range(num_times):
        cache, verifier = parse_pair(options, setting.target)
        out = decode_setting(model, case, is_ragged=True, cache=cache, verifier=verifier)
        rows.append(
            {"time": number + 1, "seconds": out.wall_s, "forwards": out.forwards,
             "graphs": num_graphs(model), "held MB": _allocated(model.device) / 1e6}
        )  # fmt: skip
    return rows, ""


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


PARTS: Mapping[str, Callable[[Setting], Found]] = {
    part.__name__.replace("_", "-"): part
    for part in (
        attention, collection, tests, correctness, split_attention, step, no_cache, batch,
        free_cache, self_verify, tree, table, growth,
    )
}  # fmt: skip
"""In the order in which their findings are needed."""
