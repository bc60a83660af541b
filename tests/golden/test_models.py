"""The official models' own logits, recorded from tiny checkpoints in the official formats.

The recordings say where they come from: see the metadata of each golden.safetensors.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dllm_decode.models import ForwardInputs, KVCache, MaskedTransformer, load_model

DATA = Path(__file__).parent / "data" / "models"
FAMILIES = ("llada", "dream", "sdar")
# Different kernels and shapes differ by up to 6e-5 between machines; a wrong switch by 0.1 or more.
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def goldens() -> dict[str, dict[str, Tensor]]:
    return {family: load_file(DATA / family / "golden.safetensors") for family in FAMILIES}


@pytest.fixture(scope="module")
def models() -> dict[str, MaskedTransformer]:
    return {family: load_model(DATA / family, dtype=torch.float32)[0] for family in FAMILIES}


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


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_full_canvas_has_the_official_logits(family, goldens, models) -> None:
    golden = goldens[family]
    assert_close(predict(models[family], golden["full.input_ids"]), golden["full.logits"])


def test_sdar_has_the_official_logits_under_its_block_causal_mask(goldens, models) -> None:
    golden, model = goldens["sdar"], models["sdar"]
    assert model.causal_block_length == golden["block_causal.block_length"].item()
    attend = block_causal(3, 48, model.causal_block_length)
    assert torch.equal(attend[0], golden["block_causal.mask"])
    tokens = golden["full.input_ids"]
    assert_close(predict(model, tokens, attend=attend), golden["block_causal.logits"])
    assert_close(predict(model, tokens), golden["bidirectional.logits"])


def test_dream_predicts_the_next_column_and_says_so(goldens, models) -> None:
    golden, model = goldens["dream"], models["dream"]
    tokens = golden["full.input_ids"]
    columns = torch.arange(48).expand(3, 48)
    wanted = (columns - model.logit_shift).clamp(min=0)
    got = model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=wanted))
    assert_close(got, golden["full.logits_shifted"])
    assert (got - golden["full.logits"]).abs().max() > 1


@pytest.mark.parametrize("single", [0, 1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_unpadded_sequence_has_the_official_logits(
    family, single, goldens, models
) -> None:
    golden, model = goldens[family], models[family]
    tokens = golden[f"seq{single}.input_ids"]
    block_length = model.causal_block_length
    attend = block_causal(1, tokens.shape[1], block_length) if block_length else None
    assert_close(predict(model, tokens, attend=attend), golden[f"seq{single}.logits"])


def padded_attend(family: str, golden: dict[str, Tensor]) -> Tensor:
    if family == "sdar":
        return golden["padded.mask4d"][:, 0]
    return golden["padded.attention_mask"].bool()[:, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_left_padded_batch_has_the_official_logits(family, goldens, models) -> None:
    golden, model = goldens[family], models[family]
    valid = golden["padded.attention_mask"].bool()
    assert not valid.all()
    got = predict(
        model,
        golden["padded.input_ids"],
        positions=golden.get("padded.position_ids"),
        attend=padded_attend(family, golden),
    )
    assert_close(got[valid], golden["padded.logits"][valid])


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_row(family, goldens, models) -> None:
    golden = goldens[family]
    got = predict(
        models[family],
        golden["padded.input_ids"],
        positions=golden.get("padded.position_ids"),
        attend=padded_attend(family, golden),
    )
    for row in range(3):
        alone = golden[f"seq{row}.logits"]
        assert_close(got[row : row + 1, -alone.shape[1] :], alone)


def test_queries_that_see_nothing_leave_the_others_alone(goldens, models) -> None:
    golden, model = goldens["dream"], models["dream"]
    valid = golden["padded.attention_mask"].bool()
    attend = valid[:, None, :] & valid[:, :, None]
    assert not attend.any(-1).all()
    positions = golden["padded.position_ids"]
    got = predict(model, golden["padded.input_ids"], positions=positions, attend=attend)
    assert got.isfinite().all()
    assert_close(got[valid], golden["padded.logits"][valid])


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_gives_the_official_bits(family, goldens) -> None:
    golden = goldens[family]
    model, _ = load_model(DATA / family)
    assert model.dtype == torch.bfloat16
    attend = block_causal(3, 48, 4) if family == "sdar" else None
    got = predict(model, golden["full.input_ids"], attend=attend)
    recorded = golden["full.logits_bf16"]
    # Bits hold on the kernels that the recording ran on; other CPUs may round sums otherwise.
    same = torch.equal(got, recorded)
    agreement = (got.argmax(-1) == recorded.argmax(-1)).float().mean().item()
    assert same or agreement > 0.97, f"{agreement:.3f} of the proposals agree"


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


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_prefix_caching_has_the_official_logits(family, goldens, models) -> None:
    golden, model = goldens[family], models[family]
    start = int(golden["cache.block"][0])
    kv_cache = model.new_kv_cache(3, 48)
    predict(model, golden["cache.x0"], kv_cache=kv_cache)
    steps = [step for step in (1, 2) if f"prefix.logits_step{step}" in golden]
    assert steps
    for step in steps:
        tokens = golden[f"cache.x{step}"][:, start:]
        got = predict(model, tokens, columns=torch.arange(start, 48), kv_cache=kv_cache)
        assert_close(got, golden[f"prefix.logits_step{step}"])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_dual_caching_has_the_official_logits(family, goldens, models) -> None:
    golden, model = goldens[family], models[family]
    start, end = golden["cache.block"].tolist()
    kv_cache = model.new_kv_cache(3, 48)
    predict(model, golden["cache.x0"], kv_cache=kv_cache)
    steps = [step for step in (1, 2) if f"dual.logits_step{step}" in golden]
    assert steps
    for step in steps:
        tokens = golden[f"cache.x{step}"][:, start:end]
        got = predict(model, tokens, columns=torch.arange(start, end), kv_cache=kv_cache)
        assert_close(got, golden[f"dual.logits_step{step}"])


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


def test_sdar_commits_a_block_and_reads_the_next(goldens, models) -> None:
    golden, model = goldens["sdar"], models["sdar"]
    start, end = golden["cache.block"].tolist()
    tokens = golden["full.input_ids"]
    kv_cache = model.new_kv_cache(3, 48)
    predict(
        model,
        tokens[:, :start],
        columns=torch.arange(start),
        attend=torch.nn.functional.pad(block_causal(3, start, 4), (0, 48 - start)),
        kv_cache=kv_cache,
    )

    def block(fresh: Tensor, first: int) -> Tensor:
        attend = (torch.arange(48) < first + 4).expand(3, 1, 48)
        columns = torch.arange(first, first + 4)
        return predict(model, fresh, columns=columns, attend=attend, kv_cache=kv_cache)

    assert_close(block(tokens[:, start:end], start), golden["cache.block_logits"])
    block(golden["cache.committed_block"], start)
    assert_close(block(tokens[:, end : end + 4], end), golden["cache.next_block_logits"])
