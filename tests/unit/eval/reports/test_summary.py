"""Numbers of a summary against sums by hand."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import eval_runs
import pytest
from eval_runs import SETTINGS, failed, folder_of, record, table

from eval.metrics.costs import COSTS, speed_of
from eval.metrics.statistics import paired_bootstrap, wilson
from eval.reports.pooling import per_example
from eval.reports.report import write_report
from eval.reports.summary import summarise
from eval.runs.runner import execute
from eval.runs.settings import RunSettings
from samplers import FixedSchedule


def seeds_of(settings: RunSettings, seeds: tuple[int, ...]) -> list[RunSettings]:
    return [settings.with_seed(seed) for seed in seeds]


def test_the_seeds_of_an_example_are_averaged_first(tmp_path: Path) -> None:
    slow = seeds_of(SETTINGS, (0, 1))
    fast = seeds_of(replace(SETTINGS, sampler="Factor(1.0)"), (0, 1))
    scores = {"a": (1, 1), "b": (1, 0), "c": (0, 0)}
    lengths = {"a": (4, 6), "b": (2, 2), "c": (8, 4)}
    nfe = {"a": (2, 4), "b": (1, 2), "c": (4, 4)}
    records = [
        record(slow[s], e, scores[e][s], length=lengths[e][s], nfe=nfe[e][s], batch_s=0.1 * (s + 1))
        for e, s in product("abc", (0, 1))
    ]
    # The fast sampler is right on b with both seeds, and raises once on a.
    fast_scores = {"a": (1, 0), "b": (1, 1), "c": (0, 1)}
    records += [
        record(fast[s], e, fast_scores[e][s], nfe=1, batch_s=0.1)
        for e, s in product("abc", (0, 1))
        if (e, s) != ("a", 1)
    ]
    records.append(failed(fast[1], "a"))
    # Sweeps run all samplers with a seed before the next seed.
    runs = [slow[0], fast[0], slow[1], fast[1]]
    folder = folder_of(tmp_path, runs, records)
    first, second = summarise(folder).summary["rows"]
    for row in (first, second):
        assert (row["seeds"], row["num_records"], row["num_missing"]) == ([0, 1], 6, 0)
    assert second["num_errors"] == 1
    accuracy = first["accuracy"]
    assert (accuracy["num_examples"], accuracy["interval"]) == (3, "wilson")
    assert (accuracy["value"], accuracy["low"], accuracy["high"]) == (0.5, *wilson(1.5, 3))
    assert accuracy["standard_error"] == pytest.approx(0.5 / 3**0.5)
    assert second["accuracy"]["value"] == pytest.approx(2 / 3)
    against = second["against_reference"]
    assert against["num_shared"] == 3
    interval = paired_bootstrap([1.0, 0.5, 0.0], [0.5, 1.0, 0.5])._asdict()
    assert against["accuracy"] == interval | {"interval": "bootstrap"}
    assert "mcnemar" not in against
    # By example: lengths 5, 2, 6; forwards 3, 1.5, 4.
    speed = first["speed"]
    assert speed["tokens_per_forward"]["value"] == pytest.approx(13 / 8.5)
    assert speed["nfe"] == against["step_speedup"] == pytest.approx(8.5 / 3)
    assert speed["length"] == pytest.approx(13 / 3)
    assert first["timing"]["tokens_per_second"] == pytest.approx(13 / 0.45)
    shown = table([first, second], COSTS["forwards"])
    assert shown.count("\n") == 4
    assert "seeds=" not in shown


def test_examples_count_alike_however_many_seeds_they_have(tmp_path: Path) -> None:
    runs = seeds_of(replace(SETTINGS, num_examples=2), (3, 5, 9))
    records = [record(run, "a", 1) for run in runs] + [record(runs[0], "b", 0, nfe=4)]
    (row,) = summarise(folder_of(tmp_path, runs, records)).summary["rows"]
    assert row["accuracy"]["value"] == 0.5
    assert row["speed"]["nfe"] == 3.0
    assert row["num_missing"] == 2
    assert row["seeds"] == [3, 5, 9]
    # Undefined values do not count in an example's mean.
    assert per_example([("a", 1), ("b", None), ("a", None), ("a", 0)]) == {"a": 0.5}


def test_an_answer_that_took_no_forward_has_no_speed(tmp_path: Path) -> None:
    """The whole report failed."""
    records = [record(SETTINGS, "a", 1, nfe=0), record(SETTINGS, "b", 0, nfe=4)]
    (row,) = summarise(folder_of(tmp_path / "some", [SETTINGS], records)).summary["rows"]
    assert (row["accuracy"]["value"], row["speed"]["nfe"]) == (0.5, 4.0)
    without = summarise(folder_of(tmp_path / "all", [SETTINGS], records[:1]))
    assert "speed" not in without.summary["rows"][0]
    assert table(without.summary["rows"], COSTS["forwards"])
    write_report(without)


def test_settings_with_different_seeds_are_told_apart(tmp_path: Path) -> None:
    runs = [SETTINGS, *seeds_of(replace(SETTINGS, sampler="Factor(1.0)"), (0, 1))]
    records = [record(run, e, 1) for run in runs for e in "abc"]
    rows = summarise(folder_of(tmp_path, runs, records)).summary["rows"]
    assert "Factor(1.0) + seeds=0, 1 (2 seeds)" in table(rows, COSTS["forwards"])
    assert "FixedSchedule(4) + seeds=0`" in table(rows, COSTS["forwards"])


def test_a_verifiers_numbers_are_sums_over_its_forwards(tmp_path: Path) -> None:
    setting = replace(SETTINGS, verifier="ARVerify(CausalTarget('t'))", sampler="")
    records = [record(SETTINGS, e, 1, length=6, nfe=6, gains=[1] * 6) for e in "abc"]
    records += [
        record(setting, "a", 1, length=6, nfe=2, target_nfe=2, drafted=8, accepted=4, gains=[5, 1],
               batch_length=2, batch_forwards=4, batch_target_forwards=4),
        record(setting, "b", 1, length=8, nfe=2, target_nfe=2, drafted=8, accepted=6, gains=[5, 3],
               batch_length=2, batch_forwards=4, batch_target_forwards=4),
        record(setting, "c", 1, length=1, nfe=1, target_nfe=1, drafted=4, accepted=1, gains=[1]),
    ]  # fmt: skip
    folder = folder_of(tmp_path, [SETTINGS, setting], records)
    plain, verified = summarise(folder).summary["rows"]
    assert "verified" not in plain
    assert verified["verified"] == {
        "accepted_length": 3.0,
        "accepted_lengths": {1: 2, 3: 1, 5: 2},
        "acceptance_rate": 0.55,
        "tokens_per_target_forward": 3.0,
    }
    speed = verified["speed"]
    assert speed["tokens_per_forward"]["value"] == 3.0
    # The target's forwards are not free: front, curves and picture count them.
    assert speed["tokens_per_any_forward"]["value"] == 1.5
    assert (speed_of(verified, COSTS["forwards"]) or {})["value"] == 1.5
    # The columns of a target are not recorded.
    assert speed_of(verified, COSTS["columns"]) is None
    assert speed["target_nfe"] == pytest.approx(5 / 3)
    assert plain["speed"]["tokens_per_any_forward"] == plain["speed"]["tokens_per_forward"]
    text = table([plain, verified])
    assert "| accepted length | accepted/drafted | target NFE | tokens/target forward |" in text
    assert "| 3.00 | 0.55 | 1.7 | 3.00 | 0 |" in text
    lengths = "| ARVerify(CausalTarget('t')) | 1: 2, 3: 1, 5: 2 |"
    assert lengths in write_report(summarise(folder)).read_text()
    assert "accepted length" not in table([plain], COSTS["forwards"])
    assert "| **`ARVerify(CausalTarget('t'))`** |" in table([verified], COSTS["forwards"])


def test_the_warm_up_counts_for_everything_but_time(tmp_path: Path) -> None:
    records = [record(SETTINGS, "a", 1, batch_s=9.0, warm_up=True)]
    records += [record(SETTINGS, e, 1, batch_s=1.0) for e in "bc"]
    (row,) = summarise(folder_of(tmp_path, [SETTINGS], records)).summary["rows"]
    assert row["accuracy"]["num_examples"] == 3
    assert row["timing"]["tokens_per_second"] == 4.0


def test_the_first_ten_examples_are_the_warm_up(tmp_path: Path) -> None:
    # Batches of four: the batch that holds the tenth example is warm-up too.
    runs = eval_runs.runs(task="lists/shuffle?n=4&limit=17", samplers=(FixedSchedule(8),))
    folder = execute(runs, tmp_path)
    assert sum(record["warm_up"] for record in folder.records()) == 12


def test_every_number_of_a_summary_is_documented(tmp_path: Path) -> None:
    runs = eval_runs.runs()
    folder = execute(runs, tmp_path)
    settings = [replace(s, verifier="SelfVerify()") for s in folder.settings()]
    records = [r | {"key": s.key(r["example"]), "settings": s.key("")}
               for s, r in product(settings, folder.records())]  # fmt: skip
    folder = folder_of(tmp_path / "verified", settings, records)
    text = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()

    def names(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {key for key in value if not key[0].isdigit()} | names(list(value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    summary = json.loads(json.dumps(summarise(folder).summary))
    for row in summary["rows"]:
        row["scores"], row["errors"], row["settings"] = {}, {}, {}
    written = names(summary)
    assert {"verified", "accepted_length", "tokens_per_second", "aup", "mcnemar"} <= written
    assert [name for name in sorted(written) if f"`{name}`" not in text] == []
    assert [name for name in folder.records()[0] if f"`{name}`" not in text] == []
