"""The measurements of a day on a GPU; each part returns rows for a table, and text."""

import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks.contenders import num_graphs, parse_pair, run_decode
from benchmarks.correctness import check_against_cpu
from benchmarks.floor import Columns, least_seconds, measure_machine, wait_for
from benchmarks.growth import measure_growth, points_of
from benchmarks.setting import Setting
from benchmarks.split_attention import split_attention
from dllm_decode import CachePolicy, DualCache, NoCache, decode
from dllm_decode.models import ForwardInputs, MaskedTransformer
from samplers import FixedSchedule

Found: TypeAlias = dict[str, Any]
ROOT = Path(__file__).parents[1]
BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
# Rows, queries, keys and whether there is a mask: a block step, a batch of them, a whole canvas.
SHAPES = ((1, 32, 448, True), (8, 32, 448, True), (1, 448, 448, False), (8, 448, 448, True),
          (1, 32, 4160, True))  # fmt: skip


def attention(setting: Setting) -> Found:
    """Attention kernels: first call (with its plan), later calls, error; then matrices and gathers.

    The first call of a shape includes what a backend plans for it.
    """
    sizes, device = setting.sizes, torch.device(setting.device)
    heads, width = sizes.num_heads, sizes.hidden_size // sizes.num_heads
    rows = []
    for B, Q, K, has_mask in SHAPES:
        query = torch.randn(B, heads, Q, width, device=device).to(setting.torch_dtype)
        key, value = torch.randn(2, B, heads, K, width, device=device).to(setting.torch_dtype)
        mask = torch.zeros(B, 1, Q, K, device=device, dtype=query.dtype) if has_mask else None
        if mask is not None:
            mask[..., K - 7 :] = torch.finfo(query.dtype).min / 2
        wide = None if mask is None else mask.float()
        exact = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), wide)
        for backend in BACKENDS:
            row: Found = {"rows": B, "queries": Q, "keys": K, "mask": has_mask}
            rows.append(row | _attend(backend, (query, key, value, mask), exact, device))
    return {"rows": rows + _matrices(setting) + _gathers(setting)}


def _attend(
    backend: SDPBackend, parts: tuple[Any, ...], exact: torch.Tensor, device: torch.device
) -> Found:
    found: Found = {"what": backend.name}

    def run() -> torch.Tensor:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(*parts)

    try:
        # torch says why a backend refuses in warnings, then raises.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            started = time.perf_counter()
            mixed = run()
            wait_for(device)
            found["first_ms"] = 1000 * (time.perf_counter() - started)
            found["later_us"] = 1e6 * least_seconds(run, device)
        found["error"] = float((mixed.float() - exact).abs().max())
    except RuntimeError as error:
        found["refused"] = str(error).splitlines()[0]
    return found


def _matrices(setting: Setting) -> list[Found]:
    sizes, device = setting.sizes, torch.device(setting.device)
    hidden, inner = sizes.hidden_size, sizes.mlp_hidden_size
    machine, rows = measure_machine(setting), []
    for name, out, into in (
        ("qkv", 3 * hidden, hidden), ("output", hidden, hidden), ("gate and up", 2 * inner, hidden),
        ("down", hidden, inner), ("head", sizes.vocab_size, hidden),
    ):  # fmt: skip
        weight = torch.randn(out, into, device=device).to(setting.torch_dtype)
        for num_rows in (32, 256):
            given = torch.randn(num_rows, into, device=device).to(setting.torch_dtype)
            seconds = least_seconds(lambda w=weight, g=given: F.linear(g, w), device)
            floor_s = weight.nbytes / machine.bytes_per_s
            rows.append(
                {"what": f"matrix {name}", "rows": num_rows, "later_us": 1e6 * seconds,
                 "times floor": seconds / floor_s}
            )  # fmt: skip
    return rows


def _gathers(setting: Setting) -> list[Found]:
    sizes, device = setting.sizes, torch.device(setting.device)
    heads, width = sizes.num_heads, sizes.hidden_size // sizes.num_heads
    keys = torch.randn(8, heads, 448, width, device=device).to(setting.torch_dtype)
    index = torch.tensor([0, 2, 3, 5, 7], device=device)
    seconds = least_seconds(lambda: keys[index], device)
    return [{"what": "gather of 5 of 8 rows", "keys": 448, "later_us": 1e6 * seconds}]


