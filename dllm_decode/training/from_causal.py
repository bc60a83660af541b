"""Starts a masked-diffusion model from a causal one over the same tokens."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm_decode.models import MaskedTransformer

_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "query.weight": "self_attn.q_proj.weight",
    "key.weight": "self_attn.k_proj.weight",
    "value.weight": "self_attn.v_proj.weight",
    "output.weight": "self_attn.o_proj.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
}


def start_from_causal(model: MaskedTransformer, folder: Path) -> None:
    """Copies the weights of a Llama checkpoint; layers that it lacks begin as the identity.

    What a causal model has learned of its tokens carries over: embeddings, and what its layers do
    with them. That it predicted the next token, seeing only earlier ones, is unlearned in training.

    Source: Ye et al. 2025, "Dream 7B", https://arxiv.org/abs/2508.15487, which starts from an
    autoregressive model; unlike Dream, the logits are not shifted here.

    Args:
        model: Of the same sizes; with as many layers as the checkpoint or more.
        folder: With `model.safetensors` under the names of transformers' Llama.

    Raises:
        ValueError: If there is no such file, or a tensor has no counterpart of its shape.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ValueError(
            f"A causal model is a folder with {path.name}, got {str(folder)!r} without one; "
            "train one with examples/mini/train_mini_ar.py."
        )
    stored = load_file(path)
    names = {
        "embedding.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    }
    for i in range(len(model.transformer.layers)):
        for ours, theirs in _NAMES.items():
            names[f"layers.{i}.{ours}"] = f"model.layers.{i}.{theirs}"
    num_layers = 1 + max(int(name.split(".")[2]) for name in stored if ".layers." in name)
    for part, values in model.transformer.parts().items():
        if part.startswith("layers.") and int(part.split(".")[1]) >= num_layers:
            if part.endswith(("output.weight", "down.weight")):
                torch.nn.init.zeros_(values)
            continue
        source = stored.get(names[part])
        if source is None or source.shape != values.shape:
            raise ValueError(
                f"{part} takes a tensor of shape {tuple(values.shape)}, got "
                f"{None if source is None else tuple(source.shape)} in {folder}; "
                "choose the sizes of the checkpoint."
            )
        values.copy_(source)


def write_fast_dllm_v2(
    source: Path, folder: Path, *, mask_id: int, num_layers: int, block_length: int
) -> None:
    """Writes a Llama checkpoint as one of Fast-dLLM v2, to go on training as a diffusion model.

    Fast-dLLM v2 predicts the next column, as a causal model does, and each block sees the blocks
    before it. So the model begins as its source where only earlier columns matter. Layers that the
    source lacks begin as the identity, biases as zero. Configuration, tokenizer and weights are
    written.

    Source: Wu et al. 2025, "Fast-dLLM v2", https://arxiv.org/abs/2509.26328.

    Args:
        source: Folder of a Llama with plain rotations, in one `model.safetensors`.
        folder: Made if it does not exist.
        mask_id: A token of the source's vocabulary, the [MASK] from now on.
        num_layers: At least as many as the source has.
        block_length: Of the blocks in which the model attends, in tokens.

    Raises:
        ValueError: If the source is another kind of model or has more layers.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config["num_hidden_layers"] > num_layers:
        raise ValueError(
            f"The source must be a Llama of at most {num_layers} layers, got "
            f"{config['model_type']!r} with {config['num_hidden_layers']} in {str(source)!r}."
        )
    kept = (
        "attention_dropout", "eos_token_id", "hidden_act", "hidden_size", "intermediate_size",
        "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "pad_token_id",
        "rms_norm_eps", "tie_word_embeddings", "vocab_size",
    )  # fmt: skip
    written = {name: config[name] for name in kept} | {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": block_length,
        "mask_token_id": mask_id,
        "model_type": "Fast_dLLM_Qwen",
        "num_hidden_layers": num_layers,
        "rope_scaling": None,
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "use_sliding_window": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(written, indent=1, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    for file in (*source.glob("tokenizer*"), *source.glob("chat_template*")):
        shutil.copyfile(file, folder / file.name)
    tensors = _with_biases(load_file(source / "model.safetensors"), num_layers)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _with_biases(stored: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    known = 1 + max(int(name.split(".")[2]) for name in stored if ".layers." in name)
    last = f"model.layers.{known - 1}."
    tensors = dict(stored)
    for i in range(known, num_layers):
        for name in (each for each in stored if each.startswith(last)):
            part = name.removeprefix(last)
            writes = part in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
            tensors[f"model.layers.{i}.{part}"] = (
                torch.zeros_like(stored[name]) if writes else stored[name].clone()
            )
    for i in range(num_layers):
        for each in ("q", "k", "v"):
            weight = tensors[f"model.layers.{i}.self_attn.{each}_proj.weight"]
            tensors[f"model.layers.{i}.self_attn.{each}_proj.bias"] = weight.new_zeros(len(weight))
    return tensors
