"""Draws the pictures of docs/architecture.md, as SVG in docs/img.

python docs/make_pictures.py
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_CELL = 30
_COLOURS = {
    # kind: light fill, dark fill
    "prompt": ("#d5dbe6", "#465064"),
    "settled": ("#b5dfbd", "#2f6b3d"),
    "open": ("#ffd27f", "#8a5a0a"),
    "later": ("#f1f3f6", "#2a2f3a"),
    "nobody": ("none", "none"),
    "box": ("#eef3fb", "#253247"),
    "device": ("#fdf0d9", "#4a3818"),
    "read": ("#d5dbe6", "#465064"),
    "seen": ("#9dbbe8", "#3d6299"),
}


class Picture:
    """Shapes of one picture, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        kind: str = "",
        anchor: str = "start",
    ) -> None:
        """Writes a line; y is its base line."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
            f'class="{kind}">{escape(text)}</text>'
        )

    def cell(
        self, x: float, y: float, text: str, kind: str, *, width: float = _CELL, bold: bool = False
    ) -> None:
        """Draws a square with a short text in it; a bold one is computed."""
        outline = " bold" if bold else ""
        inset = 2 if bold else 0.5
        self._parts.append(
            f'<rect x="{x + inset:g}" y="{y + inset:g}" width="{width - 2 * inset:g}" '
            f'height="{_CELL - 2 * inset:g}" class="{kind}{outline}"/>'
        )
        self.text(x + width / 2, y + 20, text, kind="mono", anchor="middle")

    def box(
        self, x: float, y: float, size: tuple[float, float], lines: Sequence[str], kind: str = "box"
    ) -> None:
        """Draws a box whose first line is its name."""
        width, height = size
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'class="{kind}"/>'
        )
        for number, line in enumerate(lines):
            style = "name" if number == 0 else "note"
            self.text(x + 10, y + 20 + 17 * number, line, size=13 if not number else 12, kind=style)

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draws an arrow along some points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="line" marker-end="url(#head)"/>')

    def line(self, *points: tuple[float, float]) -> None:
        """Draws a line along some points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="line"/>')

    def brace(self, x: float, y: float, width: float, text: str, *, below: bool = True) -> None:
        """Draws a bracket over or under some cells, and says what they are."""
        depth = 6 if below else -6
        self.line((x + 2, y), (x + 2, y + depth), (x + width - 2, y + depth), (x + width - 2, y))
        self.text(x + width / 2, y + (20 if below else -11), text, kind="note", anchor="middle")

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """Explains kinds of cells, in one line."""
        for letter, kind, meaning in entries:
            self.cell(x, y, letter, kind.removesuffix(" bold"), bold=kind.endswith("bold"))
            self.text(x + _CELL + 7, y + 20, meaning)
            x += _CELL + 22 + 7 * len(meaning)

    def svg(self) -> str:
        """Returns the picture as a file; its colours follow the reader's light or dark mode."""
        width, height = self._size
        light = "".join(f".{kind}{{fill:{pair[0]}}}" for kind, pair in _COLOURS.items())
        dark = "".join(f".{kind}{{fill:{pair[1]}}}" for kind, pair in _COLOURS.items())
        style = (
            "text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#1c2430}"
            ".mono{font-family:ui-monospace,'DejaVu Sans Mono',monospace}"
            ".name{font-weight:600}.note{fill:#4a5568}.paper{fill:#fff}"
            "rect{stroke:#8a94a6;stroke-width:1}.paper{stroke:none}"
            ".nobody{stroke-dasharray:2 3}.later{stroke-dasharray:4 2}"
            ".bold{stroke:#1f5fd0;stroke-width:3;stroke-dasharray:none}"
            f".line{{fill:none;stroke:#5a6475;stroke-width:1.4}}#head path{{fill:#5a6475}}{light}"
            "@media(prefers-color-scheme:dark){text{fill:#e8ecf2}.note{fill:#b4bdcb}"
            ".paper{fill:#171b22}rect{stroke:#77839a}.bold{stroke:#6ea8ff}"
            f".line{{stroke:#9aa6b8}}#head path{{fill:#9aa6b8}}{dark}}}"
        )
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker>'
        )
        shapes = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self._title)}">\n'
            f"<title>{escape(self._title)}</title>\n<style>{style}</style>\n<defs>{head}</defs>\n"
            f'<rect width="{width}" height="{height}" rx="8" class="paper"/>\n{shapes}\n</svg>\n'
        )


_KINDS = {"p": "prompt", "s": "settled", "M": "open", "m": "later", ".": "nobody"}


