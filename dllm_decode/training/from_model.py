"""Starts a model from another one."""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dllm_decode.core.files import new_files
from dllm_decode.models import MaskedTransformer, load_model
from dllm_decode.models.families import FAMILIES
from dllm_decode.models.loading.export import files_of_model
from dllm_decode.models.loading.json_files import read_json, write_sorted_json
from dllm_decode.models.loading.weights import write_weights
from dllm_decode.models.predictors.masked_transformer import require_own_network

_BIASED = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
_WRITES = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def start_from(model: MaskedTransformer, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Copies the weights of a masked-diffusion model, or of a causal one over the same tokens.

    A causal model's embeddings and layers carry over. It learned to predict the next token from
    earlier ones only; training unlearns that.

    Source: Ye et al. 2025, "Dream 7B", https://arxiv.org/abs/2508.15487, which starts from an
    autoregressive model; unlike Dream, the logits are not shifted here.

    Args:
        model: Its weights are written. The model to start from has the same sizes; if that is
            causal, it may have fewer layers.
        tokenizer: Tokenizer of the model; a masked-diffusion model to start from may have another.
        folder: Folder of the model to start from: as `load_model` reads it, or a causal Llama.

    Raises:
        ValueError: If names or sizes differ, or no word is common.
    """
    words = tokenizer.get_vocab()
    if read_json(folder / "config.json").get("model_type") == "llama":
        stored = _deepened(load_file(folder / "model.safetensors"), len(model.transformer.layers))
        # By transformers' names.
        weights = FAMILIES["a2d_llama"].tensors(model.transformer)
        copy_by_words(weights, words, stored, words, by_word=())
        return
    base, base_tokenizer = load_model(folder, device="cpu", dtype=torch.float32)
    assert base_tokenizer is not None
    source, source_words = require_own_network(base).transformer.parts(), base_tokenizer.get_vocab()
    copy_by_words(model.transformer.parts(), words, source, source_words)


def copy_by_words(
    weights: Mapping[str, Tensor],
    words: Mapping[str, int],
    source: Mapping[str, Tensor],
    source_words: Mapping[str, int],
    *,
    by_word: Collection[str] = ("embedding.weight", "head.weight"),
) -> None:
    """Copies all weights; those named in `by_word`, only the rows of words in both vocabularies.

    The vectors of other words are drawn with the mean and the deviation of those copied, in each
    dimension, from torch's global generator.

    Args:
        weights: Weights of the model, by name; written.
        words: Token ids of the model.
        source: Weights of the model to start from, by the same names.
        source_words: Token ids of the model to start from.
        by_word: Names of the weights that have one row a token.

    Raises:
        ValueError: If names or sizes differ, or no word is common.
    """
    # In the order of ids, because the order of a vocabulary differs between processes.
    common = sorted((word for word in words if word in source_words), key=words.__getitem__)
    if not common:
        raise ValueError("The vocabularies must share words, got none in common.")
    rows = torch.tensor([words[word] for word in common])
    source_rows = torch.tensor([source_words[word] for word in common])
    for name, values in weights.items():
        stored, has_words = source.get(name), name in by_word
        if stored is None or stored.shape[has_words:] != values.shape[has_words:]:
            raise ValueError(
                f"{name} must have the size of the model to start from, got {tuple(values.shape)} "
                f"and {None if stored is None else tuple(stored.shape)}; choose its sizes."
            )
        with torch.no_grad():
            if not has_words:
                values.copy_(stored)
                continue
            copied = stored[source_rows].to(values)
            values.normal_().mul_(copied.std(0)).add_(copied.mean(0))
            values[rows] = copied


def write_fast_dllm_v2(
    source: Path, folder: Path, *, mask_id: int, num_layers: int, block_length: int
) -> None:
    """Writes a Llama checkpoint as one of Fast-dLLM v2, to go on training as a diffusion model.

    Fast-dLLM v2 predicts the next column, as a causal model does, and each block sees the blocks
    before it. Thus the model begins as its source where only earlier columns matter. Layers that
    the source lacks begin as the identity, biases as zero. Configuration, tokenizer and weights are
    written.

    Source: Wu et al. 2025, "Fast-dLLM v2", https://arxiv.org/abs/2509.26328.

    Args:
        source: Folder of a Llama with plain rotations, in one `model.safetensors`.
        folder: Made if it does not exist. The files of an earlier model in it are replaced, all or
            none; other files stay.
        mask_id: A token of the source's vocabulary, which becomes [MASK].
        num_layers: At least as many as the source has.
        block_length: Length of the blocks in which the model attends, in tokens.

    Raises:
        OSError: If the folder cannot be written or has no room; its contents are unchanged then.
        ValueError: If the source is another kind of model or has more layers, or the folder has a
            file that would become part of the new model.
    """
    config = read_json(source / "config.json")
    if config.get("model_type") != "llama" or config["num_hidden_layers"] > num_layers:
        raise ValueError(
            f"The source must be a Llama of at most {num_layers} layers, got "
            f"{config.get('model_type')!r} with {config.get('num_hidden_layers')} in "
            f"{str(source)!r}."
        )
    copied_keys = (
        "attention_dropout", "eos_token_id", "hidden_act", "hidden_size", "intermediate_size",
        "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "pad_token_id",
        "rms_norm_eps", "tie_word_embeddings", "vocab_size",
    )  # fmt: skip
    new_config = {name: config[name] for name in copied_keys} | {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": block_length,
        "mask_token_id": mask_id,
        "model_type": "Fast_dLLM_Qwen",
        "num_hidden_layers": num_layers,
        "rope_scaling": None,
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "use_sliding_window": False,
    }
    tensors = _deepened(load_file(source / "model.safetensors"), num_layers)
    for name, weight in list(tensors.items()):
        if name.endswith(_BIASED):
            tensors[name.replace(".weight", ".bias")] = weight.new_zeros(len(weight))
    with new_files(folder, files_of_model(folder)) as written:
        write_sorted_json(written / "config.json", new_config)
        for file in (*source.glob("tokenizer*"), *source.glob("chat_template*")):
            shutil.copyfile(file, written / file.name)
        write_weights(written / "model.safetensors", tensors, {"format": "pt"})


def _deepened(stored: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Adds layers to the weights of a Llama that begin as the identity: they write nothing."""
    num_stored = 1 + max(int(name.split(".")[2]) for name in stored if ".layers." in name)
    last, tensors = f"model.layers.{num_stored - 1}.", dict(stored)
    for name, weight in stored.items():
        if name.startswith(last):
            for i in range(num_stored, num_layers):
                part = name.removeprefix(last)
                tensors[f"model.layers.{i}.{part}"] = weight * (part not in _WRITES)
    return tensors
