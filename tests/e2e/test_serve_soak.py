"""Many requests of all kinds: nothing is left behind, and no answer is wrong."""

import asyncio
import random
import threading
from typing import Any

import psutil
import pytest
from served import QUESTIONS, chat_of, decoder_of, served, wait_until

from benchmarks import serve as benchmark
from dllm_decode import generate, load_model
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold, FixedSchedule

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")

MODEL, TOKENIZER = load_model("mini")
ANSWERS = generate(
    MODEL, TOKENIZER, [chat_of(text) for text in QUESTIONS], ConfidenceThreshold(0.9), gen_length=64
).texts
LIMITS = Limits(num_rows=8, max_tokens=64, gen_length=64, max_length=512, max_columns=4096)


async def ask(client: Any, number: int, counts: dict[str, int]) -> None:
    """Sends one request: a whole answer, a stream, a hang-up, or a malformed body."""
    kind = random.Random(number).choice(["whole", "whole", "stream", "hang up", "malformed"])
    body: dict[str, Any] = {"messages": chat_of(QUESTIONS[number % 6])}
    if kind == "whole":
        response = await client.post("/v1/chat/completions", json=body)
        text = response.json()["choices"][0]["message"]["content"]
        counts["wrong"] += text != ANSWERS[number % 6]
    elif kind == "stream":
        async with client.stream(
            "POST", "/v1/chat/completions", json={**body, "stream": True}
        ) as response:
            async for _ in response.aiter_lines():
                await asyncio.sleep(0.002)
    elif kind == "hang up":
        slow = {**body, "sampler": "slow", "stream": number % 2 == 0, "ignore_eos": True}
        try:
            await client.post("/v1/chat/completions", json=slow, timeout=0.05)
        except httpx.TimeoutException:
            counts["hung up"] += 1
    else:
        response = await client.post("/v1/chat/completions", json={**body, "n": -number})
        counts["refused"] += response.status_code == 400
    counts[kind] += 1


async def ask_all(url: str, first: int, count: int) -> dict[str, int]:
    names = ("whole", "stream", "hang up", "malformed", "wrong", "hung up", "refused")
    counts = dict.fromkeys(names, 0)
    numbers = iter(range(first, first + count))
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:

        async def some() -> None:
            for number in numbers:
                await ask(client, number, counts)

        await asyncio.gather(*(some() for _ in range(12)))
    return counts


@pytest.mark.slow
def test_nothing_is_left_of_many_requests() -> None:
    decoders = {
        "default": decoder_of(MODEL, gen_length=64),
        "slow": decoder_of(MODEL, FixedSchedule(32), gen_length=64),
    }
    with served(decoders, limits=LIMITS) as (url, service):
        process = psutil.Process()
        asyncio.run(ask_all(url, 0, 150))
        lanes = service.engine.lanes.values()

        def is_idle() -> bool:
            return all(lane.num_running == lane.num_waiting == 0 for lane in lanes)

        wait_until(is_idle, 5.0)
        num_files, num_threads = process.num_fds(), threading.active_count()
        num_bytes = process.memory_info().rss
        counts = asyncio.run(ask_all(url, 1000, 450))
        wait_until(is_idle, 5.0)
        # The server closes its side of a connection a moment after the client.
        wait_until(lambda: process.num_fds() <= num_files, 10.0)
        assert threading.active_count() == num_threads
        assert process.memory_info().rss < 1.05 * num_bytes
    assert counts["wrong"] == 0
    assert counts["refused"] == counts["malformed"] > 50
    assert counts["hung up"] > 50


@pytest.mark.slow
def test_the_benchmark_counts_right_answers_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--limit", "12", "--clients", "2", "--rows", "2"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [row[1].strip() for row in rows[2:]] == ["2 clients", "decode_many"]
    column = [name.strip() for name in rows[0]].index("right")
    assert rows[2][column] == rows[3][column]
