"""Starts a masked-diffusion model from a causal one over the same tokens."""

from pathlib import Path

import torch
from safetensors.torch import load_file

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
