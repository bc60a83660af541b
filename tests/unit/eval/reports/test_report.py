import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest
from eval_runs import folder_of

from dllm_decode import DecodeConfig
from eval.commands import evaluate as main
from eval.metrics.statistics import wilson
from eval.reports.replay import picture_of, replay_page
from eval.reports.report import write_report
from eval.reports.summary import summarise
from eval.reports.table import other_scores
from eval.reports.terminal import report_folder
from eval.runs.folder import Folder
from eval.runs.records import Record
from eval.runs.runner import execute
from eval.runs.settings import RunSettings

SETTINGS = replace(
    eval_runs.SETTINGS, num_examples=4, config=DecodeConfig(gen_length=6, block_length=3)
)


def record(
    settings: RunSettings, example: str, score: float | None, nfe: int, **own: Any
) -> Record:
    """Returns the record of an answer of five tokens, whose steps do not depend on `nfe`."""
    fields = {
        "git": "abc", "prompt": "ask </script>", "target": "say", "text": "said",
        "scores": {"answer": score, "style": None}, "length": 5, "nfe": nfe,
        "query_positions": 8 * nfe, "committed": 5, "gains": [1] * nfe, "batch_length": 2,
        "batch_forwards": nfe, "tokens": [5, 6, 7, 8, 0, 0],
        "trace": {"steps": [0, 1, 1, 2, 2, -1], "confidences": [0.9, 0.8, 0.7, 0.6, 0.5, None],
                  "revisions": [[1, 9, 0, 0.4, 1]], "lead": 0, "runners_up": [None] * 6,
                  **({"decided": (nfe - 3, nfe)} if nfe > 3 else {})},
        "pieces": {"5": "five", "6": "six", "7": "<b>", "8": "eight", "9": "nine", "0": "EOS"},
    }  # fmt: skip
    return eval_runs.record(settings, example, score, **fields, **own)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Two samplers on four examples; the second fails on one and is faster."""
    fast = replace(SETTINGS, sampler="ConfidenceThreshold(0.9)")
    slow = [record(SETTINGS, e, s, nfe=5) for e, s in zip("abcd", (1, 1, 0, 1), strict=True)]
    quick = [record(fast, e, s, nfe=2) for e, s in zip("abc", (1, 0, 0), strict=True)]
    origin = {name: slow[3][name] for name in ("git", "prompt", "target")}
    failed = {**eval_runs.failed(fast, "d"), **origin}
    return folder_of(tmp_path / "results", [SETTINGS, fast], [*slow, *quick, failed])


def test_the_summary_is_what_the_records_say(folder: Folder) -> None:
    slow, quick = summarise(folder).summary["rows"]
    accuracy = slow["accuracy"]
    assert (accuracy["value"], accuracy["low"], accuracy["high"]) == (0.75, *wilson(3, 4))
    assert slow["scores"] == {"answer": 0.75, "style": None}
    assert slow["timing"]["tokens_per_second"] == 20.0
    assert slow["order"]["order_correlation"] == pytest.approx(8 / (8 * 10) ** 0.5)
    counts = {"decided": {2: 4}, "ended": {5: 4}}
    assert slow["decided"] == {"share": pytest.approx(0.4), "by_half": 1.0, **counts}
    assert quick["decided"] is None
    assert "against_reference" not in slow
    # The example that raised is wrong, and has no speed.
    assert quick["accuracy"]["value"] == 0.25
    assert (quick["num_errors"], quick["errors"]) == (1, {"RuntimeError: no": 1})
    speeds = [row["speed"]["tokens_per_forward"]["value"] for row in (slow, quick)]
    assert speeds == [1.0, 2.5]
    against = quick["against_reference"]
    assert (against["num_shared"], against["accuracy"]["value"]) == (4, -0.5)
    assert against["mcnemar"] == {"gained": 0, "lost": 2, "p_value": 0.5}
    assert against["step_speedup"] == 2.5
    assert slow["speed"]["tokens_per_thousand_columns"]["value"] == 125.0
    assert [row["fronts"] for row in (slow, quick)] == [["forwards", "columns"]] * 2


def test_the_report_is_whole_and_offline(folder: Folder) -> None:
    assert write_report(summarise(folder), num_replays=1) == folder.path / "report.html"
    files = {file.name for file in folder.path.iterdir()}
    assert [n for n in files if n[:7] == "replay-"] == ["replay-lists-shuffle-n-3-b.html"]
    assert json.loads((folder.path / "summary.json").read_text())["git"] == ["abc"]
    for file in folder.path.glob("*.html"):
        page = file.read_text()
        assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "ConfidenceThreshold(0.9)" in page
    first = {file.name: file.read_bytes() for file in folder.path.iterdir()}
    write_report(summarise(folder), num_replays=1)
    assert {file.name: file.read_bytes() for file in folder.path.iterdir()} == first


@pytest.mark.parametrize(
    ("tasks", "examples"),
    [
        (["lists/copy"], ["问题一", "问题二", "A b", "a-b"]),
        (["jsonl:ä.jsonl", "jsonl:ö.jsonl"], ["a", "b" * 300]),
    ],
)
def test_tasks_and_examples_have_files_of_their_own(
    tmp_path: Path, tasks: list[str], examples: list[str]
) -> None:
    """The later overwrote the earlier, and a long id ended the report after all was decoded."""
    settings = [replace(SETTINGS, task=task, num_examples=len(examples)) for task in tasks]
    records = [record(setting, example, 1, nfe=5) for setting in settings for example in examples]
    path = write_report(summarise(folder_of(tmp_path, settings, records)))
    linked = set(re.findall(r'"replay":"(.*?)"', path.read_text()))
    assert len(linked) == len(tasks) * len(examples)
    assert linked <= {file.name for file in tmp_path.iterdir()}


def test_an_id_comes_before_longer_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(SETTINGS, name, 1, nfe=n) for name, n in (("10", 3), ("1", 4), ("20", 5))]
    folder_of(tmp_path, [SETTINGS], records)
    for example, nfe in (("1", 4), ("10", 3), ("2", 5), (None, 3)):
        chosen = [] if example is None else ["--example", example]
        assert main(["trace", str(tmp_path), *chosen]) == 0
        assert f"5 tokens in {nfe} forwards" in capsys.readouterr().out


def test_the_means_of_other_scores_have_a_table_of_their_own(folder: Folder) -> None:
    """A scorer's further scores were in summary.json alone."""
    rows = summarise(folder).summary["rows"]
    assert other_scores(rows) == ""  # Its only other score is undefined everywhere.
    rows[0]["scores"] |= {"steps": 0.25}
    first, second = (f"| `{row['settings']['sampler']}` |" for row in rows)
    shown = other_scores(rows).splitlines()[2:]
    assert [shown[0], *shown[2:4]] == ["| sampler | steps |", f"{first} 0.250 |", f"{second} - |"]


