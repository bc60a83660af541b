"""Writes models in the official formats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor

from dllm_decode.core.files import finish_files, new_files
from dllm_decode.models.families import LLADA
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.loading.json_files import read_json, write_sorted_json
from dllm_decode.models.loading.weights import INDEX, shards_of, write_weights
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer

if TYPE_CHECKING:
    import transformers

MAX_SHARD_BYTES = 5 * 10**9
_COPIED_FILES = (
    "generation_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer*",
    "vocab.json", "merges.txt", "chat_template*",
)  # fmt: skip
_ADAPTER = "adapter_config.json"


def save_model(
    model: MaskedTransformer,
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    tokenizer: Optional["transformers.PreTrainedTokenizerBase"] = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a folder that `load_model` and the authors' own code can load.

    Names of tensors and the layout of config.json are those of the family; a model of `new_llada`
    is written in LLaDA's format. generation_config.json is copied from the folder that the model
    was loaded from, if it was.

    Args:
        model: A loaded model, or one that the LLaDA format can express.
        folder: Made if it does not exist. The files of an earlier model in it are replaced, all or
            none; other files stay.
        dtype: Dtype of the weights on disk; `None`: the model's.
        tokenizer: Written too. `None`: the tokenizer files of the folder that the model was loaded
            from are copied, if there are any.
        max_shard_bytes: Weights beyond this are spread over several files; a tensor is never split.

    Raises:
        OSError: If the folder cannot be written or has no room; its contents are unchanged then.
        ValueError: If the model was loaded from this folder, the folder has a file that would
            become part of the new model, the LLaDA format cannot express a new model, or weights
            are quantised.
    """
    if model.transformer.quantized:
        raise ValueError(
            f"A model is saved from its weights, got {model.name!r}, some of which are quantised. "
            "Load it as it was stored."
        )
    folder = Path(folder)
    source = None if model.family is None else model.files[0].parent
    if source is not None and folder.resolve() == source.resolve():
        raise ValueError(
            f"A model must go to a folder of its own, got that of the model it came from, "
            f"{str(folder)!r}."
        )
    family = model.family or LLADA
    config = _new_config(model) if source is None else _changed_config(model, source, dtype)
    earlier = files_of_model(folder)
    others = (
        () if source is None else [path for name in _COPIED_FILES for path in source.glob(name)]
    )
    contents = {path.name: path.read_bytes() for path in others if path.is_file()}
    # Weights that a family keeps in another dtype than the model's keep that dtype.
    tensors = {
        name: (tensor, dtype if dtype and tensor.dtype == model.dtype else tensor.dtype)
        for name, tensor in family.tensors(model.transformer).items()
    }
    with new_files(folder, earlier) as written:
        write_sorted_json(written / "config.json", config)
        if source is None:
            ends = {"eos_token_id": _one_or_list(model.eos_ids), "pad_token_id": model.eos_ids[0]}
            write_sorted_json(written / "generation_config.json", ends)
        for name, content in contents.items():
            (written / name).write_bytes(content)
        if tokenizer is not None:
            tokenizer.save_pretrained(written)
        _write_shards(tensors, written, max_shard_bytes)


def files_of_model(folder: Path) -> set[str]:
    """Returns the names of the files of the model in a folder; of none, if it holds no model.

    Raises ValueError if there are files that would become part of a model written there.
    """
    finish_files(folder)
    patterns = ("config.json", *_COPIED_FILES, "model.safetensors", INDEX, _ADAPTER)
    names = {path.name for pattern in patterns for path in folder.glob(pattern)}
    config = read_json(folder / "config.json") if "config.json" in names else {}
    # transformers adds an adapter to every model that it loads from the adapter's folder.
    if _ADAPTER in names or (names and not {"architectures", "model_type"} & config.keys()):
        got = _ADAPTER if _ADAPTER in names else ", ".join(sorted(names))
        raise ValueError(
            f"A model must go to a folder whose files do not become part of it, or that holds an "
            f"earlier model, got {str(folder)!r} with {got}. Choose another folder."
        )
    return names | (shards_of(folder / INDEX) if INDEX in names else set())


