"""The tables of a report, in Markdown and on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from eval.metrics.costs import CostMeasure, SummaryRow
from eval.metrics.curves import RowGroup, group_of
from eval.reports.grid import markdown_of, show_grid
from eval.reports.setting_names import names_of

_HEAD = (
    "sampler", "accuracy", "against reference", "p", "tokens/forward", "NFE", "columns",
    "step speed-up", "tokens/s", "tau", "decided at",
)  # fmt: skip
_VERIFIED_HEAD = ("accepted length", "accepted/drafted", "target NFE", "tokens/target forward")
# These fit 80 characters: columns up to the step speed-up, but not p, which the interval shows too.
_NARROW = (1, 2, 4, 5, 6, 7)


def show_settings(console: Console, rows: Sequence[SummaryRow], cost: CostMeasure) -> None:
    """Shows settings, the reference first; on a terminal only columns that fit.

    A setting is bold if no other is better in accuracy and in the tokens for a cost. Columns about
    drafts follow if a verifier was used.
    """
    styles = ["bold" if cost.name in row["fronts"] else "" for row in rows]
    show_grid(console, _grid_of(rows), styles=styles, narrow=_NARROW)


def legend(cost: CostMeasure) -> str:
    """Says when a setting is bold."""
    return f"Bold: no other setting is better in accuracy and in {cost.axis}."


def _grid_of(rows: Sequence[SummaryRow]) -> list[list[str]]:
    """Returns the cells of the table, its head first."""
    is_verified = any("verified" in row for row in rows)
    grid = [[*_HEAD, *(_VERIFIED_HEAD if is_verified else ()), "errors"]]
    for name, row in zip(names_of(rows), rows, strict=True):
        verified = _verified_cells(row) if is_verified else []
        grid.append([f"`{name}`", *_cells(row), *verified, str(row["num_errors"])])
    return grid


def _cells(row: SummaryRow) -> list[str]:
    speed, against = row.get("speed"), row.get("against_reference", {})
    test = against.get("mcnemar")
    cells = [
        _interval(row["accuracy"], 3),
        _interval(against.get("accuracy"), 3, sign="+"),
        f"{test['p_value']:.2g}" if test else "-",
    ]
    if speed is None:
        return [*cells, *"-------"]
    return [
        *cells,
        _interval(speed["tokens_per_forward"], 2),
        f"{speed['nfe']:.1f}",
        f"{speed['query_positions']:.0f}",
        f"{against['step_speedup']:.2f}" if "step_speedup" in against else "1",
        f"{row['timing']['tokens_per_second']:.0f}",
        _number(row["order"]["order_correlation"], 2),
        _number((row["decided"] or {}).get("share"), 2),
    ]


def _verified_cells(row: SummaryRow) -> list[str]:
    verified = row.get("verified")
    if verified is None:
        return ["-"] * len(_VERIFIED_HEAD)
    per_target = verified["tokens_per_target_forward"]
    return [
        _number(verified["accepted_length"], 2),
        _number(verified["acceptance_rate"], 2),
        "-" if per_target is None else _number(row["speed"]["target_nfe"], 1),
        _number(per_target, 2),
    ]


def accepted_lengths(rows: Sequence[SummaryRow]) -> str:
    """Tabulates the number of forwards by committed tokens, for each verified setting."""
    grid = [["setting", "tokens of a forward: number of such forwards"]]
    for name, row in zip(names_of(rows), rows, strict=True):
        if "verified" in row:
            lengths = row["verified"]["accepted_lengths"]
            grid.append([name, ", ".join(f"{size}: {count}" for size, count in lengths.items())])
    return f"Accepted lengths.\n\n{markdown_of(grid)}" if len(grid) > 1 else ""


def origin(rows: Sequence[SummaryRow], summary: Mapping[str, Any]) -> str:
    """Says how the numbers were measured: model, precision, device, dates, versions and options."""
    settings = [row["settings"] for row in rows]

    def listed(values: Iterable[Any]) -> str:
        return " and ".join(dict.fromkeys(str(value) for value in values if value))

    def each(name: str) -> str:
        return listed(setting.get(name) for setting in settings)

    machines, revisions = summary["machines"], each("revision")
    model = f"{each('model')}{f' at {revisions}' * bool(revisions)} in {each('dtype')}"
    device = listed(
        f"{machine.get('device_name') or machine.get('device')} ({machine.get('threads')} threads)"
        for machine in machines
    )
    days = dict.fromkeys(date[:10] for date in summary["dates"])
    # A plus sign says that files had been changed.
    commits = listed(commit[:10] + "+" * commit[10:].endswith("+") for commit in summary["git"])
    versions = [
        f"dllm-decode {listed(machine.get('package') for machine in machines)} {commits}".rstrip(),
        f"torch {listed(machine.get('torch') for machine in machines)}",
        f"Python {listed(machine.get('python') for machine in machines)}",
    ]
    options = (
        f"{name} {listed(repr(setting[name]) for setting in settings)}"
        for name in ("gen_length", "block_length", "temperature", "batch_size", "prompts")
    )
    parts = [model, device and f"on {device}", " to ".join(days)]
    parts += [*(versions if machines else ()), *options]
    return f"From {', '.join(part for part in parts if part)}."


def further_tables(rows: Sequence[SummaryRow], summary: Mapping[str, Any]) -> list[str]:
    """Returns tables in Markdown of other scores, accepted lengths, curves and PB scores.

    Only those that a group of rows has.
    """
    group = group_of(rows[0]["settings"])
    texts = (other_scores(rows), accepted_lengths(rows), curves(summary, group),
             _pb_scores(summary, group.model))  # fmt: skip
    return [text for text in texts if text]


def curves(summary: Mapping[str, Any], group: RowGroup) -> str:
    """Returns a table of the methods' curves; empty if no setting has accuracy and speed."""
    methods = [method for method in summary["methods"] if group_of(method) == group]
    if not methods:
        return ""
    limits = list(methods[0]["speed_at_accuracy"])
    head = ["method", "settings", f"AUP (best accuracy {methods[0]['best_accuracy']:.3f})"]
    grid = [head + [f"tokens/forward at accuracy {limit}" for limit in limits]]
    for method in methods:
        speeds = [_number(method["speed_at_accuracy"][limit], 2) for limit in limits]
        grid.append([method["method"], str(method["num_points"]), f"{method['aup']:.1f}", *speeds])
    return f"Accuracy under parallelism (AUP), and speed by accuracy.\n\n{markdown_of(grid)}"


