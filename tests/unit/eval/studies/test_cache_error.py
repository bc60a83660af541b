import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eval_runs import TokenIds, TokenPrompts, write_lines, write_model
from tiny_models import tiny

from dllm_decode import (
    DecodeConfig,
    FreeCache,
    MaskPredictor,
    NoCache,
    PrefixCache,
    SelfVerify,
)
from eval.commands import evaluate as main
from eval.runs.names import Selection
from eval.runs.settings import Run
from eval.studies.cache_error import error_of, grid_of
from samplers import ConfidenceThreshold, FixedSchedule, Sampler


def run_of(model: MaskPredictor, sampler: Sampler, config: DecodeConfig) -> Run:
    task = TokenPrompts(((5, 6, 7), (9, 10, 11, 12, 13), (8, 7, 6)))
    return Run(model, TokenIds(), Selection("ids", task), sampler, decoding=config, batch_size=2)


def test_no_cache_has_no_error_and_a_cache_has_some() -> None:
    run = run_of(tiny("llada"), FixedSchedule(4), DecodeConfig(gen_length=8, block_length=8))
    exact, cached = error_of(run), error_of(replace(run, cache=PrefixCache()))
    assert exact.divergence == pytest.approx(0.0, abs=1e-12)
    assert exact.changed == 0.0
    assert cached.divergence > 1e-3
    assert cached.changed > 0.0
    assert cached.query_positions < exact.query_positions
    assert cached.accuracy is None
    assert cached.num_prompts == 3
    assert "(" in grid_of([cached])[1][1]


def test_a_cache_that_is_exact_is_measured_as_exact() -> None:
    config = DecodeConfig(gen_length=12, block_length=4)
    run = run_of(tiny("sdar"), ConfidenceThreshold(0.6), config)
    error = error_of(replace(run, cache=FreeCache()))
    assert error.divergence == pytest.approx(0.0, abs=1e-12)
    assert error.changed == 0.0


def test_a_verifier_runs_the_forwards_and_the_answers_are_its_own() -> None:
    """The command knew no verifier: a cache that reads its numbers could not be measured."""
    config = DecodeConfig(gen_length=12, block_length=4, stop_at_eos=False)
    plain = run_of(tiny("llada"), FixedSchedule(4), config)
    errors = {}
    for cache in (NoCache(), PrefixCache()):
        run = replace(plain, cache=cache)
        alone, verified = error_of(run), error_of(replace(run, verifier=SelfVerify(3)))
        # SelfVerify changes no token, so decisions are compared on the same canvases.
        assert verified.changed == pytest.approx(alone.changed)
        assert verified.divergence == pytest.approx(alone.divergence, abs=1e-9)
        assert verified.nfe < alone.nfe
        errors[cache] = verified.divergence
    assert errors[NoCache()] == pytest.approx(0.0, abs=1e-12)
    assert errors[PrefixCache()] > 1e-3


def test_a_verifier_that_decides_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cache-error", "word_problems?limit=2", "--model", str(tmp_path), "--verifier",
               "S2D2()"]  # fmt: skip
    assert main(command) == 2
    assert "--verifier must be a verifier that lets the sampler decide" in capsys.readouterr().err


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    file = tmp_path / "errors.json"
    status = main(
        ["cache-error", "word_problems?limit=2", "--model", str(write_model(tmp_path / "tiny")),
         "--gen-length", "8", "--block-length", "8", "--cache", "NoCache()", "--cache",
         "PrefixCache()", "--threads", "1",
         "--json", str(file)]
    )  # fmt: skip
    torch.set_num_threads(threads)
    assert status == 0
    assert "| `NoCache()` | 0.0000 (0.0000) | 0.000 (0.000) | 0.000" in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert content["settings"]["num_prompts"] == 2
    assert len(content["errors"]) == 2


def test_a_task_says_how_many_prompts_and_its_unknown_words_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"zorblax has {number} apples .", "answer": "3"} for number in range(2)]
    task = f"jsonl:{write_lines(tmp_path / 'own.jsonl', *rows)}?gen_length=8"
    file = tmp_path / "errors.json"
    command = ["cache-error", task, "--model", str(write_model(tmp_path / "tiny")),
               "--cache", "NoCache()", "--json", str(file)]  # fmt: skip
    assert main(command) == 0
    assert "not known to the tokenizer: zorblax." in capsys.readouterr().err
    assert json.loads(file.read_text())["settings"]["num_prompts"] == 2
