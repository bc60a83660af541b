"""Calls and reasoning that a model writes as text, whole and streamed."""

import json
from typing import Any

import pytest
from scripted import TURNS, answering
from served import read_both

pytest.importorskip("openai")
pytest.importorskip("fastapi", reason="needs the extra serve")
readers = pytest.importorskip("dllm_decode.serve.message_readers", reason="needs the extra serve")

HERMES, GEMMA = readers.Parsers("hermes").call_format(""), readers.Parsers("gemma4").call_format("")
THINK = readers.Parsers(reasoning="qwen3").reasoning_tags("")
CHANNEL = readers.Parsers(reasoning="gemma4").reasoning_tags("")
RAIN = '<tool_call>\n{"name": "rain", "arguments": {"city": "Oslo", "days": [1, 2]}}\n</tool_call>'
SNOW = '<tool_call>{"name": "snow", "arguments": {}}</tool_call>'
CALLED = [("rain", {"city": "Oslo", "days": [1, 2]}), ("snow", {})]


def joined(text: str, size: int, *formats: Any, **options: Any) -> dict[str, Any]:
    """Returns the message of a text that comes in pieces of a size."""
    message: dict[str, Any] = {}
    reader = readers.MessageReader(*formats, **options)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for number, piece in enumerate([*pieces, ""]):
        for name, value in reader.more(piece, is_last=number == len(pieces)).items():
            message[name] = message[name] + value if name in message else value
    listed = [call["function"] for call in message.pop("tool_calls", [])]
    assert reader.has_calls == bool(listed)
    if listed:
        message["calls"] = [(call["name"], json.loads(call["arguments"])) for call in listed]
    return message


BROKEN = [
    '<tool_call>{"name": "rain", "arguments": {"city": }}</tool_call>',
    '<tool_call>{"name": "rain"}</tool_call>', "<tool_call>[1]</tool_call>", "<tool_call>",
    '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "rain", "arguments": {"n": NaN}}</tool_call>',
    '<tool_call>{"name": "rain", "arguments": {"n": "\\ud800"}}</tool_call>',
    "<tool_call>" + "[" * 100_000 + "</tool_call>", "a < b <tool_ call>", " \n a\n ",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_hermes_calls_are_read_and_broken_ones_are_text(size: int) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        (RAIN + "\n" + SNOW, {"calls": CALLED}),
        (f"I look it up. \n{RAIN}", {"content": "I look it up.", "calls": CALLED[:1]}),
        (SNOW + "\nDone. ", {"content": "Done. ", "calls": CALLED[1:]}),
        # The last tag may be cut off.
        (SNOW.removesuffix("</tool_call>"), {"calls": CALLED[1:]}),
        (SNOW.removesuffix("_call>"), {"content": SNOW.removesuffix("_call>")}),
        (f"x {BROKEN[0]} y {SNOW}", {"content": f"x {BROKEN[0]} y", "calls": CALLED[1:]}),
        *((text, {"content": text}) for text in BROKEN if len(text) < 10 * size + 1000),
    ]
    for text, message in cases:
        assert joined(text, size, HERMES) == message
    assert joined(RAIN + SNOW, size, HERMES, is_parallel=False) == {"calls": CALLED[:1]}
    assert joined(RAIN, size) == {"content": RAIN}


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_gemma_calls_are_read(size: int) -> None:
    quoted = '<|"|>a "b", {c:d}\n<|"|>'
    arguments = f'{{city:{quoted},deep:{{list:[1,-2.5e3,<|"|>x<|"|>,[]],on:true}},none:null}}'
    begin, end = GEMMA.tags
    text = f"Look: {begin}call:my-tool.now{arguments}{end}{begin}call:b{{}}{end}"
    wanted = {"city": 'a "b", {c:d}\n', "deep": {"list": [1, -2500, "x", []], "on": True},
              "none": None}  # fmt: skip
    called = [("my-tool.now", wanted), ("b", {})]
    assert joined(text, size, GEMMA) == {"content": "Look:", "calls": called}
    for broken in ("call:a{b:}", "call:a", "a{}", "call:a{b:c}", 'call:a{b:<|"|>c}'):
        text = f"<|tool_call>{broken}<tool_call|>"
        assert joined(text, size, GEMMA) == {"content": text}


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_reasoning_is_read_at_the_beginning_of_an_answer_only(size: int) -> None:
    whole = {"reasoning_content": "Hm, 1 < 2.", "content": "Yes.\n"}
    assert joined("\n<think>\nHm, 1 < 2.\n</think>\n\nYes.\n", size, None, THINK) == whole
    prompted: Any = {"is_reasoning": True}
    assert joined("Hm, 1 < 2.\n</think>Yes.\n", size, None, THINK, **prompted) == whole
    assert joined("<think>Hm, 1 < 2.</think>Yes.\n", size, None, THINK, **prompted) == whole
    assert joined("Hm", size, None, THINK, **prompted) == {"reasoning_content": "Hm"}
    late = "Tags are <think>x</think>."
    assert joined(late, size, None, THINK) == {"content": late}
    assert joined(f"{late}{SNOW}", size, HERMES, THINK) == {"content": late, "calls": CALLED[1:]}
    both = f"<think>I call <tool_call>.</think>\n{SNOW}"
    assert joined(both, size, HERMES, THINK) == {
        "reasoning_content": "I call <tool_call>.", "calls": CALLED[1:]
    }  # fmt: skip
    channel = "<|channel>thought\nHm, 1 < 2.\n<channel|>Yes.\n"
    assert joined(channel, size, GEMMA, CHANNEL) == whole


