"""Uniform-state models: what the loop, the model and the front ends do with a canvas of noise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from served import decoder_of, served
from tiny_models import load_without_tokenizer, tiny, tiny_gemma, write_gemma
from torch import Tensor
from transformers import TextStreamer

from dllm_decode import (
    CachePolicy,
    DecodeOutput,
    DualCache,
    FreeCache,
    Gains,
    MultiBlock,
    NoCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    StepEvent,
    Trace,
    decode,
    decode_many,
    generate,
    load_model,
    read,
)
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma
from dllm_decode.serve.limits import Limits
from eval.lm_harness.likelihood import LeftToRight, Likelihood
from samplers import AcceptAndRenoise, ConfidenceThreshold, JointThreshold

QUICK = AcceptAndRenoise(num_steps=8, confidence_threshold=0.3)
PROMPTS = [[20, 21, 22, 23], [107, 9, 300, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51], [8]]
CACHES: tuple[CachePolicy, ...] = (NoCache(), FreeCache(), PrefixCache(), DualCache(0, 3))


def run(prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> DecodeOutput:
    options = {"gen_length": 32, "stop_at_eos": False, **options}
    return decode(tiny_gemma(), prompts, options.pop("sampler", QUICK), **options)


@pytest.fixture(scope="module")
def without_a_cache() -> Tensor:
    """Answers in which token 0 is banned."""
    return run(banned_ids=(0,)).tokens


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_a_row_does_not_depend_on_the_others_nor_on_when_it_joins(
    cache: CachePolicy, without_a_cache: Tensor
) -> None:
    # A banned token has no belief, also in a row next to a row without any belief.
    options: Any = {"gen_length": 32, "stop_at_eos": False, "cache": cache, "banned_ids": (0,)}
    assert not (without_a_cache == 0).any()
    for num_rows in (1, 2):
        outs = list(decode_many(tiny_gemma(), PROMPTS, QUICK, num_rows=num_rows, **options))
        assert torch.equal(torch.cat([out.tokens for out in outs]), without_a_cache)


def test_draws_depend_on_the_seed_the_step_and_the_position() -> None:
    drafts: list[Tensor] = []

    def watch(event: StepEvent) -> None:
        drafts.extend((event.before.tokens[0, 4:20], event.after.tokens[0, 4:20]))

    hot = AcceptAndRenoise(1e-9, num_steps=6, t_min=40.0, t_max=50.0)
    run([PROMPTS[0]], gen_length=16, sampler=hot, observers=[watch])
    first, *later = drafts[::2]
    assert all(torch.equal(a, b) for a, b in zip(drafts[1:-1:2], drafts[2::2], strict=True))
    assert all((first == draft).sum() <= 2 for draft in later)
    assert len(first.unique()) > 12
    tokens, again, reseeded = (
        run([PROMPTS[0]], gen_length=16, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert torch.equal(tokens, again)
    assert not torch.equal(tokens, reseeded)


def test_a_free_cache_encodes_each_column_once() -> None:
    sampler = AcceptAndRenoise(num_steps=3, confidence_threshold=1e-9)
    out = run([PROMPTS[1]], gen_length=48, sampler=sampler, cache=FreeCache())
    assert out.nfe.tolist() == [9]
    assert out.query_positions.tolist() == [14 + 2 * 16 + 9 * 16]
    uncached = run([PROMPTS[1]], gen_length=48, sampler=sampler)
    assert uncached.query_positions.tolist() == [3 * (3 * 14 + 16 + 32 + 48)]
    assert torch.equal(uncached.tokens, out.tokens)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gen_length": 30}, r"gen_length must be a multiple of 16, .*, got 30. Use 32."),
    ({"gen_length": 48, "block_length": 32}, r"a multiple of 32, .* Use 64."),
    ({"sampler": ConfidenceThreshold()}, r"needs a model of masked diffusion.*AcceptAndRenoise"),
    ({"sampler": JointThreshold()}, r"needs a model of masked diffusion"),
    ({"verifier": SelfVerify()}, r"needs a verifier that .* Use NoVerifier\(\)"),
    ({"verifier": SelfVerify(1)}, r"hands the sampler's belief to the model.*NoVerifier\(\)"),
    ({"blocks": MultiBlock()}, r"needs a block schedule .* Use blocks=Sequential\(\)"),
    ({"cache": SettledCache()}, r"needs a cache policy .* PrefixCache\(\)"),
    ({"cache": PrefixCache(4)}, r"needs a cache policy .* NoCache\(\)"),
    ({"temperature": 0.5}, r"temperature must be left out .*has temperatures of its own"),
    ({"top_p": 0.5}, r"top_p, top_k and confidence_from must be left out"),
    ({"cfg_scale": 0.5}, r"cfg_scale must be left out .* needs a \[MASK\]"),
    ({"deferred_ids": (5,)}, r"deferred_ids must be left out"),
    ({"truncate_at_eos": True}, r"truncate_at_eos must be left out"),
    ({"templates": [[5]] * 3}, r"templates must be left out"),
    ({"prompts": [[5, 511]]}, r"A prompt must be text alone .* token 511 of an image"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=str)
def test_what_has_no_meaning_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_a_rule_for_noise_is_refused_on_a_masked_model() -> None:
    with pytest.raises(ValueError, match=r"needs a uniform-state model.*such as DiffusionGemma"):
        decode(tiny("llada"), PROMPTS, QUICK, gen_length=32)


@pytest.mark.parametrize("options", [{"mask_id": 5}, {"family": "llada"}], ids=str)
def test_options_of_own_networks_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be left out"):
        load_without_tokenizer(write_gemma(tmp_path), device="cpu", **options)


def test_a_folder_is_loaded_in_any_dtype_with_one_fingerprint(tmp_path: Path) -> None:
    folder = write_gemma(tmp_path)
    models = [load_model(folder, device="cpu", dtype=dtype)[0] for dtype in (None, "float32")]
    spread, tokenizer = load_model(folder, device_map="auto", dtype="float32")
    assert [model.dtype for model in models] == [torch.bfloat16, torch.float32]
    assert {model.fingerprint for model in (*models, spread)} == {tiny_gemma().fingerprint}
    assert isinstance(spread, DiffusionGemma)
    assert (spread.block_length, spread.eos_ids, spread.max_length) == (16, (1, 106), 4096)
    assert tokenizer is not None
    output = generate(spread, tokenizer, "w20 w21", QUICK, gen_length=32)
    assert torch.equal(
        output.decoded.tokens, run([tokenizer("<bos> w20 w21").input_ids], stop_at_eos=True).tokens
    )


def test_rows_that_differ_twice_are_refused_by_the_model() -> None:
    cache = tiny_gemma().new_kv_cache(2, 24)
    inputs = ForwardInputs(
        tokens=torch.full((2, 20), 5), positions=torch.arange(20) + torch.tensor([[2], [3]]),
        wanted=torch.arange(16) + torch.tensor([[2], [1]]), kv_cache=cache,
        slots=torch.arange(20) + torch.tensor([[2], [3]]),
    )  # fmt: skip
    with pytest.raises(ValueError, match="must not differ both"):
        tiny_gemma().predict(inputs)


def test_other_shapes_decode_alike_with_and_without_a_cache(tmp_path: Path) -> None:
    from transformers import DiffusionGemmaForBlockDiffusion

    config = tiny_gemma().network.config.__class__.from_dict(tiny_gemma().network.config.to_dict())
    text = config.text_config
    text.sliding_window, text.num_key_value_heads = 5, 4
    torch.manual_seed(0)
    network = DiffusionGemmaForBlockDiffusion(config).float()
    network.save_pretrained(tmp_path)
    model, _ = load_without_tokenizer(tmp_path, device="cpu", dtype="float32")
    options: Any = {"gen_length": 16, "block_length": 8, "stop_at_eos": False}
    answers = [decode(model, PROMPTS, QUICK, cache=cache, **options).tokens for cache in CACHES]
    assert all(torch.equal(answers[0], answer) for answer in answers[1:])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load_model(write_gemma(tmp_path_factory.mktemp("g")), device="cpu", dtype="float32")


def test_a_streamer_gets_the_answer_and_counts_are_those_of_settled_tokens(
    loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    gains, trace = Gains(), Trace()
    out = generate(
        model, tokenizer, "w20 w21", QUICK, gen_length=48, stop_at_eos=False, streamer=streamer,
        observers=[gains, trace],
    )  # fmt: skip
    assert capsys.readouterr().out.split() == out.texts[0].split() != []
    gained = gains.by_row()[0]
    assert (sum(gained.per_forward), gained.committed) == (48, 48)
    assert set(gained.per_forward) == {0, 16}
    assert trace.revisions[0]
    several = generate(
        model, tokenizer, "w20 w21", QUICK, gen_length=16, num_return_sequences=3, seed=2
    )
    assert len({tuple(answer) for answer in several.decoded.tokens.tolist()}) > 1
    assert out.decoded.tokens.shape == (1, 48)


def test_choices_and_likelihoods_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="needs a model of masked diffusion"):
        Likelihood(tiny_gemma(), LeftToRight())
    with pytest.raises(ValueError, match="needs a model of masked diffusion"):
        read(tiny_gemma(), load_model("mini")[1], "has [one|two]")


def test_a_server_streams_the_canvas(loaded: tuple[Any, Any]) -> None:
    httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
    pytest.importorskip("fastapi", reason="needs the extra serve")
    model, tokenizer = loaded
    decoder = decoder_of(model, QUICK, gen_length=64)
    limits = Limits(max_tokens=64, gen_length=32, max_length=256)
    chat = {"messages": [{"role": "user", "content": "w20 w21 w22"}]}
    with (
        served({"default": decoder}, limits=limits, tokenizer=tokenizer) as (url, _),
        httpx.Client(base_url=url, timeout=60.0) as client,
    ):
        body = {**chat, "stream": True, "stream_mode": "denoise"}
        lines = client.post("/v1/chat/completions", json=body).text.splitlines()
        refused = client.post("/v1/chat/completions", json={**chat, "max_tokens": 40})
        unstreamed = client.post("/v1/chat/completions", json={**chat, "max_tokens": 32})
    assert sum("canvas" in line for line in lines) > 4
    assert unstreamed.status_code == 200
    assert refused.status_code == 400
    assert "Use 48." in refused.json()["error"]["message"]
