"""Calibration end to end: on a sampler whose answers are known, and on the command line."""

from dataclasses import replace
from pathlib import Path

import pytest
from eval_runs import runs, write_lines

import eval as evaluation
from dllm_decode import CachePolicy, DualCache
from dllm_decode.settings.plugins import parse
from eval.calibration.calibrate import CHOICES_FILE
from eval.calibration.card import Card, read_card
from eval.calibration.ladders import LADDERS, rung_of
from eval.commands import evaluate as main
from eval.runs.runner import execute
from samplers import ConfidenceThreshold, FixedSchedule, Sampler


def calibrated(out: Path, *more: str, task: str = "word_problems?split=val&limit=12") -> Card:
    status = main([
        "calibrate", task, str(out), "--sampler", "ConfidenceThreshold(0.99)",
        "--sampler", "FixedSchedule(1)", "--max-drop", "0.2", "--confidence", "0.8",
        "--batch-size", "12", "--gen-length", "64", "--reference", "FixedSchedule(16)", *more,
    ])  # fmt: skip
    card = read_card(out / "card.json")
    assert status == (0 if card.is_certified else 1)
    return card


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    calibrated(folder)
    return folder


def test_a_cautious_setting_is_certified_and_a_bold_one_is_not(out: Path) -> None:
    card = read_card(out / "card.json")
    assert card.is_certified
    assert card.setting["sampler"] == repr(ConfidenceThreshold(0.99))
    assert card.settings()["sampler"] == ConfidenceThreshold(0.99)
    assert parse(f"@{out / 'card.json'}", Sampler) == ConfidenceThreshold(0.99)
    assert parse(f"@{out / 'card.json'}", CachePolicy) == parse("NoCache()", CachePolicy)
    careful, bold = card.ratings
    assert careful.verdict.certified
    assert careful.tokens_per_forward > card.reference_tokens_per_forward
    assert not bold.verdict.certified
    assert bold.verdict.num_lost > 4
    text = (out / "card.txt").read_text()
    assert "accuracy drops by at most 0.2" in text
    assert "not certified, n = 12, " in text
    # Its text took the place of the card.
    card.write(out / "said.txt")
    assert read_card(out / "said.txt") == card