def test_text_cannot_break_out_of_a_replay(folder: Folder) -> None:
    records = [r for r in folder.records() if r["error"] is None][:1]
    records[0]["pieces"]["7"] = "</script><script>alert(1)</script>"
    page = replay_page([(SETTINGS, records[0])])
    assert "<script>alert" not in page
    assert "ask \\u003c/script>" in page
    assert page.count("</script>") == 2
    with pytest.raises(ValueError, match="traces"):
        replay_page([(SETTINGS, records[0] | {"trace": None})])
    with pytest.raises(ValueError, match="trace"):
        picture_of(records[0] | {"trace": None})
    assert picture_of(records[0]).plain.startswith("five six ")
    joined = records[0] | {"text": "fivesix"}
    assert picture_of(joined).plain.startswith("fivesix")


def test_folders_without_records_or_without_traces(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no records yet"):
        write_report(summarise(folder_of(tmp_path / "empty", [SETTINGS], [])))
    runs = [replace(run, trace=False) for run in eval_runs.runs()[:1]]
    write_report(summarise(execute(runs, tmp_path / "untraced")))
    assert not list((tmp_path / "untraced").glob("replay-*"))


@pytest.fixture
def edited(tmp_path: Path) -> Folder:
    """Three states of one task, on examples of the same ids: as it was, edited, of version 2.

    The last state is of another model.
    """
    states = [
        replace(SETTINGS, examples="a" * 24),
        replace(SETTINGS, examples="b" * 24, num_examples=3),
        replace(SETTINGS, examples="c" * 24, task_version=2, model="other"),
    ]
    for state, score in zip(states, (1, 0, 0), strict=True):
        fast = replace(state, sampler="ConfidenceThreshold(0.9)")
        ids = "abcd"[: state.num_examples]
        records = [record(run, e, score, nfe=n) for run, n in ((state, 5), (fast, 2)) for e in ids]
        folder_of(tmp_path, [state, fast], records)
    return Folder(tmp_path)


def test_another_version_is_a_group_with_its_own_reference(edited: Folder) -> None:
    """Its rows stood below the old ones with the same labels, compared with the old version."""
    summary = summarise(edited).summary
    differences = [
        row["against_reference"]["accuracy"]["value"] if "against_reference" in row else None
        for row in summary["rows"]
    ]
    assert differences == [None, 0.0] * 3
    assert {method["num_points"] for method in summary["methods"]} == {1}
    # Fronts, too: the faster row of a worse version is still the best of this version.
    assert [row["fronts"] for row in summary["rows"]] == [[], ["forwards", "columns"]] * 3


def test_headings_tell_versions_apart(edited: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_folder(edited, num_replays=1) == 0
    shown = capsys.readouterr().out
    titles = [
        "lists/shuffle?n=3, version 1, examples aaaaaa",
        "lists/shuffle?n=3, version 1, examples bbbbbb",
        "lists/shuffle?n=3, version 2",
    ]
    # An example has a page for each state, with the settings of this state.
    assert len(list(edited.path.glob("replay-*.html"))) == 3
    models = ("toy", "toy", "other")
    headings = [f"{title}, model {model}" for title, model in zip(titles, models, strict=True)]
    assert [line for line in shown.splitlines() if line in headings] == headings
    page = (edited.path / "report.html").read_text()
    assert all(f'"task":"{title}"' in page for title in titles)


def test_pb_scores_are_of_settings_that_have_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens a step are a mean over the tasks, whose answer lengths differ."""
    path = "parallelbench:copies#waiting_line/"
    tasks = [replace(SETTINGS, task=f"{path}copy"), replace(
        SETTINGS, task=f"{path}sort", config=replace(SETTINGS.config, gen_length=12)
    )]  # fmt: skip
    settings, records = [], []
    for sampler, scores, nfe in (("Slow()", (1, 1), 6), ("Fast()", (1, 0), 2), ("Part()", (1,), 1)):
        for task, score in zip(tasks, scores, strict=False):
            setting = replace(task, sampler=sampler)
            settings.append(setting)
            records += [record(setting, example, score, nfe) for example in "abcd"]
    folder = folder_of(tmp_path, settings, records)
    scores = {"PB90": 1.5, "PB80": 1.5, "PB70": 1.5, "PB60": 1.5}
    (row,) = summarise(folder).summary["parallel_bench"]
    assert row == {"model": "toy", "num_tasks": 2, "num_settings": 2, "scores": scores}
    table = "| toy | 2 | 2 | 1.50 | 1.50 | 1.50 | 1.50 |"
    assert table in write_report(summarise(folder)).read_text()
    assert report_folder(folder) == 0
    assert table in capsys.readouterr().out


def test_a_report_says_where_its_numbers_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = eval_runs.write_model(tmp_path / "model"), tmp_path / "out"
    task = "lists/copy?limit=2&n=3"
    assert main(["run", task, str(out), "--model", str(model), "--gen-length", "8"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{task}\n")
    origin = next(line for line in shown.splitlines() if line.startswith("From "))
    assert f"From {model} in float32, on " in origin
    for part in (" threads), 20", "torch 2", "Python 3", "gen_length 8, ", "batch_size 16, "):
        assert part in origin
    assert json.dumps(origin)[1:-1] in (out / "report.html").read_text()