def _row(picture: Picture, x: float, y: float, letters: str, computed: range = range(0)) -> None:
    """Draws the columns of one row; `computed` ones have a bold outline."""
    for column, letter in enumerate(letters):
        picture.cell(x + column * _CELL, y, letter, _KINDS[letter], bold=column in computed)


def _numbers(picture: Picture, x: float, y: float, numbers: Sequence[int]) -> None:
    for place, number in enumerate(numbers):
        middle = x + (place + 0.5) * _CELL
        picture.text(middle, y, str(number), size=12, kind="note", anchor="middle")


def canvas() -> Picture:
    """Returns a canvas of three rows, each in a block of its own."""
    picture = Picture(800, 396, "A canvas with three rows, each in its own block")
    left, top = 120, 60
    picture.text(20, top - 14, "column", kind="note")
    _numbers(picture, left, top - 14, range(14))
    rows = ("pppppsMsMmmmm.", "ppssssMMMM....", "pppssssssMs...")
    for number, letters in enumerate(rows):
        y = top + 80 * number
        picture.text(20, y + 20, f"row {number}", kind="name")
        _row(picture, left, y, letters)
    for y, start, number in ((top, 5, 0), (top + 80, 6, 1), (top + 160, 7, 1)):
        x = left + start * _CELL
        picture.brace(x, y + _CELL + 3, 4 * _CELL, f"block {number}, open")
    x = left + 14 * _CELL + 20
    for number, notes in enumerate(
        (
            ("prompt_length 5, end 13", "first unsettled column: 6"),
            ("prompt_length 2, end 10", "its block has just opened"),
            ("prompt_length 3, end 11", "one position is unsettled"),
        )
    ):
        for at, note in enumerate(notes):
            picture.text(x, top + 80 * number + 13 + 17 * at, note, size=12, kind="note")
    y = top + 236
    picture.text(20, y, "position", kind="note")
    _numbers(picture, left + 3 * _CELL, y, range(8))
    note = "of row 2: the column less the prompt's length"
    picture.text(left + 11 * _CELL + 8, y, note, size=12, kind="note")
    entries = (("p", "prompt", "prompt"), ("s", "settled", "settled"), ("M", "open", "open mask"))
    more = (("m", "later", "mask of a later block"), (".", "nobody", "nobody's: never a key"))
    picture.legend(20, y + 28, (*entries, *more))
    note = "A column is the rotary position of its token and its slot in the key-value cache."
    picture.text(20, y + 82, note)
    return picture


def forward() -> Picture:
    """Returns the columns that one forward computes, row by row and as two groups."""
    picture = Picture(800, 496, "Columns, slots and positions of one forward in two groups")
    left, top = 90, 64
    title = "Three rows under DualCache(): rows 0 and 2 are inside a block, row 1 opens one."
    picture.text(20, 24, title)
    _numbers(picture, left, top - 10, range(13))
    picture.text(20, top - 10, "column", kind="note")
    rows = (
        ("pppppsMsMmmmm", range(5, 9), "computes 4 columns, sees 13 slots"),
        ("ppssssMMMM...", range(10), "computes 10 columns, sees them"),
        ("pppssssMMsM..", range(7, 11), "computes 4 columns, sees 11 slots"),
    )
    for number, (letters, computed, note) in enumerate(rows):
        y = top + 40 * number
        picture.text(20, y + 20, f"row {number}", kind="name")
        _row(picture, left, y, letters, computed)
        picture.text(left + 13 * _CELL + 18, y + 20, note, kind="note")
    y = top + 134
    picture.legend(20, y, (("", "seen bold", "computed by this forward, and written to its slot"),))
    note = "All other slots keep what an earlier forward wrote."
    picture.text(410, y + 20, note, kind="note")
    y = top + 206
    picture.text(20, y, "One call of the model, two groups", kind="name")
    note = "A number is the column, which is the rotary position of the token and its slot."
    picture.text(20, y + 20, note, kind="note")
    y += 38
    groups = (
        (
            ((0, range(5, 9)), (2, range(7, 11))),
            "keys: slots 0 to 12; row 2 does not see 11 and 12",
        ),
        (((1, range(10)),), "keys: slots 0 to 9"),
    )
    for number, (members, keys) in enumerate(groups):
        picture.text(20, y + 20, f"group {number}", kind="name")
        for at, (row, columns) in enumerate(members):
            picture.text(left, y + 20 + 34 * at, f"row {row}", kind="note")
            for place, column in enumerate(columns):
                x = left + 50 + place * _CELL
                picture.cell(x, y + 34 * at, str(column), "seen", bold=True)
        width = len(members[0][1])
        picture.text(left + 64 + width * _CELL, y + 20, keys, kind="note")
        y += 34 * len(members) + 12
    note = "Linear layers run over all 18 columns at once. Attention runs group by group."
    picture.text(20, y + 22, note)
    note = (
        "One padded call would compute 3 x 10 = 30 columns; two calls would read the weights twice."
    )
    picture.text(20, y + 42, note)
    return picture


