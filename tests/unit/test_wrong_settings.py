"""Every plug-in refuses settings outside their range, in one sentence that has the value."""

import math

import jaxtyping
import pytest
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
    # No literals, or no text at all.
    "CausalTarget": tiny_target,
    "NaN": lambda: math.nan,
    "TheClassTree": lambda: dllm_decode.Tree,
}
# The expression, and a part of the sentence that refuses it.
WRONG = """
AcceptAndRenoise(entropy_bound=0.0) | entropy_bound must be
AcceptAndRenoise(entropy_bound=-1) | entropy_bound must be
AcceptAndRenoise(num_steps=0) | num_steps must be
AcceptAndRenoise(num_steps=2.0) | num_steps must be
AcceptAndRenoise(t_min=-0.1) | t_min must be
AcceptAndRenoise(t_max=0.4) | t_max must be
AcceptAndRenoise(t_max=inf) | t_max must be
AcceptAndRenoise(t_min=0.0, t_max=0.0) | AcceptAndRenoise(t_min=0.0, t_max=0.001) is nearly
AcceptAndRenoise(stability_threshold=-1) | stability_threshold must be
AcceptAndRenoise(confidence_threshold=0.0) | confidence_threshold must be
ConfidenceThreshold(1.5) | threshold must be a probability in [0, 1], got 1.5.
ConfidenceThreshold(NaN()) | threshold must be a probability in [0, 1], got nan.
ConfidenceThreshold('a') | threshold must be a probability in [0, 1], got 'a'.
ConfidenceThreshold(True) | threshold must be a probability in [0, 1], got True.
CreditDecoding(alpha=-0.1) | alpha must be a number of at least 0
CreditDecoding(beta=1.5) | beta must be a share
CreditDecoding(gamma=-1.0) | gamma must be a number of at least 0
DecayingThreshold(1.5) | threshold must be a probability in [0, 1], got 1.5.
DecayingThreshold(0.9, 2.0) | decay must be a share in [0, 1], got 2.0.
DuoPosterior(num_steps=0) | num_steps must be
DuoPosterior(rho=0.0) | rho must be
DuoPosterior(kappa=1.5) | kappa must be
DuoPosterior(t_min=0.0) | t_min must be
DuoPosterior(t_max=0.1) | t_max must be
EntropyBound(-0.1) | bound must be an entropy in nats of at least 0, got -0.1.
EntropyBound(NaN()) | bound must be an entropy in nats of at least 0, got nan.
EntropyBound(order='random') | order must be one of "entropy", "confidence", "margin", got 'random'.
EntropyThreshold(-1.0) | threshold must be an entropy in nats of at least 0, got -1.0.
EntropyThreshold(NaN()) | threshold must be an entropy in nats of at least 0, got nan.
Factor(-1.0) | factor must be a number of at least 0, got -1.0.
Factor(NaN()) | factor must be a number of at least 0, got nan.
Factor(variant='strict') | one of "paper", "inclusive", "official", got 'strict'.
FixedSchedule(0) | steps_per_block must be a whole number, at least 1, got 0.
FixedSchedule(2.5) | steps_per_block must be a whole number, at least 1, got 2.5.
FixedSchedule(True) | steps_per_block must be a whole number, at least 1, got True.
Frechet(1.5) | margin must be a number of at most 1, got 1.5.
Frechet(NaN()) | margin must be a number of at most 1, got nan.
Hierarchy(-0.1) | low_threshold must be a probability in [0, 1], got -0.1.
Hierarchy(0.4, 1.1) | high_threshold must be a probability in [0, 1], got 1.1.
JointThreshold(1.5) | threshold must be
JointThresholdInDel(1.5) | threshold must be
JointThresholdInDel(delete_id=7, split_id=7) | delete_id and split_id must differ, got 7 twice
Klass(2.0) | threshold must be a probability in [0, 1], got 2.0.
Klass(0.9, -0.1) | kl_threshold must be a divergence in nats of at least 0, got -0.1.
Klass(0.9, 0.1, 0) | num_stable_steps must be a whole number, at least 1, got 0.
Klass(steps_per_block=0) | steps_per_block must be a whole number, at least 1, got 0.
Learn2PD(threshold=2.0) | threshold must be a probability in [0, 1], got 2.0.
Learn2PD(5) | filter must be a name or a path, got 5.
Less(2.0) | threshold must be a probability in [0, 1], got 2.0.
Less(0.9, -0.1) | drift_threshold must be a divergence in nats of at least 0, got -0.1.
Less(0.9, 0.1, 0) | num_stable_steps must be a whole number, at least 1, got 0.
Less(steps_per_block=0) | steps_per_block must be a whole number, at least 1, got 0.
LocalLeap(1.1) | threshold must be a probability in [0, 1], got 1.1.
LocalLeap(0.9, 0.95) | relaxed_threshold must be a probability in [0, threshold=0.9], got 0.95.
LocalLeap(radius=-1) | radius must be a whole number of positions, at least 0, got -1.
Prophet(thresholds=(7.5, 5.0)) | one entry more than edges
Prophet(thresholds=(7.5, -5.0, 1.0)) | at least 0
Prophet(edges=(0.7, 0.3)) | ascending
Prophet(edges=(0.7, 1.3)) | share in
Prophet(answer_start=-1) | answer_start must be a whole number, at least 0, got -1
Prophet(answer_length=0) | answer_length must be a whole number of tokens, at least 1, got 0
Prophet(answer_start=3, marker=(4,)) | got both. Leave one out
Prophet(num_steps=-1) | num_steps must be a whole number, at least 0
QuotaThreshold(1.5) | threshold must be a probability
QuotaThreshold(0.5, 0) | steps_per_block must be a whole number, at least 1
SchED(fall='step') | fall must be one of
SchED(high=1.0) | high must be at least low=2.5, got 1.0
SchED(low=-1.0) | low must be
SchED(max_changed=2) | max_changed must be
SchED(num_steps=-1) | num_steps must be
T2M(threshold=1.5) | threshold must be a probability in [0, 1], got 1.5
T2M(strategy='worst') | strategy must be one of "low_prob", "t2t_remask", "logit_diff"
T2M(tau=-0.1) | tau must be a probability
T2M(max_remasks=-1) | max_remasks must be a whole number of re-masks, at least 0
T2M(ratio=2.0) | ratio must be a share
T2M(max_post_steps=1.5) | max_post_steps must be a whole number of steps
T2M(eos_early_stop=1) | eos_early_stop must be True or False, got 1
Wino(low_threshold=1.5) | low_threshold must be a probability in [0, 1], got 1.5
Wino(high_threshold=-0.5) | high_threshold must be a probability
Wino(accept_share=2.0) | accept_share must be a share
Wino(min_accepts=0) | min_accepts must be a whole number of tokens, at least 1, got 0
Wino(min_accepts=30) | min_accepts must be at most max_accepts=20, got 30
PrefixCache(-1) | refresh_every must be a whole number of forwards, at least 0, got -1
PrefixCache(entry='mine') | entry must be "sampler" or "official", got 'mine'
DualCache(-2) | refresh_every must be a whole number of forwards, at least 0, got -2
DualCache(before=-1) | before must be a whole number of columns, at least 0, got -1
FreeCache('x') | freeze must be "clean" or "official", got 'x'.
DelayedCache(0) | refresh_every must be a whole number of forwards, at least 1, got 0
DelayedCache(warm_up=0) | warm_up must be a whole number of forwards, at least 1, got 0
SettledCache(0) | delay must be a whole number of forwards, at least 1, got 0
PipelineCache(0) | block_length must be a whole number of tokens, at least 1, got 0
PipelineCache(delay=-1) | delay must be a whole number of forwards, at least 0, got -1
SuffixWindow(NoCache(), -1) | width must be a whole number of columns, at least 0, got -1.
SuffixWindow(5) | inner must be a cache policy such as PrefixCache(), got 5.
SuffixWindow(SuffixWindow(NoCache(), 0), 9) | that hides no columns itself
MultiBlock(open_at=1.5) | open_at must be
MultiBlock(force_at=-0.1) | force_at must be
MultiBlock(max_open=0) | max_open must be
MultiBlock(block_length=0) | block_length must be
MultiBlock(order='x') | order must be
MultiBlock(forces='some') | forces must be
AdaptiveBlocks([5]) | delimiters must be a tuple
AdaptiveBlocks((-1,)) | delimiters must be a whole number, at least 0
AdaptiveBlocks(('.',)) | must be token ids, got the text '.'
AdaptiveBlocks((5,), 1.5) | threshold must be a probability
AdaptiveBlocks((5,), block_length=0) | block_length must be
AdaptiveBlocks((5,), window=-0.5) | window must be a share
Sequential(0) | block_length must be a whole number of tokens, at least 1, got 0.
SubBlocks(0) | block_length must be
SubBlocks(8, 0) | sub_block_length must be
SelfVerify(draft_steps=0) | draft_steps must be a whole number, at least 1, got 0
SelfVerify(reach='end') | reach must be one of "block", "next", got 'end'
SelfVerify(evaluate='forest') | one of "batch", "tree", "sequential", got 'forest'
ARVerify('mini-ar') | target of ARVerify must be loaded
ARVerify(CausalTarget(), 8) | draft_length must be a DraftLength such as
ARVerify(CausalTarget(), drafting=TheClassTree()) | the class Tree
Guided(None) | target of Guided must be loaded
Guided(CausalTarget(), num_proposals=0) | num_proposals must be a whole number, at least 1, got 0
Guided(CausalTarget(), top_k=0) | top_k must be a whole number, at least 1, got 0
Guided(CausalTarget(), ratio=1.5) | ratio must be a share in [0, 1], got 1.5
Guided(CausalTarget(), threshold=1.0) | threshold must be below 1,
S2D2(0.5) | router must be
MinimumSpan(0) | length must be
ScoreThreshold(0.0, 0.5) | off must be below on=0.0, got 0.5
DraftLength(0, 3) | shortest must be a whole number of tokens, at least 1, got 0
DraftLength(4, 3) | shortest must be between 1 and longest=3 tokens, got 4
DraftLength(2.5, 3) | shortest must be a whole number of tokens, at least 1, got 2.5
DraftLength(longest='a') | longest must be a whole number of tokens, at least 1, got 'a'
DraftLength(growth=-1) | growth must be a whole number of tokens, at least 0, got -1
DraftLength(momentum=None) | momentum must be a number, got None
DraftLength(momentum=0.0) | momentum must be a weight in (0, 1], got 0.0
DraftLength(start='one') | start must be one of "longest", "zero", got 'one'
PathSearch(0) | width must be a whole number, at least 1, got 0
PathSearch(mass=0.0) | mass must be a probability in (0, 1], got 0.0
PathSearch(weight=2.0) | weight must be a share in [0, 1], got 2.0
PathSearch(eos='no') | eos must be one of "within_mass", "always", got 'no'
PathSearch(length_power=-1.0) | length_power must be
PathSearch(num_forwards=0) | num_forwards must be a whole number, at least 1, got 0
PathSearch(proxy='a') | proxy must be a Proxy such as NGram
Tree(budget=0) | budget must be a
Tree(max_candidates=0) | max_candidates must be a
Tree(column_cost=-0.1) | column_cost must be a
Tree(column_cost=NaN()) | column_cost must be a
Tree(proxy_weight=-1.0) | proxy_weight must be a
Tree(num_forwards=0) | num_forwards must be a
NGram(10, 0) | length must be a whole number of tokens, at least 1, got 0
NGram(10, 1000000000000000000000000) | length must be a whole number of tokens, at most
NGram('a') | vocab_size must be a whole number of tokens, at least 1, got 'a'
NGram(10, strength=0.0) | strength must be above 0 tokens, got 0.0
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


def test_every_sampler_cache_schedule_and_verifier_with_settings_is_listed() -> None:
    listed = {text.partition("(")[0] for text, _ in CASES}
    for base in (
        samplers.Sampler, dllm_decode.CachePolicy, dllm_decode.BlockSchedule, dllm_decode.Verifier,
        dllm_decode.Drafting,
    ):  # fmt: skip
        for name, plugin in CONSTRUCTORS.items():
            is_one = isinstance(plugin, type) and issubclass(plugin, base) and plugin is not base
            is_abstract = bool(getattr(plugin, "__abstractmethods__", ()))
            if is_one and hasattr(plugin, "__post_init__") and not is_abstract:
                assert name in listed, name
