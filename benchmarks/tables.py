"""Lays measurements out in tables."""

from rich.table import Table

from benchmarks.correctness import Correctness
from benchmarks.floor import Machine
from benchmarks.growth import Point, Step
from benchmarks.measure import Measurement
from benchmarks.setting import Setting


def table_of_contenders(
    figures: dict[str, Measurement], setting: Setting, machine: Machine
) -> Table:
    """Makes one row a contender; speed-ups and tokens are against the first."""
    sizes = setting.sizes
    table = Table(
        title=f"{sizes.num_layers} layers x {sizes.hidden_size}, {setting.dtype}, {setting.device}"
    )
    table.add_column("contender", no_wrap=True)
    columns = ("s", "speed", "s a token", "calls", "columns", "ms a call", "times floor")
    columns += ("not in models", "peak MB", "times least", "tokens")
    for column in columns:
        table.add_column(column, justify="right")
    first = next(iter(figures.values()), None)
    for name, figure in figures.items():
        assert first is not None
        table.add_row(name.removesuffix(", NoVerifier()"), *_cells(figure, first))
    table.caption = (
        f"Prompt {setting.prompt_length}, answer {setting.gen_length}, blocks of "
        f"{setting.block_length} in {setting.steps_per_block} steps, batch {setting.batch_size}, "
        f"{setting.num_threads} threads. Measured: copies {machine.bytes_per_s / 1e9:.1f} GB/s, "
        f"matrices {machine.flops_per_s / 1e9:,.0f} GFLOP/s."
    )
    return table


def _cells(figure: Measurement, first: Measurement) -> list[str]:
    model_s, floor_s, peak = figure.model_s, figure.floor_s, figure.extra_peak_bytes
    return [
        f"{figure.wall_s:.2f}",
        f"{first.wall_s / figure.wall_s:.2f}x",
        f"{figure.wall_s / figure.num_tokens:.4f}",
        str(figure.forwards),
        str(figure.query_positions),
        "-" if model_s is None else f"{1000 * model_s / figure.forwards:.2f}",
        "-" if model_s is None or floor_s is None else f"{model_s / floor_s:.2f}",
        "-" if figure.outside_share is None else f"{figure.outside_share:.1%}",
        "-" if peak is None else f"{(figure.weight_bytes + peak) / 1e6:.0f}",
        "-" if figure.peak_ratio is None else f"{figure.peak_ratio:.2f}",
        "same" if figure.tokens == first.tokens else "differ",
    ]


def table_of_growth(points: list[Point]) -> Table:
    """Makes one row a prompt length and batch size."""
    table = Table(title="One more step, by prompt length and batch size")
    columns = ("prompt", "batch")
    for cache in ("no cache", "DualCache"):
        columns += (f"{cache} ms", "times floor", "of matrix rate")
    columns += ("first step ms", "s a token", "tokens a s", "times batch 1", "extra MB")
    for column in columns:
        table.add_column(column, justify="right")
    alone = {point.prompt_length: point.s_per_token for point in points if point.batch_size == 1}
    for point in points:
        extra, single_s = point.extra_peak_bytes, alone.get(point.prompt_length)
        table.add_row(
            str(point.prompt_length),
            str(point.batch_size),
            *_step_cells(point.full),
            *_step_cells(point.block),
            f"{1000 * point.first_s:.2f}",
            f"{point.s_per_token:.4f}",
            f"{1 / point.s_per_token:.1f}",
            "-" if single_s is None else f"{single_s / point.s_per_token:.2f}",
            "-" if extra is None else f"{extra / 1e6:.0f}",
        )
    table.caption = (
        "Forward, sampler and loop. The last five columns: one block with DualCache, one token a "
        "step."
    )
    return table


def _step_cells(step: Step) -> list[str]:
    return [
        f"{1000 * step.seconds:.2f}",
        f"{step.seconds / step.floor_s:.2f}",
        f"{step.rate_share:.0%}",
    ]


def table_of_correctness(found: Correctness, setting: Setting) -> Table:
    """Makes one row a check."""
    table = Table(title=f"{setting.device} compared with the CPU, the same weights")
    table.add_column("check")
    table.add_column("found", justify="right")
    for name, count in found.same_tokens.items():
        short = name.removesuffix(", NoVerifier()")
        table.add_row(f"float32 tokens, {short}", f"{count} of {found.num_tokens} the same")
    table.add_row("greatest difference of a float32 logit", f"{found.float32_error:.1e}")
    columns = f"of {found.num_columns} columns"
    table.add_row("bfloat16 argmax, device", f"{found.argmax_agreement:.2%} {columns}")
    table.add_row("bfloat16 argmax, CPU", f"{found.cpu_argmax_agreement:.2%} {columns}")
    return table