_DRAFTED = ("sMMM", "ssMM", "sssM")


def states() -> Picture:
    """Returns how several states of a row share one forward, and how a draft tree is read."""
    picture = Picture(880, 700, "States of SelfVerify in one forward, and a draft tree of ARVerify")
    title = "SelfVerify(draft_steps=3): the present state of a row and two drafts"
    picture.text(20, 26, f"{title}, open block in columns 6 to 9", kind="name")
    _batch_of_states(picture, 62)
    _tree_of_states(picture, 218)
    picture.line((20, 464), (860, 464))
    _draft_tree(picture, 490)
    return picture


def _batch_of_states(picture: Picture, y: int) -> None:
    picture.text(20, y, 'evaluate="batch"', kind="name")
    note = "each state is a row of the forward, and has slots of its own"
    picture.text(165, y, note, kind="note")
    names = ("state 0: present", "state 1: a draft", "state 2: a draft")
    for number, letters in enumerate(_DRAFTED):
        at = y + 14 + 36 * number
        picture.text(20, at + 20, names[number], kind="note")
        slots = "a copy of them" if number else "the row's other slots"
        picture.cell(165, at, slots, "read", width=6 * _CELL)
        for place, letter in enumerate(letters):
            picture.cell(165 + (6 + place) * _CELL, at, letter, _KINDS[letter], bold=True)
    notes = (
        "Row n of the state has row n of the cache. Its",
        "copies are rows n + capacity, n + 2 x capacity.",
        "State 0 reads and writes as if it were alone. The",
        "other states leave no trace in the row's slots.",
    )
    for number, note in enumerate(notes):
        picture.text(490, y + 34 + 17 * number + 12 * (number > 1), note, kind="note")


def _tree_of_states(picture: Picture, y: int) -> None:
    picture.text(20, y, 'evaluate="tree"', kind="name")
    note = "the states are further columns of the row, and share its other slots"
    picture.text(165, y, note, kind="note")
    picture.text(20, y + 34, "one row", kind="note")
    picture.cell(165, y + 14, "the row's other slots", "read", width=6 * _CELL)
    picture.text(165, y + 60, "rotary position", size=12, kind="note")
    picture.text(165, y + 77, "(the row has slots 0 to 13)", size=12, kind="note")
    slots = ("slots 6 to 9", "slots 14 to 17", "slots 18 to 21")
    for number, letters in enumerate(_DRAFTED):
        x = 165 + 6 * _CELL + number * (4 * _CELL + 12) + 8
        for place, letter in enumerate(letters):
            picture.cell(x + place * _CELL, y + 14, letter, _KINDS[letter], bold=True)
        _numbers(picture, x, y + 60, range(6, 10))
        picture.text(x + 2 * _CELL, y + 77, slots[number], size=12, kind="note", anchor="middle")
    y += 112
    picture.text(20, y, "who sees whom", kind="note")
    for key, head in enumerate(("other slots", "state 0", "state 1", "state 2")):
        picture.text(165 + 90 * key + 45, y, head, size=12, kind="note", anchor="middle")
    for query in range(3):
        at = y + 8 + 32 * query
        picture.text(20, at + 20, f"columns of state {query}", size=12, kind="note")
        for key in range(4):
            sees = key in (0, query + 1)
            text, kind = ("sees", "seen") if sees else ("", "nobody")
            picture.cell(165 + 90 * key, at, text, kind, width=88)


def _draft_tree(picture: Picture, y: int) -> None:
    title = "ARVerify(target, drafting=Tree()): a draft tree in one forward of the target"
    picture.text(20, y, title, kind="name")
    nodes = {"a": (90, 50), "b": (50, 100), "c": (130, 100), "d": (50, 150), "e": (130, 150)}
    for parent, child in ("ab", "ac", "bd", "ce"):
        (x0, y0), (x1, y1) = nodes[parent], nodes[child]
        picture.line((x0 + 15, y + y0 + _CELL), (x1 + 15, y + y1))
    picture.line((105, y + 32), (105, y + 50))
    picture.text(105, y + 28, "text", kind="note", anchor="middle")
    for name, (x, at) in nodes.items():
        picture.cell(x, y + at, name, "open")
    sees = {"a": "a", "b": "ab", "c": "ac", "d": "abd", "e": "ace"}
    left = 300
    picture.text(left - 12, y + 28, "column", size=12, kind="note", anchor="end")
    picture.text(left + 45, y + 28, "slots of the text", size=12, kind="note", anchor="middle")
    for place, name in enumerate(sees):
        x = left + 100 + place * _CELL
        picture.text(x + 15, y + 28, name, kind="mono", anchor="middle")
    for line, (name, seen) in enumerate(sees.items()):
        at = y + 36 + 32 * line
        picture.text(left - 24, at + 20, name, kind="mono", anchor="middle")
        picture.cell(left, at, "sees", "seen", width=90)
        for place, key in enumerate(sees):
            kind = "seen" if key in seen else "nobody"
            picture.cell(left + 100 + place * _CELL, at, "", kind)
    notes = (
        "A node is a column. It sees the text, its",
        "ancestors and itself. Its rotary position is",
        "the text's end plus its depth: b and c have",
        "one position, d and e the next.",
        "The walk goes on while the token that the",
        "target writes is a child of the node.",
    )
    for number, note in enumerate(notes):
        picture.text(570, y + 54 + 19 * number, note, kind="note")


