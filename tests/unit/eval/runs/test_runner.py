import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest
import torch
from eval_runs import Fussy
from processes import ROOT, in_two_processes
from rich.console import Console
from rich.text import Text
from toys import tiny_target

from dllm_decode import CausalTarget, DelayedCache, FreeCache
from dllm_decode.blocks import Sequential
from dllm_decode.settings.models import Loaded
from dllm_decode.settings.ranks import ProcessRank
from eval.commands import evaluate as main
from eval.reports.replay import panels_of
from eval.reports.setting_names import names_of
from eval.reports.summary import summarise
from eval.runs import provenance
from eval.runs.folder import Folder
from eval.runs.reporter import Reporter
from eval.runs.runner import execute
from eval.runs.settings import RunSettings
from eval.sweeps.sweep import Sweep
from samplers import FixedSchedule, Wino


def timeless(value: Any) -> Any:
    """Drops the fields that differ from run to run: time and place."""
    differing = ("timing", "machines", "dates")
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in differing}
    if isinstance(value, list):
        return [timeless(part) for part in value]
    return value


def summary_of(path: Path) -> Any:
    return timeless(summarise(Folder(path)).summary)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose run was never disturbed."""
    return execute(eval_runs.runs(), tmp_path_factory.mktemp("whole")).path


def test_a_record_holds_what_every_number_is_computed_from(whole: Path) -> None:
    folder = Folder(whole)
    records = folder.records()
    assert len({record["key"] for record in records}) == len(records) == 20
    first = records[0]
    plugins = [first[name] for name in ("sampler", "cache", "verifier", "blocks")]
    assert plugins == [repr(FixedSchedule(8)), "NoCache()", "NoVerifier()", repr(Sequential())]
    assert first["batch_length"] == 4
    assert len(first["gains"]) == first["nfe"] <= 8
    assert first["committed"] == sum(first["gains"]) <= 8
    assert first["batch_forwards"] == 8
    assert first["target_nfe"] == first["batch_target_forwards"] == first["drafted"] == 0
    assert any(record["committed"] < 8 for record in records), "no row was stopped"
    assert len(first["tokens"]) == len(first["trace"]["steps"]) == 8
    last = first["tokens"][first["length"] - 1]
    assert last in eval_runs.model().eos_ids or first["length"] == 8
    assert any(record["length"] < 8 for record in records), "no answer ended early"
    assert set(first["scores"]) == {"answer", "answer_strict"}
    assert first["pieces"][str(first["tokens"][0])]
    assert first["date"].startswith("20")
    machine = folder.machines()[first["machine"]]
    assert (machine["device"], machine["torch"]) == ("cpu", torch.__version__)
    assert machine["threads"] >= 1
    assert summarise(folder).summary["machines"] == [machine]


def test_a_run_that_is_finished_decodes_nothing_again(whole: Path) -> None:
    runs = eval_runs.runs()
    before = (whole / "part-0.jsonl").read_bytes()
    execute(runs, whole)
    assert runs[0].model.num_forwards == 0
    assert (whole / "part-0.jsonl").read_bytes() == before


@pytest.mark.parametrize("num_lines", [1, 19])
def test_a_run_cut_after_any_record_goes_on(whole: Path, tmp_path: Path, num_lines: int) -> None:
    """Also in the middle of a batch: the batch is decoded anew, what is there stays."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    part = tmp_path / "part-0.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:num_lines]) + lines[num_lines][:-2])
    execute(eval_runs.runs(), tmp_path)
    assert part.read_bytes().count(b"\n") == 20
    assert summary_of(tmp_path) == summary_of(whole)


@pytest.mark.slow
def test_several_processes_score_every_example_once(whole: Path, tmp_path: Path) -> None:
    exits = in_two_processes(str(ROOT / "tests" / "helpers" / "eval_runs.py"), str(tmp_path))
    assert [code for code, _ in exits] == [0, 0], exits
    counts = [(tmp_path / f"part-{rank}.jsonl").read_bytes().count(b"\n") for rank in range(2)]
    assert sum(counts) == 20
    assert min(counts) > 0
    assert summary_of(tmp_path) == summary_of(whole)


