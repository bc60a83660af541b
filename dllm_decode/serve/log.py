"""The log: a line for each request."""

import logging
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dllm_decode.serve.service import Service

LOG = logging.getLogger(__name__)
_MAX_PATH = 200


class RequestLog:
    """Logs the requests of an app without their content, and counts responses by path and status.

    A route may name the answers of a request in `scope["choices"]`, whose tokens are then logged.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Takes the app, and the service whose counters are increased."""
        self._app = app
        self._responses = service.metrics.responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = 0, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Paths without a route would let clients make any number of counters.
                route = scope.get("route")
                path = "other" if route is None else route.path
                self._responses.labels(path, str(status)).inc()
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._log(scope, status, time.perf_counter() - began_s)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        client, choices = scope.get("client"), scope.get("choices")
        tokens = "" if choices is None else f" {sum(choice.num_sent for choice in choices)} tokens"
        # Quoted, so that a path cannot write lines of its own.
        path = quote(scope["path"][:_MAX_PATH])
        host = client[0] if client else "-"
        LOG.info("%s %s %s %d%s %.3f s", host, scope["method"], path, status, tokens, seconds)