def one_round() -> Picture:
    """Returns one round as data flow."""
    picture = Picture(880, 570, "One round as data flow")
    _around_the_round(picture)
    x, wide = 300, 250
    steps = (
        (24, 64, "box", "1  open_blocks", "schedule.opening(progress, last)", "for each row"),
        (120, 64, "device", "2  look", "verifier.look: forwards, then the", "view of each row"),
        (
            *(216, 81, "device", "3  decide"),
            *("schedule.chosen, sampler.step,", "schedule.completed;"),
            "left out if the verifier has decided",
        ),
        (
            329,
            64,
            "device",
            "4  settle",
            "a new canvas: given tokens stay,",
            "no [MASK] is written",
        ),
        (
            *(425, 98, "box", "5  read"),
            *("the one time that the CPU waits:", "first unsettled column, EOS, broken"),
            *("contracts; numbers of schedule,", "cache and verifier"),
        ),
    )
    labels = (
        "Opening of each row",
        "Look: View, Window",
        "Decision: commit, tokens, ...",
        "Canvas",
    )
    for number, (y, height, kind, *lines) in enumerate(steps):
        picture.box(x, y, (wide, height), lines, kind)
        if number < len(labels):
            picture.arrow((x + 60, y + height), (x + 60, y + height + 32))
            picture.text(x + 70, y + height + 21, labels[number], size=12, kind="note")
    picture.arrow((200, 206), (250, 206), (250, 56), (300, 56))
    picture.arrow((300, 474), (250, 474), (250, 254), (200, 254))
    _calls_of_a_round(picture)
    kinds = (("", "box", "on the CPU, in whole numbers"), ("", "device", "tensors on the device"))
    picture.legend(20, 528, kinds)
    return picture


def _around_the_round(picture: Picture) -> None:
    picture.box(20, 40, (180, 64), ("RequestQueue", "put and cancel between", "two rounds"))
    parts = ("rows, canvas, cache, cost,", "state of each plug-in;", "row n of each part is")
    picture.box(20, 180, (180, 98), ("State", *parts, "row n of all others"))
    picture.arrow((90, 104), (90, 180))
    picture.text(98, 146, "join, in any round", size=12, kind="note")
    picture.box(20, 380, (180, 64), ("Answered", "request, output,", "forwards so far"))
    picture.arrow((90, 278), (90, 380))
    picture.text(98, 325, "leave: ended; rows that", size=12, kind="note")
    picture.text(98, 342, "are cancelled leave too", size=12, kind="note")


def _calls_of_a_round(picture: Picture) -> None:
    left, wide = 620, 240
    picture.text(left, 30, "forward(decoder, state, Pass(...))", kind="name")
    lines = ("which columns, for each row;", "hidden: columns that are not seen")
    picture.box(left, 40, (wide, 64), ("cache.recompute(query)", *lines))
    lines = ("groups of rows, rotary positions,", "slots, who sees whom")
    picture.box(left, 136, (wide, 64), ("geometry.frames_of", *lines))
    lines = ("logits of the wanted columns;", "keys and values to their slots")
    picture.box(left, 232, (wide, 64), ("model.predict", *lines), "device")
    picture.arrow((740, 104), (740, 136))
    picture.arrow((740, 200), (740, 232))
    picture.arrow((550, 140), (590, 140), (590, 72), (620, 72))
    picture.arrow((620, 264), (590, 264), (590, 166), (550, 166))
    lines = ("StepEvent: before, after, view,", "rows, requests, cost")
    picture.box(left, 442, (wide, 64), ("observers", *lines))
    picture.arrow((550, 474), (620, 474))


PICTURES: dict[str, Callable[[], Picture]] = {
    "canvas": canvas,
    "forward": forward,
    "states": states,
    "round": one_round,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        path = Path(__file__).parent / "img" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(draw().svg(), encoding="utf-8")
