"""Reads official checkpoints from an embedded asset, a folder or the hub; safetensors only."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Optional, TypeAlias, Unpack

import torch

from dllm_decode.core.other_names import value_of
from dllm_decode.models.families import CheckpointFacts, Family, family_of
from dllm_decode.models.families.reader import Config, ConfigReader
from dllm_decode.models.loading.adapters import Adapter, merge_adapter, read_adapter
from dllm_decode.models.loading.by_transformers import load_diffusion_gemma, load_xlnet
from dllm_decode.models.loading.devices import warn_if_slow, warn_if_too_large
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.load_options import LoadOptions, require_left_out, require_options
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.models.loading.model_needs import generation_config_of, max_length_of
from dllm_decode.models.loading.placement import (
    Device,
    allocate,
    chosen_device,
    new_on_meta,
    only_device,
    place,
)
from dllm_decode.models.loading.quantize import check_quantization, quantize_layers
from dllm_decode.models.loading.stored_formats import AS_TRAINED, StoredFormat, stored_format
from dllm_decode.models.loading.target import load_target
from dllm_decode.models.loading.tokenizer import padding_ids, read_tokenizer
from dllm_decode.models.loading.weights import (
    check_weights,
    digest_of_tensor,
    fill,
    model_files,
    weight_files,
)
from dllm_decode.models.network.transformer import Transformer
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer, require_one_way
from dllm_decode.models.targets.causal_only import CausalOnly
from samplers.checks import shown

if TYPE_CHECKING:
    import transformers

    from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma
    from dllm_decode.models.predictors.xlnet import XLNet

LoadedModel: TypeAlias = "MaskedTransformer | DiffusionGemma | XLNet | CausalOnly"
"""A network of this package, or one that transformers computes."""

# Models that transformers computes, and the options of this package's networks that each has.
_BY_TRANSFORMERS = {"causal": ("family",), "diffusion_gemma": (), "xlnet": ("mask_id",)}

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class _NetworkOptions(NamedTuple):
    """Options for networks of this package; `_BY_TRANSFORMERS` lists which other models have."""

    adapter: str | Path | None
    quantize: str | None
    block_length: int | None
    compile: bool
    graphs: bool
    family: str | Family | None
    mask_id: int | None


def load_model(
    source: str | Path,
    *,
    device: Device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    adapter: str | Path | None = None,
    quantize: str | None = None,
    compile: bool = False,
    graphs: bool = False,
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
            "auto" spreads whole layers over all accelerators; without one it is the CPU. `None`:
            "auto" where there is CUDA, which is logged once; else the CPU.
        dtype: Of all parameters, such as "bfloat16" or `torch.bfloat16`; `None` or "auto" keeps
            the dtype of the checkpoint's embedding; it is bfloat16 if weights are stored quantised.
            A warning is logged if a large model is in bfloat16 or float16 and the CPU has no
            instructions for them.
        revision: Branch, tag or commit of a hub id. If the cache has it, the hub is not asked.
        adapter: A folder or hub id with a LoRA adapter in PEFT's format, which is merged into the
            weights.
        quantize: Fewer bits for the matrices of the layers, see `quantize_layers`. For speed:
            "fp8" on CUDA, from compute capability 8.9 on; "int8" on a CPU with AVX-512 VNNI. For
            memory alone: "int8" or "int4" on an accelerator, with the extra `int8`. Needs one
            device. `None`: all as `dtype` says.
        compile: Run forwards of one group of rows through `torch.compile`, see
            `MaskedTransformer.compiled`. The first forwards take long. Needs one device, and
            weights that are not quantised.
        graphs: Record forwards of few columns and replay them, see `MaskedTransformer.graphs`.
            Needs one device, `compile=False`, and weights that are not quantised but by "fp8".
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
        FileNotFoundError: If the source, its config.json, weights or tokenizer does not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If the checkpoint is damaged, incomplete or not supported, a device is not
            available or has no room, the model cannot be quantised, or the adapter misfits.
        TypeError: If a keyword is no option.
    """
    require_options(load_model, options)
    place_on = chosen_device(value_of("device", device, "device_map", options.get("device_map")))
    chosen_dtype = _dtype(value_of("dtype", dtype, "torch_dtype", options.get("torch_dtype")))
    _check_ways(compile, graphs, quantize)
    folder = find_model(source, revision)
    config = read_json(folder / "config.json")
    stored = stored_format(config, file=repr(str(folder / "config.json")))
    name = Path(source).resolve().name if Path(source).is_dir() else str(source)
    kind = "causal" if family == "causal" else str(config.get("model_type"))
    network_options = _NetworkOptions(
        adapter=adapter, quantize=quantize, block_length=block_length, compile=compile,
        graphs=graphs, family=family, mask_id=mask_id,
    )  # fmt: skip
    if kind in _BY_TRANSFORMERS:
        if stored is not AS_TRAINED:
            raise ValueError(
                f"Weights of {name}, which transformers computes, must be stored as they were "
                f"trained, got {stored.name}. Load the original checkpoint."
            )
        return _by_transformers(
            kind, folder, network_options, name=name, device=place_on, dtype=chosen_dtype,
            tokenizer=tokenizer,
        )  # fmt: skip
    return _load_network(
        folder, config, network_options, stored=stored, name=name, device=place_on,
        dtype=chosen_dtype, tokenizer=tokenizer,
    )  # fmt: skip


