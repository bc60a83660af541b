"""Measures the server: python -m benchmarks.serve.

A server in a process of its own answers clients that send their next question when they have the
answer to the last one. Next to it, `decode_many` answers the same questions in this process.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2
import psutil
import torch

from benchmarks.frame import Row, read_options, report
from benchmarks.worlds import MODELS, World, open_world
from dllm_decode import decode_many
from dllm_decode.launch import run_main
from eval.runs.plugins import parse_cache
from samplers import parse

SETTINGS = {"word_problems": (64, "NoCache()"), "ledgers": (192, "FreeCache()")}
"""By task the tokens of an answer and the cache."""
OPTIONS = {
    "task": (SETTINGS, "the world"),
    "limit": (200, "questions"),
    "rows": (16, "rows of a batch"),
    "sampler": ("ConfidenceThreshold(0.9)", "the sampler"),
    "clients": ([1, 4, 16], "at a time"),
}


class Reply(NamedTuple):
    """The answer to a question, the seconds to its first chunk, and the number of its tokens."""

    text: str
    first_s: float
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
    world, rows = open_world(options.task, options.limit), []
    with served(options) as server:
        asyncio.run(ask_all(server, world._replace(examples=world.examples[:8]), 4, options))
        for clients in options.clients:
            row = asyncio.run(ask_all(server, world, clients, options))
            rows.append({"": f"{clients} clients", **row})
    rows.append({"": "decode_many", **decoded(world, options)})
    title = f"{MODELS[options.task]}, {len(world.examples)} questions, {options.rows} rows"
    report(title, rows, options)


@contextmanager
def served(options: Any) -> Iterator[Served]:
    """Yields a server in a process of its own."""
    _, cache = SETTINGS[options.task]
    command = [sys.executable, "-m", "eval.cli", "serve", "--port", "0", "--cache", cache]
    command += ["--model", MODELS[options.task], "--sampler", options.sampler]
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


async def ask_all(server: Served, world: World, num_clients: int, options: Any) -> Row:
    """Lets some clients ask all questions, each its next one when it has an answer."""
    gen_length, _ = SETTINGS[options.task]
    waiting, replies = iter(enumerate(world.examples)), {}
    async with httpx2.AsyncClient(base_url=server.url, timeout=120.0) as client:

        async def ask_some() -> None:
            for number, example in waiting:
                replies[number] = await _ask(client, example.prompt, gen_length)

        # The server listens a moment after it has said so.
        for _ in range(100):
            try:
                await client.get("/health")
                break
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
        began_s, began_cpu_s = time.perf_counter(), server.cpu_s()
        await asyncio.gather(*(ask_some() for _ in range(num_clients)))
        spent = time.perf_counter() - began_s, server.cpu_s() - began_cpu_s
    found = [replies[number] for number in range(len(replies))]
    first_ms = 1000 * torch.tensor([reply.first_s for reply in found], dtype=torch.float64)
    row = _row(world, [one.text for one in found], sum(one.num_tokens for one in found), *spent)
    early, late = first_ms.quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    return {**row, "first chunk, ms, p50": early, "p99": late}


async def _ask(client: Any, prompt: str, gen_length: int) -> Reply:
    body = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": gen_length, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began_s, first_s, num_tokens, text = time.perf_counter(), 0.0, 0, ""
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
            first_s = first_s or time.perf_counter() - began_s
            text += chunk["choices"][0]["delta"]["content"]
    return Reply(text, first_s, num_tokens)


def decoded(world: World, options: Any) -> Row:
    """Answers the questions without a server."""
    gen_length, cache = SETTINGS[options.task]

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
