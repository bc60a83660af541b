"""A picture as SVG: shapes in the order in which they are drawn, in light and dark colours."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

CELL = 30
IMAGES = Path(__file__).parent / "img"
_KINDS = {"p": "prompt", "s": "settled", "M": "open", "m": "later", ".": "nobody"}
# By kind of text the class of its colour and face, its size, and what x is.
_TEXTS = {
    "plain": ("", 13, "start"),
    "name": ("name", 13, "start"),
    "note": ("note", 13, "start"),
    "small": ("note", 12, "start"),
    "left of": ("note", 12, "end"),
    "around": ("note", 12, "middle"),
    "around, large": ("note", 13, "middle"),
    "mono": ("mono", 13, "middle"),
}


class Picture:
    """Shapes of one picture, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'width="{width}" height="{height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{(IMAGES / 'pictures.css').read_text(encoding='utf-8')}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect {size} rx="8" class="paper"/>',
        ]

    def svg(self) -> str:
        """Returns the picture as a file; its colours follow the reader's light or dark mode."""
        return "\n".join([*self._parts, "</svg>\n"])

    def text(self, x: float, y: float, kind: str, *lines: str, step: int = 17) -> None:
        """Writes some lines; y is the base line of the first."""
        name, size, anchor = _TEXTS[kind]
        for number, line in enumerate(lines):
            self._parts.append(
                f'<text x="{x:g}" y="{y + step * number:g}" font-size="{size}" '
                f'text-anchor="{anchor}" class="{name}">{escape(line)}</text>'
            )

    def cell(self, x: float, y: float, text: str, kind: str, width: float = CELL) -> None:
        """Draws a square with a short text in it; a bold one is computed."""
        inset = 2 if kind.endswith("bold") else 0.5
        self._parts.append(
            f'<rect x="{x + inset:g}" y="{y + inset:g}" width="{width - 2 * inset:g}" '
            f'height="{CELL - 2 * inset:g}" class="{kind}"/>'
        )
        self.text(x + width / 2, y + 20, "mono", text)

    def square(self, x: float, y: float, size: float, kind: str) -> None:
        """Draws a small square without a text."""
        inner = f'width="{size - 1:g}" height="{size - 1:g}"'
        self._parts.append(f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {inner} class="{kind}"/>')

    def box(self, x: float, y: float, width: float, kind: str, *lines: str) -> None:
        """Draws a box whose first line is its name."""
        size = f'width="{width:g}" height="{13 + 17 * len(lines):g}"'
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" {size} rx="6" class="{kind}"/>')
        self.text(x + 10, y + 20, "name", lines[0])
        self.text(x + 10, y + 37, "small", *lines[1:])

    def line(self, *points: tuple[float, float], end: str = "") -> None:
        """Draws a line along some points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="line"{end}/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draws an arrow along some points."""
        self.line(*points, end=' marker-end="url(#head)"')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """Explains kinds of cells, in one line."""
        for letter, kind, meaning in entries:
            self.cell(x, y, letter, kind)
            self.text(x + CELL + 7, y + 20, "plain", meaning)
            x += CELL + 22 + 7 * len(meaning)

    def row(self, x: float, y: float, letters: str, computed: range = range(0)) -> None:
        """Draws the columns of one row; `computed` ones have a bold outline."""
        for column, letter in enumerate(letters):
            kind = _KINDS[letter] + " bold" * (column in computed)
            self.cell(x + column * CELL, y, letter, kind)

    def numbers(self, x: float, y: float, numbers: Sequence[int]) -> None:
        """Numbers some cells."""
        for place, number in enumerate(numbers):
            self.text(x + (place + 0.5) * CELL, y, "around", str(number))