def test_stored_records_are_used_and_told(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (out / "part-0.jsonl").read_bytes()
    calibrated(out)
    assert "WARNING" not in capsys.readouterr().err
    assert (out / "part-0.jsonl").read_bytes() == before
    card = calibrated(out, "--max-drop", "0.25")
    assert (out / "part-0.jsonl").read_bytes() == before
    assert "chosen after looking" in card.warnings[0]
    calibrated(out)


def test_prompts_that_overlap_with_those_of_a_calibration_are_told(tmp_path: Path) -> None:
    """A set with one prompt more had no warning."""
    warnings = []
    for limit in (2, 3):
        main([
            "calibrate", f"word_problems?split=val&limit={limit}", str(tmp_path), "--sampler",
            f"FixedSchedule({limit})", "--reference", "FixedSchedule(8)", "--gen-length", "8",
            "--max-drop", "0.9",
        ])  # fmt: skip
        warnings.append("".join(read_card(tmp_path / "card.json").warnings))
    assert warnings[0] == ""
    assert "chosen after looking" in warnings[1]


def test_prompts_of_the_training_and_settings_that_were_decoded_before_are_told(
    tmp_path: Path,
) -> None:
    task = ["word_problems?split=train&limit=2", str(tmp_path), "--gen-length", "8"]
    assert main(["run", *task, "--sampler", "FixedSchedule(4)", "--batch-size", "2"]) == 0
    main([
        "calibrate", *task, "--sampler", "FixedSchedule(4)", "--reference", "FixedSchedule(8)",
        "--batch-size", "2", "--max-drop", "0.9",
    ])  # fmt: skip
    trained, seen = read_card(tmp_path / "card.json").warnings
    assert "may have been trained on" in trained
    assert "1 of the settings had records before" in seen


def test_errors_that_are_decoded_anew_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repeated command certified a setting that it had refused, and did not say why."""
    (tmp_path / "at_times.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\n"
        "from samplers import ConfidenceThreshold, Sampler\n\n"
        "@dataclass(frozen=True)\nclass AtTimes(Sampler):\n"
        "    def step(self, view, state):\n"
        "        if not Path(__file__).with_name('ready').exists():\n"
        "            raise RuntimeError('out of memory')\n"
        "        return ConfidenceThreshold(0.99).step(view, state)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = [
        "calibrate", "word_problems?split=val&limit=3", str(tmp_path / "out"), "--sampler",
        "at_times:AtTimes()", "--reference", "FixedSchedule(16)", "--gen-length", "64",
        "--max-drop", "0.9", "--confidence", "0.9",
    ]  # fmt: skip

    def repeated() -> tuple[int, str]:
        status = main(command)
        warnings = read_card(tmp_path / "out" / "card.json").warnings
        assert all(warning in capsys.readouterr().err for warning in warnings)
        return status, "".join(warnings)

    assert repeated() == (1, "")
    (tmp_path / "ready").touch()
    status, said = repeated()
    assert status == 0
    assert "(3 of the tested settings): a setting may be certified only because" in said
    assert repeated() == (0, "")


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("lists/copy?n=4&limit=1",
         ["--gen-length", "8", "--block-length", "8", "--cache", "DualCache()"],
         "the task is lists/copy?n=4, the card's is word_problems; "
         "cache is DualCache(refresh_every=0, before=0, after=0), "
         "the card's is NoCache(); "
         "gen_length is 8, the card's is 64; block_length is 8, the card's is 32"),
        ("word_problems?split=val&limit=12", [], "the prompts are those of the calibration"),
        ("word_problems?split=test&limit=1", [], ""),
    ],
)  # fmt: skip
def test_a_card_that_is_used_for_something_else_is_told(
    out: Path, tmp_path: Path, task: str, options: list[str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Another length, cache or task has no guarantee; nothing said so."""
    command = ["run", task, str(tmp_path), "--sampler", f"@{out / 'card.json'}", *options]
    assert main(command) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert len(warned) == bool(said)
    assert said in "".join(warned)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--ladder", "threshold", "--sampler", "Factor()"], "one of the two"),
        ([], "one of the two"),
        (["--sampler", "Factor()", "--sampler", "Factor()"], "must be distinct"),
        (["--sampler", "DualCache()"], "must have a sampler"),
        (["--sampler", "Factor() + Factor()"], "must have one sampler"),
        (["--sampler", "Factor()", "--max-drop", "0"], "max_drop must be in"),
        (["--sampler", "Factor()"], "must be distinct, got"),
    ],
)
def test_wrong_use_is_refused(
    tmp_path: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts that come twice, too."""
    rows = [{"id": name, "prompt": "one ?", "answer": "1"} for name in "ab"]
    file = write_lines(tmp_path / "own.jsonl", *rows)
    assert main(["calibrate", f"jsonl:{file}", str(tmp_path / "out"), *command]) == 2
    assert message in capsys.readouterr().err


def test_too_few_prompts_are_refused_before_anything_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference and a setting were decoded, although nothing could be certified."""
    task = "word_problems?split=val&limit=148"
    assert main(["calibrate", task, str(tmp_path / "out"), "--ladder", "steps"]) == 2
    assert "must have at least 149 prompts, because fewer certify" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_rung_holds_whatever_is_written() -> None:
    rung = rung_of("DualCache() + ConfidenceThreshold(0.9) + model=a+b")
    assert parse(rung.sampler, Sampler) == ConfidenceThreshold(0.9)
    assert (parse(rung.cache, CachePolicy), rung.model) == (DualCache(), "a+b")
    with pytest.raises(ValueError, match="a block schedule or model=PATH"):
        rung_of("Factor() + a")
    for ladder in LADDERS.values():
        assert len({repr(parse(text, Sampler)) for text in ladder}) == len(ladder)


def test_other_files_are_no_cards(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(ValueError, match=r"card\.json must have a field .*; give a card"):
        read_card(tmp_path / "card.json")
    with pytest.raises(ValueError, match="must be named by a card"):
        parse(f"@{tmp_path / 'card.json'}", Sampler)


def test_results_are_compared_in_python(tmp_path: Path) -> None:
    folder = execute(runs(samplers=(FixedSchedule(2), FixedSchedule(8))), tmp_path)
    first, second = evaluation.results(tmp_path)
    right = {record["example"]: float(i < 3) for i, record in enumerate(second.records)}
    better = replace(second, records=tuple(
        {**r, "scores": {**r["scores"], r["primary"]: right[r["example"]]}} for r in second.records
    ))  # fmt: skip
    pair = evaluation.compare(first, better)
    assert (pair.num_shared, pair.first, pair.second, pair.difference) == (10, 0.0, 0.3, 0.3)
    assert (pair.gained, pair.lost, pair.p_value) == (3, 0, 0.25)
    assert pair.low < 0.3 < pair.high
    with_itself = evaluation.compare(first, first)
    assert (with_itself.difference, with_itself.p_value) == (0.0, 1.0)
    # Tango's interval of no discordant pair: z^2 / (n + z^2).
    assert with_itself.high == pytest.approx(3.8415 / 13.8415, abs=1e-3) == -with_itself.low
    # A file that was edited keeps its ids.
    edited = [{**r, "prompt": "other"} for r in second.records]
    partly = replace(second, records=(*second.records[:4], *edited[4:]))
    assert evaluation.compare(first, partly).num_shared == 4
    with pytest.raises(ValueError, match="got none in common"):
        evaluation.compare(first, replace(second, records=tuple(edited)))
    with pytest.raises(ValueError, match=r"one setting, got .* with 2"):
        evaluation.compare(tmp_path, second)
    rows = evaluation.records(tmp_path)
    assert len(rows) == len(folder.records()) == 20
    assert {row["sampler"] for row in rows} == {repr(FixedSchedule(2)), repr(FixedSchedule(8))}
    assert {row["score.answer"] for row in rows} == {0.0}


def test_a_sampler_of_ones_own_stays_one_on_its_card_until_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_rule.py").write_text(
        "from dataclasses import dataclass\nfrom samplers import Decision, Sampler\n\n"
        "@dataclass(frozen=True)\nclass AllAtOnce(Sampler):\n    power: int = 1\n\n"
        "    def step(self, view, state):\n        return Decision(commit=view.eligible), state\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = [
        "calibrate", "word_problems?split=val&limit=3", str(tmp_path / "out"), "--gen-length", "8",
        "--sampler", "my_rule:AllAtOnce(2)", "--reference", "FixedSchedule(2)",
        "--max-drop", "0.99", "--confidence", "0.05",
    ]  # fmt: skip
    assert main(command) == 0
    assert repr(parse(f"@{tmp_path / 'out' / 'card.json'}", Sampler)) == "AllAtOnce(power=2)"
    # Once an edited rule was certified by the records of the old one.
    with (tmp_path / "my_rule.py").open("a") as file:
        file.write("# edited\n")
    choices = (tmp_path / "out" / CHOICES_FILE).read_bytes()
    assert main([*command, "--max-drop", "0.98"]) == 2
    assert "my_rule must be as it was when the records" in capsys.readouterr().err
    # A refused choice counted as one that was looked at.
    assert (tmp_path / "out" / CHOICES_FILE).read_bytes() == choices
