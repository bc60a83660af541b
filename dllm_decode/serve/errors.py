"""Refusals and faults in the shape that OpenAI's clients read."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_LOG = logging.getLogger(__name__)
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_MAX_MESSAGE = 500


class RefusedError(HTTPException):
    """A request that is not answered.

    Attributes:
        param: The field that is wrong.
        code: A word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the status, and a message with the rule, the value that broke it and the remedy."""
        super().__init__(status, message, headers)
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Returns the JSON that the client is sent."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": writable(self.detail)[:_MAX_MESSAGE],
                "type": _KINDS.get(self.status_code, kind),
                "param": None if self.param is None else writable(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Returns the response."""
        headers = None if self.headers is None else dict(self.headers)
        return JSONResponse(self.body(), status_code=self.status_code, headers=headers)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns a ValueError of the engine into a refusal with its message."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


def writable(text: str) -> str:
    """Returns a text with question marks in place of what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


async def respond(request: Request, error: Exception) -> JSONResponse:
    """Answers a request that has ended in an error."""
    if isinstance(error, RequestValidationError):
        error = _refusal_of(error)
    elif not isinstance(error, HTTPException):
        _LOG.error("A request ended in an error.", exc_info=error)
        error = RefusedError(500, "The server failed at this request. Its log says why.")
    elif not isinstance(error, RefusedError):
        where = f": {request.method} {request.url.path}." if error.status_code in (404, 405) else ""
        error = RefusedError(error.status_code, f"{error.detail}{where}", headers=error.headers)
    return error.response()


def add_handlers(app: FastAPI) -> None:
    """Lets all errors of an app have one shape."""
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, respond)


def _refusal_of(error: RequestValidationError) -> RefusedError:
    """Returns the refusal that names the first wrong field."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]
    if first["type"] == "json_invalid":
        return RefusedError(400, "The body must be JSON, and cannot be read as such.")
    if not place:
        return RefusedError(400, "The body must be a JSON object, sent as application/json.")
    field = ".".join(place)
    if first["type"] == "extra_forbidden":
        message = f"{field!r} is not a field of this request, or not supported here."
        return RefusedError(400, message, param=field, code="unknown_parameter")
    said = first["msg"].removeprefix("Value error, ")
    return RefusedError(400, f"{field!r}: {said}", param=field)
