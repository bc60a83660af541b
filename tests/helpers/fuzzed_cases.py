"""Random decodes: a model, plug-ins, options of each row, and when rows join or are cancelled."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as cached
from typing import Any, NamedTuple

import torch
from tiny_models import EVERY_FAMILY, REGISTERED, Spied, shape_of
from torch import Tensor
from toys import Knowing, tiny_target, written_alone

from dllm_decode import DecodeConfig, ForwardInputs, KVCache, blocks, caches, verify
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.requests import Request
from dllm_decode.core.stopping import NeverStop, StopRule
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.network.transformer import Transformer
from samplers import parse
from samplers.facts import Fact
from samplers.logits.noise import row_keys

VOCAB_SIZE, MASK, EOS = 24, 23, 22
WORDS = tuple(range(21))
HIDDEN = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}

SAMPLERS = (
    "ConfidenceThreshold(0.9)", "ConfidenceThreshold(0.4)", "ConfidenceThreshold(0.2)",
    "DecayingThreshold(0.9, 0.3, 6)", "EntropyBound(0.5)", "EntropyBound(2.0, 'margin')",
    "EntropyThreshold(1.0)", "Factor(1.0)", "Factor(2.0, 'official')", "FixedSchedule(2)",
    "FixedSchedule(3, 'margin')", "FixedSchedule(2, 'random')", "FixedSchedule(4, 'entropy')",
    "FixedSchedule(4, 'confidence', 'dream')", "Frechet(0.25)", "Hierarchy(0.2, 0.6)",
    "JointThreshold(0.5, 0.0, 4)", "JointThreshold(0.3, 0.2, 3)",
    "JointThreshold(0.4, 0.1, 2, 2, 1.5)", "Klass(0.4, 0.5, 1, 3)", "Less(0.4, 0.4, 1, 4)",
    "LocalLeap(0.6, 0.2, 2)", "QuotaThreshold(0.4, 3)", "QuotaThreshold(0.4, 2, 'most')",
    "CreditDecoding(LocalLeap(0.6, 0.4, 2))", "CreditDecoding(Klass(0.4, 0.5, 1, 3))",
    "Prophet(thresholds=(2.0, 1.0, 0.5), marker=(5,))",
    "Prophet(FixedSchedule(2), (1.0,), (), gap='all', answer_start=0, answer_length=2)",
    "Prophet(CreditDecoding(FixedSchedule(3)), (1.5, 0.7, 0.3), answer_start=1, answer_length=2)",
    "SchED(FixedSchedule(3), 'linear', 1.5, 0.3, max_changed=0.5)",
    "T2M(0.6, 'low_prob', 0.5, 2, 0.5, 3)", "T2M(0.3, 'logit_diff', 0.1, 3, eos_early_stop=False)",
    "Wino(0.2, 0.5)", "Wino(0.1, 0.8, 0.5, 2, 4)",
)  # fmt: skip


class Counted(MaskedTransformer):
    """A model that counts its calls, and those that compute several groups."""

    num_calls = 0
    num_grouped = 0

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.num_calls += 1
        return super().predict(inputs)

    def predict_groups(self, groups: Sequence[ForwardInputs]) -> list[Tensor]:
        if len(groups) > 1:
            self.num_calls += 1
            self.num_grouped += 1
        return super().predict_groups(groups)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Returns a cache full of noise, so that reading a slot before it is written is noticed."""
        kv_cache = super().new_kv_cache(num_rows, num_slots)
        for buffer in kv_cache.buffers:
            buffer.normal_(0.0, 3.0)
        return kv_cache


class OneByOne(Spied):
    """A model that is called once for each group, as a wrapped model of transformers is."""

    num_grouped = 0

    def __init__(self, model: Counted) -> None:
        super().__init__(model)
        self.counted = model

    @property
    def num_calls(self) -> int:
        return self.counted.num_calls

    def predict(self, inputs: ForwardInputs) -> Tensor:
        return self.counted.predict(inputs)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        return self.counted.new_kv_cache(num_rows, num_slots)


class CountedToy(Knowing):
    """A model without keys and values, some of whose drafts are right."""

    num_calls = 0
    num_grouped = 0

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.num_calls += 1
        return super().predict(inputs)


@dataclass(frozen=True)
class StopAt(StopRule):
    """Stops a row that holds any of the given tokens."""

    tokens: frozenset[int]

    def stops(self, tokens: list[int]) -> bool:
        return not self.tokens.isdisjoint(tokens)


