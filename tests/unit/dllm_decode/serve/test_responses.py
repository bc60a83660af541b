"""Responses as the client of OpenAI asks for them, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from scripted import TURNS, answering

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi", reason="needs the extra serve")
responses = pytest.importorskip("dllm_decode.serve.responses", reason="needs the extra serve")
types = pytest.importorskip("openai.types.responses")

TEMPLATE = TURNS + "{# <tool_call> </think> #}"
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "rain", "description": "Looks it up.", "strict": True,
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                    "required": ["city"], "additionalProperties": False}},
    {"type": "function", "name": "now", "parameters": None, "strict": False},
]  # fmt: skip
RAIN = '<tool_call>{"name": "rain", "arguments": {"city": "Oslo"}}</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[Any, Any]]:
    with answering(TEMPLATE) as client_and_write:
        yield client_and_write


def read_both(client: Any, **asked: Any) -> Any:
    """Returns a response that is the same whole and streamed, and valid in all parts."""
    asked = {"model": "mini", **asked}
    whole = client.responses.create(**asked)
    types.Response.model_validate_json(whole.to_json(), strict=False)
    raw = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    for event in raw:
        TypeAdapter(types.ResponseStreamEvent).validate_json(event.to_json())
    with client.responses.stream(**asked) as stream:
        told = list(stream)
    assert [event.type for event in told] == [event.type for event in raw]
    final = told[-1].response
    assert (final.status, final.output_text) == (whole.status, whole.output_text)
    assert [said_of(item) for item in final.output] == [said_of(item) for item in whole.output]
    assert final.usage == whole.usage
    text = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    assert text == whole.output_text
    return final


def said_of(item: Any) -> tuple[Any, ...]:
    if item.type == "function_call":
        return item.type, item.name, json.loads(item.arguments), item.status
    return item.type, "".join(part.text for part in item.content), item.status


def test_the_client_streams_two_turns_with_a_call(answers: tuple[Any, Any]) -> None:
    client, write = answers
    write(f"<think>Where?</think>\n\nI look.\n{RAIN}\n{NOW}")
    asked = {"instructions": "Be brief.", "tools": TOOLS}
    items: list[Any] = [{"role": "user", "content": "weather?"}]
    first = read_both(client, input=items, **asked)
    assert first.status == "completed"
    assert [said_of(item) for item in first.output] == [
        ("reasoning", "Where?", "completed"),
        ("message", "I look.", "completed"),
        ("function_call", "rain", {"city": "Oslo"}, "completed"),
        ("function_call", "now", {}, "completed"),
    ]
    assert first.output[2].parsed_arguments == {"city": "Oslo"}
    items += first.output
    results = [(item.call_id, text) for item, text in zip(first.output[2:], "37", strict=True)]
    items += [{"type": "function_call_output", "call_id": name, "output": text}
              for name, text in results]  # fmt: skip
    write("No rain.")
    second = read_both(client, input=items, **asked)
    assert second.output_text == "No rain."
    assert second.usage.input_tokens > first.usage.input_tokens
    write(RAIN + NOW)
    assert len(read_both(client, input=items, **asked, parallel_tool_calls=False).output) == 1


def test_items_become_the_messages_of_a_chat(answers: tuple[Any, Any]) -> None:
    """What the assistant thinks, says and calls is one message, as templates expect."""
    part = {"type": "input_text", "text": "weather?"}
    said = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
    turns = responses.ResponseFields.model_validate({
        "instructions": "Be brief.",
        "tools": TOOLS,
        "input": [
            {"type": "message", "role": "user", "content": [part, part]},
            {"type": "reasoning", "id": "r", "summary": [],
             "content": [{"type": "reasoning_text", "text": "Where?"}]},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [said]},
            {"type": "function_call", "call_id": "1", "name": "rain", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [part]},
        ],
    }).as_chat().messages  # fmt: skip
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool"]
    assert [turn.content for turn in turns] == ["Be brief.", "weather?" * 2, "I look.", "weather?"]
    assert turns[2].reasoning_content == "Where?"
    assert [call.id for call in turns[2].tool_calls] == ["1", "2"]


def test_an_answer_that_is_cut_off_is_incomplete_and_a_form_is_parsed(
    answers: tuple[Any, Any],
) -> None:
    client, write = answers
    write("No rain today.")
    cut = read_both(client, input="weather?", max_output_tokens=4)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output_text == "No r"
    write("")
    assert read_both(client, input="weather?").output_text == ""

    class Weather(BaseModel):
        rain: bool

    asked = {"model": "mini", "input": "weather?", "text_format": Weather}
    assert isinstance(client.responses.parse(**asked).output_parsed, Weather)
    with client.responses.stream(**asked) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Weather)
    forced = read_both(client, input="weather?", tools=TOOLS, max_output_tokens=200,
                       tool_choice={"type": "function", "name": "now"})  # fmt: skip
    assert said_of(forced.output[0]) == ("function_call", "now", {}, "completed")


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"input": 3}, "input", "must be a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "got 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content", "must be"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "function_call", "name": "b"}]},
         "input.1.call_id", "must be given"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "assistant", "content": "a", "tool_calls": []}]},
         "input.0.tool_calls", "not a field"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input.0.role", "must be 'system'"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input",
         "needs the 'tools'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "must have a 'schema'"),
        ({"text": {"format": {"type": "text", "strict": True}}}, "text.format", "a 'strict' only"),
        ({"previous_response_id": "x"}, "previous_response_id", "keeps no answers"),
        ({"background": True}, "background", "not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "must be 'function'"),
        ({"tool_choice": "required"}, "tool_choice", "must name a function"),
        ({"max_output_tokens": 9999}, "max_output_tokens", "'max_output_tokens' must be at most"),
        ({"max_tokens": 8}, "max_tokens", "did you mean 'max_output_tokens'"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "must be a variable"),
    ],
)  # fmt: skip
def test_a_request_that_asks_for_more_is_refused_by_its_own_names(
    answers: tuple[Any, Any], asked: dict[str, Any], param: str, message: str
) -> None:
    client, _ = answers
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", body={"input": "weather?", **asked}, cast_to=object)
    assert refused.value.param == param
    assert message in refused.value.body["message"]