def test_another_number_of_processes_finishes_the_folder(whole: Path, tmp_path: Path) -> None:
    execute(eval_runs.runs(), tmp_path, process=ProcessRank(1, 3))
    assert summarise(Folder(tmp_path)).summary["rows"][0]["num_missing"] > 0
    execute(eval_runs.runs(), tmp_path)
    assert summary_of(tmp_path) == summary_of(whole)


def test_a_folder_takes_settings_added_and_corrected(tmp_path: Path) -> None:
    """A sweep that was stopped half-way could not be corrected and go on in its folder."""
    first = eval_runs.runs(samplers=(FixedSchedule(2),))
    execute(first, tmp_path)
    other = eval_runs.runs(samplers=(FixedSchedule(2),), temperature=0.5)
    folder = execute(other, tmp_path)
    assert [s.config.temperature for s in folder.settings()] == [1.0, 0.5]
    assert [row["num_missing"] for row in summarise(folder).summary["rows"]] == [0, 0]
    # A setting without records is dropped when it is no longer asked for.
    folder.claim([*folder.settings(), replace(folder.settings()[0], sampler="Wrong()")])
    assert len(folder.settings()) == 3
    assert len(execute(other, tmp_path).settings()) == 2


def test_every_setting_is_checked_before_the_first_forward(tmp_path: Path) -> None:
    """An impossible pair stopped a sweep half-way."""
    good, bad = eval_runs.runs(samplers=(FixedSchedule(2), Wino()))
    runs = [good, replace(bad, cache=DelayedCache()), replace(good, cache=FreeCache())]
    message = r"(?s)2 of 3 settings cannot be run.*by commands of.*Wino\(.*no keys and values"
    with pytest.raises(ValueError, match=message):
        execute(runs, tmp_path)
    assert good.model.num_forwards == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no keys and values"):
        execute(runs[2:], tmp_path / "cached")
    assert Folder(tmp_path / "cached").records() == []
    assert good.model.num_forwards == 0


def test_a_second_writer_and_a_setting_that_is_named_twice_are_refused(tmp_path: Path) -> None:
    """Two equal seeds or samplers counted as two and narrowed the interval."""
    with pytest.raises(ValueError, match="named once"):
        execute(eval_runs.runs(samplers=(FixedSchedule(2), FixedSchedule(2))), tmp_path)
    folder = execute(eval_runs.runs(samplers=(FixedSchedule(2),)), tmp_path)
    before = (tmp_path / "settings.json").read_bytes()
    with folder.writing(0), pytest.raises(ValueError, match="must have one writer"):
        execute(eval_runs.runs(), tmp_path)
    # The first writer's settings were dropped, and its records belonged to none.
    assert (tmp_path / "settings.json").read_bytes() == before
    execute(eval_runs.runs(), tmp_path)


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment inside somebody's repository gave that repository's commit."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    package = tmp_path / "venv" / "lib" / "eval" / "runs"
    package.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    monkeypatch.setattr(provenance, "PACKAGE", "a-package-that-is-not-installed")
    assert provenance.package_commit.__wrapped__() is None


def test_an_example_that_raises_becomes_an_error_and_the_run_goes_on(tmp_path: Path) -> None:
    plain = execute(eval_runs.runs(samplers=(FixedSchedule(1),), temperature=0.0), tmp_path / "a")
    token = plain.records()[6]["tokens"][0]
    fussy = eval_runs.runs(samplers=(Fussy(token),), temperature=0.0)
    records = execute(fussy, tmp_path / "b").records()
    failed = [record for record in records if record["error"] is not None]
    assert len(records) == 10
    assert 0 < len(failed) < 10
    assert failed[0]["error"] == f"RuntimeError: Token {token} is not to my taste."
    row = summarise(Folder(tmp_path / "b")).summary["rows"][0]
    assert row["num_errors"] == len(failed)
    assert row["accuracy"]["num_examples"] == 10
    # A repeated command decodes only the examples that failed.
    assert len(execute(fussy, tmp_path / "b").records()) == 10
    lines = (tmp_path / "b" / "part-0.jsonl").read_text().splitlines()
    assert len(lines) == 10 + len(failed)


