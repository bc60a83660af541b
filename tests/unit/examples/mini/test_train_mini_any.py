"""The recipe of `mini-any`: its loss reads what a decode reads, and its export loses nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import load_without_tokenizer
from transformers import XLNetConfig, XLNetLMHeadModel

from dllm_decode.models.xlnet import XLNet
from dllm_decode.training import make_optimisers
from dllm_decode.training.examples import lay_out


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[4] / "examples" / "mini")
    import train_mini_any

    return train_mini_any


@pytest.fixture
def network() -> XLNetLMHeadModel:
    torch.manual_seed(0)
    config = XLNetConfig(
        vocab_size=12, d_model=16, n_layer=2, n_head=2, d_inner=24, dropout=0.0, eos_token_id=0,
        pad_token_id=0, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    return XLNetLMHeadModel(config)


def test_columns_see_what_they_see_in_a_decode(recipe: Any, network: XLNetLMHeadModel) -> None:
    loss = recipe.AnySubsetLoss(network, 0.3, 0.25)
    batch = lay_out([([3, 4], [5, 6]), ([7], [8])], 3, 0)
    # In row 0 the middle is given; in row 1 both open columns from the second on are drafts.
    given = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 0, 0, 0]]).bool()
    seen = loss.seen(batch, given, torch.tensor([[5], [3]]))
    rows = [[[n for n in range(5) if line[n]] for line in row] for row in seen.tolist()]
    assert rows[0] == [[1, 3], [0, 3], [0, 1, 3], [0, 1], [0, 1, 2, 3]]
    # Its first column is padding.
    assert rows[1] == [[1], [], [1], [1, 2], [1, 2]]


def test_a_step_learns_and_the_export_is_what_was_trained(
    recipe: Any, network: XLNetLMHeadModel, tmp_path: Path
) -> None:
    recipe.train_matrices(network)
    muon, adam = make_optimisers(network, matrix_lr=0.02, other_lr=0.003)
    trained = {id(w) for group in muon.param_groups for w in group["params"]}
    names = {name for name, weight in network.named_parameters() if id(weight) in trained}
    assert "transformer.layer.0.rel_attn.parametrizations.q.original" in names
    assert "transformer.layer.1.ff.layer_1.weight" in names
    assert not any("embedding" in name or "lm_loss" in name for name in names)
    loss = recipe.AnySubsetLoss(network, 0.3, 0.25)
    batch = lay_out([([3, 4], [5, 6]), ([7], [8])], 4, 0)
    found = []
    for step in range(20):
        value = loss.loss(batch, torch.Generator().manual_seed(step % 2))
        value.backward()
        for optimiser in (muon, adam):
            optimiser.step()
            optimiser.zero_grad()
        found.append(value.item())
    assert found[-1] < 0.5 * found[0]
    # More than once, because a run is exported at every evaluation.
    for _ in range(2):
        recipe.write(network, tmp_path)
    model, _ = load_without_tokenizer(tmp_path, device="cpu", mask_id=1)
    assert isinstance(model, XLNet)
    ours, theirs = model.network.state_dict(), network.state_dict()
    assert len(ours) == len(theirs)
    own = theirs["transformer.layer.0.rel_attn.parametrizations.q.original"].bfloat16()
    assert torch.equal(ours["transformer.layer.0.rel_attn.q"].flatten(1), own)
