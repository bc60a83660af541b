"""The pages of a results folder: what is in them, and what their scripts need."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest

from dllm_decode import decode
from eval.reports.page import report_page
from eval.reports.plots import places_of, ticks
from eval.reports.report import write_comparison, write_report
from eval.reports.templates import ASSETS
from eval.runs.records import Folder, append
from eval.runs.runner import execute
from eval.runs.traces import RunnersUp
from samplers import ConfidenceThreshold, Wino

RUNS = eval_runs.runs()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return execute(RUNS, tmp_path_factory.mktemp("results") / "finished")


def content_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="content" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


def cut(folder: Folder, path: Path, num_records: int) -> Folder:
    """Copies a folder with its first records only."""
    shutil.copytree(folder.path, path, ignore=shutil.ignore_patterns("*.html"))
    part = path / "part-0.jsonl"
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:num_records]))
    return Folder(path)


def test_a_page_holds_every_example_with_every_answer(finished: Folder) -> None:
    content = content_of(report_page([finished]))
    (task,) = content["tasks"]
    assert content["notice"] == ""
    assert [row["name"] for row in task["rows"]] == [
        settings.sampler for settings in finished.settings()
    ]
    assert len(task["examples"]) == 10
    shown = {
        (example["id"], key): answers[0]["text"]
        for example in task["examples"]
        for row, answers in zip(task["rows"], example["cells"], strict=True)
        for key in row["keys"]
    }
    assert shown == {(r["example"], r["settings"]): r["text"] for r in finished.records()}


def test_a_page_holds_the_reliability_of_each_setting_that_has_traces(
    finished: Folder, tmp_path: Path
) -> None:
    (task,) = content_of(report_page([finished]))["tasks"]
    for row in task["rows"]:
        own = [r for r in finished.records() if r["settings"] in row["keys"]]
        counted = sum(count for r in own for count, *_ in r["trace"]["proposals"])
        assert row["reliability"]["num_proposals"] == counted > 0
        assert sum(count for _, _, count, *_ in row["reliability"]["bins"]) == counted
        # The lowest threshold that is told would have committed everything.
        assert row["reliability"]["bins"][0][5] == 1.0
    folder = cut(finished, tmp_path / "untraced", 20)
    untraced = [{**record, "trace": None} for record in folder.records()]
    lines = "".join(json.dumps(record) + "\n" for record in untraced)
    (folder.path / "part-0.jsonl").write_text(lines)
    (task,) = content_of(report_page([folder]))["tasks"]
    assert [row["reliability"] for row in task["rows"]] == [None, None]


def test_an_unfinished_folder_says_so_everywhere(finished: Folder, tmp_path: Path) -> None:
    folder = cut(finished, tmp_path / "cut", 17)
    text = write_report(folder).read_text()
    assert text.count("3 of 20 examples are missing") == 2
    pages = sorted(folder.path.glob("*.html"))
    assert len(pages) == 11
    for page in pages:
        assert "Unfinished: 3 of 20 examples are missing" in content_of(page.read_text())["notice"]
    content = content_of((folder.path / "report.html").read_text())
    assert [row["missing"] for row in content["tasks"][0]["rows"]] == [0, 3]
    assert "UNFINISHED" in next(folder.path.glob("*.svg")).read_text()
    assert "<title>cut (unfinished)</title>" in (folder.path / "report.html").read_text()


def test_examples_link_to_their_replays_and_back(finished: Folder) -> None:
    write_report(finished, num_replays=4)
    content = content_of((finished.path / "report.html").read_text())
    linked = {e["replay"]: e["id"] for e in content["tasks"][0]["examples"] if e["replay"]}
    assert len(linked) == 4
    keys = {row["keys"][0] for row in content["tasks"][0]["rows"]}
    for file, example in linked.items():
        replay = content_of((finished.path / file).read_text())
        assert (replay["report"], replay["example"]) == ("report.html", example)
        assert {panel["key"] for panel in replay["panels"]} == keys


def test_two_folders_are_compared_on_the_examples_that_both_have(
    finished: Folder, tmp_path: Path
) -> None:
    after = Folder(tmp_path / "after")
    after.claim(finished.settings())
    for record in finished.records()[:-2]:
        flipped = 1.0 - record["scores"][record["primary"]]
        append(after.part(0), [record | {"scores": {record["primary"]: flipped}}])
    write_comparison(finished, after, tmp_path / "comparison.html")
    content = content_of((tmp_path / "comparison.html").read_text())
    (task,) = content["tasks"]
    assert content["folders"] == ["finished", "after"]
    assert [row["folder"] for row in task["rows"]] == [0, 0, 1, 1]
    assert [change["shared"] for change in task["changes"]] == [10, 8]
    for change, num_shared in zip(task["changes"], (10, 8), strict=True):
        before, later = task["rows"][change["before"]], task["rows"][change["after"]]
        assert before["name"] == later["name"]
        if num_shared == 10:
            expected = later["accuracy"][0] - before["accuracy"][0]
            assert change["difference"][0] == pytest.approx(expected)
    with pytest.raises(ValueError, match="one folder or two, got 0"):
        report_page([])


def test_a_page_needs_no_network_and_no_text_ends_its_scripts(
    finished: Folder, tmp_path: Path
) -> None:
    folder = cut(finished, tmp_path / "evil", 20)
    part = folder.path / "part-0.jsonl"
    evil = "</script><script>alert(1)</script> @SCRIPT@ @TITLE@"
    records = [{**record, "text": evil} for record in folder.records()]
    part.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = report_page([folder])
    assert page.count("</script>") == 2
    assert re.findall(r"https?://\S+", page) == ['http://www.w3.org/2000/svg",']
    assert not re.search(r"<(link|img|iframe)|@import|fetch\(|XMLHttp", page)
    assert content_of(page)["tasks"][0]["examples"][0]["cells"][0][0]["text"] == evil


def test_the_assets_name_only_elements_that_their_page_has() -> None:
    """A script that looks for a missing id stops, and the page stays empty."""
    for name in ("report", "replay"):
        page = (ASSETS / f"{name}.html").read_text()
        script = (ASSETS / f"{name}.js").read_text()
        wanted = set(re.findall(r'byId\("([\w-]+)"\)', script))
        assert wanted
        assert wanted <= set(re.findall(r'id="([\w-]+)"', page))


def test_ticks_are_round_and_within_the_data() -> None:
    assert ticks(0.7, 14.0) == [1.0, 2.0, 5.0, 10.0]
    assert ticks(100.0, 3000.0) == [100.0, 200.0, 500.0, 1000.0, 2000.0]
    for low in (0.003, 0.8, 2.1, 9.0, 120.0):
        for ratio in (1.5, 4.0, 300.0):
            found = ticks(low, low * ratio)
            assert len(found) >= 2
            assert all(low <= tick <= low * ratio for tick in found)


def test_marks_on_one_spot_have_one_label() -> None:
    def row(speed: float, accuracy: float) -> dict[str, Any]:
        return {"speed": {"tokens_per_any_forward": {"value": speed}},
                "accuracy": {"value": accuracy}}  # fmt: skip

    rows = [row(4.0, 0.9), row(4.001, 0.9), row(8.0, 0.9), row(4.0, 0.9)]
    assert list(places_of(rows).values()) == ["1, 2, 4", "3"]


@pytest.mark.parametrize("sampler", [ConfidenceThreshold(0.2), Wino()], ids=repr)
def test_runners_up_are_those_of_the_step_that_committed(sampler: Any) -> None:
    """At temperature 0 a commit is the most likely token, and its confidence the trace's."""
    from dllm_decode import Trace

    trace, runners_up = Trace(), RunnersUp()
    options: Any = {"gen_length": 16, "block_length": 8, "observers": [trace, runners_up]}
    out = decode(eval_runs.model(), [[5, 6, 7], [9]], sampler, **options)
    num_told = 0
    for row in range(2):
        steps = trace.steps[row].tolist()
        for position, told in enumerate(runners_up.of(row, steps)):
            assert (told is None) == (steps[position] < 0)
            if told is not None:
                num_told += 1
                entropy, tokens = told
                probabilities = [probability for _, probability in tokens]
                assert tokens[0][0] == int(out.tokens[row, position])
                assert probabilities == sorted(probabilities, reverse=True)
                assert probabilities[0] == pytest.approx(
                    float(trace.confidences[row][position]), abs=1e-4
                )
                assert 0 <= entropy < 6.0
    assert num_told >= 8


