"""Starts a masked-diffusion model from another one with another vocabulary."""

from collections.abc import Mapping

import torch

from dllm_decode.models import MaskedTransformer


def start_from_model(
    model: MaskedTransformer,
    words: Mapping[str, int],
    source: MaskedTransformer,
    source_words: Mapping[str, int],
) -> int:
    """Copies all weights; embedding and head go by the words that both vocabularies have.

    The vectors of other words are drawn with the mean and the deviation of those copied, in each
    dimension, from torch's global generator.

    Args:
        model: Of the same sizes but for the vocabulary.
        words: Its token ids.
        source: The model to start from.
        source_words: Its token ids.

    Returns:
        How many words were found.

    Raises:
        ValueError: If the sizes differ, or no word is common.
    """
    common = [word for word in words if word in source_words]
    if not common:
        raise ValueError("The vocabularies must share words, got none in common.")
    rows = torch.tensor([words[word] for word in common])
    source_rows = torch.tensor([source_words[word] for word in common])
    theirs = source.transformer.parts()
    for name, values in model.transformer.parts().items():
        found = theirs.get(name)
        by_word = name in ("embedding.weight", "head.weight")
        if found is None or found.shape[by_word:] != values.shape[by_word:]:
            raise ValueError(
                f"{name} must have the size of the model to start from, got {tuple(values.shape)} "
                f"and {None if found is None else tuple(found.shape)}; choose its sizes."
            )
        if not by_word:
            values.copy_(found)
            continue
        known = found[source_rows].to(values.dtype)
        values.normal_().mul_(known.std(0)).add_(known.mean(0))
        values[rows] = known
    return len(common)
