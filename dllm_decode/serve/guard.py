"""Checks each request before the app gets it: host, key, and the body while it arrives."""

import asyncio
import hmac
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dllm_decode.serve.errors import RefusedError

_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY_BYTES = 2**20


@dataclass(frozen=True)
class Guard:
    """Refuses requests of wrong hosts, without the key, too large or too slow.

    Attributes:
        app: Gets the requests that are not refused.
        deadline_s: Seconds in which the body of a request must come.
        api_key: The token of `Authorization: Bearer`; `None`: no token.
        is_local: Refuse names other than those of this machine, so that a web page cannot
            reach the server through a name of its own.
        open_paths: Paths that need no token.
    """

    app: ASGIApp
    deadline_s: float
    api_key: str | None
    is_local: bool
    open_paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope["path"], Headers(scope=scope))
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
            receive = self._bounded(receive)
        await self.app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> RefusedError | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.is_local and name not in _OWN_NAMES:
            return RefusedError(
                400, "The server answers requests to this machine's own names only."
            )
        if self.api_key is not None and path not in self.open_paths:
            credentials = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(credentials, b"Bearer " + self.api_key.encode()):
                message = "The request must have the API key of this server as its bearer token."
                return RefusedError(401, message, code="invalid_api_key")
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """Returns a `receive` that raises a refusal if a body is too large or comes too slowly."""
        until: float | None = asyncio.get_running_loop().time() + self.deadline_s
        num_bytes = 0

        async def bounded() -> Message:
            nonlocal num_bytes, until
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise RefusedError(408, "The body of the request came too slowly.") from None
            num_bytes += len(message.get("body", b""))
            if num_bytes > _MAX_BODY_BYTES:
                raise RefusedError(413, f"The body must have at most {_MAX_BODY_BYTES} bytes.")
            # The app goes on receiving, until the client hangs up.
            until = until if message.get("more_body", False) else None
            return message

        return bounded
