"""Models that begin as other models: what carries over, and what is refused."""

from pathlib import Path

import pytest
import torch
from tiny_models import new_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from dllm_decode import decode, load_model
from dllm_decode.models import MaskedTransformer, new_llada
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.training.from_model import copy_by_words, start_from, write_fast_dllm_v2
from samplers import ConfidenceThreshold

CAUSAL = find_model("mini-ar")


def begun(folder: Path, num_layers: int) -> MaskedTransformer:
    tokenizer = AutoTokenizer.from_pretrained(CAUSAL)
    write_fast_dllm_v2(
        CAUSAL, folder, mask_id=tokenizer.mask_token_id, num_layers=num_layers, block_length=8
    )
    model, _ = load_model(folder, dtype=torch.float32)
    return model


def assert_causally_the_same(model: MaskedTransformer, length: int) -> None:
    """Compares logits with the causal model's, where only earlier columns are seen."""
    causal = AutoModelForCausalLM.from_pretrained(CAUSAL, dtype=torch.float32)
    tokens = torch.randint(3, causal.config.vocab_size, (2, length))
    earlier = torch.ones(length, length, dtype=torch.bool).tril().expand(2, -1, -1)
    with torch.inference_mode():
        ours = model.transformer.head(model.transformer(tokens, attend=earlier))
        torch.testing.assert_close(ours, causal(tokens).logits, atol=1e-4, rtol=0)


def test_it_begins_as_the_causal_model_where_only_earlier_columns_are_seen(tmp_path: Path) -> None:
    model = begun(tmp_path, 6)
    assert_causally_the_same(model, 20)
    assert (model.logit_shift, model.causal_block_length) == (1, 8)
    out = decode(model, [[5, 6]], ConfidenceThreshold(), gen_length=8, block_length=8)
    assert len(out.answers()) == 1


def test_a_tokenizer_of_no_family_splits_as_its_file_says(tmp_path: Path) -> None:
    """The family's own class, Qwen2's, would split at other places, and silently."""
    begun(tmp_path, 4)
    _, tokenizer = load_model(tmp_path)
    text = "emma has 12 apples . answer :"
    assert tokenizer.encode(text) == AutoTokenizer.from_pretrained(CAUSAL).encode(text)
    assert len(tokenizer.encode(text)) == 7


def test_new_layers_can_learn(tmp_path: Path) -> None:
    model = begun(tmp_path, 5)
    model.requires_grad_(True)
    hidden = model.transformer(torch.tensor([[5, 6, 7]]), torch.arange(3)[None])
    hidden.square().sum().backward()
    assert model.transformer.layers[4].attention.output.weight.grad.any()


def test_it_has_no_fewer_layers_than_its_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The source must be a Llama of at most 2 layers"):
        write_fast_dllm_v2(CAUSAL, tmp_path, mask_id=1, num_layers=2, block_length=8)


def test_a_masked_model_answers_as_the_causal_one_where_it_sees_earlier_columns() -> None:
    """Two of its layers are new, and begin as the identity."""
    model = masked(6)
    start_from(model, AutoTokenizer.from_pretrained(CAUSAL), CAUSAL)
    assert_causally_the_same(model, 9)


def masked(num_layers: int) -> MaskedTransformer:
    source, _ = load_model("mini", dtype=torch.float32)
    shape = source.transformer.config
    return new_llada(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, num_layers=num_layers,
        num_heads=shape.num_heads, mlp_hidden_size=shape.mlp_hidden_size, mask_id=source.mask_id,
        eos_ids=source.eos_ids, rope_theta=shape.rope_theta,
    )  # fmt: skip


def test_a_masked_model_begins_as_another_one() -> None:
    source, tokenizer = load_model("mini", dtype=torch.float32)
    model = masked(5)
    start_from(model, tokenizer, find_model("mini"))
    expected = source.transformer.parts()
    for name, values in model.transformer.parts().items():
        assert torch.equal(values, expected[name]), name


WORDS = {"<eos>": 0, "<mask>": 1, "new": 2, "seven": 3, "ann": 4}
KNOWN = {"<eos>": 0, "<mask>": 1, "ann": 2, "seven": 3, "old": 4, "older": 5}


def small(vocab_size: int, seed: int, hidden_size: int = 16) -> MaskedTransformer:
    return new_tiny(
        vocab_size=vocab_size, hidden_size=hidden_size, mask_id=1, eos_ids=(0,), seed=seed
    )


def parts(model: MaskedTransformer) -> dict[str, torch.Tensor]:
    return model.transformer.parts()


def test_on_words_that_both_know_it_answers_as_the_other_did() -> None:
    torch.manual_seed(0)
    ours, theirs = small(5, 0), small(6, 1)
    copy_by_words(parts(ours), WORDS, parts(theirs), KNOWN)
    common = ("<eos>", "<mask>", "seven", "ann")
    tokens = torch.tensor([[WORDS[word] for word in common]])
    their_tokens = torch.tensor([[KNOWN[word] for word in common]])
    with torch.no_grad():
        found = ours.transformer.head(ours.transformer(tokens))
        expected = theirs.transformer.head(theirs.transformer(their_tokens))
    torch.testing.assert_close(found[..., tokens[0]], expected[..., their_tokens[0]])


def test_other_sizes_and_strange_words_are_refused() -> None:
    with pytest.raises(ValueError, match="must have the size of the model to start from"):
        copy_by_words(parts(small(5, 0)), WORDS, parts(small(6, 1, 32)), KNOWN)
    with pytest.raises(ValueError, match="got none in common"):
        copy_by_words(parts(small(5, 0)), WORDS, parts(small(6, 1)), {"elsewhere": 3})
