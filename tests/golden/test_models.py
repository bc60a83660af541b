"""The official models' own logits and answers, recorded from tiny checkpoints.

The recordings say where they come from: see the metadata of each golden.safetensors.
"""

import json
from functools import cache
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_models import EVERY_FAMILY, MODELS, load_tiny
from torch import Tensor

from dllm_decode import CachePolicy, DualCache, FreeCache, NoCache, PrefixCache, decode
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


@pytest.fixture
def goldens() -> dict[str, dict[str, Tensor]]:
    return {family: golden_of(family) for family in ("llada", "dream", "sdar")}


@pytest.fixture
def models() -> dict[str, MaskedTransformer]:
    return {family: model_of(family) for family in ("llada", "dream", "sdar")}


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
            attend=attend,
            kv_cache=kv_cache,
            slots=None if kv_cache is None else columns.expand(B, Q),
        )
    )


def block_causal(num_rows: int, length: int, block_length: int) -> Tensor:
    block = torch.arange(length) // block_length
    return (block[:, None] >= block[None, :]).expand(num_rows, length, length)


def assert_close(got: Tensor, recorded: Tensor) -> None:
    assert got.shape == recorded.shape
    worst = (got - recorded).abs().max().item()
    assert worst < TOLERANCE, f"off by {worst}"


def attend_of(family: str, num_rows: int, length: int) -> Tensor | None:
    """The mask of whole rows that the official code makes by itself."""
    block_length = model_of(family).causal_block_length
    return block_causal(num_rows, length, block_length) if block_length else None


def test_every_family_has_a_recording() -> None:
    for family in EVERY_FAMILY:
        assert (MODELS / family / "golden.safetensors").is_file(), family


@families_with("full.logits")
def test_a_full_canvas_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    assert_close(predict(model_of(family), golden["full.input_ids"]), golden["full.logits"])


@families_with("bidirectional.logits")
def test_a_block_causal_model_without_a_mask_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    got = predict(model_of(family), golden["full.input_ids"])
    assert_close(got, golden["bidirectional.logits"])
    assert (got - golden["block_causal.logits"]).abs().max() > 1


@families_with("block_causal.logits")
def test_a_block_causal_mask_gives_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    block_length = int(golden["block_causal.block_length"])
    found = load_tiny(family, block_length=block_length).causal_block_length
    assert found == block_length
    attend = block_causal(3, 48, block_length)
    assert torch.equal(attend[0], golden["block_causal.mask"])
    got = predict(model_of(family), golden["full.input_ids"], attend=attend)
    assert_close(got, golden["block_causal.logits"])


def test_dream_predicts_the_next_column_and_says_so(goldens, models) -> None:
    golden, model = goldens["dream"], models["dream"]
    tokens = golden["full.input_ids"]
    columns = torch.arange(48).expand(3, 48)
    wanted = (columns - model.logit_shift).clamp(min=0)
    got = model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=wanted))
    assert_close(got, golden["full.logits_shifted"])
    assert (got - golden["full.logits"]).abs().max() > 1


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_single_unpadded_sequence_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    singles = [name for name in golden if name.startswith("seq") and name.endswith("input_ids")]
    assert singles
    for name in singles:
        tokens = golden[name]
        attend = attend_of(family, 1, tokens.shape[1])
        got = predict(model_of(family), tokens, attend=attend)
        assert_close(got, golden[name.replace("input_ids", "logits")])


def padded_attend(golden: dict[str, Tensor]) -> Tensor:
    # Dream's recorded mask is empty for queries that are padding; see further below.
    if "padded.mask4d" in golden:
        return golden["padded.mask4d"][:, 0]
    return golden["padded.attention_mask"].bool()[:, None]


def predict_padded(family: str) -> Tensor:
    golden = golden_of(family)
    return predict(
        model_of(family),
        golden["padded.input_ids"],
        positions=golden.get("padded.position_ids"),
        attend=padded_attend(golden),
    )


@families_with("padded.logits")
def test_a_left_padded_batch_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    valid = golden["padded.attention_mask"].bool()
    assert not valid.all()
    assert_close(predict_padded(family)[valid], golden["padded.logits"][valid])


