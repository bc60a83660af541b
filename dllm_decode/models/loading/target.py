"""Loads causal targets, whose tokens must be those of the mask predictor."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch

from dllm_decode.core.other_names import value_of
from dllm_decode.models.loading.adapters import read_adapter
from dllm_decode.models.loading.by_transformers import by_transformers, load_by_transformers
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.load_options import LoadOptions, require_options
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.models.loading.placement import Device, available
from dllm_decode.models.loading.weights import model_files, require_finite, weight_files
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer
from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.models.targets.own_weights import MaskedNetwork, as_causal_target
from samplers.checks import shown

if TYPE_CHECKING:
    import transformers


def load_target(
    source: str | Path,
    tokenizer: "transformers.PreTrainedTokenizerBase",
    *,
    device: Device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    **options: Unpack[LoadOptions],
) -> CausalTarget:
    """Loads a causal language model that judges a mask predictor's drafts.

    No remote code is run.

    Args:
        source: The name of an embedded model such as "mini-ar", a folder, or a hub id such as
            "Qwen/Qwen2.5-7B-Instruct"; tried in this order.
        tokenizer: The mask predictor's tokenizer. Its ids must be those of the target.
        device: Where the model goes. `None`: CUDA if it is available, else the CPU.
        dtype: Of all parameters; `None` keeps that of the checkpoint.
        revision: Branch, tag or commit of a hub id.
        **options: Names that transformers has for `device` and `dtype`, see `LoadOptions`.

    Raises:
        FileNotFoundError: If the source does not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If the device is not there, an id stands for different tokens, the model cannot
            roll back, or its weight files are damaged or do not hold exactly what config.json calls
            for.
        TypeError: If a keyword is no option.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    require_options(load_target, options)
    device = value_of("device", device, "device_map", options.get("device_map"))
    dtype = value_of("dtype", dtype, "torch_dtype", options.get("torch_dtype"))

    if isinstance(tokenizer, type) or not hasattr(tokenizer, "get_vocab"):
        raise ValueError(
            f"tokenizer must be the tokenizer that load_model returns, got {shown(tokenizer)}."
        )
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = available(device)
    folder = find_model(source, revision)
    read_json(folder / "config.json")
    weight_files(folder)
    with by_transformers(folder):
        target_tokenizer = AutoTokenizer.from_pretrained(folder)
    name = Path(source).resolve().name if Path(source).is_dir() else str(source)
    num_shared_ids = _count_shared_ids(target_tokenizer, tokenizer, name=name)
    model = load_by_transformers(
        AutoModelForCausalLM, folder, exact=True, dtype=dtype or "auto", device_map={"": place}
    )
    for parameter_name, parameter in model.named_parameters():
        require_finite(parameter.detach(), parameter_name, folder)
    return CausalTarget(
        model.eval().requires_grad_(False),
        name=name,
        num_shared_ids=num_shared_ids,
        files=model_files(folder),
    )


def _count_shared_ids(
    target: "transformers.PreTrainedTokenizerBase",
    tokenizer: "transformers.PreTrainedTokenizerBase",
    *,
    name: str,
) -> int:
    """Compares two tokenizers id by id and returns how many ids they share, from 0.

    The mask predictor may have further ids, such as [MASK]; ValueError if the target has any.
    """
    expected = {token: text for text, token in tokenizer.get_vocab().items()}
    texts = {token: text for text, token in target.get_vocab().items()}
    unlike = sorted(token for token, text in texts.items() if expected.get(token) != text)
    if unlike:
        example = unlike[0]
        raise ValueError(
            f"Both models have the same token at every id of the target's tokenizer, got "
            f"{len(unlike)} ids that differ: {example} is {texts[example]!r} for {name} and "
            f"{expected.get(example)!r} for the mask predictor. Use a target with its tokenizer."
        )
    return max(texts) + 1


def load_drafter(model: MaskedTransformer, adapter: str | Path) -> CausalTarget:
    """Makes a causal target of a model and an adapter, which no other forward of the model has.

    It is the drafter of `LinearSpec`, and `as_causal_target(model)` the target that checks.

    Args:
        model: A loaded model that `as_causal_target` takes.
        adapter: A folder, or the name of a folder in that of the model such as "linear_spec_lora",
            with a LoRA adapter in PEFT's format for output projections of attention.

    Raises:
        FileNotFoundError: If there is no such adapter.
        ValueError: If the model was not loaded, or has no causal target, or the adapter changes
            anything else.
    """
    plain = as_causal_target(model)
    if model.family is None or not model.files:
        raise ValueError(f"A model with an adapter must be loaded from files, got {model.name}.")
    inside = model.files[0].parent / adapter
    lora = read_adapter(inside if inside.is_dir() else Path(adapter))
    lora.check(model.family.tensors(model.transformer))
    pattern = model.family.names["layers.{n}.output.weight"]
    names = [pattern.format(n=n) for n in range(model.transformer.config.num_layers)]
    others = sorted(lora.factors.keys() - names)
    if others:
        raise ValueError(
            "An adapter that is added to drafts alone must change the output projections of "
            f"attention and nothing else, got {str(lora.path)!r} for {', '.join(others[:3])}. "
            "Merge it: load_model(..., adapter=...)."
        )
    return CausalTarget(
        MaskedNetwork(model, [lora.factors.get(name) for name in names]),
        name=f"{plain.name} with {lora.path.parent.name}",
        files=(*model.files, *lora.files),
    )
