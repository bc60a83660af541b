"""The profile of a step finds every part of it, and leaves nothing behind."""

from dataclasses import replace

import dllm_decode.engine.round
from benchmarks.setting import Setting
from benchmarks.step import profile_step
from dllm_decode import DualCache
from dllm_decode.engine.decide import decide

TINY = Setting("tiny", prompt_length=12, gen_length=8, block_length=8, steps_per_block=8)
PARTS = {
    "model: head", "model: products of the layers", "model: attention",
    "model: norms, rotation, copies, Python", "sampler: statistics and decision",
    "loop: checks, statistics, canvas",
}  # fmt: skip


def test_every_part_of_a_step_is_found() -> None:
    setting = replace(TINY, num_threads=1)
    model = setting.model()
    predict = model.predict
    profile = profile_step(model, setting, DualCache())
    assert set(profile) == PARTS
    assert min(profile.values()) > 0.0
    assert model.predict == predict
    assert vars(dllm_decode.engine.round)["decide"] is decide
