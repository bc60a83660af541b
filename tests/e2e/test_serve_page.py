"""The page of the server, in a browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import CHROMIUM, QUESTIONS, Browser, browser, chat_of, decoder_of, served

from dllm_decode import generate, load_model
from samplers import FixedSchedule

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")
MODEL, TOKENIZER = load_model("mini")
KEY = "a-key-of-the-test"
NEEDS_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    decoders = {"default": decoder_of(MODEL), "slow": decoder_of(MODEL, FixedSchedule(16))}
    with served(decoders) as (address, _):
        yield address


def test_the_page_loads_nothing_from_elsewhere_and_holds_no_secret() -> None:
    wrong = re.compile(rf"{KEY}|https?://|innerHTML|eval\(|<script>|<style>| style=| on\w+=")
    with served(api_key=KEY) as (url, _):
        assert httpx.get(f"{url}/v1/models").status_code == 401
        responses = [httpx.get(url + path) for path in ("/", "/page.js", "/page.css")]
    for response in responses:
        assert response.status_code == 200
        assert not wrong.search(response.text)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


@pytest.fixture(scope="module")
def page(tmp_path_factory: Any) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def send(page: Browser, url: str, fields: dict[str, str], **options: Any) -> str:
    """Sends the form with some fields, and returns the text of the answer's turn."""
    page.open(url, **options)
    page.wait_for("document.readyState == 'complete' && byId('sampler').options.length == 2")
    for name, value in {"pause": "0", **fields}.items():
        page.value(f"byId({name!r}).value = {value!r}")
    page.value("byId('form').requestSubmit()")
    page.wait_for("document.querySelector('[data-state]') !== null")
    return str(page.value("document.querySelector('[data-state]').innerText"))


@pytest.mark.slow
@NEEDS_BROWSER
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_a_question_is_answered_on_the_page(
    page: Browser, url: str, tmp_path: Path, width: int, is_dark: bool
) -> None:
    fields = {"message": QUESTIONS[0], "sampler": "slow"}
    text = send(page, url, fields, width=width, is_dark=is_dark)
    chat = chat_of(QUESTIONS[0])
    wanted = generate(MODEL, TOKENIZER, chat, FixedSchedule(16), gen_length=64).texts[0]
    assert wanted in text
    assert re.search(
        r"23 tokens in \d+\.\d\d s, \d+ tokens/s, 16 forwards, 1.4 tokens per forward", text
    )
    assert page.value("document.documentElement.scrollWidth") <= width
    (tmp_path / "page.png").write_bytes(page.picture())


@pytest.mark.slow
@NEEDS_BROWSER
def test_parts_of_an_answer_are_given_on_the_page(page: Browser, url: str) -> None:
    template = "emma now has [MASK:5] . after giving some away emma has [MASK:5] ."
    text = send(page, url, {"message": QUESTIONS[0], "template": template})
    assert "emma now has 12 + 30 = 42 . after giving some away emma has 42 - 8 = 34 ." in text


def press(page: Browser, key: str, **options: Any) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **options)


@pytest.mark.slow
@NEEDS_BROWSER
def test_enter_sends_a_message_and_shift_enter_begins_a_line(page: Browser, url: str) -> None:
    """Only Ctrl+Enter sent it, and no text said so."""
    page.open(url)
    page.wait_for("document.readyState == 'complete' && byId('sampler').options.length == 2")
    page.value("byId('pause').value = '0'; byId('message').value = 'emma'; byId('message').focus()")
    press(page, "End")
    enter = {"text": "\r", "windowsVirtualKeyCode": 13}
    press(page, "Enter", modifiers=8, **enter)
    assert page.value("byId('message').value") == "emma\n"
    press(page, "Enter", **enter)
    page.wait_for("document.querySelector('[data-state]') !== null")
    assert page.value("document.querySelector('.user').textContent") == "emma\n"
    assert page.value("byId('message').value") == ""
    assert "Enter sends it" in page.value("document.body.innerText")


@pytest.mark.slow
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_paths_breaks_no_word(page: Browser, url: str, width: int) -> None:
    """At 390 px a path was broken within a word."""
    page.open(f"{url}/docs", width=width)
    page.wait_for("document.readyState == 'complete'")
    assert page.value("document.documentElement.scrollWidth") <= width
    # The words between spaces and slashes are each on one line.
    broken = page.value("""
      [...document.querySelectorAll("td")].flatMap((cell) => {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
        for (let node; (node = texts.nextNode());)
          for (const word of node.textContent.matchAll(/[^ /]+/g)) {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            if (range.getClientRects().length > 1) broken.push(word[0]);
          }
        return broken;
      })""")
    assert broken == []


@pytest.mark.slow
@NEEDS_BROWSER
def test_unknown_words_and_empty_answers_are_named_on_the_page(page: Browser, url: str) -> None:
    text = send(page, url, {"message": "zebras", "regex": "()"})
    assert "The model does not know these words: zebras." in text
    assert "The answer is empty" in text


@pytest.mark.slow
@NEEDS_BROWSER
def test_nothing_that_is_typed_is_read_as_html(page: Browser, url: str) -> None:
    typed = '<img src=x onerror="document.title = 5"><b>bold</b>'
    send(page, url, {"message": typed, "length": "5000"})
    assert page.value("document.querySelectorAll('#chat img, #chat b').length") == 0
    assert page.value("document.querySelector('.user').textContent") == typed
    assert page.value("document.title") == "dllm-decode"
    refusal = page.value("document.querySelector('.wrong').textContent")
    assert "'max_tokens' must be at most 128" in refusal
    # The message can be sent again.
    assert page.value("byId('message').value") == typed
