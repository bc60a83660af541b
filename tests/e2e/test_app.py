"""The app's server, over HTTP, on the embedded model."""

import json
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dllm_decode import decode, load_model
from examples import app
from samplers import learn2pd, parse

QUESTION = (
    "emma has 12 apples . emma finds 30 more apples and then gives 8 apples to ben . "
    "how many apples does emma have now ?"
)


@pytest.fixture(scope="module")
def stage() -> app.Stage:
    model, tokenizer = load_model("mini")
    return app.Stage("mini", model, tokenizer, gen_length=64, block_length=32, max_gen_length=128)


@pytest.fixture(scope="module")
def port(stage: app.Stage) -> Iterator[int]:
    with app.Server(stage, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(port: int, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def status_of(port: int, headers: list[tuple[str, str]], path: str = "/") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest("GET", path, skip_host=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/decode?question=hello", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "evil.example"},
        {"Host": "evil.example:PORT"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1:PORT.evil.example"},
        {"Host": "127.0.0.1:PORT", "host": "127.0.0.1:PORT"},
        {"Host": "127.0.0.1:PORT", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:PORT", "Origin": "null"},
        {"Host": "127.0.0.1:PORT", "Origin": "http://localhost:PORT"},
        {"Host": "127.0.0.1:PORT", "Sec-Fetch-Site": "cross-site"},
        {"Host": "localhost:PORT", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(
    headers: dict[str, str], path: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of any site could start decodes, and read them after rebinding its name."""
    monkeypatch.setattr(app.Stage, "read", None)
    given = [(name, value.replace("PORT", str(port))) for name, value in headers.items()]
    status, said = status_of(port, given, path)
    assert status == 403
    assert " must be " in said


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LocalHost"])
def test_the_page_and_the_user_are_answered(name: str, port: int) -> None:
    host = f"{name}:{port}"
    for more in ([], [("Sec-Fetch-Site", "none")],
                 [("Origin", f"http://{host}"), ("Sec-Fetch-Site", "same-origin")]):  # fmt: skip
        assert status_of(port, [("Host", host), *more])[0] == 200


def test_no_request_imports_a_module_or_reads_a_file(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sampler=this:X()` ran the module `this`, and any file was opened as a filter or a card."""
    (tmp_path / "from_the_network.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(learn2pd, "load_filter", None)
    filters = [
        "Learn2PD('/dev/zero')", "Learn2PD('../../etc/passwd')", "Learn2PD(filter='nothing')",
        "CreditDecoding(Learn2PD('/dev/zero'))", "Learn2PD(('mini',))", "Learn2PD(Wino())",
    ]  # fmt: skip
    wishes = [
        *({"sampler": text} for text in filters),
        {"sampler": "from_the_network:X()"},
        {"sampler": "CreditDecoding(from_the_network:X())"},
        {"sampler": "@/dev/zero"},
        {"sampler": "DualCache()"},
        {"cache": "from_the_network:X()"},
        {"cache": "@/dev/zero"},
        {"cache": "CachePolicy()"},
        {"cache": "History()"},
    ]
    for wish in wishes:
        ((name, message),) = events(port, **({"question": QUESTION} | wish))
        assert name == "refused", wish
        assert message, wish
    assert "from_the_network" not in sys.modules


def test_an_embedded_filter_decodes(port: int) -> None:
    told = events(port, question=QUESTION, sampler="Learn2PD('mini', threshold=0.9)")
    assert told[-1][0] == "done"


def events(port: int, **query: Any) -> list[tuple[str, Any]]:
    status, kind, text = get(port, "/decode?" + urlencode(query))
    assert (status, kind) == (200, "text/event-stream")
    found = []
    for block in text.strip().split("\n\n"):
        name, _, said = block.partition("\n")
        found.append((name.removeprefix("event: "), json.loads(said.removeprefix("data: "))))
    return found


def test_the_page_is_one_file_that_knows_the_model(port: int) -> None:
    status, kind, page = get(port, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert '"model": "mini"' in page
    assert "@" + "STYLE@" not in page
    assert "http" not in page
    assert get(port, "/etc/passwd")[0] == 404


@pytest.mark.parametrize(
    ("sampler", "cache"),
    [
        ("FixedSchedule(16)", "NoCache()"),
        ("ConfidenceThreshold(0.9)", "DualCache()"),
        ("Wino()", "NoCache()"),
    ],
)
def test_the_steps_add_up_to_the_answer_that_decode_gives(
    sampler: str, cache: str, port: int, stage: app.Stage
) -> None:
    told = events(port, question=QUESTION, sampler=sampler, cache=cache, block_length=16)
    pieces: list[str | None] = [None] * 64
    for name, said in told[:-1]:
        assert name == "step"
        for position, piece in said["changed"]:
            pieces[position] = piece
        assert said["tokens"] == sum(piece is not None for piece in pieces)
    name, done = told[-1]
    assert name == "done"
    wish = stage.read({"question": QUESTION, "sampler": sampler, "cache": cache})
    out = decode(
        stage.model, [stage._prompt(QUESTION)], parse(sampler), cache=wish.cache, gen_length=64,
        block_length=16,
    )  # fmt: skip
    answer = out.answers()[0]
    assert done["text"] == stage.tokenizer.decode(answer, skip_special_tokens=True)
    assert done["forwards"] == int(out.nfe[0])
    assert done["tokens"] == int(out.lengths()[0])
    assert pieces[: len(answer)] == [stage.tokenizer.decode([token]) for token in answer]


def test_two_sides_decode_at_a_time_and_do_not_meet(port: int) -> None:
    alone = events(port, question=QUESTION, sampler="FixedSchedule(16)", block_length=16)
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        found[number] = events(
            port, question=QUESTION, sampler="FixedSchedule(16)", block_length=16, pause=0.01
        )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert [said["changed"] for _, said in found[number][:-1]] == [
            said["changed"] for _, said in alone[:-1]
        ]
        assert found[number][-1][1]["text"] == alone[-1][1]["text"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"question": ""}, "must have 1 to 4000 characters, got 0"),
        ({"sampler": "Nothing()"}, "Nothing"),
        ({"sampler": "ConfidenceThreshold(2.0)"}, "threshold must be"),
        ({"cache": "__import__('os')"}, "__import__"),
        ({"gen_length": "999999999"}, "gen_length must be a whole number from 1 to 128"),
        ({"gen_length": "-1"}, "gen_length must be a whole number"),
        ({"block_length": "65"}, "block_length must be a whole number from 1 to 64"),
        ({"pause": "nan"}, "pause must be from 0 to 2.0 seconds, got 'nan'"),
    ],
)
def test_wrong_wishes_are_refused_with_a_sentence(
    wrong: dict[str, str], said: str, port: int
) -> None:
    ((name, message),) = events(port, **({"question": QUESTION} | wrong))
    assert name == "refused"
    assert said in message


def test_a_closed_page_frees_the_model(port: int, stage: app.Stage) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/decode?" + urlencode({"question": QUESTION, "pause": "0.05",
                                                      "sampler": "FixedSchedule(32)"}))  # fmt: skip
    assert connection.getresponse().read(5) == b"event"
    connection.close()
    assert events(port, question=QUESTION)[-1][0] == "done"
    assert stage.lock.acquire(timeout=30)
    stage.lock.release()