def collection(setting: Setting) -> Found:
    """Collects garbage between captures, and counts the bytes that a deleted model leaves."""
    device = torch.device(setting.device)
    rows: list[Found] = []
    before = _allocated(device)
    for threshold in (700, 1):
        old = gc.get_threshold()
        gc.set_threshold(threshold)
        try:
            model = setting.model()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(3):
                    _decode(model, setting, DualCache())
            captured, held = num_graphs(model), _allocated(device) - before
            del model
        finally:
            gc.set_threshold(*old)
        rows.append(
            {"collects every": threshold, "graphs": captured, "held MB": held / 1e6,
             "MB after del": (_allocated(device) - before) / 1e6,
             "warnings": "; ".join(str(one.message) for one in caught)}
        )  # fmt: skip
        gc.collect()
    return {"rows": rows}


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
    lines = done.stdout.splitlines()
    return {"rows": [{"exit status": done.returncode}], "text": "\n".join(lines[-60:])}


def correctness(setting: Setting) -> Found:
    """Tokens and logits compared with the CPU's, with the same weights."""
    found = asdict(check_against_cpu(setting))
    same = found.pop("same_tokens")
    rows = [{"what": name, "tokens": found["num_tokens"], "same": n} for name, n in same.items()]
    return {"rows": rows, **found, "text": f"largest float32 error {found['float32_error']:.2e}"}


def step(setting: Setting) -> Found:
    """One block step, with and without graphs, fused kernels and cuDNN; profile of the first."""
    machine, rows, text = measure_machine(setting), [], ""
    model = setting.model()
    inputs = _block_step(model, setting)
    floor_s = machine.seconds(
        setting,
        Columns(
            rows=1, computed=setting.block_length, wanted=setting.block_length,
            attended=setting.prompt_length + setting.gen_length,
        ),
    )  # fmt: skip
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
            {"graphs": graphs, "fused": fused, "cuDNN": cudnn, "step_ms": 1000 * seconds,
             "times floor": seconds / floor_s}
        )  # fmt: skip
        text = text or _profiled(run, model.device)
    return {"rows": rows, "text": text}


def _block_step(model: MaskedTransformer, setting: Setting) -> ForwardInputs:
    prompts = torch.tensor(setting.prompts(), device=model.device)
    columns = torch.arange(setting.prompt_length, device=model.device).expand_as(prompts)
    num_slots = setting.prompt_length + setting.gen_length
    kv_cache = model.new_kv_cache(len(prompts), num_slots)
    model.predict(
        ForwardInputs(
            prompts, columns, columns[:, :1], kv_cache=kv_cache,
            slots=slice(0, setting.prompt_length),
        )
    )  # fmt: skip
    block = torch.arange(setting.block_length, device=model.device).expand(len(prompts), -1)
    start = setting.prompt_length
    return ForwardInputs(
        torch.full_like(block, model.mask_id), block + start, block, kv_cache=kv_cache,
        slots=slice(start, start + setting.block_length),
    )  # fmt: skip


def _with_cudnn(model: MaskedTransformer, inputs: ForwardInputs) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with torch.inference_mode(), _all_backends(model.device):
            hidden = model.transformer(
                inputs.tokens, inputs.positions, kv_cache=inputs.kv_cache, slots=inputs.slots,
                wanted=inputs.wanted,
            )  # fmt: skip
            return model.transformer.head(hidden)

    return run


def _all_backends(device: torch.device) -> AbstractContextManager[None]:
    is_cuda = device.type == "cuda"
    found: AbstractContextManager[None] = sdpa_kernel(list(BACKENDS)) if is_cuda else nullcontext()
    return found


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
    return _decodes(setting, [("NoCache(), NoVerifier()", size, False) for size in (1, 8)])


def batch(setting: Setting) -> Found:
    """DualCache, batches of 1 and 8, prompts of equal and of different length."""
    cases = [(1, False), (8, False), (8, True)]
    return _decodes(setting, [("DualCache(), NoVerifier()", *case) for case in cases])


def free_cache(setting: Setting) -> Found:
    """FreeCache, ragged prompts, five times: graphs and memory must stop growing."""
    return _repeated(setting, "FreeCache(), NoVerifier()", 5)


def self_verify(setting: Setting) -> Found:
    """SelfVerify(4) with DualCache, batches of 1 and 8."""
    return _decodes(setting, [("DualCache(), SelfVerify(4)", size, False) for size in (1, 8)])


