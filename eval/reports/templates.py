"""Puts numbers into the pages of `assets`: each page is one file that needs no network."""

import html
import json
from pathlib import Path

ASSETS = Path(__file__).with_name("assets")


def fill(name: str, *, title: str, content: object) -> str:
    """Returns the page `assets/<name>.html` with styles, the script `<name>.js` and its content.

    The script reads the content as JSON; the title is shown by the browser window.
    """
    written = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    parts = {
        "@TITLE@": html.escape(title),
        "@STYLE@": asset("page.css"),
        # Without any `<` no text can end the script element, or keep the element from ending.
        "@CONTENT@": written.replace("<", "\\u003c"),
        "@SCRIPT@": asset("common.js") + asset(f"{name}.js"),
    }
    page = asset(f"{name}.html")
    # Split first, so that placeholders within inserted texts are not replaced.
    for mark in parts:
        page = page.replace(mark, f"\0{mark}\0")
    return "".join(parts.get(piece, piece) for piece in page.split("\0"))


def asset(name: str) -> str:
    """Returns a file of `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")