@families_with("padded.logits")
def test_padding_changes_no_row(family: str) -> None:
    golden, got = golden_of(family), predict_padded(family)
    alone = {row: golden.get(f"seq{row}.logits") for row in range(3)}
    for row, logits in alone.items():
        if logits is not None:
            assert_close(got[row : row + 1, -logits.shape[1] :], logits)


@families_with("bd3lm.logits")
def test_a_batch_that_is_padded_to_whole_blocks_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    valid = golden["bd3lm.attention_mask"].bool()
    got = predict(
        model_of(family),
        golden["bd3lm.input_ids"],
        positions=golden["bd3lm.position_ids"],
        attend=golden["bd3lm.mask4d"][:, 0],
    )
    assert_close(got[valid], golden["bd3lm.logits"][valid])


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_the_shift_is_the_recorded_one(family: str) -> None:
    with safe_open(MODELS / family / "golden.safetensors", "pt") as opened:
        says = json.loads(opened.metadata()["info"])["logits"]
    # Nemotron's autoregressive mode is shifted; its diffusion mode, which is decoded here, is not.
    says = says.partition("; AR mode")[0]
    assert ("token i+1" in says) != ("token i (no shift)" in says) or family == "llada_moe"
    assert FAMILIES[family].logit_shift == int("token i+1" in says)


def test_queries_that_see_nothing_leave_the_others_alone(goldens, models) -> None:
    golden, model = goldens["dream"], models["dream"]
    valid = golden["padded.attention_mask"].bool()
    attend = valid[:, None, :] & valid[:, :, None]
    assert not attend.any(-1).all()
    positions = golden["padded.position_ids"]
    got = predict(model, golden["padded.input_ids"], positions=positions, attend=attend)
    assert got.isfinite().all()
    assert_close(got[valid], golden["padded.logits"][valid])


@families_with("full.logits_bf16")
def test_bfloat16_gives_the_official_proposals(family: str) -> None:
    golden = golden_of(family)
    model = load_tiny(family)
    assert model.dtype == torch.bfloat16
    attend = attend_of(family, 3, 48)
    got = predict(model, golden["full.input_ids"], attend=attend)
    recorded = golden["full.logits_bf16"]
    # Bits hold on the kernels that the recording ran on; other CPUs may round sums otherwise.
    same = torch.equal(got, recorded)
    agreement = (got.argmax(-1) == recorded.argmax(-1)).float().mean().item()
    assert same or agreement > 0.97, f"{agreement:.3f} of the proposals agree"


@families_with("block_causal.topk_idx.1")
def test_the_router_chooses_the_official_experts(family: str) -> None:
    golden = golden_of(family)
    check_routing(family, golden, "block_causal", attend_of(family, 3, 48))


def test_the_router_of_a_bidirectional_model_chooses_the_official_experts() -> None:
    check_routing("rnd1", golden_of("rnd1"), "full", None)


def check_routing(family: str, golden: dict[str, Tensor], kind: str, attend: Tensor | None) -> None:
    model, routings = model_of(family), []
    router = model.transformer.layers[1].mlp.router
    handle = router.register_forward_hook(lambda module, inputs, output: routings.append(output))
    predict(model, golden["full.input_ids"], attend=attend)
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


@pytest.fixture
def llada_after_prompt(goldens, models) -> KVCache:
    model = models["llada"]
    kv_cache = model.new_kv_cache(3, 48)
    golden = goldens["llada"]
    logits = predict(model, golden["cache.x0"], kv_cache=kv_cache)
    assert_close(logits, golden["cache.logits_full"])
    return kv_cache


def test_the_memory_holds_the_official_keys_and_values(goldens, llada_after_prompt) -> None:
    golden = goldens["llada"]
    for layer in range(3):
        assert_close(llada_after_prompt.values[layer], golden[f"cache.v.{layer}"])
        keys = turned(golden[f"cache.k_pre_rope.{layer}"], 500000.0)
        assert_close(llada_after_prompt.keys[layer].double(), keys)


