"""A page on which one question is decoded under two settings, side by side, while you watch.

    python examples/app.py                      # the embedded model, at http://127.0.0.1:8000
    python examples/app.py --model GSAI-ML/LLaDA-8B-Instruct --device cuda --gen-length 256

The server is Python's own and the page one file, so it needs nothing that is not installed anyway,
and no network: Gradio alone is 31 MB besides a web framework. Steps arrive as server-sent events,
so that a curl of `/decode?question=...` works as well.

It answers this machine only: requests from pages of other sites are refused, and so are names other
than 127.0.0.1 and localhost. Samplers and caches are those of this package, with embedded filters:
no request makes it import a module or read a file.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dllm_decode import CachePolicy, MaskPredictor, StepEvent, caches, decode, load_model
from eval.reports.templates import ASSETS
from eval.tasks import WordProblems
from samplers import ALL_SAMPLERS, Learn2PD, Sampler
from samplers.checks import require_choice
from samplers.expression import Constructors, parse_expression
from samplers.learn2pd import embedded_filters

PAGE = Path(__file__).with_name("app.html")
NAMES = ("127.0.0.1", "localhost")
"""Of this machine, in a request."""
OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` of the page itself, and of an address that the user opens."""
MAX_QUESTION = 4000
MAX_PAUSE_S = 2.0
NUM_QUESTIONS = 6

CACHES: Constructors = {
    name: kind
    for name, kind in vars(caches).items()
    if name in caches.__all__ and issubclass(kind, CachePolicy) and kind is not CachePolicy
}

Tell = Callable[[str, object], None]
"""Sends an event: its name, and what becomes JSON."""


def embedded_learn2pd(filter: str = "mini", threshold: float = 0.96) -> Learn2PD:
    """Returns the sampler with an embedded filter: a request must not name a file.

    Raises:
        ValueError: If there is no such filter.
    """
    require_choice("filter", filter, embedded_filters())
    return Learn2PD(filter, threshold)


SAMPLERS: Constructors = {
    **{kind.__name__: kind for kind in ALL_SAMPLERS}, "Learn2PD": embedded_learn2pd
}  # fmt: skip


@dataclass(frozen=True)
class Wish:
    """What one side of the page asks for.

    Attributes:
        question: The user's turn.
        sampler: Which positions are committed.
        cache: Which columns are computed.
        gen_length: Answer length in tokens.
        block_length: Tokens per block.
        pause_s: Waited after each step, so that eyes can follow.
    """

    question: str
    sampler: Sampler
    cache: CachePolicy
    gen_length: int
    block_length: int
    pause_s: float


@dataclass(frozen=True)
class Stage:
    """The model, which one decode at a time may use; they take turns after each step."""

    name: str
    model: MaskPredictor
    tokenizer: Any
    gen_length: int
    block_length: int
    max_gen_length: int
    lock: Lock = field(default_factory=Lock)

    def page(self) -> bytes:
        """Returns the page with what it must know."""
        examples = WordProblems().examples(num_examples=NUM_QUESTIONS)
        content = {
            "model": self.name,
            "gen_length": self.gen_length,
            "max_gen_length": self.max_gen_length,
            "block_length": self.block_length,
            "questions": [example.turns()[-1]["content"] for example in examples],
        }
        written = json.dumps(content).replace("<", "\\u003c")
        page = PAGE.read_text(encoding="utf-8").replace("@CONTENT@", written)
        return page.replace("@STYLE@", (ASSETS / "page.css").read_text(encoding="utf-8")).encode()

    def read(self, query: dict[str, str]) -> Wish:
        """Reads what a side asks for.

        Raises:
            ValueError: If something is missing, misspelt or too large.
        """
        question = query.get("question", "").strip()
        if not 0 < len(question) <= MAX_QUESTION:
            raise ValueError(
                f"The question must have 1 to {MAX_QUESTION} characters, got {len(question)}."
            )
        gen_length = _integer(query, "gen_length", self.gen_length, self.max_gen_length)
        most = min(self.block_length, gen_length)
        return Wish(
            question=question,
            # Not `parse`, which imports a module that an expression names.
            sampler=parse_expression(query.get("sampler", "ConfidenceThreshold(0.9)"), SAMPLERS),
            cache=parse_expression(query.get("cache", "NoCache()"), CACHES),
            gen_length=gen_length,
            block_length=_integer(query, "block_length", most, gen_length),
            pause_s=_pause(query.get("pause", "0")),
        )

    def perform(self, wish: Wish, tell: Tell) -> None:
        """Decodes, telling each step, and at the end the answer.

        Raises:
            ValueError: If sampler, cache, model and lengths do not fit together.
        """
        prompt = self._prompt(wish.question)
        watch = _Watch(self, wish.pause_s, tell)
        with self.lock:
            watch.resume()
            output = decode(
                self.model, [prompt], wish.sampler, cache=wish.cache, observers=[watch],
                gen_length=wish.gen_length, block_length=wish.block_length,
            )  # fmt: skip
            watch.pause()
        answer = output.answers()[0]
        tell("done", {
            "text": self.tokenizer.decode(answer, skip_special_tokens=True),
            "tokens": int(output.lengths()[0]),
            "forwards": int(output.nfe[0]),
            "seconds": watch.seconds_s,
        })  # fmt: skip

    def _prompt(self, question: str) -> list[int]:
        text = question
        if self.tokenizer.chat_template:
            chat = [{"role": "user", "content": question}]
            text = self.tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True
            )
        ids: list[int] = self.tokenizer.encode(
            text, add_special_tokens=not self.tokenizer.chat_template
        )
        return ids


