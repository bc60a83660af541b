"""Measures the server: python -m benchmarks.serve.

A server in a process of its own answers clients that send their next question when they have the
answer to the last one. Beside it, `decode_many` answers the same questions in this process.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple

import httpx2
import psutil
from rich.console import Console
from rich.table import Table

from dllm_decode import decode_many, load_model
from dllm_decode.launch import run_main
from eval.runs.names import parse_cache, parse_task
from eval.runs.prompts import encode_prompt
from samplers import parse


class World(NamedTuple):
    """An embedded model and the lengths of its answers."""

    model: str
    gen_length: int
    cache: str


WORLDS = {
    "word_problems": World("mini", 64, "NoCache()"),
    "ledgers": World("mini-long", 192, "FreeCache()"),
}


class Served(NamedTuple):
    """A server: its address and its process."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Returns the seconds of the processor that it has taken so far."""
        found = self.process.cpu_times()
        return float(found.user + found.system)


@dataclass
class Figures:
    """The answers that some clients got, and their cost.

    Attributes:
        seconds: From the first request to the last answer.
        texts: By number of the question its answer.
        cpu_s: Seconds of the processor that the decoding process took for them.
        num_tokens: Tokens of all answers.
        first_s: Seconds to the first chunk of each answer.
    """

    seconds: float = 0.0
    texts: dict[int, str] = field(default_factory=dict)
    num_tokens: int = 0
    cpu_s: float = 0.0
    first_s: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    world = WORLDS[options.task]
    selection = parse_task(f"{options.task}?split=test&limit={options.limit}")
    examples = list(selection.examples())
    model, tokenizer = load_model(world.model)
    prompts = [encode_prompt(tokenizer, one, chat=True) for one in examples]
    found = {}
    with served(world, options.rows, options.sampler) as server:
        asyncio.run(ask_all(server, examples[:8], 4, world.gen_length))
        for clients in options.clients:
            found[f"{clients} clients"] = asyncio.run(
                ask_all(server, examples, clients, world.gen_length)
            )
    found["decode_many"] = decoded(model, tokenizer, prompts, world, options)
    table = Table(title=f"{world.model}, {len(examples)} questions, {options.rows} rows")
    for name in ("", "requests/s", "tokens/s", "tokens/CPU s", "first chunk p50", "p99", "right"):
        table.add_column(name, justify="right")
    for name, figures in found.items():
        table.add_row(name, *row_of(figures, selection.task, examples))
    Console(width=100).print(table)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--task", choices=list(WORLDS), default="word_problems")
    parser.add_argument("--limit", type=int, default=200, help="questions (default: 200)")
    parser.add_argument("--rows", type=int, default=16, help="rows of a batch (default: 16)")
    parser.add_argument("--sampler", default="ConfidenceThreshold(0.9)", metavar="EXPR")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[1, 4, 16], help="at a time (default: 1 4 16)"
    )
    return parser


def row_of(figures: Figures, task: Any, examples: Sequence[Any]) -> list[str]:
    """Returns the cells of one row of the table."""
    right = sum(
        task.score(example, figures.texts[number])["answer"]
        for number, example in enumerate(examples)
    )
    first = figures.first_s
    late = quantiles(first, n=100)[98] if len(first) > 1 else 0.0
    return [
        f"{len(examples) / figures.seconds:.1f}",
        f"{figures.num_tokens / figures.seconds:.0f}",
        f"{figures.num_tokens / figures.cpu_s:.0f}",
        f"{1000 * median(first):.0f} ms" if first else "",
        f"{1000 * late:.0f} ms" if first else "",
        f"{right / len(examples):.3f}",
    ]


@contextmanager
def served(world: World, num_rows: int, sampler: str) -> Iterator["Served"]:
    """Yields a server in a process of its own."""
    words = ["--model", world.model, "--cache", world.cache, "--sampler", sampler]
    command = [sys.executable, "-m", "eval.cli", "serve", "--port", "0", *words]
    process = subprocess.Popen(
        [*command, "--num-rows", str(num_rows)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        while not (match := re.search(r"Listening at (http://\S+),", said)):
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"The server did not start: {said}")
            said += line
        yield Served(match[1], psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(60.0)
        process.stderr.close()


async def ask_all(
    server: Served, examples: Sequence[Any], num_clients: int, gen_length: int
) -> Figures:  # fmt: skip
    """Lets some clients ask all questions, each its next one when it has an answer."""
    figures, waiting = Figures(), iter(enumerate(examples))
    async with httpx2.AsyncClient(base_url=server.url, timeout=120.0) as client:

        async def ask_some() -> None:
            for number, example in waiting:
                await _ask(client, number, example.prompt, gen_length, figures)

        # The server listens a moment after it has said so.
        for _ in range(100):
            try:
                await client.get("/health")
                break
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
        began_s, began_cpu_s = time.perf_counter(), server.cpu_s()
        await asyncio.gather(*(ask_some() for _ in range(num_clients)))
        figures.seconds = time.perf_counter() - began_s
        figures.cpu_s = server.cpu_s() - began_cpu_s
    return figures


async def _ask(client: Any, number: int, prompt: str, gen_length: int, figures: Figures) -> None:
    body = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": gen_length, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began_s, text = time.perf_counter(), ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"The server answered {response.status_code}.")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if not chunk["choices"]:
                figures.num_tokens += chunk["usage"]["completion_tokens"]
                continue
            if not text:
                figures.first_s.append(time.perf_counter() - began_s)
            text += chunk["choices"][0]["delta"]["content"]
    figures.texts[number] = text


def decoded(
    model: Any, tokenizer: Any, prompts: Sequence[Any], world: World, options: argparse.Namespace
) -> Figures:
    """Answers the prompts without a server."""
    figures = Figures()

    def answers(some: Sequence[Any]) -> list[list[int]]:
        outputs = decode_many(
            model, some, parse(options.sampler), num_rows=options.rows,
            cache=parse_cache(world.cache), gen_length=world.gen_length,
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    answers(prompts[:8])
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = answers(prompts)
    figures.seconds = time.perf_counter() - began_s
    figures.cpu_s = time.process_time() - began_cpu_s
    figures.num_tokens = sum(len(answer) for answer in found)
    figures.texts = {
        number: tokenizer.decode(answer, skip_special_tokens=True)
        for number, answer in enumerate(found)
    }
    return figures


if __name__ == "__main__":
    run_main(main)