@cached
def network(family: str, number: int, peak: float) -> Transformer:
    """Returns a family's network with 16 wide layers and random weights."""
    shape = shape_of(family)
    moe = shape.moe and replace(
        shape.moe, num_experts=4, num_active=2, hidden_size=8,
        shared_hidden_size=min(8, shape.moe.shared_hidden_size),
        num_groups=min(2, shape.moe.num_groups), num_open_groups=1,
    )  # fmt: skip
    rotary_dim = None if shape.rotary_dim is None else 4
    small = replace(
        shape, vocab_size=VOCAB_SIZE, mlp_hidden_size=24, moe=moe, rotary_dim=rotary_dim, **HIDDEN
    )
    torch.manual_seed(number)
    transformer = Transformer(small).double().eval().requires_grad_(False)
    for name, parameter in transformer.named_parameters():
        if parameter.dim() > 1:
            wide = "embedding" in name or "head" in name
            parameter.normal_(0.0, peak * 0.25 if wide else 2.0 * parameter.shape[-1] ** -0.5)
    return transformer


@cached
def model_of(
    family: str, number: int, peak: float, align: int, ends: tuple[int, ...]
) -> Counted | OneByOne | CountedToy:
    """Returns a tiny model with the EOS ids `EOS` and `ends`. Number 3 computes no groups."""
    if family == "toy":
        return CountedToy(
            VOCAB_SIZE, MASK, (EOS, *ends), logit_shift=number % 2, causal_block_length=align,
            peak=2.0 + peak, drift=0.15 * number,
        )  # fmt: skip
    model = Counted(
        network(family, number, peak), name=family, mask_id=MASK, eos_ids=(EOS, *ends),
        banned_ids=(21,), logit_shift=REGISTERED[family].logit_shift, causal_block_length=align,
    )  # fmt: skip
    return OneByOne(model) if number == 3 else model


class Case(NamedTuple):
    """One decode of several requests, with rounds in which requests join or are cancelled.

    Attributes:
        seed: The number that the case was drawn from.
        decoder: All parts but the requests.
        requests: In the order in which they are put into the queue.
        options: The options that each request has of its own.
        num_rows: Rows of the decode in which not all requests fit.
        joins: Round before which each request joins the queue of that decode.
        cancels: Round after which that decode cancels a request, by its index.
    """

    seed: int
    decoder: Decoder
    requests: list[Request]
    options: list[dict[str, Any]]
    num_rows: int
    joins: list[int]
    cancels: dict[int, int]

    @property
    def is_uniform(self) -> bool:
        """True if no row has options of its own, so that the public functions decode the case."""
        return not any(self.options) and not any(self.joins) and not self.cancels


def case_of(seed: int) -> Case | str:
    """Draws a case; returns the text of the refusal if its parts do not fit together."""
    rng = random.Random(seed)
    model = random_model(rng)
    align = model.causal_block_length
    block_length = align * rng.choice((1, 2)) if align else rng.choice((1, 2, 3, 4, 5, 8))
    gen_length = rng.randint(max(4, block_length), rng.choice((10, 12, 24)))
    sampler = parse(rng.choice(SAMPLERS))
    # Few caches and schedules fit samplers that see or change more than open masks.
    is_demanding = sampler.scope != "block" or Fact.FINAL_TOKENS not in sampler.gives
    is_plain = is_demanding and rng.random() < 0.5
    cache = caches.NoCache() if is_plain else _cache(rng, model, block_length)
    schedule = blocks.Sequential() if is_plain else _blocks(rng, block_length)
    try:
        decoder = new_decoder(
            model, sampler, cache=cache, verifier=_verifier(rng, align), blocks=schedule,
            config=config_of(rng, gen_length, block_length),
        )  # fmt: skip
        return _knowing(with_requests(rng, seed, decoder))
    except ValueError as refusal:
        return str(refusal)


def random_model(rng: random.Random) -> MaskPredictor:
    family = rng.choice((*EVERY_FAMILY, "toy", "toy"))
    may_be_causal = family == "toy" or family.startswith("a2d")
    is_causal = rng.random() < 0.3 if may_be_causal else REGISTERED[family].block_length > 0
    align = rng.choice((2, 3, 4, 5)) if is_causal else 0
    ends = rng.choice(((), (), (13,), (3, 13)))
    return model_of(family, rng.randint(0, 3), rng.choice((1.0, 2.0, 4.0)), align, ends)


