"""The table of a report."""

from collections.abc import Sequence

from eval.metrics.costs import Cost, Row, is_on_front
from eval.reports.names import names_of

_HEAD = (
    "sampler",
    "accuracy",
    "against reference",
    "p",
    "tokens/forward",
    "NFE",
    "columns",
    "step speed-up",
    "tokens/s",
    "p50 / p99 s",
    "tau",
)
_VERIFIED_HEAD = ("accepted length", "accepted/drafted", "target NFE", "tokens/target forward")


def table(rows: Sequence[Row], cost: Cost) -> str:
    """Returns a Markdown table of settings, the reference first.

    A setting is bold if no other is better in accuracy and in the tokens for a cost. Columns about
    drafts follow if a verifier was used.
    """
    head, *lines = grid_of(rows)
    for cells, row in zip(lines, rows, strict=True):
        cells[0] = f"**`{cells[0]}`**" if is_on_front(row, cost) else f"`{cells[0]}`"
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, lines)])


def bold(cost: Cost) -> str:
    """Says when a setting is bold."""
    return f"Bold: no other setting is better in accuracy and in {cost.axis}."


def grid_of(rows: Sequence[Row]) -> list[list[str]]:
    """Returns the cells of the table, its head first."""
    is_verified = any("verified" in row for row in rows)
    grid = [[*_HEAD, *(_VERIFIED_HEAD if is_verified else ()), "errors"]]
    for name, row in zip(names_of(rows), rows, strict=True):
        verified = _verified_cells(row) if is_verified else []
        grid.append([name, *_cells(row), *verified, str(row["num_errors"])])
    return grid


def _cells(row: Row) -> list[str]:
    accuracy, speed = row["accuracy"], row.get("speed")
    against = row.get("against_reference", {})
    difference, test = against.get("accuracy"), against.get("mcnemar")
    cells = [
        _interval(accuracy, 3) if accuracy else "-",
        _interval(difference, 3, sign="+") if difference else "-",
        f"{test['p_value']:.2g}" if test else "-",
    ]
    if speed is None:
        return [*cells, *"-------"]
    timing, tau = row["timing"], row["order"]["order_correlation"]
    latency = timing["latency_s"]
    return [
        *cells,
        _interval(speed["tokens_per_forward"], 2),
        f"{speed['nfe']:.1f}",
        f"{speed['query_positions']:.0f}",
        f"{against['step_speedup']:.2f}" if "step_speedup" in against else "1",
        f"{timing['tokens_per_second']:.0f}",
        f"{latency['p50']:.3g} / {latency['p99']:.3g}",
        "-" if tau is None else f"{tau:.2f}",
    ]


def _verified_cells(row: Row) -> list[str]:
    verified = row.get("verified")
    if verified is None:
        return ["-"] * len(_VERIFIED_HEAD)
    rate, per_target = verified["acceptance_rate"], verified["tokens_per_target_forward"]
    return [
        f"{verified['accepted_length']:.2f}",
        "-" if rate is None else f"{rate:.2f}",
        "-" if per_target is None else f"{row['speed']['target_nfe']:.1f}",
        "-" if per_target is None else f"{per_target:.2f}",
    ]


def accepted_lengths(rows: Sequence[Row]) -> str:
    """Lists how often a forward committed so many tokens, for each verified setting."""
    lines = []
    for name, row in zip(names_of(rows), rows, strict=True):
        if "verified" in row:
            lengths = row["verified"]["accepted_lengths"]
            counted = ", ".join(f"{length}: {count}" for length, count in lengths.items())
            lines.append(f"- `{name}`: {counted}")
    head = "Accepted lengths, as tokens committed by a forward: number of such forwards."
    return "\n".join([head, "", *lines]) if lines else ""


def commits_of(row: Row, rows: Sequence[Row]) -> str:
    """Names the commits of this package that decoded a row; empty if all rows have the same one."""
    if len({commit for other in rows for commit in other["git"]}) < 2:
        return ""
    return ", ".join(commit[:10] + "+" * commit[10:].endswith("+") for commit in row["git"])


def commits(rows: Sequence[Row]) -> str:
    """Lists the commits of each row; empty if all rows have the same one."""
    named = zip(names_of(rows), rows, strict=True)
    lines = [f"- `{name}`: {commits_of(row, rows)}" for name, row in named]
    head = "Decoded by several commits of this package (+: with changed files), which may differ:"
    return "\n".join([head, "", *lines]) if commits_of(rows[0], rows) else ""


def pass_at(rows: Sequence[Row]) -> str:
    """Returns a table of pass@k; empty if no row has several seeds."""
    listed = list(dict.fromkeys(k for row in rows for k in row["pass_at"]))
    if not listed:
        return ""
    head = ["sampler", "answers", *(f"pass@{k}" for k in listed)]
    lines = [line(head), line(["---"] * len(head))]
    for name, row in zip(names_of(rows), rows, strict=True):
        found = [row["pass_at"].get(k) for k in listed]
        cells = ["-" if one is None else _interval(one, 3) for one in found]
        lines.append(line([f"`{name}`", str(len(row["seeds"])), *cells]))
    head_line = "Probability that at least one of k answers is right, one answer for each seed."
    return "\n".join([head_line, "", *lines])


def other_scores(rows: Sequence[Row]) -> str:
    """Returns a table of the means of the scores beside the primary one; empty if there are none.

    A score that is defined for no example of any row is left out.
    """
    names = sorted({
        name
        for row in rows
        for name, mean in row["scores"].items()
        if name != row["primary"] and mean is not None
    })  # fmt: skip
    if not names:
        return ""
    lines = [line(["sampler", *names]), line(["---"] * (1 + len(names)))]
    for own, row in zip(names_of(rows), rows, strict=True):
        means = [row["scores"].get(name) for name in names]
        cells = ["-" if mean is None else f"{mean:.3f}" for mean in means]
        lines.append(line([f"`{own}`", *cells]))
    return "\n".join(
        ["Means of the other scores, of the examples where they are defined.", "", *lines]
    )


def _interval(found: Row, digits: int, sign: str = "") -> str:
    value, low, high = (f"{found[name]:{sign}.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def line(cells: Sequence[str]) -> str:
    """Returns a line of a Markdown table."""
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"