def _changed_config(
    model: MaskedTransformer, source: Path, dtype: torch.dtype | None
) -> dict[str, Any]:
    """Returns the configuration of a loaded model, with its dtype, [MASK] and block length."""
    assert model.family is not None
    config = dict(read_json(source / "config.json"))
    # Weights that were stored in fewer bits are written as the numbers that they stand for.
    config.pop("quantization_config", None)
    _set_key(config, model.family.mask_keys, model.mask_id)
    if model.routing_block_length not in (1, model.causal_block_length):
        config["block_length"] = model.causal_block_length
    elif model.family.block_keys:
        _set_key(config, model.family.block_keys, model.causal_block_length)
    _set_key(config, ("dtype", "torch_dtype"), str(dtype or model.dtype).removeprefix("torch."))
    return config


def _set_key(config: dict[str, Any], keys: Sequence[str], value: object) -> None:
    """Writes a value under the first of these keys that the configuration has, else the last."""
    key = next((key for key in keys if ConfigReader(config).has(key)), keys[-1])
    *path, leaf = key.split(".")
    place = config
    for name in path:
        place[name] = dict(place.get(name) or {})
        place = place[name]
    place[leaf] = value


def _write_shards(
    tensors: Mapping[str, tuple[Tensor, torch.dtype]], folder: Path, max_shard_bytes: int
) -> None:
    """Writes tensors, each in its dtype; more than `max_shard_bytes` go to several files."""
    # Imported here, because the import takes time.
    from huggingface_hub import split_torch_state_dict_into_shards

    sizes = {
        name: torch.empty(part.shape, dtype=dtype, device="meta")
        for name, (part, dtype) in tensors.items()
    }
    plan = split_torch_state_dict_into_shards(sizes, max_shard_size=max_shard_bytes)
    for file, names in plan.filename_to_tensors.items():
        # Copies, because parts of fused projections share storage, which safetensors refuses.
        copies = {
            name: tensors[name][0].detach().to("cpu", tensors[name][1], copy=True).contiguous()
            for name in names
        }
        write_weights(folder / file, copies, {"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_sorted_json(folder / INDEX, index)


def _new_config(model: MaskedTransformer) -> dict[str, object]:
    """Returns the configuration of a new model; ValueError if LLaDA's format cannot express it."""
    config = _config(model)
    shape, reread = vars(model.transformer.config), vars(LLADA.read(config).shape)
    unlike = [name for name, value in shape.items() if reread[name] != value]
    unlike += ["logit_shift"] if model.logit_shift else []
    unlike += ["causal_block_length"] if model.causal_block_length else []
    if unlike:
        raise ValueError(
            f"The LLaDA format has plain, bidirectional models without a logit shift, got "
            f"{model.name!r} which differs in {', '.join(unlike)}. Only models of the LLaDA family "
            "can be saved."
        )
    return config


def _config(model: MaskedTransformer) -> dict[str, object]:
    """Returns the config.json of a model in the LLaDA format."""
    shape = model.transformer.config
    # The switches of LLaDA that have one value here.
    fixed = {key: allowed[0] for key, allowed in LLADA.refusals if allowed[0] is not None}
    return fixed | {
        "architectures": [LLADA.architecture],
        "attention_dropout": 0.0,
        "d_model": shape.hidden_size,
        "embedding_dropout": 0.0,
        "embedding_size": shape.vocab_size,
        "eos_token_id": _one_or_list(model.eos_ids),
        "include_qkv_bias": shape.qkv_bias,
        "mask_token_id": model.mask_id,
        "mlp_hidden_size": shape.mlp_hidden_size,
        "model_type": "llada",
        "n_heads": shape.num_heads,
        "n_kv_heads": shape.num_kv_heads,
        "n_layers": shape.num_layers,
        "pad_token_id": model.eos_ids[0],
        "residual_dropout": 0.0,
        "rms_norm_eps": shape.norm_eps,
        "rope_full_precision": shape.rope_in_float32,
        "rope_theta": shape.rope_theta,
        "vocab_size": shape.vocab_size,
        "weight_tying": shape.tied_head,
    }


def _one_or_list(ids: tuple[int, ...]) -> int | list[int]:
    return list(ids) if len(ids) > 1 else ids[0]
