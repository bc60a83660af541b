"""Measures the server: python -m benchmarks.serve.

A server in a process of its own answers the questions of a task to clients that send their next
question when they have the answer to the last one. In turn with this, `decode_many` answers the
same questions in this process, with as many threads.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, TextIO

import httpx2
import psutil
import torch

from benchmarks.frame import Row, make_parser, median_of, origin, table_of
from dllm_decode import CachePolicy, decode_many, load_model
from dllm_decode.launch import run_main
from dllm_decode.settings.plugins import parse
from eval.runs.names import parse_task
from eval.runs.prompts import encode_prompt
from samplers import Sampler

TASKS = {
    "word_problems": ("mini", 64, "NoCache()"), "ledgers": ("mini-long", 192, "FreeCache()")
}  # fmt: skip
"""By task the embedded model that knows it, the tokens of an answer and the cache."""
OPTIONS = {
    "task": (tuple(TASKS), "the tasks"),
    "limit": (200, "questions"),
    "rows": (16, "rows of a batch"),
    "sampler": ("ConfidenceThreshold(0.9)", "the sampler"),
    "clients": ([1, 4, 16, 64], "clients at a time"),
    "rounds": (3, "times that all of it is measured, in turn"),
    "threads": (1, "of the server, and of decode_many"),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    words = sys.argv[1:] if words is None else words
    options = make_parser("benchmarks.serve", __doc__ or "", OPTIONS).parse_args(words)
    torch.set_num_threads(options.threads)
    rows = []
    for task in options.task:
        with served(task, options) as server:
            asyncio.run(asked(server, task, 8, 4))
            rounds = [measured(server, task, options) for _ in range(options.rounds)]
        for name, first_row in rounds[0].items():
            figures = {key: median_of([table[name][key] for table in rounds]) for key in first_row}
            rows.append({"": f"{TASKS[task][0]}, {name}", **figures})
    title = f"{options.limit} questions, {options.rows} rows, {options.threads} threads"
    print(f"{title}, median [least, greatest] of {options.rounds}\n\n{table_of(rows)}")
    if options.json:
        record = origin(" ".join(["python -m benchmarks.serve", *words]), "cpu", options.threads)
        options.json.write_text(json.dumps({**record, "rows": rows}, indent=1, default=str) + "\n")


def measured(server: tuple[str, psutil.Process], task: str, options: Any) -> dict[str, Row]:
    """Measures everything once."""
    rows = {"decode_many": decoded(task, options)}
    for clients in options.clients:
        rows[f"{clients} clients"] = asyncio.run(asked(server, task, options.limit, clients))
    for row in rows.values():
        row["of decode_many"] = row["tokens/s"] / rows["decode_many"]["tokens/s"]
    return rows


@contextmanager
def served(task: str, options: Any) -> Iterator[tuple[str, psutil.Process]]:
    """Yields the address and the process of a server."""
    model, _, cache = TASKS[task]
    command = [sys.executable, "-m", "dllm_decode", "serve", "--port", "0", "--model", model]
    command += ["--cache", cache, "--sampler", options.sampler]
    command += ["--num-rows", str(options.rows), "--threads", str(options.threads)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # A pipe that nobody reads would stop the server once it is full of its log.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            yield _address(process, log), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60.0)


def _address(process: "subprocess.Popen[bytes]", log: TextIO) -> str:
    """Waits until a server says where it listens."""
    while process.poll() is None:
        log.seek(0)
        if match := re.search(r"Listening at (http://\S+),", log.read()):
            return match[1]
        time.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"The server did not start: {log.read()}")


async def asked(server: tuple[str, psutil.Process], task: str, limit: int, num_clients: int) -> Row:
    """Asks all questions; each client asks its next one when it has an answer."""
    url, process = server
    examples = parse_task(f"{task}?limit={limit}").examples()
    replies: dict[int, tuple[str, int, float]] = {}
    waiting = iter(range(limit))
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:

        async def ask() -> None:
            for number in waiting:
                replies[number] = await _reply(client, str(examples[number].prompt), TASKS[task][1])

        # The server listens a moment after it has said so.
        for _ in range(100):
            try:
                await client.get("/health")
                break
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
        began_s, began_cpu_s = time.perf_counter(), sum(process.cpu_times()[:2])
        await asyncio.gather(*(ask() for _ in range(num_clients)))
        spent = time.perf_counter() - began_s, sum(process.cpu_times()[:2]) - began_cpu_s
    texts, num_tokens, first_s = zip(*(replies[number] for number in range(limit)), strict=True)
    row = _row(task, texts, sum(num_tokens), *spent)
    return {**row, "first chunk, ms": 1000 * median(first_s)}


async def _reply(client: Any, prompt: str, gen_length: int) -> tuple[str, int, float]:
    """Returns the answer, its number of tokens, and the seconds to its first chunk."""
    body = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": gen_length, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began_s, first_s, num_tokens, text = time.perf_counter(), 0.0, 0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if not chunk["choices"]:
                num_tokens += chunk["usage"]["completion_tokens"]
                continue
            first_s = first_s or time.perf_counter() - began_s
            text += chunk["choices"][0]["delta"]["content"]
    return text, num_tokens, first_s


def decoded(task: str, options: Any) -> Row:
    """Answers the questions without a server."""
    name, gen_length, cache = TASKS[task]
    model, tokenizer = load_model(name)
    assert tokenizer is not None
    examples = parse_task(f"{task}?limit={options.limit}").examples()
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]

    def answers(prompts: Sequence[list[int]]) -> list[list[int]]:
        outputs = decode_many(
            model, prompts, parse(options.sampler, Sampler), num_rows=options.rows,
            cache=parse(cache, CachePolicy), gen_length=gen_length,
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    answers(prompts[:8])
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    answer_ids = answers(prompts)
    spent = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answer_ids]
    return _row(task, texts, sum(map(len, answer_ids)), *spent)


def _row(task: str, texts: Sequence[str], num_tokens: int, wall_s: float, cpu_s: float) -> Row:
    selection = parse_task(f"{task}?limit={len(texts)}")
    pairs = zip(selection.examples(), texts, strict=True)
    scores = [selection.task.score(*pair)[selection.task.primary] for pair in pairs]
    return {
        "requests/s": len(texts) / wall_s,
        "tokens/s": num_tokens / wall_s,
        "tokens/CPU s": num_tokens / cpu_s,
        "right": sum(float(score or 0.0) for score in scores) / len(texts),
    }


if __name__ == "__main__":
    run_main(main)
