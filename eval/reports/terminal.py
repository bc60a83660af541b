"""Settings and answers on a terminal; the live view is `dllm_decode.streaming`."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.metrics.costs import Cost, Row, is_on_front
from eval.reports.names import names_of
from eval.reports.table import grid_of
from eval.runs.lines import Record, trace_of

# 80 columns have room for these: up to the step speed-up without p, which the interval tells too.
_NARROW = (1, 2, 4, 5, 6, 7)
_ANY_WIDTH = 1000


def show_settings(console: Console, rows: Sequence[Row], cost: Cost) -> None:
    """Shows settings on a terminal: numbered names, then numbers, as many as it has room for.

    A setting is bold if no other is better in accuracy and in the tokens for a cost.
    """
    styles = ["bold" if is_on_front(row, cost) else "" for row in rows]
    for number, (name, style) in enumerate(zip(names_of(rows), styles, strict=True), start=1):
        console.print(Text(f"{number}. {name}", style=style), soft_wrap=True)
    every = _numbers(rows, styles)
    options = console.options.update(max_width=_ANY_WIDTH)
    has_room = console.measure(every, options=options).maximum <= console.width
    console.print(every if has_room else _numbers(rows, styles, _NARROW))


def _numbers(
    rows: Sequence[Row], styles: Sequence[str], columns: Sequence[int] | None = None
) -> Table:
    grid = grid_of(rows)
    chosen = columns or range(1, len(grid[0]))
    heads, *lines = ([cells[column] for column in chosen] for cells in grid)
    found = Table("", box=None, pad_edge=False)
    for head in heads:
        folded = head.replace(" ", "\n", 1).replace("tokens/", "tokens/\n")
        found.add_column(folded, justify="right", no_wrap=True)
    for number, (style, cells) in enumerate(zip(styles, lines, strict=True), start=1):
        shown = (Text(cell.replace(" [", "\n[")) for cell in cells)
        found.add_row(f"{number}.", *shown, style=style)
    return found


def picture_of(record: Record) -> Text:
    """Returns a record's answer, each token coloured by the step that committed it.

    Raises ValueError if the record has no trace.
    """
    steps = trace_of(record)["steps"]
    last = max(1, *steps)
    pieces = [record["pieces"][str(token)] for token in record["tokens"][: record["length"]]]
    separator = "" if "".join(pieces).strip().startswith(record["text"].strip()) else " "
    text = Text(overflow="fold")
    for position, piece in enumerate(pieces):
        share = steps[position] / last
        style = "dim" if steps[position] < 0 else f"color({_COLOURS[round(share * _NUM_SHADES)]})"
        text.append(piece, style=style).append(separator)
    return text


# From violet to yellow in the 256 colours that terminals share.
_COLOURS = (54, 61, 67, 73, 79, 114, 149, 184, 220)
_NUM_SHADES = len(_COLOURS) - 1
