"""The block schedule as a part of a setting: every command takes it, every record names it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from eval_runs import TokenIds, TokenPrompts
from tiny_models import tiny

from dllm_decode import decode
from dllm_decode.blocks import AdaptiveBlocks, BlockSchedule, MultiBlock, Sequential
from dllm_decode.core.options import DecodeConfig
from dllm_decode.settings.plugins import parse
from eval.commands import evaluate as main
from eval.runs.folder import Folder
from eval.runs.names import Selection
from eval.runs.settings import Run
from eval.studies.cache_error import error_of
from eval.studies.card import read_card
from eval.studies.ladders import rung_of
from samplers import ConfidenceThreshold

TASK = "word_problems?split=test&limit=3"
USUAL, SEVERAL = repr(Sequential()), repr(MultiBlock(8))


def test_records_and_reports_name_the_schedule_that_decoded_them(tmp_path: Path) -> None:
    """A sweep over two schedules, on the embedded model."""
    sweep, compared = tmp_path / "sweep.toml", tmp_path / "out"
    sweep.write_text(
        f'model = "mini"\ntasks = ["{TASK}"]\nsamplers = ["ConfidenceThreshold(0.9)"]\n'
        'blocks = ["Sequential()", "MultiBlock(8)"]\ngen_length = 64\nblock_length = 8\n'
    )
    assert main(["sweep", str(sweep), str(compared)]) == 0
    records = Folder(compared).records()
    usual, several = (
        [record for record in records if record["blocks"] == name] for name in (USUAL, SEVERAL)
    )
    assert len(usual) == len(several) == 3
    assert sum(record["nfe"] for record in several) < sum(record["nfe"] for record in usual)
    summary = json.loads((compared / "summary.json").read_text())
    assert [row["settings"]["blocks"] for row in summary["rows"]] == [USUAL, SEVERAL]
    methods = ["ConfidenceThreshold", "ConfidenceThreshold + MultiBlock"]
    assert [method["method"] for method in summary["methods"]] == methods
    assert SEVERAL in (compared / "report.html").read_text()


def test_a_rung_may_be_a_block_schedule_and_its_card_names_it(tmp_path: Path) -> None:
    assert rung_of("Factor()", {"blocks": "SubBlocks()"}).blocks == "SubBlocks()"
    with pytest.raises(ValueError, match="must have one block schedule"):
        rung_of("Factor() + MultiBlock() + Sequential()")
    status = main([
        "calibrate", "word_problems?split=val&limit=3", str(tmp_path), "--agreement",
        "--sampler", "ConfidenceThreshold(0.9) + MultiBlock(8)", "--test", "binomial",
        "--reference", "ConfidenceThreshold(0.9)", "--max-drop", "0.99", "--confidence", "0.05",
        "--gen-length", "64",
    ])  # fmt: skip
    assert status == 0
    path = tmp_path / "card.json"
    card = read_card(path)
    assert card.setting["blocks"] == SEVERAL
    assert card.reference["blocks"] == USUAL
    assert parse(f"@{path}", BlockSchedule) == card.settings()["blocks"] == MultiBlock(8)
    assert f"ConfidenceThreshold(threshold=0.9) + {SEVERAL}" in card.text()
    (setting,) = (setting for setting in Folder(tmp_path).settings() if setting.blocks == SEVERAL)
    assert card.misfits(replace(setting, examples="others")) == []
    (misfit,) = card.misfits(replace(setting, examples="others", blocks=USUAL))
    assert misfit == f"blocks is {USUAL}, the card's is {SEVERAL}"


# Some tokens that the tiny model writes.
WRITTEN = (19, 30, 63, 99, 145, 264, 305, 391, 430, 443)


@pytest.mark.parametrize("blocks", [MultiBlock(4), AdaptiveBlocks(WRITTEN, 0.05, 4)])
def test_cache_error_decodes_as_the_schedule_says(blocks: MultiBlock | AdaptiveBlocks) -> None:
    """Without a cache the error is 0, and the steps are those of a decode without the tally."""
    config = DecodeConfig(gen_length=16)
    model, prompts, sampler = tiny("llada"), [[5, 6, 7], [9, 10, 11, 12]], ConfidenceThreshold(0.7)
    selection = Selection("ids", TokenPrompts(((5, 6, 7), (9, 10, 11, 12))))
    error = error_of(Run(model, TokenIds(), selection, sampler, blocks=blocks, decoding=config))
    assert error.divergence == pytest.approx(0.0, abs=1e-12)
    assert error.changed == 0.0
    plain = decode(model, prompts, sampler, blocks=blocks, config=config)
    usual = decode(model, prompts, sampler, config=replace(config, block_length=4))
    assert error.nfe == plain.nfe.float().mean() != usual.nfe.float().mean()
