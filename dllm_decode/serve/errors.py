"""Refusals and faults in the shape that OpenAI's clients read."""

import json
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
# Pydantic lists members of unions, such as "list[str]" and these types of items, as if they were
# fields.
_ITEMS = {"message", "reasoning", "function_call", "function_call_output"}
_MAX_MESSAGE = 500
_MAX_VALUE = 80
# The rule that a field breaks, by pydantic's name of the error.
_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "must be given",
    "model_attributes_type": "must be an object",
    "string_too_short": "must have a length of at least {min_length}",
    "string_type": "must be a text",
    "too_long": "must have a length of at most {max_length}",
    "too_short": "must have a length of at least {min_length}",
    "union_tag_invalid": "must be of the type {expected_tags}, got {tag!r}",
    "value_error": "{error}",
}


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
                "message": writable_text(self.detail)[:_MAX_MESSAGE],
                "type": _KINDS.get(self.status_code, kind),
                "param": None if self.param is None else writable_text(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Returns the response."""
        return JSONResponse(self.body(), status_code=self.status_code, headers=self.headers)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns a ValueError of the engine into a refusal with its message."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


def writable_text(text: str) -> str:
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
    """Gives all errors of an app the same shape."""
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, respond)


def _refusal_of(error: RequestValidationError) -> RefusedError:
    """Returns the refusal that names the first wrong field."""
    first = error.errors()[0]
    name, *inside = [str(part) for part in first["loc"][1:]] or [""]
    field = ".".join([name, *(part for part in inside if "[" not in part and part not in _ITEMS)])
    kind, value = first["type"], first["input"]
    if kind == "json_invalid":
        return RefusedError(400, "The body must be JSON, and cannot be read as such.")
    if not field:
        return RefusedError(400, "The body must be a JSON object, sent as application/json.")
    if kind == "extra_forbidden":
        message = f"{field!r} is not a field of this request, or not supported here."
        return RefusedError(400, message, param=field, code="unknown_parameter")
    rule = _RULES.get(kind, "is wrong").format(**first.get("ctx", {}))
    is_long = isinstance(value, dict | list)
    got = "" if is_long else f", got {json.dumps(value)[:_MAX_VALUE]}"
    return RefusedError(400, f"{field!r} {rule}{got}.", param=field)
