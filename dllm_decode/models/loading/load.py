"""Reads official checkpoints from an embedded asset, a folder or the hub; safetensors only."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeAlias, Unpack

import torch

from dllm_decode.models.families import CheckpointFacts, Family, family_of
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.loading.adapters import Adapter, merge_adapter, read_adapter
from dllm_decode.models.loading.find import Hub, find_model
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.needs import (
    generation_of,
    max_length_of,
    warn_if_slow,
    warn_if_too_large,
)
from dllm_decode.models.loading.other_names import (
    LoadOptions,
    one_of,
    require_left_out,
    require_options,
)
from dllm_decode.models.loading.placement import (
    Device,
    DeviceMap,
    allocate,
    check_devices,
    chosen_device,
    dispatch,
    new_on_meta,
    only_device,
    place,
)
from dllm_decode.models.loading.quantize import check_quantization, check_stored, quantize_layers
from dllm_decode.models.loading.tokenizer import padding_ids, read_tokenizer
from dllm_decode.models.loading.weights import (
    check_weights,
    digest_of,
    fill,
    model_files,
    weight_files,
)
from dllm_decode.models.masked_transformer import MaskedTransformer
from samplers.checks import shown

if TYPE_CHECKING:
    import transformers

    from dllm_decode.models.diffusion_gemma import DiffusionGemma
    from dllm_decode.models.targets.causal_only import CausalOnly
    from dllm_decode.models.xlnet import XLNet

LoadedModel: TypeAlias = "MaskedTransformer | DiffusionGemma | XLNet | CausalOnly"
"""A network of this package, or one that transformers computes."""

# Kinds of models that transformers computes, and the options that each has all the same.
_BY_TRANSFORMERS = {"causal": ("family",), "diffusion_gemma": (), "xlnet": ("mask_id",)}

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def load_model(
    source: str | Path,
    *,
    device: str | torch.device | DeviceMap | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    adapter: str | Path | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    quantize: str | None = None,
    compile: bool = False,
    family: str | Family | None = None,
    mask_id: int | None = None,
    block_length: int | None = None,
    tokenizer: Literal["required", "optional"] = "required",
    **options: Unpack[LoadOptions],
) -> tuple[LoadedModel, Optional["transformers.PreTrainedTokenizerBase"]]:
    """Loads a masked-diffusion language model and its tokenizer.

    Everything is checked against the headers of the weight files before memory is allocated; then
    one tensor at a time is read, checked for NaN, and copied into place. No remote code is run.

    Args:
        source: The name of an embedded model such as "mini", a folder in the official format, or
            a hub id such as "GSAI-ML/LLaDA-8B-Instruct"; tried in this order.
        device: Where the model goes: "cpu", "cuda", "mps", "xpu", or another device of torch.
            "auto" spreads it over all accelerators, then the CPU's memory, then files. `None`: as
            "auto" where there is CUDA, which is logged once; else the CPU. A mapping
            says so part by part: "embedding", "layers.0" and so on, "norm" and "lm_head"; "layers"
            stands for all other layers, "" for the rest. Beside an accelerator, "cpu" only keeps
            weights: they come to the first accelerator for the time that they are needed. "disk"
            keeps them in files.
        dtype: Of all parameters, such as "bfloat16" or `torch.bfloat16`; `None` or "auto" keeps
            that of the checkpoint's embedding. A warning is logged if a large model is in bfloat16
            or float16 and the CPU has no instructions for them.
        revision: Branch, tag or commit of a hub id. One that is in the cache is read from there,
            and the hub is not asked.
        token: Of the hub, for private repositories; `None`: the one that `hf auth login` stored.
        cache_dir: Folder of downloads; `None`: that of huggingface_hub.
        local_files_only: Never ask the hub.
        adapter: A folder or hub id with a LoRA adapter in PEFT's format, which is merged into the
            weights.
        max_memory: For "auto", weights on each device at most, such as {0: "20GB", "cpu": "60GB"}.
            Keys, values and logits need room beside them. `None`: nine tenths of what is free.
        offload_folder: Where files of weights go, of this model alone; made if it does not exist.
        quantize: Fewer bits, see `quantize_layers`. On a CPU "int8": weights and activations of
            all layers and the head, but not of experts, in 8 bits, which is faster than bfloat16
            and needs AVX-512 VNNI. On an accelerator "int8", "int4" or "fp8": the weights of all
            layers, which needs the extra `int8`. Needs one device. `None`: all as `dtype` says.
        compile: Run forwards of one group of rows through `torch.compile`, see
            `MaskedTransformer.compiled`. The first forwards take long. Needs one device, and
            weights that are not quantised.
        family: A name of `FAMILIES`, for a checkpoint whose config.json does not tell; or one of
            your own, as a `Family` or as "my_module:MY_FAMILY", whose module is imported; or
            "causal", for a causal model that decodes alone, see `CausalOnly`. `None`: the one that
            config.json names.
        mask_id: The [MASK] token; `None`: what config.json says, else the tokenizer, else the
            family's published default.
        block_length: Tokens per block of a block-causal model; `None`: what config.json says, else
            the family's published default.
        tokenizer: "required": missing tokenizer files are an error. "optional": the model is
            loaded without them, for work with token ids alone.
        **options: Names that transformers has for `device` and `dtype`, see `LoadOptions`.

    Returns:
        The model in evaluation mode, and its tokenizer: `None` only if it is optional and has no
        files.

    Raises:
        FileNotFoundError: If the source, its config.json, its safetensors files or its required
            tokenizer files do not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If the checkpoint is damaged, incomplete or of a kind that is not supported, or
            a device is not there, or a part of the model has none; or it cannot be quantised, or
            the adapter is for another model.
        TypeError: If a keyword is no option.
    """
    require_options(load_model, options)
    place_on = chosen_device(one_of("device", device, "device_map", options.get("device_map")))
    wished = _dtype(one_of("dtype", dtype, "torch_dtype", options.get("torch_dtype")))
    check_devices(place_on)
    _check_compile(compile, place_on, quantize)
    hub = Hub(revision, token, cache_dir, local_files_only)
    folder = find_model(source, hub)
    others = hub._replace(revision=None)
    lora = None if adapter is None else read_adapter(find_model(adapter, others))
    config, file = read_json(folder / "config.json"), repr(str(folder / "config.json"))
    check_stored(config, file=file)
    name = Path(source).resolve().name if Path(source).is_dir() else str(source)
    kind = "causal" if family == "causal" else str(config.get("model_type"))
    if kind in _BY_TRANSFORMERS:
        given = {
            "adapter": adapter, "quantize": quantize, "block_length": block_length,
            "compile": compile, "family": family, "mask_id": mask_id,
        }  # fmt: skip
        spread = {"max_memory": max_memory, "offload_folder": offload_folder}
        return _by_transformers(
            kind, folder, given, spread, name=name, device=place_on, dtype=wished,
            tokenizer=tokenizer,
        )  # fmt: skip
    known = family_of(config, family, file=file)
    words = read_tokenizer(folder, known.name, tokenizer, fast=known.fast_tokenizer)
    facts = known.read(
        config,
        file=file,
        mask_id=mask_id,
        block_length=block_length,
        tokenizer_mask_id=None if words is None else words.mask_token_id,
        tokenizer_eos_id=None if words is None else words.eos_token_id,
        generation=generation_of(folder),
    )
    transformer = new_on_meta(facts.shape)
    files = weight_files(folder)
    stored = check_weights(transformer, known, files)
    if lora is not None:
        lora.check(known.tensors(transformer))
    transformer.to(wished or stored)
    placed = place(transformer, place_on, max_memory=max_memory, offload_folder=offload_folder)
    is_on_mps = any(kept is not None and kept.type == "mps" for kept in placed.kept.values())
    if is_on_mps and transformer.embedding.weight.dtype is torch.float64:
        raise ValueError(
            "Weights must not be in float64, which mps devices do not have. Pass dtype='float32'."
        )
    there = None
    if quantize is not None:
        there = only_device(placed)
        check_quantization(quantize, there)
        _check_experts(facts, quantize, there)
    kept = {device for device in placed.kept.values() if device is not None}
    if quantize is None and len(kept) == 1:
        size = sum(part.numel() * part.itemsize for part in transformer.parameters())
        warn_if_too_large(name, size, *kept)
        warn_if_slow(name, size, transformer.embedding.weight.dtype, *kept)
    # Weights that will be quantised are read into the CPU's memory.
    allocate(transformer, placed if there is None else place(transformer, "cpu"))
    model = MaskedTransformer(
        transformer,
        name=name,
        mask_id=facts.mask_id,
        eos_ids=facts.eos_ids,
        banned_ids=padding_ids(words, facts),
        logit_shift=known.logit_shift,
        causal_block_length=facts.causal_block_length,
        max_length=max_length_of(ConfigReader(config, file=file)),
        is_causal_too=known.is_causal_too,
    )
    model.compiled = compile
    model.family = known
    _read_weights(model, known, files, lora)
    model.files = (*model_files(folder), *(() if lora is None else lora.files))
    if there is None:
        dispatch(transformer, placed)
    else:
        assert quantize is not None
        quantize_layers(transformer, there, quantize)
    return model.eval().requires_grad_(False), words


def _by_transformers(
    kind: str,
    folder: Path,
    given: dict[str, Any],
    spread: dict[str, Any],
    *,
    name: str,
    device: Any,
    dtype: torch.dtype | None,
    tokenizer: Literal["required", "optional"],
) -> tuple[LoadedModel, Optional["transformers.PreTrainedTokenizerBase"]]:
    """Loads a model of `_BY_TRANSFORMERS`; most models need none of these modules.

    Most options in `given` only networks of this package have; those in `spread` DiffusionGemma.
    """
    own = _BY_TRANSFORMERS[kind]
    require_left_out({key: value for key, value in given.items() if key not in own}, name)
    is_causal = kind == "causal"
    words = read_tokenizer(folder, kind, "required" if is_causal else tokenizer, fast=not is_causal)
    if kind == "diffusion_gemma":
        from dllm_decode.models.diffusion_gemma import load_diffusion_gemma

        return load_diffusion_gemma(folder, name, device, dtype, **spread), words
    if isinstance(device, Mapping):
        raise ValueError(f"device must be one device for the {kind} model {name}, got {device!r}.")
    device = "cuda" if device == "auto" else device
    if kind == "xlnet":
        from dllm_decode.models.xlnet import load_xlnet

        return load_xlnet(folder, words, name, device, dtype, mask_id=given["mask_id"]), words
    from dllm_decode.models.targets.causal_only import CausalOnly
    from dllm_decode.models.targets.load import load_target

    assert words is not None
    target = load_target(folder, words, device=device, dtype=dtype)
    target.name = name
    return CausalOnly(target), words


def _read_weights(
    model: MaskedTransformer, family: Family, files: list[Path], lora: Adapter | None
) -> None:
    """Fills an allocated model and merges an adapter; the fingerprint is of the files' numbers."""
    digests = fill(model.transformer, family, files)
    if lora is not None:
        merge_adapter(lora, family.tensors(model.transformer))
    added = {} if lora is None else lora.factors
    stored = (
        sorted(digests.items()),
        sorted((name, digest_of(f.down), digest_of(f.up), f.scale) for name, f in added.items()),
        (model.mask_id, model.causal_block_length, model.logit_shift),
    )
    model.fingerprint = hashlib.sha256(repr(stored).encode()).hexdigest()[:16]


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in _DTYPES.values():
        raise ValueError(
            f"dtype must be one of {', '.join(_DTYPES)} or 'auto', got {shown(dtype)}."
        )
    return found


def _check_experts(facts: CheckpointFacts, quantize: str, device: torch.device) -> None:
    # Experts are stacked, which torchao does not know: they would stay as they are, unnoticed.
    if facts.shape.moe is not None and device.type != "cpu":
        raise ValueError(
            f"quantize must be left out for a mixture of experts on {device}, got {quantize!r}: "
            "stacked experts are kept as they are stored only."
        )


def _check_compile(compile: object, device: Device | DeviceMap, quantize: str | None) -> None:
    if not isinstance(compile, bool):
        raise ValueError(f"compile must be True or False, got {shown(compile)}.")
    if compile and (isinstance(device, Mapping) or quantize is not None):
        raise ValueError(
            "compile must be False for a model that is spread over devices or quantised, got "
            f"device={device!r} and quantize={quantize!r}."
        )