def _load_network(
    folder: Path,
    config: Config,
    options: _NetworkOptions,
    *,
    stored: StoredFormat,
    name: str,
    device: Device,
    dtype: torch.dtype | None,
    tokenizer: Literal["required", "optional"],
) -> tuple[MaskedTransformer, Optional["transformers.PreTrainedTokenizerBase"]]:
    """Loads a model that a network of this package computes; see `load_model`."""
    file, quantize = repr(str(folder / "config.json")), options.quantize
    lora = None if options.adapter is None else read_adapter(find_model(options.adapter))
    chosen_family = family_of(config, options.family, file=file)
    loaded_tokenizer = read_tokenizer(
        folder, chosen_family.name, tokenizer, fast=chosen_family.fast_tokenizer
    )
    facts = chosen_family.read(
        config,
        file=file,
        mask_id=options.mask_id,
        block_length=options.block_length,
        tokenizer_mask_id=None if loaded_tokenizer is None else loaded_tokenizer.mask_token_id,
        tokenizer_eos_id=None if loaded_tokenizer is None else loaded_tokenizer.eos_token_id,
        generation=generation_config_of(folder),
    )
    transformer = new_on_meta(facts.shape)
    files = weight_files(folder)
    stored_dtype = check_weights(transformer, chosen_family, files, stored)
    if lora is not None:
        lora.check(chosen_family.tensors(transformer))
    transformer.to(dtype or stored_dtype)
    placed = _checked_placement(transformer, facts, device, quantize=quantize, name=name)
    # Weights that will be quantised are read into the CPU's memory.
    allocate(transformer, placed if quantize is None else place(transformer, "cpu"))
    transformer.route = placed if len({*placed.values()}) > 1 else None
    model = MaskedTransformer(
        transformer,
        name=name,
        mask_id=facts.mask_id,
        eos_ids=facts.eos_ids,
        banned_ids=padding_ids(loaded_tokenizer, facts),
        logit_shift=chosen_family.logit_shift,
        causal_block_length=facts.causal_block_length,
        max_length=max_length_of(ConfigReader(config, file=file)),
        is_causal_too=chosen_family.is_causal_too,
    )
    # Graphs keep the weights that they read, which quantising replaces.
    model.compiled, model.graphs = options.compile, options.graphs and quantize is None
    model.family = chosen_family
    _read_weights(model, chosen_family, files, lora, stored)
    model.files = (*model_files(folder), *(() if lora is None else lora.files))
    if quantize is not None:
        quantize_layers(transformer, only_device(placed), quantize)
        model.graphs = options.graphs
    return model.eval().requires_grad_(False), loaded_tokenizer


