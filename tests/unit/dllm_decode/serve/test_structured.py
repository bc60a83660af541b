"""Constraints and function calls over HTTP; a wrong one is refused for its request alone."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from pydantic import BaseModel
from served import QUESTIONS, byte_level, chat_of, decoder_of, read_both, served, wait_until
from transformers import PreTrainedTokenizerFast

from dllm_decode import load_model
from dllm_decode.serve.compiler import _Turns
from dllm_decode.serve.limits import Limits
from samplers import FixedSchedule

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi", reason="needs the extra serve")

MODEL, TOKENIZER = load_model("mini", dtype="float32")
CHAT: dict[str, Any] = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 64}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for turn in messages %}{{ turn.content }} "
    "{% for call in turn.tool_calls or [] %}{{ call.function.arguments.n }}{% endfor %}{% endfor %}"
)
LIMITS = Limits(max_tokens=256, gen_length=128, max_length=512)
# Takes as much processor time as it may.
LARGE = {"regex": "(a?b?c?){1500}"}


def letters() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of characters for the ids of `mini`, so that `mini` can write JSON."""
    characters = sorted(set(map(chr, range(33, 127))) | {"Ġ"})
    special = {MODEL.mask_id: "[MASK]", MODEL.eos_ids[0]: "<eos>"}
    free = iter(characters)
    names = [special.get(n) or next(free, f"<{n}>") for n in range(MODEL.vocab_size)]
    assert next(free, None) is None
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(names), eos_token="<eos>", mask_token="[MASK]",
        additional_special_tokens=[name for name in names if len(name) > 1],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    decoder = decoder_of(MODEL, FixedSchedule(16), gen_length=256)
    with served({"default": decoder}, limits=LIMITS, tokenizer=letters()) as url_and_service:
        yield url_and_service


@pytest.fixture(scope="module")
def client(server: tuple[str, Any]) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


def text_of(client: Any, **asked: Any) -> str:
    extra = {name: asked.pop(name) for name in ("structured_outputs",) if name in asked}
    completion = client.chat.completions.create(**{**CHAT, **asked}, extra_body=extra)
    return str(completion.choices[0].message.content)


class Person(BaseModel):
    name: str
    age: int


def test_a_pydantic_model_is_parsed_by_the_client(client: Any) -> None:
    """An answer that filled its space was reported as cut off, so that the client refused it."""
    filled = []
    for max_tokens in (28, 64):
        request = {**CHAT, "max_tokens": max_tokens, "response_format": Person}
        completion = client.chat.completions.parse(**request)
        assert isinstance(completion.choices[0].message.parsed, Person)
        assert completion.choices[0].finish_reason == "stop"
        filled.append(completion.usage.completion_tokens == max_tokens)
    assert True in filled


def test_an_answer_has_the_form_that_is_asked_for(client: Any) -> None:
    assert isinstance(json.loads(text_of(client, response_format={"type": "json_object"})), dict)
    assert re.fullmatch("a[0-9]{3}", text_of(client, structured_outputs={"regex": "a[0-9]{3}"}))
    assert text_of(client, structured_outputs={"choice": ["yes", "no"], "json": None}) in (
        "yes", "no",
    )  # fmt: skip
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    assert len(json.loads(text_of(client, structured_outputs={"json": schema}))) == 2
    completion = client.completions.create(
        model="mini", prompt="abc", max_tokens=16, n=2, temperature=1.0,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )  # fmt: skip
    assert {choice.text for choice in completion.choices} <= {"yes", "no"}


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "count", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}},
    {"type": "function", "function": {"name": "stop"}},
]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "count"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_follows_the_schema_whole_and_streamed(client: Any, choice: Any) -> None:
    request = {**CHAT, "tools": TOOLS, "tool_choice": choice}
    answer = client.chat.completions.create(**request).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    arguments = json.loads(call.function.arguments)
    assert call.function.name in (["count"] if choice == NAMED else ["count", "stop"])
    assert set(arguments) == ({"n"} if call.function.name == "count" else set())
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert chunks[-1].finish_reason == "tool_calls"
    assert [part.function.name for part in parts] == [call.function.name] + [None] * (
        len(parts) - 1
    )
    assert parts[0].id
    assert {part.index for part in parts} == {0}
    assert "".join(part.function.arguments for part in parts) == call.function.arguments


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"type": "object"}, {"type": "object", "properties": {}},
     {"title": "Now", "type": "object", "properties": {}, "required": []},
     {"type": "object", "properties": {}, "additionalProperties": False}],
)  # fmt: skip
def test_a_function_without_arguments_is_given_none(client: Any, parameters: Any) -> None:
    """The model had invented arguments."""
    function = {"name": "now"} | ({} if parameters is None else {"parameters": parameters})
    tools = [{"type": "function", "function": function}]
    answer = client.chat.completions.create(**CHAT, tools=tools, tool_choice="required").choices[0]
    assert json.loads(answer.message.tool_calls[0].function.arguments) == {}


