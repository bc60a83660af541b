"""Measures the server: python -m benchmarks.serve.

A server in a process of its own answers the questions of a world: to clients that send their next
question when they have the answer to the last one (a closed loop), and to questions that come at
random times (an open loop). In turn with them, `decode_many` answers the same questions in this
process, with as many threads.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import httpx2
import psutil
import torch

from benchmarks.frame import Row, median_of, read_options, report
from benchmarks.worlds import MODELS, World, open_world
from dllm_decode import decode_many
from dllm_decode.cli.plugins import parse_cache
from dllm_decode.launch import run_main
from samplers import parse

SETTINGS = {"word_problems": (64, "NoCache()"), "ledgers": (192, "FreeCache()")}
"""By task the tokens of an answer and the cache."""
OPTIONS = {
    "task": (tuple(SETTINGS), "the worlds"),
    "limit": (200, "questions"),
    "rows": (16, "rows of a batch"),
    "sampler": ("ConfidenceThreshold(0.9)", "the sampler"),
    "clients": ([1, 4, 16, 64], "closed loop: clients at a time"),
    "loads": ([0.25, 0.5, 0.75], "open loop: questions/s, as shares of those of decode_many"),
    "rounds": (3, "times that all of it is measured, in turn"),
    "threads": (1, "of the server, and of decode_many"),
}
Ask: TypeAlias = Callable[[int], Awaitable[None]]
"""Asks one question, and waits for the answer."""


class TimedReply(NamedTuple):
    """An answer, the seconds from the question to each of its chunks, and its number of tokens."""

    text: str
    chunks_s: list[float]
    num_tokens: int


class Served(NamedTuple):
    """A server: its address and its process."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Returns the seconds of the processor that the server has taken so far."""
        found = self.process.cpu_times()
        return float(found.user + found.system)


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.serve", __doc__ or "", OPTIONS, words)
    torch.set_num_threads(options.threads)
    rows = []
    for task in options.task:
        world = open_world(task, options.limit)
        few = world._replace(examples=world.examples[:8])
        with served(task, options) as server:
            asyncio.run(asked(server, few, partial(closed, 4)))
            rounds = [measured(server, world, options) for _ in range(options.rounds)]
        for name in rounds[0]:
            rows.append({"": f"{MODELS[task]}, {name}", **spread([one[name] for one in rounds])})
    title = f"{options.limit} questions, {options.rows} rows, {options.threads} threads"
    report(f"{title}, median [least, greatest] of {options.rounds}", rows, options)


def measured(server: Served, world: World, options: Any) -> dict[str, Row]:
    """Measures everything once."""
    plain = decoded(world, options)
    found = {"decode_many": plain}
    paces = {f"{clients} clients": partial(closed, clients) for clients in options.clients}
    for load in options.loads:
        paces[f"load {load:g}"] = partial(opened, load * plain["requests/s"])
    for name, pace in paces.items():
        found[name] = asyncio.run(asked(server, world, pace))
    for row in found.values():
        row["of decode_many"] = row["tokens/s"] / plain["tokens/s"]
    return found


def spread(rows: Sequence[Row]) -> Row:
    """Returns the median of each figure of some rounds, and its range."""
    values = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: median_of(own) for name, own in values.items()}


@contextmanager
def served(task: str, options: Any) -> Iterator[Served]:
    """Yields a server in a process of its own."""
    _, cache = SETTINGS[task]
    command = [sys.executable, "-m", "dllm_decode", "serve", "--port", "0", "--cache", cache]
    command += ["--model", MODELS[task], "--sampler", options.sampler]
    command += ["--threads", str(options.threads)]
    process = subprocess.Popen(
        [*command, "--num-rows", str(options.rows)], stderr=subprocess.PIPE, text=True,
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


async def asked(server: Served, world: World, pace: Callable[[Ask, int], Awaitable[None]]) -> Row:
    """Asks all questions at the pace of a loop."""
    gen_length, _ = SETTINGS[world.task.name]
    replies: dict[int, TimedReply] = {}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=server.url, timeout=120.0, limits=limits) as client:

        async def ask(number: int) -> None:
            prompt = world.examples[number].prompt
            replies[number] = await _reply(client, str(prompt), gen_length)

        # The server listens a moment after it has said so.
        for _ in range(100):
            try:
                await client.get("/health")
                break
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
        began_s, began_cpu_s = time.perf_counter(), server.cpu_s()
        await pace(ask, len(world.examples))
        spent = time.perf_counter() - began_s, server.cpu_s() - began_cpu_s
    found = [replies[number] for number in range(len(replies))]
    num_tokens = sum(one.num_tokens for one in found)
    row = _row(world, [one.text for one in found], num_tokens, *spent)
    gaps_s = [after - before for one in found for before, after in pairwise(one.chunks_s)]
    return {
        **row,
        **_quantiles("first chunk, ms", [one.chunks_s[0] for one in found]),
        **_quantiles("between chunks, ms", gaps_s or [0.0]),
        "tokens/chunk": num_tokens / sum(len(one.chunks_s) for one in found),
    }


async def closed(num_clients: int, ask: Ask, count: int) -> None:
    """Lets each client ask its next question when it has an answer."""
    waiting = iter(range(count))

    async def client() -> None:
        for number in waiting:
            await ask(number)

    await asyncio.gather(*(client() for _ in range(num_clients)))


async def opened(rate: float, ask: Ask, count: int) -> None:
    """Asks at random times, `rate` questions a second on average."""
    draws, asking = random.Random(0), []
    for number in range(count):
        asking.append(asyncio.ensure_future(ask(number)))
        await asyncio.sleep(draws.expovariate(rate))
    await asyncio.gather(*asking)


async def _reply(client: Any, prompt: str, gen_length: int) -> TimedReply:
    body = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": gen_length, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began_s, chunks_s, num_tokens, text = time.perf_counter(), [], 0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"The server answered {response.status_code}.")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if not chunk["choices"]:
                num_tokens += chunk["usage"]["completion_tokens"]
                continue
            chunks_s.append(time.perf_counter() - began_s)
            text += chunk["choices"][0]["delta"]["content"]
    return TimedReply(text, chunks_s, num_tokens)


def _quantiles(name: str, values_s: Sequence[float]) -> Row:
    found = 1000 * torch.tensor(values_s, dtype=torch.float64)
    return {f"{name}, p{share}": float(found.quantile(share / 100)) for share in (50, 99)}


def decoded(world: World, options: Any) -> Row:
    """Answers the questions without a server."""
    gen_length, cache = SETTINGS[world.task.name]

    def answers(prompts: Sequence[list[int]]) -> list[list[int]]:
        outputs = decode_many(
            world.model, prompts, parse(options.sampler), num_rows=options.rows,
            cache=parse_cache(cache), gen_length=gen_length,
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    answers(world.prompts[:8])
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = answers(world.prompts)
    spent = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    texts = [world.tokenizer.decode(one, skip_special_tokens=True) for one in found]
    return _row(world, texts, sum(map(len, found)), *spent)


def _row(world: World, texts: list[str], num_tokens: int, wall_s: float, cpu_s: float) -> Row:
    return {
        "requests/s": len(texts) / wall_s,
        "tokens/s": num_tokens / wall_s,
        "tokens/CPU s": num_tokens / cpu_s,
        "right": sum(world.scores(texts)) / len(texts),
    }


if __name__ == "__main__":
    run_main(main)
