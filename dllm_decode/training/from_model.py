"""Starts a model from another one with another vocabulary."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dllm_decode.models import MaskedTransformer, load_model
from dllm_decode.training.from_causal import start_from_causal


def start_from(model: MaskedTransformer, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Copies the weights of a masked-diffusion model, or of a causal one over the same tokens.

    Args:
        model: Of the same sizes; a causal model may have fewer layers. Its weights are written.
        tokenizer: Of the model; a masked-diffusion model to start from may know other words.
        folder: With the model to start from, in a format that `load_model` reads or, causal,
            in transformers' format of Llama.

    Raises:
        ValueError: If names or sizes differ, or no word is common.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] == "llama":
        start_from_causal(model, folder)
        return
    known, known_tokenizer = load_model(folder, dtype=torch.float32)
    assert known_tokenizer is not None
    copy_by_words(
        model.transformer.parts(),
        tokenizer.get_vocab(),
        known.transformer.parts(),
        known_tokenizer.get_vocab(),
    )


def copy_by_words(
    weights: Mapping[str, Tensor],
    words: Mapping[str, int],
    source: Mapping[str, Tensor],
    source_words: Mapping[str, int],
    *,
    by_word: Collection[str] = ("embedding.weight", "head.weight"),
) -> int:
    """Copies all weights; embedding and head go by the words that both vocabularies have.

    The vectors of other words are drawn with the mean and the deviation of those copied, in each
    dimension, from torch's global generator.

    Args:
        weights: Of the model, by name; written.
        words: Token ids of the model.
        source: Weights of the model to start from, by the same names.
        source_words: Token ids of the model to start from.
        by_word: Names of the weights that have one row a token.

    Returns:
        How many words were found.

    Raises:
        ValueError: If names or sizes differ, or no word is common.
    """
    common = [word for word in words if word in source_words]
    if not common:
        raise ValueError("The vocabularies must share words, got none in common.")
    rows = torch.tensor([words[word] for word in common])
    source_rows = torch.tensor([source_words[word] for word in common])
    for name, values in weights.items():
        found, has_words = source.get(name), name in by_word
        if found is None or found.shape[has_words:] != values.shape[has_words:]:
            raise ValueError(
                f"{name} must have the size of the model to start from, got {tuple(values.shape)} "
                f"and {None if found is None else tuple(found.shape)}; choose its sizes."
            )
        with torch.no_grad():
            if not has_words:
                values.copy_(found)
                continue
            known = found[source_rows].to(values)
            values.normal_().mul_(known.std(0)).add_(known.mean(0))
            values[rows] = known
    return len(common)