def test_records_without_runners_up_still_replay(finished: Folder) -> None:
    from eval.reports.replay import panels_of

    record = finished.records()[0]
    old = record | {"trace": {k: v for k, v in record["trace"].items() if k != "runners_up"}}
    settings = replace(finished.settings()[0])
    (new_panel,), (old_panel,) = panels_of([(settings, record)]), panels_of([(settings, old)])
    assert old_panel["runners_up"] == []
    assert any(told for told in new_panel["runners_up"])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_runs_the_pages_without_an_error(finished: Folder, tmp_path: Path) -> None:
    """The script runs to its end: tables and panels are there, filters and keys do something."""
    write_report(finished, num_replays=1)
    probe = (
        '<script>byId("filter").value = "wrong"; byId("filter").dispatchEvent(new Event("input"));'
        'document.querySelector("th[data-key=nfe] button").click();'
        'document.title = [byId("count").textContent, task.rows.length,'
        'document.querySelectorAll("#settings tbody tr").length,'
        'document.querySelectorAll("#picture circle").length,'
        'document.querySelectorAll("#reliability circle").length].join("|");</script></body>'
    )
    page = (finished.path / "report.html").read_text().replace("</body>", probe)
    (tmp_path / "probe.html").write_text(page)
    count, num_rows, num_lines, *num_marks = title_of(tmp_path / "probe.html").split("|")
    assert re.fullmatch(r"\d+ of 10", count)
    assert num_rows == num_lines == "2"
    assert int(num_marks[0]) >= 1
    assert int(num_marks[1]) >= 2
    replay = next(finished.path.glob("replay-*.html")).read_text()
    probe = (
        "<script>advance(-numSteps); const masked = document.querySelectorAll('.masked').length;"
        "advance(numSteps); panels[0].nodes[0].focus();"
        "document.title = [masked, document.querySelectorAll('#panels .masked').length,"
        "tip.hidden, panels.length].join('|');</script></body>"
    )
    (tmp_path / "probe.html").write_text(replay.replace("</body>", probe))
    masked, still_masked, is_hidden, num_panels = title_of(tmp_path / "probe.html").split("|")
    assert (int(masked) > 1, still_masked, is_hidden, num_panels) == (True, "0", "false", "2")


def title_of(page: Path) -> str:
    assert CHROMIUM is not None
    profile = page.with_suffix(".profile")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None, sys.platform
    return found.group(1)