def test_folders_that_are_none_or_older_are_refused(tmp_path: Path) -> None:
    """Records of an older format lack what is summarised: an old folder would be a KeyError."""
    with pytest.raises(ValueError, match=r"without it"):
        Folder(tmp_path).settings()
    (tmp_path / "settings.json").write_text('{"format": 4, "runs": []}')
    (tmp_path / "part-0.jsonl").write_text("")
    for use in (lambda: summarise(Folder(tmp_path)), lambda: execute(eval_runs.runs(), tmp_path)):
        with pytest.raises(ValueError, match=r"in format 5, got format 4: .* another folder"):
            use()
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"must hold settings\.json"):
        execute(eval_runs.runs(), tmp_path)


def test_a_verifier_that_asks_no_sampler_is_run_once(tmp_path: Path) -> None:
    sweep = Sweep(
        ("toy",), ("lists/copy", "lists/sort"), ("FixedSchedule(2)", "Factor(1.0)"),
        verifiers=("NoVerifier()", "Guided(CausalTarget('tiny'))"), axes={"seed": (0, 1)},
    )  # fmt: skip
    loaded = []

    def load(source: str) -> CausalTarget:
        loaded.append(source)
        return tiny_target()

    toy = Loaded(eval_runs.model(), eval_runs.TOKENIZER, "float64", load)
    message = r"^Factor\(1.0\) is left out: Guided\(CausalTarget\('tiny'\)\) never asks it.$"
    with pytest.warns(UserWarning, match=message):
        runs = list(sweep.runs({"toy": toy}, sweep.selections(), trace=False))
    names = [(run.selection.address, *run.settings([]).parts, run.config.seed) for run in runs]
    assert len(names) == len(set(names)) == 2 * (2 * 2 + 2)
    assert sum("Guided" in str(name) for name in names) == 4
    # A sampler that is not asked is not named either.
    assert all(("Guided" in str(name)) != ("(steps" in str(name) or "Factor" in str(name))
               for name in names)  # fmt: skip
    assert set(loaded) == {"tiny"}


def test_rows_of_different_batches_and_seeds_do_not_share_their_noise(tmp_path: Path) -> None:
    """The noise is keyed by the row's place in its batch, so each batch needs its own seed."""
    (run,) = eval_runs.runs(samplers=(FixedSchedule(1),), temperature=100.0, batch_size=1)
    runs = [replace(run, config=replace(run.config, seed=seed)) for seed in (0, 1)]
    answers = {tuple(record["tokens"]) for record in execute(runs, tmp_path).records()}
    assert len(answers) == 20


def test_progress_tells_setting_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep showed the time left of the present setting alone, and accuracy without a resume."""
    monkeypatch.setattr("dllm_decode.text.progress_bar.LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    runs = eval_runs.runs()
    execute(runs[:1], tmp_path)
    execute(runs, tmp_path, reporter=Reporter(Console(file=stream)))
    old, begun, *between, last = stream.getvalue().splitlines()
    assert re.match(r"run: setting 1 of 2: FixedSchedule\(.*: 10/10 accuracy", old)
    assert re.match(r"run: setting 2 of 2: ConfidenceThreshold\(.*: 0/10$", begun)
    # The second setting alone is decoded: 4 of 10 examples.
    assert re.match(r"run:  40\.0 %, 2 of 2, acc 0\.\d{3}(, .* min left)?$", between[0])
    assert "min left" in between[1]
    assert re.match(r"run: setting 2 of 2: .*: 10/10 .* tokens/forward$", last)


def test_a_bar_of_a_sweep_shows_the_whole_and_a_line_for_each_setting_that_is_complete(
    tmp_path: Path,
) -> None:
    """Bars of complete settings filled the screen, and hid the present one."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24)
    execute(eval_runs.runs(), tmp_path, reporter=Reporter(console))
    shown = Text.from_ansi(stream.getvalue()).plain
    assert re.search(r"run ━+ 100\.0 % 2 of 2, acc 0\.000", shown)
    assert len(re.findall(r"setting [12] of 2: .*?: 10/10\s+accuracy", shown, re.DOTALL)) == 2


