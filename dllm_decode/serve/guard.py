"""Looks at each request before it is read: its host, its key and its size."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, TypeAlias

from dllm_decode.serve.errors import RefusedError

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Refuses requests of wrong hosts, without the key, or too large."""

    def __init__(
        self,
        app: App,
        *,
        max_body_bytes: int,
        body_s: float,
        api_key: str | None,
        is_local: bool,
        open_paths: Collection[str],
    ) -> None:
        """Wraps an app.

        Args:
            app: Gets the requests that are not refused.
            max_body_bytes: Size of a body, at most.
            body_s: Seconds in which a body must come.
            api_key: The token of `Authorization: Bearer`; `None`: no token.
            is_local: Refuse names other than those of this machine, so that a web page cannot
                reach the server through a name of its own.
            open_paths: Paths that need no token.
        """
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_s = body_s
        self._api_key = api_key
        self._is_local = is_local
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if refusal is None:
            body = await self._body(receive)
            if body is None:
                return
            if isinstance(body, bytes):
                await self._app(scope, _given(body, receive), send)
                return
            refusal = body
        await refusal.response()(scope, receive, send)

    def _refusal(self, path: str, headers: dict[str, bytes]) -> RefusedError | None:
        name = headers.get("host", b"").decode("latin-1")
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        if self._is_local and name not in _OWN_NAMES:
            return RefusedError(
                400, "The server answers requests to this machine's own names only."
            )
        if self._api_key is not None and path not in self._open_paths:
            said = headers.get("authorization", b"")
            if not hmac.compare_digest(said, b"Bearer " + self._api_key.encode()):
                message = "The request must have the API key of this server as its bearer token."
                return RefusedError(401, message, code="invalid_api_key")
        length = headers.get("content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"The body must have at most {self._max_body_bytes} bytes.")

    async def _body(self, receive: Receive) -> bytes | RefusedError | None:
        """Returns the body, or a refusal; `None` if the client is gone."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_s):
                while len(body) <= self._max_body_bytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            return RefusedError(408, "The body of the request came too slowly.")
        return self._too_large() if len(body) > self._max_body_bytes else bytes(body)


def _given(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that first gives a body that was read."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
