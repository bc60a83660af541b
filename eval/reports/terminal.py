"""A record's answer on a terminal; the live view is `dllm_decode.streaming`."""

from rich.text import Text

from dllm_decode.streaming import draft_observer, stream_to_terminal
from eval.runs.records import Record

__all__ = ["draft_observer", "picture_of", "stream_to_terminal"]


def picture_of(record: Record) -> Text:
    """Returns a record's answer, each token coloured by the step that committed it.

    Raises:
        ValueError: If the record has no trace.
    """
    if record.get("trace") is None:
        raise ValueError("The record has no trace; run without --no-trace.")
    steps = record["trace"]["steps"]
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
