"""The routes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dllm_decode.serve import weights
from dllm_decode.serve.answer_forms import form_of
from dllm_decode.serve.choices import choices_of, prompts_of
from dllm_decode.serve.documentation import documentation
from dllm_decode.serve.errors import RefusedError, add_handlers
from dllm_decode.serve.exchange import Exchange
from dllm_decode.serve.guard import Guard
from dllm_decode.serve.lanes import ENDING
from dllm_decode.serve.log import RequestLog
from dllm_decode.serve.request_fields import Chat, Completion, Weights
from dllm_decode.serve.request_parts import Json
from dllm_decode.serve.responses import ItemExchange, ResponseFields, own_names
from dllm_decode.serve.service import Channel, Service

T = TypeVar("T")

# A forward that takes longer than this is taken for a hang.
_LATE_S = 60.0
# The status if the client is gone; nobody reads it.
_HUNG_UP = 499
# Files of the page on which people chat with the model. They hold no secret.
_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_PAGE_HEADERS = {
    # Scripts set colors of single nodes, which needs no 'unsafe-inline'.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def create_app(
    service: Service,
    *,
    api_key: str | None = None,
    is_local: bool = True,
    weights_root: Path | None = None,
) -> ASGIApp:
    """Returns the server as an ASGI app. The lanes end with the app.

    Args:
        service: The model.
        api_key: The bearer token that clients must send; `None`: clients need none.
        is_local: True if requests must name this machine as their host.
        weights_root: Clients with the key may replace the weights by the weights of folders
            below this one; `None`: nobody may.

    Raises:
        ValueError: If `weights_root` is given without `api_key`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.compiler.close()
        service.runner.close()

    app = FastAPI(
        title="dllm_decode", lifespan=lifespan, docs_url=None, redoc_url=None,
        # Without this, FastAPI lists its own shape of errors.
        responses={"4XX": {"description": "A refusal; `error.param` names the field."}},
    )  # fmt: skip
    add_handlers(app)
    _add_state(app, service)
    _add_answers(app, service)
    if weights_root is not None:
        require_key(api_key)
        _add_weights(app, service, weights_root)
    _add_pages(app)
    # Anyone may see the pages and whether the server is well, also without the key.
    guarded = Guard(
        app, service.limits.deadline_s, api_key=api_key, is_local=is_local,
        open_paths=("/health", "/docs", "/openapi.json", *_PAGE),
    )  # fmt: skip
    return RequestLog(guarded, service)


def require_key(api_key: str | None) -> None:
    """Raises ValueError without a key, which guards the weights."""
    if not api_key:
        raise ValueError(
            "weights_root (--weights-root) lets clients replace the weights and must come with an "
            "api_key (--api-key), got none."
        )


def _add_pages(app: FastAPI) -> None:
    def add(path: str, content: bytes, kind: str) -> None:
        @app.get(path, include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=f"{kind}; charset=utf-8", headers=_PAGE_HEADERS)

    folder = files("dllm_decode.serve") / "page"
    for path, (name, kind) in _PAGE.items():
        add(path, (folder / name).read_bytes(), kind)
    add("/docs", documentation(app.openapi()).encode(), "text/html")


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Says whether the server is well: 200 or 503."""
        runner = service.runner
        is_well = not runner.is_broken and runner.round_s() < _LATE_S
        body = {
            "status": "ok" if is_well else "failing",
            "running": runner.num_running,
            "waiting": runner.num_waiting,
        }
        return JSONResponse(body, status_code=200 if is_well else 503)

    def description() -> Json:
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "dllm_decode",
            "max_model_len": service.max_length,
            "samplers": service.samplers,
            # Without their arguments, which may be paths of this machine.
            **{name: type(plugin).__name__ for name, plugin in service.chosen_plugins.items()},
        }

    @app.get("/v1/models")
    async def models() -> Json:
        """Lists the model."""
        return {"object": "list", "data": [description()]}

    # Names of models on the hub have a slash.
    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Json:
        """Describes the model."""
        service.check_model(name)
        return description()

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def completions(asked: Completion, request: Request) -> Response:
        """Goes on with texts or token ids."""
        exchange = await _begin(service, asked, request)
        return await _answer(exchange, exchange, request)

    @app.post("/v1/chat/completions")
    async def chat(asked: Chat, request: Request) -> Response:
        """Answers a chat."""
        exchange = await _begin(service, asked, request)
        return await _answer(exchange, exchange, request)

    @app.post("/v1/responses")
    async def responses(asked: ResponseFields, request: Request) -> Response:
        """Answers a chat, whose messages, calls and results are items."""
        with own_names():
            exchange = await _begin(service, asked.as_chat(), request)
            return await _answer(exchange, ItemExchange(asked, exchange), request)


def _add_weights(app: FastAPI, service: Service, root: Path) -> None:
    @app.post("/v1/weights")
    async def change(asked: Weights, request: Request) -> Json:
        """Replaces all weights of the model, or none."""
        service.check_model(asked.model)
        channel = service.channel(service.lane(None), _client_of(request))
        return await weights.replace(service, root, asked, channel)


async def _begin(service: Service, asked: Completion | Chat, request: Request) -> Exchange:
    """Lets the answers of a request wait for rows.

    Raises:
        RefusedError: If the request is refused, or the client is gone.
    """
    service.check_model(asked.model)
    channel = service.channel(service.lane(asked.sampler), _client_of(request))
    prompts = prompts_of(service, asked)
    form, automaton = form_of(asked), None
    if form is not None:
        compiling = service.compiler.compile(form, client=channel.client)
        automaton = await _unless_gone(request, channel.within(compiling))
    choices = choices_of(service, asked, prompts, channel, automaton)
    request.scope["choices"] = choices
    exchange = Exchange(service, asked, channel, choices, sum(map(len, prompts)))
    channel.submit([choice.job for choice in choices])
    return exchange


async def _answer(
    exchange: Exchange, shaped: Exchange | ItemExchange, request: Request
) -> Response:
    """Returns the response of an exchange, in the shape that the client asks for."""
    if exchange.asked.stream:
        return _EventStream(exchange.channel, shaped.stream())
    try:
        return JSONResponse(await _unless_gone(request, shaped.whole()))
    finally:
        exchange.channel.cancel()


def _client_of(request: Request) -> str:
    """Returns a name of the client: its address, with the key that it sends."""
    address = "" if request.client is None else request.client.host
    return f"{address} {request.headers.get('authorization', '')}"


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Waits for some work, and ends the work if the client goes away first.

    Raises:
        RefusedError: If the client is gone, or the server ends.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_hang_up(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    except asyncio.CancelledError:
        # At the end of the grace, uvicorn cancels the requests that still run.
        raise RefusedError(503, ENDING) from None
    finally:
        leaving.cancel()
        working.cancel()
    raise RefusedError(_HUNG_UP, "The client is gone.")


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """A stream that cancels its jobs whenever it ends, even before the first chunk."""

    def __init__(self, channel: Channel, events: AsyncIterator[str]) -> None:
        """Streams events of the jobs of a channel."""
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._channel = channel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._channel.cancel()
