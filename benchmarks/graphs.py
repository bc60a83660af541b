"""Eager forwards beside recorded ones: tokens first, then times, in four minutes of a GPU."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.floor import Columns, Machine, measure_machine
from benchmarks.frame import Row, least_seconds, wait_for
from benchmarks.setting import Setting, decode_setting, parse_pair
from dllm_decode import DecodeOutput, decode_many
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.graphs import ForwardGraphs
from samplers import ConfidenceThreshold

LIMIT_S = 220.0
NAMES = (
    "DualCache(), NoVerifier()", "FreeCache(), NoVerifier()", "PrefixCache(), NoVerifier()",
    "NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)",
)  # fmt: skip
WAYS: Mapping[str, bool] = {"graphs": False, "graphs, fused": True}
"""Ways to record, and whether rotation and SwiGLU are compiled in each."""


def rows_of(setting: Setting) -> Iterator[Row]:
    """Yields each figure as soon as it is measured; ends when `LIMIT_S` have passed.

    In float32, tokens of graphs must be those of eager forwards. Then come the machine's rates, a
    forward, whole decodes, and a forward's launches.
    """
    is_cuda = setting.device == "cuda"
    small = replace(
        setting, geometry="small", dtype="float32", batch_size=3, gen_length=32, block_length=8,
        steps_per_block=8,
    )  # fmt: skip
    small_model = small.model()
    works: list[partial[Row]] = [
        partial(decode_row, small_model, small, name, way) for name in NAMES for way in WAYS
    ]
    works.append(partial(served_row, small_model, small, NAMES[1]))
    machine, model, block = measure_machine(setting), setting.model(), setting.block_length
    for rows, columns in ((1, block), (1, 4 * block), (4, block), (8, block)):
        works += [partial(forward_row, model, setting, machine, (rows, columns), w) for w in WAYS]
    works += [partial(decode_row, model, setting, name, way) for name in NAMES for way in WAYS]
    if is_cuda:
        works += [partial(launches_row, model, setting, way) for way in WAYS]
        works += [partial(product_row, setting, columns) for columns in (block, 8 * block)]
    few_steps = replace(setting, steps_per_block=max(2, block // 4))
    for rows in (8, 32):
        batch = replace(few_steps, batch_size=rows)
        works += [partial(decode_row, model, batch, name, "graphs") for name in NAMES[:2]]
    works += [partial(served_row, model, setting, name) for name in NAMES[:2]]
    begun_s = time.perf_counter()
    for work in works:
        if time.perf_counter() - begun_s > LIMIT_S:
            return
        model.graphs = small_model.graphs = False
        try:
            yield work()
        # A failure of one figure must not cost the others.
        except (AssertionError, RuntimeError, ValueError) as error:
            yield {"part": work.func.__name__, "error": f"{type(error).__name__}: {error}"[:300]}


def recorded(model: MaskedTransformer, way: str) -> ForwardGraphs:
    """Lets a model record from now on, and returns its graphs."""
    model.graphs = True
    graphs = model._graphs
    assert graphs is not None
    graphs.is_fused = WAYS[way] and model.device.type == "cuda"
    return graphs


def decode_row(model: MaskedTransformer, setting: Setting, name: str, way: str) -> Row:
    """Compares the second of two warm decodes, eager and recorded."""
    cache, verifier = parse_pair(name)

    def answers(times: int) -> list[DecodeOutput]:
        return [
            decode_setting(model, setting, cache=cache, verifier=verifier) for _ in range(times)
        ]

    eager = answers(3)[-1]
    graphs = recorded(model, way)
    first, _, out = answers(3)
    same = int((out.tokens == eager.tokens).sum())
    return {
        "part": f"{setting.geometry}, {setting.dtype}", "forwards": way, "contender": name,
        "rows": setting.batch_size, "eager ms": 1000 * eager.wall_s / eager.forwards,
        "ms": 1000 * out.wall_s / out.forwards, "times": eager.wall_s / out.wall_s,
        "first decode s": first.wall_s, **_calls_of(graphs), "same": same,
        "of": out.tokens.numel(),
    }  # fmt: skip


def _calls_of(graphs: ForwardGraphs) -> Row:
    calls: Counter[object] = Counter(graphs.calls)
    return {"kinds": len(calls) - (None in calls), "calls": calls.total(), "eager": calls[None]}


def served_row(model: MaskedTransformer, setting: Setting, name: str) -> Row:
    """Compares rows that join and leave, with prompts of many lengths."""
    generator = torch.Generator().manual_seed(1)
    longest = 2 * setting.prompt_length
    lines = torch.randint(setting.sizes.vocab_size - 2, (20, longest), generator=generator).tolist()
    prompts = [line[: 8 + 37 * n % (longest - 8)] for n, line in enumerate(lines)]

    def seconds_and_tokens() -> tuple[float, list[Tensor]]:
        started = time.perf_counter()
        outs = decode_many(
            model, prompts, ConfidenceThreshold(0.5), num_rows=8, cache=parse_pair(name)[0],
            gen_length=setting.gen_length // 2, block_length=setting.block_length,
            stop_at_eos=False,
        )  # fmt: skip
        tokens = [out.tokens for out in outs]
        return time.perf_counter() - started, tokens

    seconds_and_tokens()
    eager_s, expected = seconds_and_tokens()
    graphs = recorded(model, "graphs")
    seconds_and_tokens()
    seconds, tokens = seconds_and_tokens()
    same = sum(torch.equal(*pair) for pair in zip(tokens, expected, strict=True))
    return {
        "part": f"served, {setting.dtype}", "forwards": "graphs", "contender": name, "rows": 8,
        "times": eager_s / seconds, **_calls_of(graphs), "same": same, "of": len(prompts),
    }  # fmt: skip


def block_inputs(
    model: MaskedTransformer, setting: Setting, rows: int, columns: int
) -> ForwardInputs:
    """Returns inputs of the last columns of some rows, with a cache of the model."""
    length = setting.prompt_length + setting.gen_length
    start = length - columns
    positions = torch.arange(start, length, device=model.device).expand(rows, -1)
    wanted = (positions - start)[:, : setting.block_length]
    cache = model.new_kv_cache(rows, length)
    return ForwardInputs(
        positions + 7, positions, wanted, kv_cache=cache, slots=slice(start, length)
    )


def forward_row(
    model: MaskedTransformer, setting: Setting, machine: Machine, size: tuple[int, int], way: str
) -> Row:
    """Compares one forward of these rows and columns by the clock, and with the floor."""
    inputs = block_inputs(model, setting, *size)
    exact = model.predict(inputs)
    eager_s = least_seconds(lambda: model.predict(inputs), model.device)
    graphs = recorded(model, way)
    inputs = block_inputs(model, setting, *size)
    # The first forwards are eager, until the kind is recorded.
    seconds = least_seconds(lambda: model.predict(inputs), model.device, tries=10)
    columns = Columns(*size, inputs.kv_cache.num_slots, inputs.wanted.shape[1])
    return {
        "part": "one forward", "forwards": way, "rows": size[0], "columns": size[1],
        "eager ms": 1000 * eager_s, "ms": 1000 * seconds, "times": eager_s / seconds,
        "floor ms": 1000 * machine.seconds(setting, columns), **_calls_of(graphs),
        "same": int((model.predict(inputs) == exact).sum()), "of": exact.numel(),
    }  # fmt: skip


def launches_row(model: MaskedTransformer, setting: Setting, way: str) -> Row:
    """Counts the kernels of a replay of one block, and adds up their times."""
    recorded(model, way)
    inputs, num_replays = block_inputs(model, setting, 1, setting.block_length), 8
    for _ in range(3):
        model.predict(inputs)
    with torch.profiler.profile() as profile:
        for _ in range(num_replays):
            model.predict(inputs)
        wait_for(model.device)
    kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
    busy_ms = sum(event.device_time_total for event in kernels) / 1000 / num_replays
    return {
        "part": "launches", "forwards": way, "rows": 1, "ms": busy_ms,
        "kernels": len(kernels) / num_replays,
    }  # fmt: skip


def product_row(setting: Setting, columns: int) -> Row:
    """Compares the largest product of a layer in bfloat16 and in float8, with scales of rows."""
    device, sizes = torch.device(setting.device), setting.sizes
    shape = (2 * sizes.mlp_hidden_size, sizes.hidden_size)
    # Too many matrices for any cache.
    weights = [torch.randn(shape, device=device).bfloat16() for _ in range(6)]
    narrow = [weight.to(torch.float8_e4m3fn) for weight in weights]
    x, ones = (
        torch.randn(columns, shape[1], device=device).bfloat16(),
        torch.ones(1, shape[0], device=device),
    )

    def in_float8() -> None:
        for weight in narrow:
            scale = x.abs().amax(1, keepdim=True).float() / 448.0
            rounded = (x / scale).to(weight.dtype)
            torch._scaled_mm(rounded, weight.t(), scale, ones, out_dtype=x.dtype)

    eager_s = least_seconds(lambda: [F.linear(x, weight) for weight in weights], device)
    seconds = least_seconds(in_float8, device)
    return {
        "part": "product in float8", "columns": columns, "eager ms": 1000 * eager_s / 6,
        "ms": 1000 * seconds / 6, "times": eager_s / seconds,
    }  # fmt: skip