def _checked_placement(
    transformer: Transformer,
    facts: CheckpointFacts,
    device: Device,
    *,
    quantize: str | None,
    name: str,
) -> dict[str, torch.device]:
    """Returns the device of each part of a network on the meta device.

    Logs a warning if the weights are too large for their device, or slow there.

    Raises:
        ValueError: If a device is not available or has no room, does not have the dtype of the
            weights, or cannot quantise them.
    """
    placed = place(transformer, device)
    devices, dtype = {*placed.values()}, transformer.embedding.weight.dtype
    if dtype is torch.float64 and any(where.type == "mps" for where in devices):
        raise ValueError(
            "Weights must not be in float64, which mps devices do not have. Pass dtype='float32'."
        )
    if quantize is not None:
        quantized_on = only_device(placed)
        check_quantization(quantize, quantized_on)
        _check_experts(facts, quantize, quantized_on)
    elif len(devices) == 1:
        num_bytes = sum(part.numel() * part.itemsize for part in transformer.parameters())
        warn_if_too_large(name, num_bytes, *devices)
        warn_if_slow(name, num_bytes, dtype, *devices)
    return placed


def _by_transformers(
    kind: str,
    folder: Path,
    options: _NetworkOptions,
    *,
    name: str,
    device: Device,
    dtype: torch.dtype | None,
    tokenizer: Literal["required", "optional"],
) -> tuple[LoadedModel, Optional["transformers.PreTrainedTokenizerBase"]]:
    """Loads a model of `_BY_TRANSFORMERS`."""
    supported = _BY_TRANSFORMERS[kind]
    given = options._asdict().items()
    require_left_out({key: value for key, value in given if key not in supported}, name)
    is_causal = kind == "causal"
    loaded_tokenizer = read_tokenizer(
        folder, kind, "required" if is_causal else tokenizer, fast=not is_causal
    )
    if kind == "diffusion_gemma":
        return load_diffusion_gemma(folder, name, device, dtype), loaded_tokenizer
    device = "cuda" if device == "auto" else device
    if kind == "xlnet":
        xlnet = load_xlnet(folder, loaded_tokenizer, name, device, dtype, mask_id=options.mask_id)
        return xlnet, loaded_tokenizer
    assert loaded_tokenizer is not None
    target = load_target(folder, loaded_tokenizer, device=device, dtype=dtype)
    target.name = name
    return CausalOnly(target), loaded_tokenizer


def _read_weights(
    model: MaskedTransformer,
    family: Family,
    files: list[Path],
    lora: Adapter | None,
    stored: StoredFormat,
) -> None:
    """Fills an allocated model, merges an adapter, and sets a fingerprint of the files' numbers."""
    digests = fill(model.transformer, family, files, stored)
    if lora is not None:
        merge_adapter(lora, family.tensors(model.transformer))
    factors = {} if lora is None else lora.factors
    identity = (
        sorted(digests.items()),
        sorted(
            (name, digest_of_tensor(f.down), digest_of_tensor(f.up), f.scale)
            for name, f in factors.items()
        ),
        (model.mask_id, model.causal_block_length, model.logit_shift),
    )
    model.fingerprint = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    resolved = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if resolved not in _DTYPES.values():
        raise ValueError(
            f"dtype must be one of {', '.join(_DTYPES)} or 'auto', got {shown(dtype)}."
        )
    return resolved


def _check_experts(facts: CheckpointFacts, quantize: str, device: torch.device) -> None:
    # torchao does not know stacked experts: it would leave them as they are, without an error.
    if facts.shape.moe is not None and device.type != "cpu":
        raise ValueError(
            f"quantize must be left out for a mixture of experts on {device}, got {quantize!r}: "
            "stacked experts are kept as they are stored only."
        )


def _check_ways(compile: bool, graphs: bool, quantize: str | None) -> None:
    for name, way, kinds in (("compile", compile, ()), ("graphs", graphs, ("fp8",))):
        if not isinstance(way, bool):
            raise ValueError(f"{name} must be True or False, got {shown(way)}.")
        if way and quantize is not None and quantize not in kinds:
            raise ValueError(f"{name} must be False for a quantised model, got {quantize!r}.")
    require_one_way(compiled=compile, graphs=graphs)
