"""The page at /, on which people chat with the model and watch its answers being decoded."""

from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import Response

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
"""By path the file and its kind. The files hold no secret: they need no key."""

_HEADERS = {
    # Scripts set colors of single nodes, which needs no 'unsafe-inline'.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Adds the routes of the page."""
    folder = files("dllm_decode.serve") / "page"
    for path, (name, kind) in PAGE.items():
        _add(app, path, (folder / name).read_bytes(), kind)


def _add(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path)
    async def page() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)