def tree(setting: Setting) -> Found:
    """SelfVerify(4, "tree"), six times: buffers must not move after the first."""
    return _repeated(setting, 'DualCache(), SelfVerify(4, "tree")', 6)


def table(setting: Setting) -> Found:
    """Caches and verifiers in one table, each warmed up until no graph is added."""
    machine, rows = measure_machine(setting), []
    for name in (
        "NoCache(), NoVerifier()", "DualCache(), NoVerifier()", "FreeCache(), NoVerifier()",
        "DualCache(), SelfVerify(4)",
    ):  # fmt: skip
        found = run_decode(setting, machine, name)
        rows.append(
            {"what": name, "seconds": found.wall_s, "forwards": found.forwards,
             "outside the model": found.outside_share,
             "times floor": found.model_s / found.floor_s
             if found.model_s and found.floor_s else None}
        )  # fmt: skip
        gc.collect()
    return {"rows": rows}


def growth(setting: Setting) -> Found:
    """A step by prompt length and batch size."""
    lengths, sizes = (256, 1024, 4096), (1, 8, 32)
    if setting.geometry == "tiny":
        lengths, sizes = (24, 32, 40), (1, 2, 3)
    points = measure_growth(
        points_of(setting, list(lengths), list(sizes)), measure_machine(setting)
    )
    rows = [
        {"prompt": point.prompt_length, "batch": point.batch_size,
         "no cache_ms": 1000 * point.full.seconds, "DualCache_ms": 1000 * point.block.seconds,
         "times floor": point.block.seconds / point.block.floor_s,
         "of matrix rate": point.full.rate_share, "tokens a s": 1 / point.s_per_token}
        for point in points
    ]  # fmt: skip
    return {"rows": rows}


def _decodes(setting: Setting, cases: list[tuple[str, int, bool]]) -> Found:
    """Times decodes, each on a warm model, with and without graphs."""
    model, rows = setting.model(), []
    for options, size, is_ragged in cases:
        case = replace(setting, batch_size=size)
        for graphs in ("auto", False):
            model.graphs = graphs
            cache, verifier = parse_pair(options, setting.target)
            for _ in range(3):
                out = _decode(model, case, cache, verifier=verifier, is_ragged=is_ragged)
            rows.append(
                {"what": options, "batch": size, "ragged": is_ragged, "graphs": graphs is not False,
                 "seconds": out.wall_s, "forwards": out.forwards,
                 "per forward_ms": 1000 * out.wall_s / out.forwards,
                 "tokens a s": out.tokens.numel() / out.wall_s}
            )  # fmt: skip
    return {"rows": rows}


def _repeated(setting: Setting, options: str, num_times: int) -> Found:
    """Decodes again and again; how many graphs there are, and what is held."""
    model, rows = setting.model(), []
    case = replace(setting, batch_size=4)
    for number in range(num_times):
        cache, verifier = parse_pair(options, setting.target)
        out = _decode(model, case, cache, verifier=verifier, is_ragged=True)
        rows.append(
            {"time": number + 1, "seconds": out.wall_s, "forwards": out.forwards,
             "graphs": num_graphs(model), "held MB": _allocated(model.device) / 1e6}
        )  # fmt: skip
    return {"rows": rows}


def _decode(
    model: MaskedTransformer,
    setting: Setting,
    cache: CachePolicy | None = None,
    *,
    verifier: Any = None,
    is_ragged: bool = False,
) -> Any:
    prompts = setting.prompts()
    if is_ragged:
        prompts = [prompt[row % 8 :] for row, prompt in enumerate(prompts)]
    more = {} if verifier is None else {"verifier": verifier}
    return decode(
        model,
        prompts,
        FixedSchedule(setting.steps_per_block),
        cache=NoCache() if cache is None else cache,
        gen_length=setting.gen_length,
        block_length=setting.block_length,
        stop_at_eos=False,
        **more,
    )


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


PARTS: Mapping[str, Callable[[Setting], Found]] = {
    "attention": attention,
    "collection": collection,
    "tests": tests,
    "correctness": correctness,
    "split-attention": split_attention,
    "step": step,
    "no-cache": no_cache,
    "batch": batch,
    "free-cache": free_cache,
    "self-verify": self_verify,
    "tree": tree,
    "table": table,
    "growth": growth,
}
"""In the order in which their findings are needed."""