def test_text_stays_text_without_a_choice_that_forces_a_call(client: Any) -> None:
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice=choice).choices[0]
        assert answer.message.tool_calls is None
        assert answer.finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "extra",
    [{}, {"structured_outputs": {"regex": "[a-z ]{20}"}}, {"template": "emma [MASK:3]"},
     {"stream_mode": "denoise"}, {"n": 2, "temperature": 3.0, "seed": 1},
     {"tools": TOOLS, "tool_choice": "required", "n": 2}],
)  # fmt: skip
def test_the_client_joins_a_stream_to_a_message_that_may_be_sent_back(
    client: Any, extra: dict[str, Any]
) -> None:
    """The role of the joined message was "assistantassistant", which the next turn refused."""
    chunks = list(client.chat.completions.create(**CHAT, stream=True, extra_body=extra))
    for number in range(extra.get("n", 1)):
        deltas = [c.choices[0].delta for c in chunks if c.choices[0].index == number]
        # A call is sent whole.
        assert len(deltas) > 1 or "tools" in extra
        assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    joined = read_both(client, **CHAT, extra_body=extra)
    assert len(joined) == extra.get("n", 1)
    for message in (choice.message for choice in joined):
        calls = message.tool_calls or []
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
        turns = [*CHAT["messages"], message, *results, *chat_of("and now?")]
        again = client.chat.completions.create(**{**CHAT, "messages": turns, "tools": TOOLS})
        assert again.choices[0].message.content is not None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {"json": {"properties": {"a/b": {"type": "array", "contains": 3}}}}},
     "structured_outputs", "#/properties/a~1b/contains must be an object or a boolean, got 3"),
    ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs", "a look-around"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "got {'grammar': 'x'}"),
    ({"structured_outputs": {"choice": ["a", "é"]}}, "structured_outputs", "'é'"),
    ({"structured_outputs": {"regex": "a{300}"}}, "max_tokens", "must be at least 300, the tokens"),
    ({"structured_outputs": {"regex": "a{9000}"}}, "structured_outputs", "Write shorter rep"),
    ({"structured_outputs": {"regex": "a" * 2**16}}, "structured_outputs", "20000 parts"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "'json_schema'"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}},
     "tool_choice", "must name a function"),
    ({"tools": TOOLS, "tool_choice": "required", "stop": ["x"]}, "tool_choice", "leave out 'stop'"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "unevaluatedItems": False}}}], "tool_choice": "required"},
     "tools", "The parameters of 'f': #/unevaluatedItems must be left out"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "param", "message"), WRONG)
def test_a_wrong_form_is_refused_by_name(
    client: Any, wrong: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, extra_body=wrong)
    assert caught.value.param == param, caught.value.message
    assert message in caught.value.message


def test_a_compilation_stalls_nobody_and_ends_with_its_client(
    server: tuple[str, Any], client: Any
) -> None:
    compiler, body = server[1].compiler, {**CHAT, "structured_outputs": LARGE}
    client.chat.completions.create(**CHAT)
    with closing(HTTPConnection(server[0].removeprefix("http://"))) as leaving:
        leaving.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        wait_until(lambda: compiler._turns._is_taken)
        client.chat.completions.create(**CHAT)
        assert compiler._turns._is_taken
    # The program that builds the automaton would go on for seconds.
    wait_until(lambda: compiler._worker._process.poll() is not None, 2.0)
    assert text_of(client, structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")


def test_extra_keys_are_a_field_of_the_request(client: Any) -> None:
    schema = {"type": "object", "properties": {}, "required": ["n"]}
    for asked in (
        {"structured_outputs": {"json": schema}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            }
        },
    ):
        for extra_keys, most in ((False, 1), (True, 9)):
            extra = {**asked, "extra_keys": extra_keys}
            answer = client.chat.completions.create(**CHAT, extra_body=extra).choices[0]
            assert 1 <= len(json.loads(answer.message.content)) <= most
    for asked in ({}, {"structured_outputs": {"regex": "a"}}):
        with pytest.raises(openai.BadRequestError, match="without a JSON form"):
            client.chat.completions.create(**CHAT, extra_body={**asked, "extra_keys": True})


async def _order_of(clients: list[tuple[str, float]]) -> list[str]:
    turns, order = _Turns(), []

    async def ask(client: str, seconds: float) -> None:
        async with turns.turn(client):
            order.append(client)
            await asyncio.sleep(seconds)

    await asyncio.gather(*(ask(client, seconds) for client, seconds in clients))
    return order


def test_a_client_that_used_much_time_waits_longest() -> None:
    """All waited in one line, behind expressions that explode."""
    clients = [("bomber", 0.1), *[("bomber", 0.0)] * 4, ("a", 0.01), ("b", 0.0), ("b", 0.0)]
    order = asyncio.run(_order_of(clients))
    assert order[0] == "bomber"
    assert set(order[1:3]) == {"a", "b"}
    assert order[4:] == ["bomber"] * 4


async def _turns_with_one_who_leaves() -> list[object]:
    turns, is_done = _Turns(), asyncio.Event()

    async def ask(client: str) -> str:
        async with turns.turn(client):
            await is_done.wait()
        return client

    tasks = [asyncio.create_task(ask(client)) for client in ("first", "leaves", "next")]
    await asyncio.sleep(0)
    is_done.set()
    tasks[1].cancel()
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)


def test_a_client_who_leaves_as_a_turn_ends_harms_no_other() -> None:
    """The turn was passed to the client who left, and the answer of the first was lost."""
    first, left, following = asyncio.run(_turns_with_one_who_leaves())
    assert (first, following) == ("first", "next")
    assert isinstance(left, asyncio.CancelledError)


def test_a_form_is_compiled_once(
    server: tuple[str, Any], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, compiled = server[1].compiler._worker, []
    compile_form = worker.compile

    def noting(read: Any) -> Any:
        compiled.append(read)
        return compile_form(read)

    monkeypatch.setattr(worker, "compile", noting)
    for number, choice in enumerate((["once", "only"], ["only", "once"]), start=1):
        for _ in range(2):
            text_of(client, structured_outputs={"choice": choice})
            assert len(compiled) == number
