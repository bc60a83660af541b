"""Many requests of all kinds: nothing is left behind, and no answer is wrong."""

import asyncio
import json
import random
import threading
from collections import Counter
from typing import Any

import psutil
import pytest
from served import QUESTIONS, chat_of, decoder_of, served, wait_until

from dllm_decode import generate, load_model
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold, FixedSchedule

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")

MODEL, TOKENIZER = load_model("mini")
ANSWERS = generate(
    MODEL, TOKENIZER, [chat_of(text) for text in QUESTIONS], ConfidenceThreshold(0.9), gen_length=64
).texts
LIMITS = Limits(num_rows=8, max_tokens=64, gen_length=64, max_length=512)


CHATS = "/v1/chat/completions"
MALFORMED: list[dict[str, Any]] = [
    {"json": {"messages": chat_of("how many?"), "n": -1}},
    {"json": {"messages": chat_of("how many?"), "max_tokens": 10**9}},
    {"json": {"messages": chat_of("how " * 2000)}},
    {"content": b'{"messages": [{"role": "user", "content": "\\ud800"}]}'},
    {"content": b"\xff\x00"},
    {"content": b"[" * 5000},
]


async def text_of(response: Any) -> str:
    """Reads a stream slowly, and returns its text."""
    text = ""
    async for line in response.aiter_lines():
        await asyncio.sleep(0.002)
        if line.startswith("data: {"):
            text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"]
    return text


async def ask(client: Any, number: int, counts: Counter[str]) -> None:
    """Sends one request: a whole answer, a stream, a hang-up, or a malformed body."""
    kind = random.Random(number).choice(["whole", "whole", "stream", "hang up", "malformed"])
    body: dict[str, Any] = {"messages": chat_of(QUESTIONS[number % 6])}
    if kind == "whole":
        response = await client.post(CHATS, json=body)
        text = response.json()["choices"][0]["message"]["content"]
        counts["wrong"] += text != ANSWERS[number % 6]
    elif kind == "stream":
        async with client.stream("POST", CHATS, json={**body, "stream": True}) as response:
            counts["wrong"] += await text_of(response) != ANSWERS[number % 6]
    elif kind == "hang up":
        slow = {**body, "sampler": "slow", "stream": number % 2 == 0, "ignore_eos": True}
        try:
            await client.post(CHATS, json=slow, timeout=0.05)
        except httpx.TimeoutException:
            counts["hung up"] += 1
    else:
        response = await client.post(CHATS, **MALFORMED[number % len(MALFORMED)])
        counts["refused"] += response.status_code == 400
    counts[kind] += 1


async def ask_all(url: str, first: int, count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    numbers = iter(range(first, first + count))
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:

        async def some() -> None:
            for number in numbers:
                await ask(client, number, counts)

        await asyncio.gather(*(some() for _ in range(12)))
    return counts


@pytest.mark.slow
def test_nothing_is_left_of_many_requests(pytestconfig: pytest.Config) -> None:
    num_requests = pytestconfig.getoption("soak_requests")
    decoders = {
        "default": decoder_of(MODEL, gen_length=64),
        "slow": decoder_of(MODEL, FixedSchedule(32), gen_length=64),
    }
    with served(decoders, limits=LIMITS) as (url, service):
        process = psutil.Process()
        asyncio.run(ask_all(url, 0, num_requests // 4))
        lanes = service.runner.lanes.values()

        def is_idle() -> bool:
            return all(lane.num_running == lane.num_waiting == 0 for lane in lanes)

        wait_until(is_idle, 5.0)
        num_files, num_threads = process.num_fds(), threading.active_count()
        num_bytes = process.memory_info().rss
        counts = asyncio.run(ask_all(url, num_requests, num_requests - num_requests // 4))
        wait_until(is_idle, 5.0)
        # The server closes its side of a connection a moment after the client.
        wait_until(lambda: process.num_fds() <= num_files, 10.0)
        assert threading.active_count() == num_threads
        growth = process.memory_info().rss / num_bytes
        print(f"{dict(counts)}, memory {growth:.4f} of {num_bytes / 2**20:.0f} MiB")
        assert growth < 1.05
    assert counts["wrong"] == 0
    assert counts["refused"] == counts["malformed"] > num_requests // 12
    assert counts["hung up"] > num_requests // 12
