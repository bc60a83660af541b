"""The sentence that a report advises with, and the command line that chooses the cost."""

from dataclasses import replace
from pathlib import Path

import pytest
from eval_runs import SETTINGS, folder_of, record

from eval.commands import evaluate
from eval.metrics.costs import COSTS, usual_cost
from eval.metrics.statistics import Z_95
from eval.reports.advice import advice
from eval.reports.summary import summarise
from eval.runs.folder import Folder


def compared(path: Path, num_examples: int) -> Folder:
    """Makes three settings: fewer forwards lose answers, fewer columns lose none."""
    plain = replace(SETTINGS, num_examples=num_examples)
    steps = replace(plain, sampler="ConfidenceThreshold(threshold=0.5)")
    cached = replace(plain, cache="DualCache(refresh_every=0, before=0, after=0)")
    costs = ((plain, 0, 8, 160), (steps, num_examples // 10, 2, 40), (cached, 0, 8, 64))
    return folder_of(path, [plain, steps, cached], [
        record(run, f"e{number:04}", float(number >= num_wrong), nfe=nfe, query_positions=columns,
               gains=[3] * nfe)
        for run, num_wrong, nfe, columns in costs
        for number in range(num_examples)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return compared(tmp_path_factory.mktemp("large"), 200)


def test_the_advice_names_the_cheapest_setting_that_is_shown_to_be_as_good(large: Folder) -> None:
    rows = summarise(large).summary["rows"]
    assert usual_cost(rows) == COSTS["columns"]
    assert advice(rows, COSTS["columns"]) == (
        "Take FixedSchedule(4) + DualCache(): no worse than the reference by more than 0.02 at "
        "95 % (difference +0.000 [-0.019, +0.019] on 200 examples), 2.5 times fewer columns."
    )
    assert advice(rows[:1], COSTS["columns"]) == ""


def test_the_advice_says_how_many_examples_would_be_enough(tmp_path: Path) -> None:
    sentence = advice(summarise(compared(tmp_path, 40)).summary["rows"], COSTS["columns"])
    assert sentence == (
        "Undecided: FixedSchedule(4) + DualCache() (difference +0.000 [-0.088, +0.088] on 40 "
        "examples; 2.5 times fewer columns). If its difference stays, about 770 examples would "
        "show that it is no worse than the reference by more than 0.02 at 95 %. Keep "
        "FixedSchedule(4): no setting with fewer columns is shown to be no worse than the "
        "reference by more than 0.02 at 95 %."
    )


@pytest.mark.parametrize(
    ("num_examples", "said"), [(1, "Undecided: FixedSchedule(4) "), (200, "Take")]
)
def test_equal_answers_that_are_partly_right_need_examples_too(
    tmp_path: Path, num_examples: int, said: str
) -> None:
    """The interval of equal differences was a point, so that one example was enough."""
    plain = replace(SETTINGS, num_examples=num_examples)
    cached = replace(plain, cache="DualCache()")
    folder = folder_of(tmp_path, [plain, cached], [
        record(setting, f"e{number}", 0.5, query_positions=columns)
        for setting, columns in ((plain, 160), (cached, 64))
        for number in range(num_examples)
    ])  # fmt: skip
    rows = summarise(folder).summary["rows"]
    accuracy = rows[1]["against_reference"]["accuracy"]
    # As Tango's without a discordant pair: z^2 / (n + z^2).
    most = pytest.approx(Z_95**2 / (num_examples + Z_95**2))
    assert (-accuracy["low"], accuracy["high"], accuracy["interval"]) == (most, most, "wilson")
    assert advice(rows, COSTS["columns"]).startswith(said)


@pytest.mark.parametrize(
    ("options", "bold", "said"),
    [
        ([], "FixedSchedule(4) + DualCache()", "2.5 times fewer columns."),
        (["--cost", "forwards"], "ConfidenceThreshold(0.5)", "no setting with fewer forwards is"),
    ],
)
def test_bold_advice_and_picture_follow_the_chosen_cost(
    large: Folder, capsys: pytest.CaptureFixture[str], options: list[str], bold: str, said: str
) -> None:
    """Bold counted forwards alone, so that a setting with a cache could not be."""
    assert evaluate(["report", str(large.path), "--replays", "0", *options]) == 0
    text = capsys.readouterr().out
    assert f"| **`{bold}`** |" in text
    assert said in text
    assert (
        f'"cost":"{options[-1] if options else "columns"}"'
        in (large.path / "report.html").read_text()
    )
