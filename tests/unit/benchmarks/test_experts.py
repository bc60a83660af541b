"""The floor of a mixture of experts counts the bytes that are read, and nothing else."""

import torch

from benchmarks.experts import bytes_read, config_of, count_active, expert_rows, new_mixture
from benchmarks.floor import Machine
from benchmarks.setting import Setting
from dllm_decode.core.model import ForwardInputs


def test_only_experts_that_have_a_token_are_counted() -> None:
    config = config_of(share=16, num_layers=3, num_experts=32)
    model = new_mixture(config, Setting(dtype="float32"))
    expert = 3 * config.hidden_size * config.moe.hidden_size * 4
    always, per_expert = bytes_read(model)
    assert per_expert == expert
    all_bytes = sum(parameter.nbytes for parameter in model.transformer.parameters())
    embedding = config.vocab_size * config.hidden_size * 4
    assert always + 2 * 32 * expert + embedding == all_bytes
    active = count_active(model)
    for num_columns in (1, 24):
        columns = torch.arange(num_columns)[None]
        model.predict(ForwardInputs(columns + 5, columns, columns))
    # Eight of 32 in each of two layers; 24 tokens need most of them.
    assert active[:2] == [8, 8]
    assert 40 < sum(active[2:]) <= 64


def test_a_row_for_each_batch_size() -> None:
    setting = Setting(prompt_length=8, steps_per_block=4, dtype="float32", num_threads=1)
    rows = expert_rows(config_of(16, 2, 16), setting, Machine(1e12, 1e12))
    assert [row["rows"] for row in rows] == [1, 4]
    for row in rows:
        # No step is faster than its floor; a token has 8 of 16 experts.
        assert row["times floor"] > 1.0
        assert 0.5 <= row["active experts"] <= 1.0
