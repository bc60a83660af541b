"""The routes: what they answer, and what they refuse."""

import json
import re
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
from served import QUESTIONS, chat_of, decoder_of, served, wait_until

from dllm_decode import S2D2, DecodeConfig, generate, load_model, new_decoder
from dllm_decode.serve.limits import Limits
from dllm_decode.text.tokenization import prompt_ids
from eval.tasks import Ledgers
from samplers import AcceptAndRenoise, ConfidenceThreshold, FixedSchedule

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")
fields = pytest.importorskip("dllm_decode.serve.request_fields", reason="needs the extra serve")

MODEL, TOKENIZER = load_model("mini")
JSON = {"content-type": "application/json"}
CHAT = {"messages": chat_of(QUESTIONS[0]), "max_tokens": 64}
RIGHT = generate(MODEL, TOKENIZER, chat_of(QUESTIONS[0]), ConfidenceThreshold(0.9), gen_length=64)
ANSWER = RIGHT.texts[0]
LIMITS = Limits(
    num_rows=4, max_tokens=128, gen_length=64, max_length=512, max_waiting=16
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    decoders = {
        "default": decoder_of(MODEL),
        "slow": decoder_of(MODEL, FixedSchedule(16)),
    }
    with served(decoders, limits=LIMITS) as url_and_service:
        yield url_and_service


@pytest.fixture(scope="module")
def client(server: tuple[str, Any]) -> Iterator[Any]:
    with httpx.Client(base_url=server[0], timeout=30.0) as http_client:
        yield http_client


def post(client: Any, **asked: Any) -> Any:
    # json.dumps accepts lone surrogates; the JSON encoder of the client does not.
    content = json.dumps({**CHAT, **asked}).encode()
    return client.post("/v1/chat/completions", content=content, headers=JSON)


def answer_of(client: Any, **asked: Any) -> Any:
    return post(client, **asked).json()


def events_of(client: Any, **asked: Any) -> list[dict[str, Any]]:
    """Returns the events of a stream, split at empty lines as vllm's benchmark splits them."""
    payloads, buffer = [], ""
    asked = {**CHAT, **asked, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        for piece in response.iter_text():
            buffer += piece
            while "\n\n" in buffer:
                event, buffer = buffer.split("\n\n", 1)
                assert event.startswith("data: ")
                payloads.append(event.removeprefix("data: "))
    assert buffer == ""
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def test_a_stream_is_the_whole_answer_in_chunks_without_an_empty_first_one(client: Any) -> None:
    options: Any = {"stream_options": {"include_usage": True}, "sampler": "slow"}
    *chunks, usage = events_of(client, **options)
    body = answer_of(client, sampler="slow")
    assert (body["object"], body["model"]) == ("chat.completion", "mini")
    assert body["choices"][0]["message"]["role"] == "assistant"
    pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(pieces) == body["choices"][0]["message"]["content"]
    assert len(pieces) > 2
    assert pieces[0]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert usage["choices"] == []
    assert usage["usage"] == body["usage"]
    options["stream_options"]["continuous_usage_stats"] = True
    *chunks, usage = events_of(client, **options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(set(counts))
    assert chunks[-1]["usage"] == usage["usage"]


@pytest.mark.parametrize("form", ["text", "texts", "ids", "lists"])
def test_a_completion_takes_texts_and_token_ids(client: Any, form: str) -> None:
    text = TOKENIZER.apply_chat_template(
        chat_of(QUESTIONS[0]), add_generation_prompt=True, tokenize=False
    )
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    forms = {"text": text, "texts": [text, text], "ids": ids, "lists": [ids, ids]}
    body = {"prompt": forms[form], "max_tokens": 64}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    wanted = [ANSWER] * (2 if form in ("texts", "lists") else 1)
    assert [choice["text"] for choice in choices] == wanted
    assert [choice["index"] for choice in choices] == list(range(len(wanted)))


def test_choices_differ_and_are_those_of_copies_of_the_prompt(client: Any) -> None:
    choices = answer_of(client, n=4, temperature=2.5, seed=3)["choices"]
    alone = generate(
        MODEL, TOKENIZER, [chat_of(QUESTIONS[0])] * 4, ConfidenceThreshold(0.9), gen_length=64,
        temperature=2.5, seed=3,
    )  # fmt: skip
    assert [choice["message"]["content"] for choice in choices] == alone.texts
    assert len(set(alone.texts)) > 1


@pytest.mark.parametrize("stop", [". after", ["never", "some"]])
def test_a_stop_string_ends_the_answer_whole_and_streamed(client: Any, stop: Any) -> None:
    choice = answer_of(client, stop=stop, sampler="slow")["choices"][0]
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert ANSWER.startswith(text)
    assert text != ANSWER
    chunks = events_of(client, stop=stop, sampler="slow")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == text


def test_an_answer_that_is_full_ends_with_length(client: Any) -> None:
    for options, length in (({"max_tokens": 5}, 5), ({"ignore_eos": True}, 64)):
        body = answer_of(client, **options)
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == length


@pytest.mark.parametrize("is_stream", [False, True])
def test_logprobs_are_those_of_the_step_that_committed_the_token(
    client: Any, is_stream: bool
) -> None:
    options: Any = {"logprobs": True, "top_logprobs": 2, "sampler": "slow"}
    chunks = events_of(client, **options) if is_stream else [answer_of(client, **options)]
    scores = [score for chunk in chunks for score in chunk["choices"][0]["logprobs"]["content"]]
    assert " ".join(score["token"] for score in scores) == ANSWER
    # A greedy commit is the likeliest token of its position.
    assert all(score["top_logprobs"][0]["token"] == score["token"] for score in scores)
    assert all(score["top_logprobs"][1]["logprob"] < score["logprob"] <= 0 for score in scores)
    assert scores[0]["logprob"] < 0


def test_logprobs_under_a_verifier_are_those_that_decided() -> None:
    """The log-probabilities were those of the first look, up to 17 nats away."""
    model, tokenizer = load_model("mini-long")
    decoder = new_decoder(model, FixedSchedule(8), verifier=S2D2(), config=DecodeConfig())
    (example,) = Ledgers().examples("test", 1, 0)
    prompt = prompt_ids(tokenizer, chat_of(example.prompt))[0]
    with (
        served({"default": decoder}, limits=LIMITS, tokenizer=tokenizer) as (url, _),
        httpx.Client(base_url=url, timeout=30.0) as client,
    ):
        body = {"prompt": prompt, "max_tokens": 64, "logprobs": 0}
        logprobs = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    out = generate(
        model, tokenizer, [prompt], FixedSchedule(8), verifier=S2D2(), gen_length=64,
        return_logprobs=True,
    )  # fmt: skip
    commits = out[0].commits
    wanted = [commit.model_logprob for commit in commits]
    assert logprobs["token_logprobs"] == pytest.approx(wanted, abs=1e-6)


def test_a_uniform_state_model_keeps_to_a_constraint_but_has_no_logprobs() -> None:
    """The server sent numbers that the Python interface refuses to return."""
    model, tokenizer = load_model("mini-uniform")
    decoder = decoder_of(model, AcceptAndRenoise())
    with (
        served({"default": decoder}, limits=LIMITS, tokenizer=tokenizer) as (url, _),
        httpx.Client(base_url=url, timeout=30.0) as client,
    ):
        response = post(client, logprobs=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logprobs"
        answer = post(client, structured_outputs={"regex": "#### [0-9]{2}"}, max_tokens=64).json()
        assert re.fullmatch("#### [0-9]{2}", answer["choices"][0]["message"]["content"])


def test_a_completion_has_logprobs_of_its_own_shape(client: Any) -> None:
    body = client.post(
        "/v1/completions", json={"prompt": QUESTIONS[0], "logprobs": 1, "max_tokens": 16}
    ).json()["choices"][0]
    logprobs = body["logprobs"]
    lengths = {len(logprobs[name]) for name in logprobs}
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(lengths) == 1


def test_a_trace_says_at_which_step_each_token_was_committed(client: Any) -> None:
    body = answer_of(client, return_trace=True)
    assert body["choices"][0]["message"]["content"] == ANSWER
    assert body["usage"]["completion_tokens"] == len(RIGHT.decoded.answers()[0])
    trace = body["choices"][0]["trace"]
    assert trace["forwards"] == int(RIGHT.decoded.nfe[0])
    assert len(trace["steps"]) == body["usage"]["completion_tokens"]
    # The rate counted the EOS, but the number of tokens does not.
    assert trace["tokens_per_forward"] == len(trace["steps"]) / trace["forwards"]
    assert 0 < trace["seconds"] < 60
    assert trace["unknown_words"] == []
    unknown = answer_of(client, messages=chat_of("zebras have how many apples"), return_trace=True)
    assert unknown["choices"][0]["trace"]["unknown_words"] == ["zebras"]
    assert 0 <= min(trace["steps"]) <= max(trace["steps"]) < trace["forwards"]


def test_a_template_is_filled_in(client: Any) -> None:
    template = "emma now has [MASK:5] . after giving some away emma has [MASK:5] ."
    text = answer_of(client, template=template)["choices"][0]["message"]["content"]
    assert text.startswith(
        "emma now has 12 + 30 = 42 . after giving some away emma has 42 - 8 = 34 ."
    )


def test_a_denoising_stream_shows_the_canvas(client: Any) -> None:
    *drafts, last = [chunk["choices"][0] for chunk in events_of(client, stream_mode="denoise")]
    counts = [sum(token is None for token in draft["canvas"]["tokens"]) for draft in drafts]
    assert counts == sorted(counts, reverse=True)
    assert 64 > counts[0] > counts[-1]
    assert last["delta"]["content"] == ANSWER


def test_health_models_and_metrics(client: Any) -> None:
    assert client.get("/health").json()["status"] == "ok"
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("mini", "model", "dllm_decode")
    assert model["samplers"] == ["default", "slow"]
    # Plug-ins that are the default are not listed.
    assert not {"verifier", "cache", "blocks"} & set(model)
    assert client.get("/v1/models/mini").json() == model
    answer_of(client)
    metrics = client.get("/metrics").text
    assert 'dllm_responses_total{path="/v1/chat/completions",status="200"}' in metrics
    assert 'dllm_running{sampler="slow"} 0.0' in metrics


def test_the_page_of_paths_names_all_fields_and_loads_nothing_from_elsewhere(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(paths)
    statuses = [set(method["responses"]) for path in paths.values() for method in path.values()]
    assert all(codes == {"200", "4XX"} for codes in statuses)
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = [*fields.Chat.model_fields, *fields.Completion.model_fields]
    assert all(f"<td>{name}</td>" in page.text for name in names)
    assert "POST /<wbr>v1/<wbr>completions" in page.text
    assert not re.search("<script|//", page.text)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
    ],
)
def test_arguments_of_the_chat_template_reach_one_that_knows_them(
    server: Any, client: Any, asked: Any, param: str
) -> None:
    refused = post(client, **asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    tokenizer = server[1].tokenizer
    before = tokenizer.chat_template
    try:
        tokenizer.chat_template = (
            "{% generation %}{% endgeneration %}"
            + before
            + "{% if enable_thinking or reasoning_effort == 'high' %} apples apples{% endif %}"
        )
        prompts = [
            answer_of(client, **options)["usage"]["prompt_tokens"] for options in ({}, asked)
        ]
        assert prompts[1] == prompts[0] + 2
        # Names of the chat itself and of transformers' own arguments and functions.
        for name in ("messages", "chat_template", "tokenize", "raise_exception", "eos_token"):
            wrong = post(client, chat_template_kwargs={name: "x"})
            assert wrong.status_code == 400
            assert "(enable_thinking, reasoning_effort)" in wrong.json()["error"]["message"]
    finally:
        tokenizer.chat_template = before


def test_the_log_has_a_line_for_each_request_without_its_content(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dllm_decode.serve")
    num_tokens = answer_of(client)["usage"]["completion_tokens"]
    events_of(client)
    client.get("/no%0Apath?secret=1")

    wait_until(lambda: "path 404" in "".join(caplog.messages))
    # The line of an earlier test may come late.
    whole_line, stream_line, wrong_line = caplog.messages[-3:]
    for line in (whole_line, stream_line):
        head = f"127.0.0.1 POST /v1/chat/completions 200 {num_tokens} tokens "
        assert re.fullmatch(rf"{re.escape(head)}\d+\.\d{{3}} s", line)
    assert re.fullmatch(r"127.0.0.1 GET /no%0Apath 404 \d\.\d{3} s", wrong_line)


def test_tools_are_written_by_the_template_of_the_model(server: Any, client: Any) -> None:
    """A tool whose text cannot be encoded is an error of the client, who writes these texts."""
    tokenizer, prompts = server[1].tokenizer, []
    before = tokenizer.chat_template
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
        "{% for turn in messages %}{{ turn.tool_call_id }} {{ turn.content }} {% endfor %}"
    )
    cases: list[tuple[str, str, str]] = [
        ("apples", "a", "auto"), ("emma has apples", "a", "auto"), ("apples", "a b c", "auto"),
        ("apples", "a", "none"), ("emma has apples", "a", "none"),
    ]  # fmt: skip
    try:
        for name, call, choice in cases:
            tools = [{"type": "function", "function": {"name": name, "strict": True}}]
            messages = [*CHAT["messages"], {"role": "tool", "content": "12", "tool_call_id": call}]
            body = answer_of(client, messages=messages, tools=tools, tool_choice=choice)
            prompts.append(body["usage"]["prompt_tokens"])
        tools[0]["function"]["name"] = "\ud800"
        refused = post(client, tools=tools)
    finally:
        tokenizer.chat_template = before
    assert [length - prompts[0] for length in prompts] == [0, 2, 2, -1, -1]
    assert refused.status_code == 400
    require_shape(refused)


MALFORMED: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**63}, "seed"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 129}, "max_tokens"), ({"max_completion_tokens": 6}, "max_tokens"),
    ({"stop": ["a", ""]}, "stop.1"), ({"stop": 5}, "stop"), ({"stop": ["a"] * 17}, "stop"),
    ({"n": 17}, "n"), ({"stream": "yes"}, "stream"),
    ({"stream_options": {"what": 1}}, "stream_options.what"), ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, None),
    ({"messages": [{"role": "critic", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, None),
    ({"messages": [{"role": "user", "content": "a " * 600}]}, None),
    ({"model": "another"}, "model"), ({"sampler": "Wino()"}, "sampler"),
    ({"\ud800": 1}, None), ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": "add"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "add"}}], "tool_choice": "required"},
     "tools"),
    ({"tool_choice": "required"}, "tool_choice"), ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"top_logprobs": 5}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"template": "[MASK:999]"}, "template"), ({"template": "[MASK:0]"}, None),
    ({"stream_mode": "denoise"}, "stream_mode"), ({"block_length": 8}, "block_length"),
]  # fmt: skip


