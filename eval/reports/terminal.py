"""Settings and answers on a terminal; the live view is `dllm_decode.streaming`."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from eval.grid import show_grid
from eval.metrics.costs import CostMeasure, Row, is_on_front
from eval.reports.table import grid_of
from eval.runs.lines import Record, trace_of

# 80 columns have room for these: up to the step speed-up without p, which the interval tells too.
_NARROW = (1, 2, 4, 5, 6, 7)


def show_settings(console: Console, rows: Sequence[Row], cost: CostMeasure) -> None:
    """Shows settings on a terminal: numbered names, then numbers, as many as it has room for.

    A setting is bold if no other is better in accuracy and in the tokens for a cost.
    """
    styles = ["bold" if is_on_front(row, cost) else "" for row in rows]
    show_grid(console, grid_of(rows), styles=styles, narrow=_NARROW)


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