@pytest.mark.parametrize("kind", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_cached_forwards_have_the_official_logits(family, kind, goldens, models) -> None:
    golden, model = goldens[family], models[family]
    start, end = golden["cache.block"].tolist()
    end = 48 if kind == "prefix" else end
    kv_cache = model.new_kv_cache(3, 48)
    predict(model, golden["cache.x0"], kv_cache=kv_cache)
    steps = [step for step in (1, 2) if f"{kind}.logits_step{step}" in golden]
    assert steps
    for step in steps:
        tokens = golden[f"cache.x{step}"][:, start:end]
        got = predict(model, tokens, columns=torch.arange(start, end), kv_cache=kv_cache)
        assert_close(got, golden[f"{kind}.logits_step{step}"])


def test_dual_caching_overwrites_the_block_and_nothing_else(
    goldens, models, llada_after_prompt
) -> None:
    golden, model, kv_cache = goldens["llada"], models["llada"], llada_after_prompt
    start, end = golden["cache.block"].tolist()
    before = kv_cache.values.clone()
    for step in (1, 2):
        tokens = golden[f"cache.x{step}"][:, start:end]
        predict(model, tokens, columns=torch.arange(start, end), kv_cache=kv_cache)
    for layer in range(3):
        assert_close(kv_cache.values[layer, :, :, start:end], golden[f"dual.v_after.{layer}"])
    assert not torch.equal(kv_cache.values[..., start:end, :], before[..., start:end, :])
    assert torch.equal(kv_cache.values[..., :start, :], before[..., :start, :])
    assert torch.equal(kv_cache.values[..., end:, :], before[..., end:, :])


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
            attend=torch.nn.functional.pad(prefix_attend, (0, 48 - self.start)),
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
    if family == "nemotron_labs_diffusion":
        prefix = torch.ones(start, start).bool().tril().expand(3, -1, -1)
    else:
        prefix = block_causal(3, start, end - start)
    blocks = Blocks(family, prefix)
    got = blocks.block(blocks.tokens[:, start:end], start)
    assert_close(got, golden["cache.block_logits"])


@families_with("cache.committed_block")
def test_a_committed_block_is_stored_and_read_by_the_next(family: str) -> None:
    golden = golden_of(family)
    start, end = golden["cache.block"].tolist()
    width = end - start
    causal = torch.ones(48, 48).bool().tril()
    is_causal = "cache.commit_logits" in golden
    prefix = (
        causal[:start, :start].expand(3, -1, -1) if is_causal else block_causal(3, start, width)
    )
    blocks = Blocks(family, prefix)
    attend = causal[start:end].expand(3, -1, -1) if is_causal else None
    committed = blocks.block(golden["cache.committed_block"], start, attend)
    if is_causal:
        assert_close(committed, golden["cache.commit_logits"])
    following = blocks.block(blocks.tokens[:, end : end + width], end)
    assert_close(following, golden["cache.next_block_logits"])


def test_fast_dllm_v2_recomputes_a_part_of_a_block() -> None:
    golden = golden_of("fast_dllm_v2")
    start, end = golden["cache.block"].tolist()
    blocks = Blocks("fast_dllm_v2", block_causal(3, start, end - start))
    blocks.block(blocks.tokens[:, start:end], start)
    first, last = golden["subblock.range"].tolist()
    part = golden["subblock.x1"][:, first - start : last - start]
    got = blocks.block(part, first, attend_before(end, 3))
    assert_close(got, golden["subblock.logits"])


def test_nemotron_is_causal_and_bidirectional_under_the_masks_that_say_so() -> None:
    golden, model = golden_of("nemotron_labs_diffusion"), model_of("nemotron_labs_diffusion")
    tokens = golden["full.input_ids"]
    causal = torch.ones(48, 48).bool().tril().expand(3, -1, -1)
    assert_close(predict(model, tokens, attend=causal), golden["causal.logits"])
    mixed = golden["mixed.mask"].expand(3, -1, -1)
    length = mixed.shape[-1]
    assert_close(predict(model, tokens[:, :length], attend=mixed), golden["mixed.logits"])


# Answers that the authors' own samplers gave with the tiny checkpoints, token for token. Left out:
# Stable-DiffCoder's last block is short where a prompt ends within a block, and here it is filled
# up with masks, which changes what it sees; BD3LM counts blocks from the end of the prompt.
EXACT = (NoCache(), PrefixCache(), DualCache(), FreeCache("clean"))
DIFFCODER: dict[str, Sampler] = {
    "gen": ConfidenceThreshold(0.95),
    "gen_t04": ConfidenceThreshold(0.4),
    "gen_static": FixedSchedule(2),
}


@pytest.mark.parametrize("kind", DIFFCODER)
@pytest.mark.parametrize("cache_policy", EXACT, ids=repr)
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