class _Watch:
    """Tells each step and lets other decodes have the model meanwhile."""

    def __init__(self, stage: Stage, pause_s: float, tell: Tell) -> None:
        self._stage = stage
        self._pause_s = pause_s
        self._tell = tell
        self._since = 0.0
        self._num_tokens = 0
        self.seconds_s = 0.0

    def resume(self) -> None:
        self._since = time.perf_counter()

    def pause(self) -> None:
        self.seconds_s += time.perf_counter() - self._since

    def __call__(self, event: StepEvent) -> None:
        self.pause()
        before, after = event.before.answers()[0].tolist(), event.after.answers()[0].tolist()
        mask_id = self._stage.model.mask_id
        changed = [
            [position, None if new == mask_id else self._stage.tokenizer.decode([new])]
            for position, (old, new) in enumerate(zip(before, after, strict=True))
            if old != new
        ]
        told = {
            "changed": changed,
            "tokens": sum(token != mask_id for token in after),
            "forwards": event.forwards,
            "seconds": self.seconds_s,
        }
        self._stage.lock.release()
        try:
            self._tell("step", told)
            # Even without a pause the other side gets its turn.
            time.sleep(max(self._pause_s, 1e-3))
        finally:
            self._stage.lock.acquire()
        self.resume()


class Server(ThreadingHTTPServer):
    """Serves the page and decodes to this machine only."""

    daemon_threads = True

    def __init__(self, stage: Stage, port: int) -> None:
        """Binds a port; 0 is any that is free."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.stage = stage


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answers with the page, or with the steps of a decode."""
        refusal = self._refusal()
        if refusal:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", f"{refusal}\n".encode())
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.stage.page())
        elif address.path == "/decode":
            self._stream({name: last[-1] for name, last in parse_qs(address.query).items()})
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is / and /decode.\n")

    def _refusal(self) -> str:
        """Says why a request is not answered; empty if it is the user's or the page's own.

        A page of another site reaches this port too: by its number or, if the name of that site
        leads to 127.0.0.1, by that name.
        """
        port = self.server.server_port
        names = [f"{name}:{port}" for name in NAMES] + [*(NAMES if port == 80 else ())]
        host = ", ".join(self.headers.get_all("Host", []))
        if host.lower() not in names:
            return f"The host must be {' or '.join(names)}, got {host!r}; open one of these."
        for name, allowed in (("Origin", [f"http://{host}"]), ("Sec-Fetch-Site", OWN_SITES)):
            given = self.headers.get_all(name, [])
            if any(one not in allowed for one in given):
                return (
                    f"{name} must be {' or '.join(allowed)}, got {', '.join(given)!r}; "
                    "type the address into the browser."
                )
        return ""

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: every decode would be a line."""

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, query: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        stage = self.server.stage
        try:
            stage.perform(stage.read(query), self._tell)
        except (BrokenPipeError, ConnectionResetError):
            # The page was closed or asks for something else.
            return
        except (ValueError, RuntimeError) as error:
            self._tell("refused", str(error))

    def _tell(self, name: str, said: object) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(said)}\n\n".encode())


def _integer(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most}, got {text!r}.")
    return int(text)


def _pause(text: str) -> float:
    try:
        pause_s = float(text)
    except ValueError:
        pause_s = -1.0
    if not 0 <= pause_s <= MAX_PAUSE_S:
        raise ValueError(f"pause must be from 0 to {MAX_PAUSE_S} seconds, got {text!r}.")
    return pause_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Loads the model and serves until interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="mini", help="embedded name, folder or hub id (default: mini)")
    add("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    add("--port", type=int, default=8000, help="of this machine (default: 8000)")
    add("--gen-length", type=int, default=64, help="answer length in tokens (default: 64)")
    add("--block-length", type=int, default=32, help="tokens per block (default: 32)")
    add("--max-gen-length", type=int, default=512, help="that the page may ask for (default: 512)")
    options = parser.parse_args(arguments)
    try:
        model, tokenizer = load_model(options.model, device=options.device)
        if tokenizer is None:
            raise ValueError(f"Text needs a tokenizer, got none in {options.model}; add its files.")
        stage = Stage(
            options.model, model, tokenizer, gen_length=options.gen_length,
            block_length=options.block_length, max_gen_length=options.max_gen_length,
        )  # fmt: skip
        with Server(stage, options.port) as server:
            print(f"Open http://127.0.0.1:{server.server_port} (Ctrl-C ends it).", flush=True)
            server.serve_forever()
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
