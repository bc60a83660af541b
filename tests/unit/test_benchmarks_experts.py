"""The floor of a mixture of experts counts what is read, and nothing else."""

import pytest
import torch

from benchmarks.experts import Needs, Proportions, bytes_read, main
from benchmarks.setting import Setting
from dllm_decode.models.base import ForwardInputs

TINY = Proportions(share=16, num_layers=3, num_experts=32)
SETTING = Setting(dtype="float32")


def test_only_experts_that_have_a_token_are_counted() -> None:
    model, needs = TINY.model(SETTING), Needs()
    config = model.transformer.config
    assert config.moe is not None
    expert = 3 * config.hidden_size * config.moe.hidden_size * 4
    always, of_an_expert = bytes_read(model)
    assert of_an_expert == expert
    everything = sum(parameter.nbytes for parameter in model.transformer.parameters())
    embedding = config.vocab_size * config.hidden_size * 4
    assert always + 2 * 32 * expert + embedding == everything
    needs.follow(model)
    for num_columns in (1, 24):
        columns = torch.arange(num_columns)[None]
        model.predict(ForwardInputs(columns + 5, columns, columns))
    # Eight of 32 in each of two layers; 24 tokens need most of them.
    assert needs.num_active[0] == 16
    assert 40 < needs.num_active[1] <= 64
    assert needs.weight_bytes == [always + active * expert for active in needs.num_active]
    # Products of one column: every matrix that is read, once. Torch counts no attention on a CPU.
    read = needs.weight_bytes[0] // 4 - sum(
        part.numel()
        for name, part in model.transformer.named_parameters()
        if part.ndim == 1 or "router" in name
    )
    router = 2 * 32 * config.hidden_size
    assert needs.flops[0] == 2 * (read + router)


@pytest.mark.parametrize("words", [["--batch-sizes", "1", "2"]])
def test_a_row_for_each_batch_size(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--share", "16", "--num-layers", "2", "--num-experts", "16", "--prompt-length", "8"]
    main([*small, "--steps", "4", "--dtype", "float32", "--threads", "1", *words])
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert [row[0] for row in rows] == ["1", "2"]
    for row in rows:
        # No step is faster than its floor; a token has 8 of 16 experts.
        assert float(row[2]) > 1.0
        assert float(row[3]) <= float(row[2])
        assert 50 <= int(row[4].removesuffix("%")) <= 100