def config_of(rng: random.Random, gen_length: int, block_length: int) -> DecodeConfig:
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["temperature"] = rng.choice((0.3, 1.0))
    if rng.random() < 0.15:
        options |= rng.choice(({"top_k": 3}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.9}))
    if rng.random() < 0.1:
        options["confidence_from"] = "tempered"
    if rng.random() < 0.08:
        options["cfg_scale"] = 0.7
    if rng.random() < 0.1:
        options["banned_ids"] = tuple(rng.sample(WORDS, 3))
    if rng.random() < 0.15:
        options["deferred_ids"] = (EOS,) if rng.random() < 0.5 else (EOS, 7)
    return DecodeConfig(
        gen_length=gen_length, block_length=block_length, seed=rng.randint(-3, 99),
        stop_at_eos=rng.random() < 0.6, truncate_at_eos=rng.random() < 0.25, **options,
    )  # fmt: skip


def _cache(rng: random.Random, model: MaskPredictor, block_length: int) -> caches.CachePolicy:
    if isinstance(model, CountedToy) or rng.random() < 0.2:
        return caches.NoCache()
    count: Callable[[int, int], int] = rng.randint
    inner: tuple[caches.CachePolicy, ...] = (
        caches.NoCache(), caches.PrefixCache(), caches.DualCache(), caches.FreeCache(),
        caches.PrefixCache(refresh_every=count(1, 5)),
        caches.DualCache(refresh_every=count(1, 5)),
        caches.DualCache(before=count(0, 8), after=count(0, 8)),
        caches.DelayedCache(count(1, 6), count(1, 3)),
        caches.SettledCache(count(1, 3)),
        caches.PipelineCache(block_length, count(0, 3), count(0, 4)), caches.SubBlockCache(),
    )  # fmt: skip
    chosen = rng.choice(inner)
    is_windowed = rng.random() < 0.25
    return caches.SuffixWindow(chosen, count(0, 8), tail=count(0, 2)) if is_windowed else chosen


def _blocks(rng: random.Random, block_length: int) -> blocks.BlockSchedule:
    if rng.random() < 0.5:
        return blocks.Sequential()
    several = blocks.MultiBlock(
        open_at=round(0.6 * rng.random(), 2), force_at=round(rng.random(), 2),
        max_open=rng.choice((None, 1, 2, 3)), order=rng.choice(("confidence", "margin", "entropy")),
        forces=rng.choice(("first", "every")),
    )  # fmt: skip
    delimiters = tuple(rng.sample(WORDS, 6))
    adaptive = blocks.AdaptiveBlocks(delimiters, round(0.2 * rng.random(), 2), window=rng.random())
    parts = blocks.SubBlocks(sub_block_length=rng.randint(1, block_length))
    masks, within = rng.randint(1, block_length), rng.choice(("answer", "block"))
    sliding = blocks.SlidingWindow(masks, rng.randint(1, 2 * block_length), within)
    return rng.choice((several, adaptive, parts, sliding))


def _verifier(rng: random.Random, align: int) -> verify.Verifier:
    kind = rng.random()
    if align and kind < 0.25:
        router = rng.choice(
            (
                verify.MinimumSpan(rng.randint(1, 2)), verify.ScoreThreshold(-1.0),
                verify.ScoreThreshold(0.3, -0.5),
                verify.ScoreThreshold(0.0, penalise="dynamic", estimate="margin", confidence=0.3),
            )
        )  # fmt: skip
        return verify.S2D2(router, rng.choice(("blocks", "causal")))
    if kind < 0.55:
        return verify.NoVerifier()
    if kind < 0.75:
        evaluate = rng.choice(("batch", "tree"))
        return verify.SelfVerify(rng.randint(1, 5), evaluate, rng.choice(("block", "next")))
    target = tiny_target(VOCAB_SIZE, rng.randint(0, 2), 2.0)
    if kind < 0.8:
        return verify.Guided(target, rng.randint(1, 8), rng.randint(1, 4), rng.choice((0.0, 0.2)))
    proxy = verify.NGram(VOCAB_SIZE).fit([[*WORDS]])
    drafting = rng.choice(
        (verify.PathSearch(), verify.PathSearch(num_forwards=2),
         verify.PathSearch(4, 0.95, 6, 0.4, proxy, "always"), verify.Tree(8),
         verify.Tree(6, num_forwards=2), verify.Tree(12, column_cost=0.02),
         verify.Sampled(), verify.Sampled("block"), verify.Sampled(num_forwards=2),
         verify.Pool(3, 2, 4), verify.Recycling(3))
    )  # fmt: skip
    return verify.ARVerify(target, verify.DraftLength(2, 6, growth=2), drafting)