def other_scores(rows: Sequence[SummaryRow]) -> str:
    """Returns a table of the means of the scores other than the primary one.

    A score that is defined for no example of any row is left out. Empty if no score is left.
    """
    means = [{n: v for n, v in row["scores"].items() if n != row["primary"]} for row in rows]
    names = sorted({name for scores in means for name, mean in scores.items() if mean is not None})
    if not names:
        return ""
    grid = [["sampler", *names]]
    for label, row in zip(names_of(rows), rows, strict=True):
        grid.append([f"`{label}`", *(_number(row["scores"].get(name), 3) for name in names)])
    caption = "Means of the other scores, of the examples where they are defined."
    return f"{caption}\n\n{markdown_of(grid)}"


def _pb_scores(summary: Mapping[str, Any], name: str) -> str:
    """Returns a table of a model's PB scores on ParallelBench; empty if there are none."""
    models = [model for model in summary["parallel_bench"] if model["model"] == name]
    if not models:
        return ""
    grid = [["model", "tasks", "settings", *models[0]["scores"]]]
    for model in models:
        scores = [_number(score, 2) for score in model["scores"].values()]
        grid.append([model["model"], str(model["num_tasks"]), str(model["num_settings"]), *scores])
    caption = (
        "ParallelBench: the most tokens a step (answer length over forwards, mean of the tasks) of "
        "a setting whose mean accuracy is at least so many per cent."
    )
    return f"{caption}\n\n{markdown_of(grid)}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(estimate: Mapping[str, Any] | None, digits: int, sign: str = "") -> str:
    if not estimate:
        return "-"
    value, low, high = (f"{estimate[name]:{sign}.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