SENTENCES: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": "ten"}, "max_tokens", """'max_tokens' must be a whole number, got "ten"."""),
    ({"messages": []}, "messages", "'messages' must have a length of at least 1."),
    ({"stream_mode": "x"}, "stream_mode",
     """'stream_mode' must be 'text' or 'denoise', got "x"."""),
    # The options were ignored, although the server ignores no field.
    ({"stream_options": {"include_usage": True}}, "stream_options",
     "'stream_options' needs \"stream\": true."),
    ({"template": "\ud800"}, "template",
     r"""'template' must be encodable as UTF-8, without lone surrogates, got "\ud800"."""),
    ({"template": ["emma has", 5]}, "template",
     "'template' must be a text with blanks, such as 'emma has [MASK:5] apples'."),
    ({"temprature": 1}, "temprature",
     "'temprature' is not a field of this request; did you mean 'temperature'?"),
    ({"wrong": 1}, "wrong", "'wrong' is not a field of this request, or not supported here."),
    ({"presence_penalty": 0.5}, "presence_penalty",
     "'presence_penalty' is not supported by this server; leave it out. A penalty counts the "
     "tokens before a position, which may still be open when its token is drawn."),
    ({"guided_regex": "[0-9]"}, "guided_regex",
     "'guided_regex' is not supported by this server; leave it out. Use 'structured_outputs', such "
     "as {\"regex\": \"[0-9]+\"}, with 'json', 'regex' or 'choice'."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "param", "message"),
    [*((wrong, param, None) for wrong, param in MALFORMED), *SENTENCES],
)
def test_a_malformed_request_is_refused_by_name(
    client: Any, wrong: dict[str, Any], param: str | None, message: str | None
) -> None:
    """The messages of pydantic name neither the field nor the value."""
    response = post(client, **wrong)
    assert response.status_code in (400, 404), response.text
    require_shape(response)
    error = response.json()["error"]
    assert param is None or error["param"] == param, error
    assert message is None or error["message"] == message
    assert "Input should" not in error["message"]


def require_shape(response: Any) -> None:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "/tmp" not in error["message"]
    assert "Traceback" not in error["message"]


UNREADABLE = (
    b"", b"[]", b"null", b"\xff\xfe", b'{"messages":' + b"[" * 5000, b'{"prompt": NaN}',
    b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": []}', b'{"prompt": [[]]}',
    b'{"prompt": ["a", 5]}', b'{"prompt": [99999999]}', b'{"prompt": [true]}', b'{"prompt": ""}',
    b'{"prompt": [' + b'"a",' * 16 + b'"a"]}', b'{"prompt": "a", "echo": true}',
)  # fmt: skip
REFUSED: list[tuple[str, str, dict[str, Any], int]] = [
    *(("POST", "/v1/completions", {"content": body}, 400) for body in UNREADABLE),
    ("POST", "/v1/completions", {"content": b"{" + b" " * 2**20 + b"}"}, 413),
    ("GET", "/v1/completions", {}, 405),
    ("GET", "/redoc", {}, 404),
    ("GET", "/v1/models/another", {}, 404),
    ("GET", "/v1/models", {"headers": {"host": "example.com"}}, 400),
]


@pytest.mark.parametrize(("method", "path", "options", "status"), REFUSED)
def test_other_bodies_paths_methods_and_hosts_are_refused_in_the_same_shape(
    client: Any, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    response = client.request(method, path, **{"headers": JSON} | options)
    assert response.status_code == status, response.text
    require_shape(response)


def test_a_small_body_that_asks_for_too_much_is_refused_before_it_is_laid_out(client: Any) -> None:
    """Up to 1.3 GB of memory were taken before the 400."""
    tracemalloc.start()
    try:
        body = {"prompt": "a", "template": "[MASK:512]" * 3000}
        response = client.post("/v1/completions", json=body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 400
    require_shape(response)
    assert peak < 5e6


def test_values_that_ask_for_nothing_are_taken(client: Any) -> None:
    noted = answer_of(client, user="emma", metadata={"topic": "apples"}, chat_template_kwargs={})
    assert noted["choices"][0]["message"]["content"] == ANSWER
    for number in (0, -1):
        neutral = {name: values[number] for name, values in fields.NEUTRAL.items() if values}
        body = answer_of(client, **neutral, stop=[None])
        assert body["choices"][0]["message"]["content"] == ANSWER
    nulls = dict.fromkeys([
        *fields.NEUTRAL, "stop", "n", "seed", "top_k", "logprobs", "template", "stream_options"
    ])  # fmt: skip
    assert answer_of(client, **nulls)["choices"][0]["message"]["content"] == ANSWER


def test_an_answer_can_be_sent_back_as_it_came(client: Any) -> None:
    turn = {
        "role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": [],
    }  # fmt: skip
    parts = {"role": "user", "content": [{"type": "text", "text": QUESTIONS[0]}]}
    assert post(client, messages=[*chat_of(QUESTIONS[1]), turn, parts]).status_code == 200


def test_a_full_queue_is_a_429_with_a_time() -> None:
    limits = Limits(num_rows=1, max_waiting=1, max_tokens=128, gen_length=64)
    options = {"ignore_eos": True, "max_tokens": 32}
    with (
        served({"slow": decoder_of(MODEL, FixedSchedule(32))}, limits=limits) as (url, _),
        httpx.Client(base_url=url, timeout=30.0) as client,
        ThreadPoolExecutor(5) as pool,
    ):
        futures = [pool.submit(post, client, **options) for _ in range(5)]
        responses = [future.result() for future in futures]
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 429}
    refused = responses[statuses.index(429)]
    require_shape(refused)
    assert int(refused.headers["retry-after"]) >= 1


def test_a_key_is_needed_where_the_server_has_one() -> None:
    with served(limits=LIMITS, api_key="secret") as (url, _), httpx.Client(base_url=url) as client:
        assert client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            response = client.get("/v1/models", headers=headers)
            assert response.status_code == 401
            require_shape(response)
        headers = {"authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_a_request_that_takes_too_long_is_given_up() -> None:
    limits = Limits(deadline_s=0.2, max_tokens=448)
    decoder = decoder_of(MODEL, FixedSchedule(32), gen_length=448)
    options: Any = {"max_tokens": 448, "ignore_eos": True}
    with (
        served({"default": decoder}, limits=limits) as (url, service),
        httpx.Client(base_url=url) as client,
    ):
        response = post(client, **options)
        assert response.status_code == 504
        require_shape(response)
        *_, last = events_of(client, **options)
        assert last["error"]["code"] == "deadline"
        wait_until(lambda: service.runner.lanes["default"].num_running == 0)

        def slowly() -> Iterator[bytes]:
            yield b'{"prompt":'
            time.sleep(0.4)
            yield b'"a"}'

        response = client.post("/v1/completions", content=slowly(), headers=JSON)
        assert response.status_code == 408
        require_shape(response)


def test_clients_that_hang_up_give_their_rows_back(server: tuple[str, Any]) -> None:
    url, service = server
    lane = service.runner.lanes["slow"]

    def num_finished_tokens() -> str:
        (line,) = re.findall("^dllm_answer_tokens_total.*", service.metrics.text().decode(), re.M)
        return str(line)

    before = num_finished_tokens()
    body = {**CHAT, "sampler": "slow", "max_tokens": 128, "ignore_eos": True}
    for is_stream, reads in product((False, True), repeat=2):
        with httpx.Client(base_url=url, timeout=httpx.Timeout(30.0, read=0.15)) as client:
            try:
                with client.stream(
                    "POST", "/v1/chat/completions", json={**body, "stream": is_stream}
                ) as response:
                    if reads:
                        next(response.iter_text(), None)
            except httpx.ReadTimeout:
                pass
    wait_until(lambda: lane.num_running == 0 and lane.num_waiting == 0, 2.0)
    assert num_finished_tokens() == before


def test_a_model_that_takes_less_than_the_server_says_so() -> None:
    """`max_model_len` was the server's 4096, and the error for too long a request had no code."""
    model, words = load_model("mini-long")
    decoders = {"default": decoder_of(model)}
    with served(decoders, limits=Limits(), tokenizer=words) as (url, _):
        (listed,) = httpx.get(f"{url}/v1/models").json()["data"]
        body = {"prompt": [5] * 500, "max_tokens": 13}
        refused = httpx.post(f"{url}/v1/completions", json=body).json()["error"]
    assert listed["max_model_len"] == 512
    assert refused["code"] == "context_length_exceeded"
    assert "at most 512 tokens together on this server, got 500 and 13" in refused["message"]
