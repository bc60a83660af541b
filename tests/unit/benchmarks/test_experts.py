"""The floor of a mixture of experts counts what is read, and nothing else."""

import pytest
import torch

from benchmarks import experts
from benchmarks.experts import BLOCK_LENGTH, bytes_read, config_of, count_active
from benchmarks.floor import Machine
from benchmarks.setting import Setting, new_mixture
from dllm_decode.core.model import ForwardInputs


def test_only_experts_that_have_a_token_are_counted() -> None:
    config = config_of(share=16, num_layers=3, num_experts=32)
    model = new_mixture(config, Setting(dtype="float32"), causal_block_length=BLOCK_LENGTH)
    expert = 3 * config.hidden_size * config.moe.hidden_size * 4
    always, of_an_expert = bytes_read(model)
    assert of_an_expert == expert
    everything = sum(parameter.nbytes for parameter in model.transformer.parameters())
    embedding = config.vocab_size * config.hidden_size * 4
    assert always + 2 * 32 * expert + embedding == everything
    active = count_active(model)
    for num_columns in (1, 24):
        columns = torch.arange(num_columns)[None]
        model.predict(ForwardInputs(columns + 5, columns, columns))
    # Eight of 32 in each of two layers; 24 tokens need most of them.
    assert active[:2] == [8, 8]
    assert 40 < sum(active[2:]) <= 64


def test_a_row_for_each_batch_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "measure_machine", lambda setting: Machine(1e12, 1e12))
    small = ["--share", "16", "--num-layers", "2", "--num-experts", "16", "--prompt-length", "8"]
    experts.main([*small, "--steps", "4", "--dtype", "float32", "--threads", "1"])
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "|" in line]
    rows = [[float(cell.replace(",", "")) for cell in line] for line in lines[2:]]
    assert [row[0] for row in rows] == [1, 4]
    for _, _, of_active, of_all, share in rows:
        # No step is faster than its floor; a token has 8 of 16 experts.
        assert of_active >= of_all > 1.0
        assert 0.5 <= share <= 1.0
