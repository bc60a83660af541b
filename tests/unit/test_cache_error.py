import json
from pathlib import Path

import pytest
import torch
from spied import MODELS, tiny

from dllm_decode import DecodeConfig, FreeCache, NoCache, PrefixCache
from eval.__main__ import main
from eval.runs.cache_error import Trial, markdown
from samplers import ConfidenceThreshold, FixedSchedule

PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13]]


def test_no_cache_has_no_error_and_a_cache_has_some() -> None:
    trial = Trial(
        tiny("llada"), PROMPTS, FixedSchedule(4), DecodeConfig(gen_length=8, block_length=8)
    )
    exact, cached = trial.error_of(NoCache()), trial.error_of(PrefixCache())
    assert exact.divergence == pytest.approx(0.0, abs=1e-12)
    assert exact.changed == 0.0
    assert cached.divergence > 1e-3
    assert cached.changed > 0.0
    assert cached.query_positions < exact.query_positions
    assert cached.accuracy is None


def test_a_cache_that_is_exact_is_measured_as_exact() -> None:
    trial = Trial(
        tiny("sdar"), PROMPTS, ConfidenceThreshold(0.6), DecodeConfig(gen_length=12, block_length=4)
    )
    error = trial.error_of(FreeCache())
    assert error.divergence == pytest.approx(0.0, abs=1e-12)
    assert error.changed == 0.0


def test_answers_are_scored_in_order() -> None:
    trial = Trial(
        tiny("llada"), PROMPTS * 2, FixedSchedule(2), DecodeConfig(gen_length=4, block_length=4),
        batch_size=3,
        score=lambda answers: [float(answer == answers[0]) for answer in answers],
    )  # fmt: skip
    error = trial.error_of(NoCache())
    assert error.num_prompts == 4
    assert error.accuracy in (0.5, 1.0)
    assert "(" in markdown([error])


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    written = tmp_path / "errors.json"
    status = main(
        ["cache-error", "--model", str(MODELS / "llada"), "--num-prompts", "2", "--gen-length",
         "8", "--cache", "NoCache()", "--cache", "PrefixCache()", "--threads", "1",
         "--json", str(written)]
    )  # fmt: skip
    torch.set_num_threads(threads)
    assert status == 0
    assert "| `NoCache()` | 0.0000 (0.0000) | 0.000 (0.000) | - |" in capsys.readouterr().out
    content = json.loads(written.read_text())
    assert content["settings"]["num_prompts"] == 2
    assert len(content["errors"]) == 2
