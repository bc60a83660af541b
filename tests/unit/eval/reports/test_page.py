"""The pages of a results folder: what is in them, and what their scripts need."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import eval_runs
import pytest
from served import CHROMIUM, browser

from dllm_decode import Trace, decode
from eval.reports.page import report_page
from eval.reports.report import write_report
from eval.reports.summary import summarise
from eval.reports.templates import ASSETS
from eval.reports.terminal import report_folder
from eval.runs.folder import Folder
from eval.runs.records import read_parts
from eval.runs.runner import execute
from eval.runs.scoring import RunnersUp
from samplers import ConfidenceThreshold, Wino

RUNS = eval_runs.runs()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return execute(RUNS, tmp_path_factory.mktemp("results") / "finished")


def content_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script id="content" type="application/json">(.*?)</script>', page, re.S)
    assert match is not None
    return json.loads(match.group(1))


def changed(folder: Folder, path: Path, num_records: int = 20, **changes: object) -> Folder:
    """Copies a folder with its first records only, and with other fields in each."""
    shutil.copytree(folder.path, path, ignore=shutil.ignore_patterns("*.html"))
    records = [record | changes for record in folder.records()[:num_records]]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (path / "part-0.jsonl").write_text(lines)
    return Folder(path)


def test_a_page_holds_every_example_with_every_answer(finished: Folder) -> None:
    content = content_of(report_page(finished))
    (task,) = content["tasks"]
    assert content["notice"] == ""
    names = ["FixedSchedule(8)", "ConfidenceThreshold(0.05)"]
    assert [row["name"] for row in task["rows"]] == names
    assert [row["full"] for row in task["rows"]] == [run.sampler for run in finished.settings()]
    assert len(task["examples"]) == 10
    shown = {
        (example["id"], key): answers[0]["text"]
        for example in task["examples"]
        for row, answers in zip(task["rows"], example["cells"], strict=True)
        for key in row["keys"]
    }
    assert shown == {(r["example"], r["settings"]): r["text"] for r in finished.records()}


def test_an_unfinished_folder_says_so_everywhere(
    finished: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal gave advice on what was there, without a word."""
    folder = changed(finished, tmp_path / "cut", 17)
    write_report(summarise(folder))
    pages = sorted(folder.path.glob("*.html"))
    assert len(pages) == 11
    for page in pages:
        assert "Unfinished: 3 of 20 examples are missing" in content_of(page.read_text())["notice"]
    content = content_of((folder.path / "report.html").read_text())
    assert [row["missing"] for row in content["tasks"][0]["rows"]] == [0, 3]
    assert "<title>cut (unfinished)</title>" in (folder.path / "report.html").read_text()
    report_folder(folder)
    assert capsys.readouterr().out.startswith("Unfinished: 3 of 20 examples are missing")


def test_examples_link_to_their_replays_and_back(finished: Folder) -> None:
    write_report(summarise(finished), num_replays=4)
    content = content_of((finished.path / "report.html").read_text())
    linked = {e["replay"]: e["id"] for e in content["tasks"][0]["examples"] if e["replay"]}
    assert len(linked) == 4
    keys = {row["keys"][0] for row in content["tasks"][0]["rows"]}
    for file, example in linked.items():
        replay = content_of((finished.path / file).read_text())
        assert (replay["report"], replay["example"]) == ("report.html", example)
        assert {panel["key"] for panel in replay["panels"]} == keys


