"""Refusals and faults in the shape that OpenAI's clients read."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_LOG = logging.getLogger(__name__)
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_MAX_MESSAGE = 500


class RefusedError(Exception):
    """A request that is not answered.

    Attributes:
        status: HTTP status.
        message: The rule, the value that broke it, and the remedy.
        param: The field that is wrong.
        code: A word for programs.
        headers: Further headers of the response.
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
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Returns what the client is told."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        param = None if self.param is None else writable(self.param)
        return {
            "error": {
                "message": writable(self.message)[:_MAX_MESSAGE],
                "type": _KINDS.get(self.status, kind),
                "param": param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Returns the response."""
        headers = None if self.headers is None else dict(self.headers)
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def writable(text: str) -> str:
    """Returns a text with question marks in place of what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def add_handlers(app: FastAPI) -> None:
    """Lets all errors of an app have one shape."""

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return refusal_of(error).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        where = f"{request.method} {request.url.path}"
        message = f"{error.detail}: {where}." if error.status_code in (404, 405) else error.detail
        return RefusedError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("A request ended in an error.", exc_info=error)
        return RefusedError(500, "The server failed at this request. Its log says why.").response()


def refusal_of(error: RequestValidationError) -> RefusedError:
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
