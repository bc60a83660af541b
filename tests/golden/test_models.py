"""The official models' own logits and answers, recorded from tiny checkpoints.

The recordings say where they come from: see the metadata of each golden.safetensors.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_models import EVERY_FAMILY, MODELS, load_tiny
from torch import Tensor

from dllm_decode import CachePolicy, FreeCache, NoCache, decode
from dllm_decode.models import ForwardInputs, KVCache, MaskedTransformer
from dllm_decode.models.families import FAMILIES
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

# Different kernels and shapes differ by up to 1e-4 between machines; a wrong switch by 0.1 or more.
TOLERANCE = 1e-3


@cache
def golden_of(family: str) -> dict[str, Tensor]:
    return load_file(MODELS / family / "golden.safetensors")


@cache
def model_of(family: str) -> MaskedTransformer:
    return load_tiny(family, dtype=torch.float32)


def families_with(key: str) -> Any:
    """All families whose recording has a key; a law about none of them would be no law."""
    found = [family for family in EVERY_FAMILY if key in golden_of(family)]
    assert found
    return pytest.mark.parametrize("family", found)


def predict(
    model: MaskedTransformer,
    tokens: Tensor,
    *,
    columns: Tensor | None = None,
    positions: Tensor | None = None,
    attend: Tensor | None = None,
    kv_cache: KVCache | None = None,
) -> Tensor:
    """Logits of all the given columns of a canvas, which are all it has without a memory."""
    B, Q = tokens.shape
    columns = torch.arange(Q) if columns is None else columns
    return model.predict(
        ForwardInputs(
            tokens=tokens,
            positions=columns.expand(B, Q) if positions is None else positions,
            wanted=torch.arange(Q).expand(B, Q),
            attend=None if attend is None else attend.expand(B, -1, -1),
            kv_cache=kv_cache,
            slots=None if kv_cache is None else columns.expand(B, Q),
        )
    )


def block_causal(length: int, block_length: int) -> Tensor:
    block = torch.arange(length) // block_length
    return (block[:, None] >= block[None, :])[None]


def causal(length: int) -> Tensor:
    return torch.ones(1, length, length).bool().tril()


def assert_close(got: Tensor, recorded: Tensor) -> None:
    assert got.shape == recorded.shape
    worst = (got - recorded).abs().max().item()
    assert worst < TOLERANCE, f"off by {worst}"


def attend_of(family: str, length: int) -> Tensor | None:
    """The mask of whole rows that the official code makes by itself."""
    block_length = model_of(family).causal_block_length
    return block_causal(length, block_length) if block_length else None


# Which columns see which in the recorded forwards over whole canvases.
SEEN: dict[str, Callable[[dict[str, Tensor]], Tensor | None]] = {
    "full": lambda golden: None,
    "bidirectional": lambda golden: None,
    "block_causal": lambda golden: golden["block_causal.mask"][None],
    "causal": lambda golden: causal(48),
    "mixed": lambda golden: golden["mixed.mask"],
}


def forward_of(family: str, kind: str) -> dict[str, Any]:
    """Returns tokens, positions and which columns see which of a recorded forward.

    Kinds are those of `SEEN`, single sequences, and batches padded on the left or to whole blocks.
    """
    golden = golden_of(family)
    if kind in SEEN:
        tokens = golden["full.input_ids"][:, : golden[f"{kind}.logits"].shape[1]]
        return {"tokens": tokens, "attend": SEEN[kind](golden)}
    tokens = golden[f"{kind}.input_ids"]
    if kind.startswith("seq"):
        return {"tokens": tokens, "attend": attend_of(family, tokens.shape[1])}
    attend = padded_attend(family, kind)
    return {"tokens": tokens, "positions": golden.get(f"{kind}.position_ids"), "attend": attend}


def padded_attend(family: str, kind: str) -> Tensor:
    golden = golden_of(family)
    if f"{kind}.mask4d" in golden and family != "dream":
        return golden[f"{kind}.mask4d"][:, 0]
    valid = golden[f"{kind}.attention_mask"].bool()
    # Dream's recorded mask is empty for queries that are padding: they leave the others alone.
    return valid[:, None] & valid[..., None] if family == "dream" else valid[:, None]


def kinds_of(family: str) -> list[str]:
    found = [name.removesuffix(".logits") for name in golden_of(family) if ".logits" in name]
    return [one for one in found if one in {*SEEN, "padded", "bd3lm"} or one.startswith("seq")]


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_recorded_forward_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    assert any(kind.startswith("seq") for kind in kinds_of(family))
    for kind in kinds_of(family):
        got = predict(model_of(family), **forward_of(family, kind))
        valid = golden.get(f"{kind}.attention_mask", torch.ones(got.shape[:2])).bool()
        assert got.isfinite().all(), kind
        assert_close(got[valid], golden[f"{kind}.logits"][valid])


def test_every_kind_of_forward_is_recorded() -> None:
    kinds = {kind for family in EVERY_FAMILY for kind in kinds_of(family)}
    assert {*SEEN, "padded", "bd3lm"} <= kinds
    assert "padded" in kinds_of("dream")


def test_dream_predicts_the_next_column_and_says_so() -> None:
    golden, model = golden_of("dream"), model_of("dream")
    tokens = golden["full.input_ids"]
    columns = torch.arange(48).expand(3, 48)
    wanted = (columns - model.logit_shift).clamp(min=0)
    got = model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=wanted))
    assert_close(got, golden["full.logits_shifted"])
    assert (got - golden["full.logits"]).abs().max() > 1


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_the_shift_is_the_recorded_one(family: str) -> None:
    with safe_open(MODELS / family / "golden.safetensors", "pt") as opened:
        says = json.loads(opened.metadata()["info"])["logits"]
    # Nemotron's autoregressive mode is shifted; its diffusion mode, which is decoded here, is not.
    says = says.partition("; AR mode")[0]
    assert ("token i+1" in says) != ("token i (no shift)" in says) or family == "llada_moe"
    assert FAMILIES[family].logit_shift == int("token i+1" in says)


@families_with("full.logits_bf16")
def test_bfloat16_gives_the_official_proposals(family: str) -> None:
    golden = golden_of(family)
    model = load_tiny(family)
    assert model.dtype == torch.bfloat16
    attend = attend_of(family, 48)
    got = predict(model, golden["full.input_ids"], attend=attend)
    recorded = golden["full.logits_bf16"]
    # Bits hold on the kernels that the recording ran on; other CPUs may round sums otherwise.
    same = torch.equal(got, recorded)
    agreement = (got.argmax(-1) == recorded.argmax(-1)).float().mean().item()
    assert same or agreement > 0.97, f"{agreement:.3f} of the proposals agree"


ROUTED = [
    (family, kind)
    for family in EVERY_FAMILY
    for kind in ("block_causal", "full")
    if f"{kind}.topk_idx.1" in golden_of(family)
]


@pytest.mark.parametrize(("family", "kind"), ROUTED)
def test_the_router_chooses_the_official_experts(family: str, kind: str) -> None:
    golden, model, routings = golden_of(family), model_of(family), []
    router = model.transformer.layers[1].mlp.router
    handle = router.register_forward_hook(lambda module, inputs, output: routings.append(output))
    predict(model, golden["full.input_ids"], attend=attend_of(family, 48))
    handle.remove()
    (routing,) = routings
    experts = golden[f"{kind}.topk_idx.1"].flatten(0, -2)
    weights = golden[f"{kind}.topk_weight.1"].flatten(0, -2)
    # In which order a token's experts are listed is nobody's business.
    order, theirs = routing.experts.argsort(-1), experts.argsort(-1)
    assert torch.equal(routing.experts.gather(-1, order), experts.gather(-1, theirs))
    assert_close(routing.weights.gather(-1, order), weights.gather(-1, theirs))


def turned(keys: Tensor, theta: float) -> Tensor:
    """Rotates recorded keys (B, H, L, D), by complex numbers: not how the model does it."""
    *_, L, D = keys.shape
    angles = torch.outer(torch.arange(L).double(), theta ** -(torch.arange(0, D, 2).double() / D))
    pairs = torch.complex(*keys.double().chunk(2, -1)) * torch.polar(
        torch.ones(()).double(), angles
    )
    return torch.cat((pairs.real, pairs.imag), -1)


def after_prompt(family: str) -> KVCache:
    """Returns the memory after the forward over the whole canvas."""
    kv_cache = model_of(family).new_kv_cache(3, 48)
    logits = predict(model_of(family), golden_of(family)["cache.x0"], kv_cache=kv_cache)
    if family == "llada":
        assert_close(logits, golden_of(family)["cache.logits_full"])
    return kv_cache


def test_the_memory_holds_the_official_keys_and_values() -> None:
    golden, kv_cache = golden_of("llada"), after_prompt("llada")
    for layer in range(3):
        assert_close(kv_cache.values[layer], golden[f"cache.v.{layer}"])
        keys = turned(golden[f"cache.k_pre_rope.{layer}"], 500000.0)
        assert_close(kv_cache.keys[layer].double(), keys)


@pytest.mark.parametrize("kind", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_cached_forwards_have_the_official_logits(family: str, kind: str) -> None:
    golden, kv_cache = golden_of(family), after_prompt(family)
    start, end = golden["cache.block"].tolist()
    columns = torch.arange(start, 48 if kind == "prefix" else end)
    steps = [step for step in (1, 2) if f"{kind}.logits_step{step}" in golden]
    assert steps
    before = kv_cache.values.clone()
    for step in steps:
        tokens = golden[f"cache.x{step}"][:, columns]
        got = predict(model_of(family), tokens, columns=columns, kv_cache=kv_cache)
        assert_close(got, golden[f"{kind}.logits_step{step}"])
    if (family, kind) == ("llada", "dual"):
        # The block is overwritten, and nothing else.
        for layer in range(3):
            assert_close(kv_cache.values[layer, :, :, start:end], golden[f"dual.v_after.{layer}"])
        outside = [column for column in range(48) if not start <= column < end]
        assert torch.equal(kv_cache.values[..., outside, :], before[..., outside, :])


def attend_before(end: int, num_rows: int) -> Tensor:
    return (torch.arange(48) < end).expand(num_rows, 1, 48)


class Blocks:
    """Decodes by blocks through a memory, as the official code does."""

    def __init__(self, family: str, prefix_attend: Tensor) -> None:
        self.golden, self.model = golden_of(family), model_of(family)
        self.start, self.end = self.golden["cache.block"].tolist()
        self.tokens = self.golden["full.input_ids"]
        self.kv_cache = self.model.new_kv_cache(3, 48)
        predict(
            self.model,
            self.tokens[:, : self.start],
            columns=torch.arange(self.start),
            attend=torch.nn.functional.pad(prefix_attend, (0, 48 - self.start)).expand(3, -1, -1),
            kv_cache=self.kv_cache,
        )

    def block(self, fresh: Tensor, first: int, attend: Tensor | None = None) -> Tensor:
        columns = torch.arange(first, first + fresh.shape[1])
        if attend is None:
            attend = attend_before(first + fresh.shape[1], 3)
        return predict(self.model, fresh, columns=columns, attend=attend, kv_cache=self.kv_cache)


@families_with("cache.block_logits")
def test_a_block_reads_its_prefix_from_memory(family: str) -> None:
    golden = golden_of(family)
    start, end = golden["cache.block"].tolist()
    is_causal = family == "nemotron_labs_diffusion"
    blocks = Blocks(family, causal(start) if is_causal else block_causal(start, end - start))
    got = blocks.block(blocks.tokens[:, start:end], start)
    assert_close(got, golden["cache.block_logits"])


@families_with("cache.committed_block")
def test_a_committed_block_is_stored_and_read_by_the_next(family: str) -> None:
    golden = golden_of(family)
    start, end = golden["cache.block"].tolist()
    width = end - start
    is_causal = "cache.commit_logits" in golden
    blocks = Blocks(family, causal(start) if is_causal else block_causal(start, width))
    attend = causal(48)[:, start:end].expand(3, -1, -1) if is_causal else None
    committed = blocks.block(golden["cache.committed_block"], start, attend)
    if is_causal:
        assert_close(committed, golden["cache.commit_logits"])
    following = blocks.block(blocks.tokens[:, end : end + width], end)
    assert_close(following, golden["cache.next_block_logits"])


def test_fast_dllm_v2_recomputes_a_part_of_a_block() -> None:
    golden = golden_of("fast_dllm_v2")
    start, end = golden["cache.block"].tolist()
    blocks = Blocks("fast_dllm_v2", block_causal(start, end - start))
    blocks.block(blocks.tokens[:, start:end], start)
    first, last = golden["subblock.range"].tolist()
    part = golden["subblock.x1"][:, first - start : last - start]
    got = blocks.block(part, first, attend_before(end, 3))
    assert_close(got, golden["subblock.logits"])


# Answers that the authors' own samplers gave with the tiny checkpoints, token for token. Left out:
# Stable-DiffCoder's last block is short where a prompt ends within a block, and here it is filled
# up with masks, which changes what it sees; BD3LM counts blocks from the end of the prompt.
DIFFCODER: dict[str, Sampler] = {
    "gen": ConfidenceThreshold(0.95),
    "gen_t04": ConfidenceThreshold(0.4),
    "gen_static": FixedSchedule(2),
}


@pytest.mark.parametrize("kind", DIFFCODER)
@pytest.mark.parametrize("cache_policy", [NoCache(), FreeCache()], ids=repr)
def test_stable_diffcoder_answers_as_its_authors_code(kind: str, cache_policy: CachePolicy) -> None:
    golden, model = golden_of("stable_diffcoder"), model_of("stable_diffcoder")
    prompts = [golden[f"gen{i}.prompt"][0].tolist() for i in range(3)]
    aligned = [
        i for i, prompt in enumerate(prompts) if len(prompt) % model.causal_block_length == 0
    ]
    assert aligned
    for i in aligned:
        out = decode(
            model, [prompts[i]], DIFFCODER[kind], cache=cache_policy, gen_length=16, block_length=4
        )
        assert torch.equal(out.tokens[0], golden[f"{kind}{i}.output"][0, len(prompts[i]) :])
        # The official code stores each finished block by a forward of its own, four in all.
        assert int(out.nfe[0]) + 4 == int(golden[f"{kind}{i}.nfe"])


@pytest.mark.parametrize("family", ["a2d_qwen3", "a2d_qwen2", "a2d_llama"])
def test_a_bidirectional_a2d_model_answers_as_its_authors_sampler(family: str) -> None:
    golden, model = golden_of(family), model_of(family)
    prompts = [golden[f"gen.prompt{i}"].tolist() for i in range(2)]
    options = {"gen_length": 32, "block_length": 8, "stop_at_eos": False}
    out = decode(model, prompts, FixedSchedule(4), **options)
    for row, prompt in enumerate(prompts):
        recorded = golden["gen_mdlm.output"][row, len(prompt) : len(prompt) + 32]
        assert torch.equal(out.tokens[row], recorded)
