"""A picture as SVG: shapes in the order in which they are drawn, in light and dark colours."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

CELL = 30
IMAGES = Path(__file__).parent / "img"
# By kind of text the class of its colour and face, its size, and what x is.
_TEXTS = {
    "plain": ("", 13, "start"),
    "name": ("name", 13, "start"),
    "note": ("note", 13, "start"),
    "left of": ("note", 12, "end"),
    "around": ("note", 12, "middle"),
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
            f'<rect {size} rx="8" class="paper"/>',
        ]

    def svg(self) -> str:
        """Returns the picture as a file; its colours follow the reader's light or dark mode."""
        return "\n".join([*self._parts, "</svg>\n"])

    def text(self, x: float, y: float, kind: str, text: str) -> None:
        """Writes a line of text; y is its base line."""
        name, size, anchor = _TEXTS[kind]
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" '
            f'text-anchor="{anchor}" class="{name}">{escape(text)}</text>'
        )

    def cell(self, x: float, y: float, text: str, kind: str, width: float = CELL) -> None:
        """Draws a square with a short text in it."""
        size = f'width="{width - 1:g}" height="{CELL - 1}"'
        self._parts.append(f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {size} class="{kind}"/>')
        self.text(x + width / 2, y + 20, "mono", text)

    def square(self, x: float, y: float, size: float, kind: str) -> None:
        """Draws a small square without a text."""
        inner = f'width="{size - 1:g}" height="{size - 1:g}"'
        self._parts.append(f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {inner} class="{kind}"/>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """Explains kinds of cells, in one line."""
        for letter, kind, meaning in entries:
            self.cell(x, y, letter, kind)
            self.text(x + CELL + 7, y + 20, "plain", meaning)
            x += CELL + 22 + 7 * len(meaning)