def test_no_time_is_told_where_nobody_announced_how_much_is_left() -> None:
    """A calibration counted down from 100 examples: "about -1 day, 23:54:25 left"."""
    stream = io.StringIO()
    reporter = Reporter(Console(file=stream))
    for setting in range(2):
        reporter.begin(f"setting {setting}", 60, [])
        reporter.add([eval_runs.record(eval_runs.SETTINGS, str(n), 1.0) for n in range(60)])
    assert stream.getvalue().count(": 60/60 accuracy 1.000") == 2
    assert {float(left) for left in re.findall("([^ ]*) min left", stream.getvalue())} <= {0.0}


PATTERN = r"#### \d+"


def constrained(tmp_path: Path, *words: str) -> Any:
    """Runs a tiny model with options of the command line; returns its folder."""
    model = eval_runs.write_model(tmp_path / "model")
    out = tmp_path / "out"
    command = ["run", "word_problems?limit=3", str(out), "--model", str(model), "--gen-length", "8",
             "--sampler", "FixedSchedule(4)", "--batch-size", "2"]  # fmt: skip
    assert main([*command, *words]) == 0
    return Folder(out)


def test_answers_of_a_run_with_a_constraint_match_it_and_never_mix_with_others(
    tmp_path: Path,
) -> None:
    constrained(tmp_path)
    folder = constrained(tmp_path, "--regex", PATTERN)
    free, bound = folder.results().items()
    assert (free[0].constraint, json.loads(bound[0].constraint)) == ("", {"regex": PATTERN})
    assert not any(re.fullmatch(PATTERN, record["text"]) for record in free[1])
    assert [bool(re.fullmatch(PATTERN, record["text"])) for record in bound[1]] == [True] * 3
    unforced, forced = (panels_of([(s, records[0])])[0]["forced"] for s, records in (free, bound))
    runners_up = bound[1][0]["trace"]["runners_up"]
    expected = [
        at
        for at, (token, entry) in enumerate(zip(bound[1][0]["tokens"], runners_up, strict=True))
        if entry and entry[1][0][0] != token
    ]
    assert (unforced, forced) == ([], expected)
    assert forced
    rows = summarise(folder).summary["rows"]
    assert names_of(rows)[0].endswith("constraint=none")
    assert RunSettings.of(free[0].written()) == free[0]


def test_a_constraint_that_cannot_be_met_is_refused_before_the_first_forward(
    tmp_path: Path,
) -> None:
    for constraint, sampler, message in (
        ('{"regex":"(#### ){9}3"}', FixedSchedule(8), "gen_length must be at least 1[01]"),
        ('{"regex":"[0-9]+"}', Wino(), "constraint needs a sampler that never changes a token"),
    ):
        runs = eval_runs.runs(samplers=(sampler,))
        with pytest.raises(ValueError, match=message):
            execute([replace(runs[0], constraint=constraint)], tmp_path / "out")
        assert runs[0].model.num_forwards == 0  # type: ignore[attr-defined]  # a counted model
    for texts, message in (
        (('{"regexp":"a"}',), r"constraint must be \{.regex.: TEXT\}"),
        (('{"regex":"a"}', '{"regex": "a"}'), r"constraints must be distinct, got .* twice"),
    ):
        with pytest.raises(ValueError, match=message):
            Sweep(("mini",), ("word_problems",), ("Factor()",), constraints=texts)