def test_a_report_reads_its_folder_once(finished: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It read every record five times: 8,000 of them took minutes."""
    read = []
    parts = read_parts
    monkeypatch.setattr(
        "eval.runs.folder.read_parts", lambda path: read.append(path) or parts(path)
    )
    assert report_folder(finished) == 0
    assert len(read) == 1


def test_a_page_needs_no_network_and_text_ends_no_script(finished: Folder, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script> @SCRIPT@ @TITLE@"
    page = report_page(changed(finished, tmp_path / "evil", text=evil))
    assert page.count("</script>") == 2
    assert re.findall(r"https?://\S+", page) == ['http://www.w3.org/2000/svg",']
    assert not re.search(r"<(link|img|iframe)|@import|fetch\(|XMLHttp", page)
    assert content_of(page)["tasks"][0]["examples"][0]["cells"][0][0]["text"] == evil


def test_the_assets_name_only_elements_that_their_page_has() -> None:
    """A script that looks for a missing id stops, and the page stays empty."""
    for name in ("report", "replay"):
        page = (ASSETS / f"{name}.html").read_text()
        script = (ASSETS / f"{name}.js").read_text()
        used_ids = set(re.findall(r'byId\("([\w-]+)"\)', script))
        assert used_ids
        assert used_ids <= set(re.findall(r'id="([\w-]+)"', page))


@pytest.mark.parametrize("sampler", [ConfidenceThreshold(0.2), Wino()], ids=repr)
def test_runners_up_are_those_of_the_step_that_committed(sampler: Any) -> None:
    """At temperature 0 a commit is the most likely token, and its confidence the trace's."""
    trace, runners_up = Trace(), RunnersUp()
    options: Any = {"gen_length": 16, "block_length": 8, "observers": [trace, runners_up]}
    out = decode(eval_runs.model(), [[5, 6, 7], [9]], sampler, **options)
    num_entries = 0
    for row in range(2):
        steps = trace.steps[row].tolist()
        for position, entry in enumerate(runners_up.of(row, steps)):
            assert (entry is None) == (steps[position] < 0)
            if entry is not None:
                num_entries += 1
                entropy, tokens = entry
                likely, probabilities = zip(*tokens, strict=True)
                assert likely[0] == int(out.tokens[row, position])
                assert list(probabilities) == sorted(probabilities, reverse=True)
                confidence = float(trace.confidences[row][position])
                assert probabilities[0] == pytest.approx(confidence, abs=1e-4)
                assert 0 <= entropy < 6.0
    assert num_entries >= 8


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_runs_the_pages_without_an_error(finished: Folder, tmp_path: Path) -> None:
    """The script runs to its end: tables and panels are there, filters and keys do something."""
    write_report(summarise(finished), num_replays=1)
    with browser(tmp_path / "profile") as page:
        page.open((finished.path / "report.html").as_uri())
        page.wait_for("document.readyState === 'complete'")
        page.value(
            'byId("filter").value = "wrong"; byId("filter").dispatchEvent(new Event("input"));'
            'document.querySelector("th[data-key=nfe] button").click()'
        )
        assert re.fullmatch(r"\d+ of 10", page.value('byId("count").textContent'))
        for drawn, least in (("#settings tbody tr", 2), ("#picture .glyph", 1)):
            assert page.value(f"document.querySelectorAll('{drawn}').length") >= least
        # The picture is a file that other programs draw as the page does.
        svg = unquote(page.value('byId("svg").href').partition(",")[2])
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "--ink" in svg
        page.open(next(finished.path.glob("replay-*.html")).as_uri())
        page.wait_for("document.readyState === 'complete'")
        masked = "document.querySelectorAll('#panels .masked').length"
        assert page.value(f"advance(-numSteps); {masked}") > 1
        assert page.value(f"advance(numSteps); panels[0].nodes[0].focus(); {masked}") == 0
        assert page.value("[tip.hidden, panels.length]") == [False, 2]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_twelve_settings_fit_the_page_and_can_be_told_apart(tmp_path: Path) -> None:
    """Columns were cut at 1280 pixels, and the ninth method had the first one's colour."""
    samplers = ("FixedSchedule(4)", "Factor()", "Wino()", "LocalLeap()", "Klass()", "Hierarchy()")
    settings = [
        replace(eval_runs.SETTINGS, sampler=sampler, verifier=verifier, num_examples=1)
        for sampler in samplers
        for verifier in ("NoVerifier()", "SelfVerify()")
    ]
    folder = eval_runs.folder_of(tmp_path, settings, [
        eval_runs.record(row, "a", 1.0, nfe=1 + n, gains=[1] * (1 + n), query_positions=900 - 9 * n)
        for n, row in enumerate(settings)
    ])  # fmt: skip
    write_report(summarise(folder))
    with browser(tmp_path / "profile") as page:
        page.open((tmp_path / "report.html").as_uri(), width=1280)
        page.wait_for("document.readyState === 'complete'")
        assert page.value(
            "[...document.querySelectorAll('.scroll')].every((one) => one.scrollWidth <= 1280 &&"
            " one.scrollWidth === one.clientWidth)"
        )
        looks = page.value(
            "[...document.querySelectorAll('#settings .glyph')].map((one) =>"
            " one.getAttribute('d') + one.getAttribute('fill'))"
        )
        assert len(looks) == len(set(looks)) == 12
        bold = "[...document.querySelectorAll('.front td:first-child')].map((one) => one.innerText)"
        assert page.value(bold) == ["12. Hierarchy() + SelfVerify()"]
        assert page.value("byId('advice').textContent").startswith("Undecided: ")
        page.value(
            "byId('cost').value = 'forwards'; byId('cost').dispatchEvent(new Event('change'))"
        )
        assert page.value(bold) == ["1. FixedSchedule(4)"]
        assert page.value("byId('picture-head').textContent").endswith("tokens per forward")
        for key, part in (("nfe", "forwards"), ("tau", "left to right"), ("step_speedup", "fewer")):
            assert part in page.value(f"document.querySelector('th[data-key={key}]').title")
