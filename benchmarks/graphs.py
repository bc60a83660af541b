"""Eager forwards beside recorded and compiled ones: tokens first, then times."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.frame import TableRow, least_seconds, wait_for
from benchmarks.setting import Setting, decode_setting, parse_pair
from dllm_decode import DecodeOutput, decode_many
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.quantize import quantize_layers
from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.moe import MoE
from samplers import ConfidenceThreshold

LIMIT_S = 220.0
NAMES = (
    "DualCache(), NoVerifier()", "FreeCache(), NoVerifier()", "PrefixCache(), NoVerifier()",
    "NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)",
)  # fmt: skip
EAGER, GRAPHS, FUSED, COMPILED = "eager", "graphs", "graphs, fused", "compiled"
"""Ways to run forwards; `FUSED`: rotation and SwiGLU of a graph are compiled."""


def graph_rows(setting: Setting) -> Iterator[TableRow]:
    """Compares recorded forwards with eager ones: tokens in float32, then times."""
    small = small_setting(setting)
    small_model = small.model()
    works: list[partial[TableRow]] = [
        partial(decode_row, small_model, small, name, way)
        for name in NAMES
        for way in (GRAPHS, FUSED)
    ]
    works.append(partial(served_row, small_model, small, NAMES[1]))
    model, block = setting.model(), setting.block_length
    weights_ms = reading_ms(model)
    for size in ((1, block), (1, 4 * block), (4, block), (8, block)):
        works += [
            partial(forward_row, model, setting, size, w, weights_ms) for w in (GRAPHS, FUSED)
        ]
    works += [partial(decode_row, model, setting, n, w) for n in NAMES for w in (GRAPHS, FUSED)]
    if setting.device == "cuda":
        works += [partial(launches_row, model, setting, way) for way in (GRAPHS, FUSED)]
    few_steps = replace(setting, steps_per_block=max(2, block // 4))
    for rows in (8, 32):
        batch = replace(few_steps, batch_size=rows)
        works += [partial(decode_row, model, batch, name, GRAPHS) for name in NAMES[:2]]
    works += [partial(served_row, model, setting, name) for name in NAMES[:2]]
    return measure_each(works)


def weight_rows(setting: Setting) -> Iterator[TableRow]:
    """Compares recorded forwards with eager ones in float8, and with experts."""
    small, block = small_setting(setting), setting.block_length
    few_layers = setting
    if setting.geometry == "llada-8b":
        few_layers = replace(setting, geometry="8x4096")
    works = [partial(decode_row, with_experts(small), small, name, GRAPHS) for name in NAMES[:2]]
    for make, of_model in ((in_float8, setting), (with_experts, few_layers)):
        model = make(of_model)
        works += [
            partial(forward_row, model, of_model, (rows, block), way)
            for rows in (1, 8)
            for way in (GRAPHS, FUSED)
        ]
        works += [partial(decode_row, model, of_model, name, FUSED) for name in NAMES[::3]]
    return measure_each(works)


def compiled_rows(setting: Setting) -> Iterator[TableRow]:
    """Compares compiled forwards with eager ones; each kind takes a minute or more to compile."""
    model, block = setting.model(), setting.block_length
    works = [
        partial(forward_row, model, setting, (1, block), COMPILED),
        partial(decode_row, model, setting, NAMES[0], COMPILED),
        partial(decode_row, model, setting, NAMES[3], COMPILED),
    ]
    return measure_each(works)


def small_setting(setting: Setting) -> Setting:
    """Returns a setting in which no tie decides, so that tokens must be equal."""
    return replace(
        setting, geometry="small", dtype="float32", batch_size=3, gen_length=32, block_length=8,
        steps_per_block=8,
    )  # fmt: skip


def in_float8(setting: Setting) -> MaskedTransformer:
    """Returns the model of a setting with layers in float8."""
    model = setting.model()
    quantize_layers(model.transformer, model.device, "fp8")
    model.name = "float8"
    return model


def with_experts(setting: Setting) -> MaskedTransformer:
    """Returns the model of a setting with 64 experts in each layer, 8 of them for each token."""
    model = setting.model()
    transformer = model.transformer
    config = MoEConfig(64, 8, setting.sizes.mlp_hidden_size // 8)
    transformer.config = replace(transformer.config, moe=config)
    for layer in transformer.layers:
        with model.device:
            layer.mlp = MoE(config, setting.sizes.hidden_size).to(model.dtype)
        layer.mlp.requires_grad_(False)
        for part in layer.mlp.parameters():
            part.normal_(std=0.02)
    model.name = "experts"
    return model


def measure_each(works: list[partial[TableRow]]) -> Iterator[TableRow]:
    """Yields each figure as soon as it is measured; ends when `LIMIT_S` have passed."""
    begun_s = time.perf_counter()
    for work in works:
        if time.perf_counter() - begun_s > LIMIT_S:
            return
        try:
            yield work()
        # A failure of one figure must not cost the others.
        except (AssertionError, RuntimeError, ValueError) as error:
            yield {"part": work.func.__name__, "error": f"{type(error).__name__}: {error}"[:300]}


def use(model: MaskedTransformer, way: str) -> None:
    """Lets a model run its forwards in some way from now on, as if it had run none."""
    model.compiled = model.graphs = False
    model.compiled, model.graphs = way == COMPILED, way in (GRAPHS, FUSED)
    if model._graphs is not None:
        model._graphs.is_fused = way == FUSED and model.device.type == "cuda"


def decode_row(model: MaskedTransformer, setting: Setting, name: str, way: str) -> TableRow:
    """Compares the last of three decodes, eager and in another way."""
    cache, verifier = parse_pair(name)

    def answers(way: str) -> list[DecodeOutput]:
        use(model, way)
        return [decode_setting(model, setting, cache=cache, verifier=verifier) for _ in "abc"]

    eager = answers(EAGER)[-1]
    first, _, out = answers(way)
    same = int((out.tokens == eager.tokens).sum())
    return {
        "part": f"{setting.geometry}, {setting.dtype}", "model": model.name, "forwards": way,
        "contender": name, "rows": setting.batch_size,
        "eager ms": 1000 * eager.wall_s / eager.forwards,
        "ms": 1000 * out.wall_s / out.forwards, "times": eager.wall_s / out.wall_s,
        "first decode s": first.wall_s, **_calls_of(model), "same": same,
        "of": out.tokens.numel(),
    }  # fmt: skip


def _calls_of(model: MaskedTransformer) -> TableRow:
    if model._graphs is None:
        return {}
    calls: Counter[object] = Counter(model._graphs.calls)
    return {"kinds": len(calls) - (None in calls), "calls": calls.total(), "eager": calls[None]}


def served_row(model: MaskedTransformer, setting: Setting, name: str) -> TableRow:
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

    use(model, EAGER)
    seconds_and_tokens()
    eager_s, expected = seconds_and_tokens()
    use(model, GRAPHS)
    seconds_and_tokens()
    seconds, tokens = seconds_and_tokens()
    same = sum(torch.equal(*pair) for pair in zip(tokens, expected, strict=True))
    return {
        "part": f"served, {setting.dtype}", "forwards": GRAPHS, "contender": name, "rows": 8,
        "times": eager_s / seconds, **_calls_of(model), "same": same, "of": len(prompts),
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
    model: MaskedTransformer,
    setting: Setting,
    size: tuple[int, int],
    way: str,
    weights_ms: float | None = None,
) -> TableRow:
    """Compares one forward of these rows and columns by the clock.

    `weights_ms` is a cell of the row, next to the times: what `reading_ms` returned.
    """

    def logits_and_seconds(way: str) -> tuple[Tensor, float]:
        use(model, way)
        inputs = block_inputs(model, setting, *size)
        work: Callable[[], Tensor] = partial(model.predict, inputs)
        # The first forwards of a graph are eager, until the kind is recorded.
        seconds = least_seconds(work, model.device, tries=10)
        return work(), seconds

    exact, eager_s = logits_and_seconds(EAGER)
    logits, seconds = logits_and_seconds(way)
    return {
        "part": "one forward", "model": model.name, "forwards": way, "rows": size[0],
        "columns": size[1], "eager ms": 1000 * eager_s, "ms": 1000 * seconds,
        "weights ms": weights_ms, "times": eager_s / seconds, **_calls_of(model),
        "same": int((logits == exact).sum()), "of": exact.numel(),
    }  # fmt: skip


def reading_ms(model: MaskedTransformer) -> float:
    """Returns the least milliseconds of a forward, in which it reads all weights once.

    The embedding is left out, because a forward reads few of its rows. The rate is that of a copy
    that is too large for any cache.
    """
    size = 2**28 if model.device.type == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.float32, device=model.device)
    target = torch.empty_like(source)
    copy_s = least_seconds(lambda: target.copy_(source), model.device)
    read = sum(weights.nbytes for weights in model.parameters())
    read -= model.transformer.embedding.weight.nbytes
    return 1000 * copy_s * read / (2 * source.nbytes)


def launches_row(model: MaskedTransformer, setting: Setting, way: str) -> TableRow:
    """Counts the kernels of a replay of one block, and adds up their times."""
    use(model, way)
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