def test_formats_are_those_of_the_template_unless_they_are_named() -> None:
    templates = {
        '<tool_call>{"name": <name>, "arguments": <arguments>}</tool_call>': (HERMES, None),
        "<tool_call> <function=name> </tool_call> </think>": (None, THINK),
        "<|tool_call>call: <|channel>thought <channel|>": (GEMMA, CHANNEL),
        "{{ messages }}": (None, None),
    }  # fmt: skip
    for template, formats in templates.items():
        parsers = readers.Parsers()
        assert (parsers.call_format(template), parsers.reasoning_tags(template)) == formats
        parsers = readers.Parsers("none", "none")
        assert (parsers.call_format(template), parsers.reasoning_tags(template)) == (None, None)


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("rain", "snow")]
ASKED: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": "weather?"}]}


def read(client: Any, **asked: Any) -> tuple[Any, str]:
    """Returns the message of an answer, and why it ended."""
    (choice,) = read_both(client, **ASKED, **asked)
    return choice.message, choice.finish_reason


def test_the_client_gets_the_calls_that_a_model_writes() -> None:
    """They came as text, so that no agent could call a tool."""
    template = TURNS + "{# <tool_call> </think> #}"
    with answering(template) as (client, write):
        write(f"<think>Rain or snow?</think>\n\nI look.\n{RAIN}\n{SNOW}")
        message, reason = read(client, tools=TOOLS)
        assert (message.content, message.reasoning_content) == ("I look.", "Rain or snow?")
        called = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
        assert (called, reason) == (CALLED, "tool_calls")
        message, _ = read(client, tools=TOOLS, parallel_tool_calls=False)
        assert len(message.tool_calls) == 1
        # The results of the calls go back, and the answer is text.
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in
                   message.tool_calls]  # fmt: skip
        write("No rain.")
        turns = [*ASKED["messages"], message, *results]
        again = client.chat.completions.create(model="mini", messages=turns, tools=TOOLS).choices[0]
        assert (again.message.content, again.finish_reason) == ("No rain.", "stop")
        write(f"Broken: {BROKEN[0]}")
        message, reason = read(client, tools=TOOLS)
        assert (message.content, message.tool_calls) == (f"Broken: {BROKEN[0]}", None)
        assert reason == "stop"
        # Without tools, tags are text.
        write(SNOW)
        for asked in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            assert read(client, **asked)[0].content == SNOW
        full = client.chat.completions.create(**ASKED, tools=TOOLS, max_tokens=8).choices[0]
        assert (full.message.tool_calls, full.finish_reason) == (None, "length")


def test_tags_that_are_special_tokens_are_read_too() -> None:
    template = TURNS + "{# <|tool_call> <channel|> #}"
    with answering(template) as (client, write):
        write(
            '<|channel>thought\nHm.<channel|><|tool_call>call:rain{city:<|"|>Oslo<|"|>}<tool_call|>'
        )
        message, reason = read(client, tools=TOOLS)
        assert (message.content, message.reasoning_content) == (None, "Hm.")
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}
        assert reason == "tool_calls"
        # Other special tokens are not shown.
        write("A<other> b")
        assert read(client, tools=TOOLS)[0].content == "A b"
    with answering(TURNS + "<think>\n") as (client, write):
        # The model sees the prompt's tag as the beginning of its answer.
        write("<think>\nHm.</think>Yes.")
        message, _ = read(client)
        assert (message.content, message.reasoning_content) == ("Yes.", "Hm.")
