r"""A replay as an animated picture, for READMEs and talks: GIF, PNG or WebP.

`docs/decode.gif` is made by

    dllm-decode eval run "word_problems?split=test&limit=20" results/decode --model mini \
        --sampler "FixedSchedule(32)" --sampler "ConfidenceThreshold(0.9)"
    dllm-decode eval trace results/decode --example 19e874da5d450a14 --gif docs/decode.gif
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from eval.reports.replay import Example, panels_of

Panel = Mapping[str, Any]
Colour = tuple[int, int, int]

# Viridis at five places, as in the page: early steps are dark.
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_GROUND, _CARD, _INK, _SOFT, _MASK, _LINE = (
    (246, 247, 250), (255, 255, 255), (28, 34, 48), (91, 101, 119), (226, 230, 238), (215, 220, 229)
)  # fmt: skip
_RIGHT, _WRONG, _FRESH = (24, 121, 78), (180, 35, 24), (245, 158, 11)
_SUFFIXES = (".gif", ".png", ".webp")
_SECONDS, _WIDTH, _MARGIN, _LINE_HEIGHT, _PADDING = 10, 820, 18, 27, 14


class _Box(NamedTuple):
    """The place of a position's token."""

    left: int
    top: int
    right: int


def write_animation(example: Example, path: Path) -> None:
    """Writes the replay of one example under several settings as an animated picture.

    All settings take a step at a time, so that one with fewer forwards is done first. The last
    picture is shown for a fifth of the time. Raises ValueError if a record has no
    trace, or the suffix of the path is none of .gif, .png and .webp.
    """
    panels = panels_of(example)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"The file must end in {', '.join(_SUFFIXES)}, got {path.name!r}.")
    last = max(num_rounds(panel) for panel in panels)
    prompt = example[0][1]["prompt"]
    pictures = [draw_frame(prompt, panels, step) for step in range(last + 1)]
    step_ms = max(20, round(800 * _SECONDS / max(1, last)))
    durations = [step_ms] * last + [round(200 * _SECONDS)]
    # One palette for all: less to store, and no colour flickers.
    both = Image.new("RGB", (_WIDTH, 2 * pictures[0].height))
    both.paste(pictures[0])
    both.paste(pictures[-1], (0, pictures[0].height))
    palette = both.quantize(128)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )


def num_rounds(panel: Panel) -> int:
    """Returns how many steps a panel shows."""
    return 1 + int(max([-1, *panel["steps"], *(r["to"] for r in panel["revisions"])]))


def draw_frame(prompt: str, panels: Sequence[Panel], step: int) -> Image.Image:
    """Draws all panels after some steps, one below the other, the prompt on top."""
    lines = wrap(prompt, int((_WIDTH - 2 * _MARGIN) / _font(15).getlength("x")))
    tops, boxes = [], []
    top = _MARGIN + 22 * len(lines) + 10
    for panel in panels:
        tops.append(top)
        boxes.append(_laid_out(panel, top + 58))
        top = boxes[-1][-1].top + _LINE_HEIGHT + 2 * _PADDING
    picture = Image.new("RGB", (_WIDTH, top + _MARGIN - _PADDING), _GROUND)
    pen = ImageDraw.Draw(picture)
    for number, text in enumerate(lines):
        pen.text((_MARGIN, _MARGIN + 22 * number), text, _INK, _font(15))
    for panel, own, begin in zip(panels, boxes, tops, strict=True):
        bottom = own[-1].top + _LINE_HEIGHT + _PADDING // 2
        pen.rounded_rectangle((_MARGIN, begin, _WIDTH - _MARGIN, bottom), 8, _CARD, _LINE)
        _draw_head(pen, panel, step, begin + 10)
        for position, box in enumerate(own):
            _draw_token(pen, panel, position, box, step)
    return picture


def _draw_head(pen: ImageDraw.ImageDraw, panel: Panel, step: int, top: int) -> None:
    left = _MARGIN + _PADDING
    name = " + ".join(panel["parts"])
    while _font(14).getlength(name) > _WIDTH - 2 * left:
        name = name.removesuffix("...")[:-1] + "..."
    pen.text((left, top), name, _INK, _font(14))
    done = step >= num_rounds(panel)
    # A verifier's steps may share a forward: only the end is known exactly.
    if done:
        counted = f"{panel['length']} tokens in {panel['nfe'] + panel['target_nfe']} forwards"
    else:
        positions = range(min(panel["length"], len(panel["tokens"])))
        num_shown = sum(_state(panel, position, step)[0] is not None for position in positions)
        counted = f"{num_shown} of {panel['length']} tokens after {step} steps"
    pen.text((left, top + 20), counted, _SOFT, _font(13))
    if done and panel["score"] is not None:
        is_right = panel["score"] >= 1
        after = left + _font(13).getlength(counted + "  ")
        said = "right" if is_right else "wrong" if panel["score"] <= 0 else f"{panel['score']:.2f}"
        pen.text((after, top + 20), said, _RIGHT if is_right else _WRONG, _font(13))


def _laid_out(panel: Panel, top: int) -> list[_Box]:
    """Places the tokens up to the answer's end, as wide as they are in the end."""
    boxes = []
    left = _MARGIN + _PADDING
    for token in panel["tokens"][: max(1, panel["length"])]:
        size = round(_font(14).getlength(_visible(token))) + 10
        if left + size > _WIDTH - _MARGIN - _PADDING and left > _MARGIN + _PADDING:
            left, top = _MARGIN + _PADDING, top + _LINE_HEIGHT
        boxes.append(_Box(left, top, left + size))
        left += size + 3
    return boxes


def _draw_token(
    pen: ImageDraw.ImageDraw, panel: Panel, position: int, box: _Box, step: int
) -> None:
    token, committed = _state(panel, position, step)
    area = (box.left, box.top, box.right, box.top + _LINE_HEIGHT - 5)
    if token is None:
        pen.rounded_rectangle(area, 4, _MASK)
        return
    rounds = num_rounds(panel)
    share = committed / (rounds - 1) if committed >= 0 and rounds > 1 else 0.0
    colour = tint(share) if committed >= 0 else _MASK
    is_fresh = committed == step - 1 and step <= rounds
    pen.rounded_rectangle(area, 4, colour, _FRESH if is_fresh else None, 2)
    bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140
    pen.text((box.left + 5, box.top + 2), _visible(token), _INK if bright else _CARD, _font(14))


def _state(panel: Panel, position: int, shown: int) -> tuple[str | None, int]:
    """Returns the token of a position after some steps, None if masked, and its step."""
    for revision in panel["revisions"]:
        is_own = revision["position"] == position
        if is_own and revision["from"] < shown <= revision["to"]:
            return revision["token"], revision["from"]
    committed = panel["steps"][position]
    is_there = committed < shown if committed >= 0 else shown >= num_rounds(panel)
    return (panel["tokens"][position], committed) if is_there else (None, -1)


def tint(share: float) -> Colour:
    """Returns the colour of a step, from 0 for the first to 1 for the last."""
    places = np.linspace(0.0, 1.0, len(_STOPS))
    red, green, blue = (round(np.interp(share, places, own)) for own in zip(*_STOPS, strict=True))
    return red, green, blue


def _visible(token: str) -> str:
    return token.strip().replace("\n", " ") or "\u00b7"


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib brings one, so that pictures are the same everywhere.
    return ImageFont.truetype(
        str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"), size
    )
