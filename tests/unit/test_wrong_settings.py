"""Every plug-in refuses settings outside their range, in one sentence that has the value."""

import math
from dataclasses import fields

import jaxtyping
import pytest
from tiny_models import load_tiny
from toys import tiny_target

import dllm_decode
import samplers
from samplers.expression import parse_expression

CONSTRUCTORS = {
    **{
        name: getattr(package, name)
        for package in (samplers, dllm_decode)
        for name in package.__all__
    },
    # Values that no literal can express.
    "CausalTarget": tiny_target,
    "NaN": lambda: math.nan,
    "TheClassTree": lambda: dllm_decode.Tree,
}
# The expression, and a part of the sentence that refuses it. Plain ranges of single fields are few
# here: they are declared, and the last test tries every field.
WRONG = """
AcceptAndRenoise(t_min=0.0, t_max=0.0) | AcceptAndRenoise(t_min=0.0, t_max=0.001) is nearly
ConfidenceThreshold(1.5) | threshold must be a probability in [0, 1], got 1.5.
ConfidenceThreshold(True) | threshold must be a probability in [0, 1], got True.
ConfidenceThreshold(NaN()) | threshold must be a probability in [0, 1], got nan.
CreditDecoding(Wino()) | CreditDecoding needs a sampler that never changes
FixedSchedule(0) | steps_per_block must be a whole number, at least 1, got 0.
JointThresholdInDel(delete_id=7, split_id=7) | delete_id and split_id must differ, got 7 twice
LocalLeap(0.9, 0.95) | relaxed_threshold must be a probability in [0, threshold=0.9], got 0.95.
EoTP(JointThreshold()) | EoTP needs a sampler that never changes
PC(frequencies=3) | frequencies must be a name or a path, got 3.
Prophet(thresholds=(7.5, 5.0)) | one entry more than edges
Prophet(edges=(0.7, 0.3)) | ascending
Prophet(edges=(0.7, 1.3)) | share in
Prophet(answer_start=3, marker=(4,)) | got both. Leave one out
Prophet(JointThreshold()) | Prophet needs a sampler that never changes
SchED(high=1.0) | high must be at least low=2.5, got 1.0
Wino(min_accepts=30) | min_accepts must be at most max_accepts=20, got 30
CutAtEos(SuffixWindow()) | that hides no columns itself
SuffixWindow(SuffixWindow(NoCache(), 0), 9) | that hides no columns itself
AdaptiveBlocks([5]) | delimiters must be a tuple
AdaptiveBlocks((-1,)) | delimiters must be a whole number, at least 0
ARVerify(CausalTarget(), drafting=TheClassTree()) | the class Tree
ScoreThreshold(0.0, 0.5) | off must be below on=0.0, got 0.5
DraftLength(4, 3) | shortest must be between 1 and longest=3 tokens, got 4
Recycling(11) | k must be at most 10 tokens
NGram(10, 1000000000000000000000000) | length must be a whole number of tokens, at most
NGram(1073741824) | do not fit 64 bits
"""
CASES = [line.split(" | ") for line in WRONG.strip().splitlines()]


@pytest.mark.parametrize(("text", "sentence"), CASES, ids=[text for text, _ in CASES])
def test_a_setting_outside_its_range_is_refused(
    text: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of types would refuse some of these first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared as a whole text
        parse_expression(text, CONSTRUCTORS)
    assert sentence in str(refused.value)


KINDS = (
    samplers.Sampler, dllm_decode.CachePolicy, dllm_decode.BlockSchedule, dllm_decode.Verifier,
    dllm_decode.Drafting, dllm_decode.DraftLength, dllm_decode.MinimumSpan, dllm_decode.NGram,
    dllm_decode.ScoreThreshold,
)  # fmt: skip
PLUGINS = [
    plugin
    for plugin in CONSTRUCTORS.values()
    if isinstance(plugin, type) and issubclass(plugin, KINDS) and hasattr(plugin, "__post_init__")
    if not getattr(plugin, "__abstractmethods__", ())
]
# Arguments without a default.
NEEDED = {
    "target": tiny_target(), "inner": dllm_decode.NoCache(), "delimiters": (5,), "vocab_size": 10,
    "drafter": dllm_decode.as_causal_target(load_tiny("nemotron_labs_diffusion")),
}  # fmt: skip
ALLOWED = {
    ("Learn2PD", "filter", "no"), ("PC", "frequencies", "no"), ("Frechet", "margin", -(10**9)),
    ("ScoreThreshold", "on", -(10**9)), ("ScoreThreshold", "off", -(10**9)),
    ("EntropyCache", "threshold", -(10**9)),
}  # fmt: skip


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("value", ["no", -(10**9)])
def test_every_field_refuses_a_text_and_a_negative_number_by_its_name(
    plugin: type, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    names = [field.name for field in fields(plugin) if field.repr]
    for name in names:
        if (plugin.__name__, name, value) in ALLOWED:
            continue
        needed = {key: argument for key, argument in NEEDED.items() if key in names}
        with pytest.raises(ValueError, match=rf"\b({name}|{plugin.__name__})\b"):
            plugin(**needed | {name: value})