def with_requests(rng: random.Random, seed: int, decoder: Decoder) -> Case:
    number = rng.choice((2, 2, 3, 3, 4, 5))
    has_own = rng.random() < 0.6
    stop = StopAt(frozenset(rng.sample(WORDS, 2))) if rng.random() < 0.1 else NeverStop()
    has_templates = rng.random() < 0.5
    requests, all_options = [], []
    for index in range(number):
        options = _own_options(rng, decoder) if has_own else {}
        length = options.get("gen_length", decoder.config.gen_length)
        template = _template(rng, decoder, length) if has_templates else []
        prompt = rng.choices(WORDS, k=rng.choice((1, 2, rng.randint(1, 12))))
        if Fact.FINAL_TOKENS not in decoder.sampler.gives and len({*prompt}) == 1:
            # All columns may hold this token at once: exact ties, which rounding would break.
            prompt.append(next(word for word in WORDS if word not in prompt))
        requests.append(decoder.request(prompt, index, template=template, stop=stop, **options))
        all_options.append(options)
    joins = [rng.randint(0, 10) if index else 0 for index in range(number)]
    joins = joins if rng.random() < 0.5 else [0] * number
    cancels = {rng.randrange(number): rng.randint(1, 6)} if rng.random() < 0.12 else {}
    num_rows = rng.randint(max(1, number - 4), number - 1)
    return Case(seed, decoder, requests, all_options, num_rows, joins, cancels)


def written_by_target(decoder: Decoder, request: Request) -> list[int] | None:
    """Returns the answer of the target alone; `None` where something else decides too."""
    verifier, config, template = decoder.verifier, request.config, list(request.template)
    if not isinstance(verifier, verify.ARVerify) or request.stop.reads_tokens or MASK in template:
        return None
    model, ends = decoder.model, verifier.target.eos_ids
    stops, is_noisy = config.stop_at_eos or config.truncate_at_eos, config.temperature > 0.0
    # Drawn drafts follow the target's distribution, but not its sample.
    if any(token in ends for token in template) or (is_noisy and verifier.drafting.is_drawn):
        return None
    keys = row_keys(config.seed, torch.tensor([request.noise_index])) if is_noisy else None
    return written_alone(
        verifier.target.network.model, list(request.prompt), template, gen_length=config.gen_length,
        stops=ends, banned=(MASK, *model.banned_ids, *decoder.config.banned_ids),
        temperature=config.temperature, key=keys, ends=stops,
    )  # fmt: skip


def _knowing(case: Case) -> Case:
    """Gives a toy most tokens of the target's answers, so that long drafts are accepted."""
    decoder = case.decoder
    if not isinstance(decoder.model, CountedToy):
        return case
    written = {(*request.prompt,): written_by_target(decoder, request) for request in case.requests}
    answers = {prompt: answer for prompt, answer in written.items() if answer}
    model = replace(decoder.model, answers=answers, wrong_every=1 + case.seed % 5)
    return case._replace(decoder=replace(decoder, model=model))


def _own_options(rng: random.Random, decoder: Decoder) -> dict[str, Any]:
    decides = Fact.SAMPLER_DECIDES in decoder.verifier.gives
    draws = isinstance(decoder.verifier, verify.ARVerify) and decoder.verifier.drafting.is_drawn
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["gen_length"] = rng.randint(1, decoder.config.gen_length)
    if rng.random() < 0.5:
        options["seed"] = rng.randint(0, 5)
    if rng.random() < 0.4 and not draws:
        options["temperature"] = rng.choice((0.0, 0.5, 1.5))
    if rng.random() < 0.15 and decides:
        options |= rng.choice(({"top_k": 2}, {"top_p": 0.6}))
    if rng.random() < 0.3:
        options["stop_at_eos"] = rng.random() < 0.5
    if rng.random() < 0.3:
        options["truncate_at_eos"] = rng.random() < 0.5
    return options


def _template(rng: random.Random, decoder: Decoder, gen_length: int) -> list[int]:
    """Returns given tokens: scattered ones, whole blocks, a beginning, or none."""
    length, kind = rng.randint(0, gen_length), rng.random()
    words = [rng.choice(WORDS) for _ in range(length)]
    if length and rng.random() < 0.15:
        words[rng.randrange(length)] = rng.choice(decoder.model.eos_ids)
    if kind < 0.25 or not decoder.verifier.asks_sampler:
        return words
    if kind < 0.5:
        size = decoder.block_length
        given_blocks = {number for number in range(gen_length) if rng.random() < 0.5}
        return [word if at // size in given_blocks else MASK for at, word in enumerate(words)]
    share = rng.random()
    return [word if rng.random() < share else MASK for word in words]
