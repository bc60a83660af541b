import pytest
import torch

from dllm_decode.models import MaskedTransformer, new_llada
from dllm_decode.training.from_model import copy_by_words

WORDS = {"<eos>": 0, "<mask>": 1, "new": 2, "seven": 3, "ann": 4}
KNOWN = {"<eos>": 0, "<mask>": 1, "ann": 2, "seven": 3, "old": 4, "older": 5}


def model(vocab_size: int, seed: int, hidden_size: int = 16) -> MaskedTransformer:
    return new_llada(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=2,
        num_heads=2,
        mlp_hidden_size=24,
        mask_id=1,
        eos_ids=(0,),
        seed=seed,
    )


def parts(model: MaskedTransformer) -> dict[str, torch.Tensor]:
    return model.transformer.parts()


def test_on_words_that_both_know_it_answers_as_the_other_did() -> None:
    torch.manual_seed(0)
    ours, theirs = model(5, 0), model(6, 1)
    assert copy_by_words(parts(ours), WORDS, parts(theirs), KNOWN) == 4
    common = ("<eos>", "<mask>", "seven", "ann")
    tokens = torch.tensor([[WORDS[word] for word in common]])
    their_tokens = torch.tensor([[KNOWN[word] for word in common]])
    with torch.no_grad():
        found = ours.transformer.head(ours.transformer(tokens))
        expected = theirs.transformer.head(theirs.transformer(their_tokens))
    torch.testing.assert_close(found[..., tokens[0]], expected[..., their_tokens[0]])


def test_other_sizes_and_strange_words_are_refused() -> None:
    with pytest.raises(ValueError, match="must have the size of the model to start from"):
        copy_by_words(parts(model(5, 0)), WORDS, parts(model(6, 1, 32)), KNOWN)
    with pytest.raises(ValueError, match="got none in common"):
        copy_by_words(parts(model(5, 0)), WORDS, parts(model(6, 1)), {"elsewhere": 3})
