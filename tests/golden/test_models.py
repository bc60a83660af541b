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

from dllm_decode import ForwardInputs, KVCache
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import FAMILIES

# Different kernels and shapes differ by up to 1e-4 between machines; a wrong switch by 0.1 or more.
TOLERANCE = 1e-3
# LLaDA 2.2 is of the family of LLaDA 2, and chooses experts in another way.
RECORDED = (*EVERY_FAMILY, "llada2_2_moe")


@cache
def golden_of(family: str) -> dict[str, Tensor]:
    return load_file(MODELS / family / "golden.safetensors")


@cache
def model_of(family: str) -> MaskedTransformer:
    return load_tiny(family, dtype=torch.float32)


def families_with(key: str, *, but: str = "") -> Any:
    """Parametrizes a test by the families whose recording has a key; there must be at least one."""
    families = [family for family in RECORDED if key in golden_of(family) and family != but]
    assert families
    return pytest.mark.parametrize("family", families)


def predict(
    model: MaskedTransformer,
    tokens: Tensor,
    *,
    columns: Tensor | None = None,
    positions: Tensor | None = None,
    attend: Tensor | None = None,
    kv_cache: KVCache | None = None,
) -> Tensor:
    """Returns the logits of the given columns; by default they are columns 0 to Q - 1."""
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
    """Returns the attention mask of whole rows that the official code makes by itself."""
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

    Kinds are the keys of `SEEN`, single sequences, and batches padded left or to whole blocks.
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
    # In Dream's recorded mask, queries that are padding see nothing.
    return valid[:, None] & valid[..., None] if family == "dream" else valid[:, None]


def kinds_of(family: str) -> list[str]:
    kinds = [name.removesuffix(".logits") for name in golden_of(family) if ".logits" in name]
    return [kind for kind in kinds if kind in {*SEEN, "padded", "bd3lm"} or kind.startswith("seq")]


@pytest.mark.parametrize("family", RECORDED)
def test_every_recorded_forward_has_the_official_logits(family: str) -> None:
    golden = golden_of(family)
    assert any(kind.startswith("seq") for kind in kinds_of(family))
    for kind in kinds_of(family):
        got = predict(model_of(family), **forward_of(family, kind))
        valid = golden.get(f"{kind}.attention_mask", torch.ones(got.shape[:2])).bool()
        assert got.isfinite().all(), kind
        assert_close(got[valid], golden[f"{kind}.logits"][valid])


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_the_shift_is_the_recorded_one(family: str) -> None:
    with safe_open(MODELS / family / "golden.safetensors", "pt") as opened:
        says = json.loads(opened.metadata()["info"])["logits"]
    # Nemotron's autoregressive mode is shifted; its diffusion mode, which is decoded here, is not.
    says = says.partition("; AR mode")[0]
    assert ("token i+1" in says) != ("token i (no shift)" in says) or family == "llada_moe"
    assert FAMILIES[family].logit_shift == int("token i+1" in says)


# One expert of a pool that rounding replaces changes the logits of its whole block.
@families_with("full.logits_bf16", but="llada2_2_moe")
def test_bfloat16_gives_the_official_proposals(family: str) -> None:
    golden = golden_of(family)
    model = load_tiny(family)
    assert model.dtype == torch.bfloat16
    attend = attend_of(family, 48)
    got = predict(model, golden["full.input_ids"], attend=attend)
    recorded = golden["full.logits_bf16"]
    # Bits hold on the kernels that the recording ran on; other CPUs may round sums otherwise.
    is_equal = torch.equal(got, recorded)
    agreement = (got.argmax(-1) == recorded.argmax(-1)).float().mean().item()
    assert is_equal or agreement > 0.97, f"{agreement:.3f} of the proposals agree"


@pytest.mark.parametrize("kind", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_cached_forwards_have_the_official_logits(family: str, kind: str) -> None:
    golden, model = golden_of(family), model_of(family)
    kv_cache = model.new_kv_cache(3, 48)
    predict(model, golden["cache.x0"], kv_cache=kv_cache)
    start, end = golden["cache.block"].tolist()
    columns = torch.arange(start, 48 if kind == "prefix" else end)
    steps = [step for step in (1, 2) if f"{kind}.logits_step{step}" in golden]
    assert steps
    for step in steps:
        tokens = golden[f"cache.x{step}"][:, columns]
        got = predict(model, tokens, columns=columns, kv_cache=kv_cache)
        assert_close(got, golden[f"{kind}.logits_step{step}"])


@families_with("cache.block_logits")
def test_a_block_reads_its_prefix_from_memory_and_the_next_block_reads_it(family: str) -> None:
    golden, model = golden_of(family), model_of(family)
    start, end = golden["cache.block"].tolist()
    tokens, width = golden["full.input_ids"], end - start
    # Nemotron reads its prefix, and stores a finished block, from left to right.
    is_causal = family == "nemotron_labs_diffusion"
    kv_cache = model.new_kv_cache(3, 48)

    def logits(fresh: Tensor, first: int, attend: Tensor | None = None) -> Tensor:
        stop = first + fresh.shape[1]
        seen = torch.arange(48)[None, None] < stop if attend is None else attend
        columns = torch.arange(first, stop)
        return predict(model, fresh, columns=columns, attend=seen.expand(3, -1, -1),
                       kv_cache=kv_cache)  # fmt: skip

    mask = causal(48) if is_causal else block_causal(48, width)
    logits(tokens[:, :start], 0, mask[:, :start])
    assert_close(logits(tokens[:, start:end], start), golden["cache.block_logits"])
    if "cache.committed_block" not in golden:
        return
    attend = mask[:, start:end] if is_causal else None
    committed = logits(golden["cache.committed_block"], start, attend)
    if is_causal:
        assert_close(committed, golden["cache.commit_logits"])
    assert_close(logits(tokens[:, end : end + width], end), golden["cache.next_block_logits"])


def test_a_partial_block_has_the_recorded_logits_alone_and_in_its_row() -> None:
    """One mask that was filled changed the experts of the whole block."""
    golden, model = golden_of("llada2_2_moe"), model_of("llada2_2_moe")
    assert not torch.equal(golden["partial.pool0.1"], golden["partial.pool1.1"])
    for step in range(3):
        tokens = golden[f"partial.x{step}"]
        whole = predict(model, tokens, attend=block_causal(24, 8))
        assert_close(whole, golden[f"partial.logits{step}"])
        kv_cache = model.new_kv_cache(2, 24)
        predict(model, tokens[:, :16], attend=block_causal(24, 8)[:, :16], kv_cache=kv_cache)
        columns = torch.arange(16, 24)
        got = predict(model, tokens[:, 16:], columns=columns, kv_cache=kv_cache)
        assert_close(got, golden[f"partial.cached_logits{step}"])
        # The last layer too computes whole blocks, whichever columns are wanted.
        wanted = torch.tensor([[3, 21], [23, 0]])
        attend = block_causal(24, 8).expand(2, -1, -1)
        inputs = ForwardInputs(tokens, torch.arange(24).expand(2, 24), wanted, attend)
        chosen = model.predict(inputs)
        assert_close(chosen, whole.gather(1, wanted[..., None].expand_as(chosen)))
    with pytest.raises(ValueError, match=r"whole blocks of 8 columns, .*, got 12 columns"):
        predict(model, tokens[:, :12])
