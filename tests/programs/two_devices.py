"""Runs models over two accelerators that do not exist; a process of its own, since it invents them.

Fake tensors have shapes and devices but no values, and refuse to meet on two devices. Prints one
JSON object: by name of the case, what was seen or the message of the refusal.
"""

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from tiny_models import FAMILIES, OPTIONS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode
from torch.utils import backend_registration

from dllm_decode import ForwardInputs
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import family_of
from dllm_decode.models.loading import placement
from dllm_decode.models.network.transformer import Transformer

MAPS: dict[str, dict[str, str]] = {
    "halves": {"embedding": "fake:0", "layers.0": "fake:0", "": "fake:1"},
    "in turn": {"": "fake:1", "layers.1": "fake:0", "norm": "fake:0"},
    "ends apart": {"": "fake:1", "embedding": "fake:0", "lm_head": "fake:0"},
}


def spread(config: Path, device_map: dict[str, str]) -> MaskedTransformer:
    read = json.loads(config.read_text())
    options = OPTIONS.get(config.parent.name, {})
    facts = family_of(read).read(read, mask_id=options.get("mask_id"))
    with torch.device("meta"):
        transformer = Transformer(facts.shape)
    route = {}
    for part in placement.place(transformer, "cpu"):
        names = (part, part.partition(".")[0], "")
        route[part] = torch.device(next(device_map[name] for name in names if name in device_map))
    for part, place in route.items():
        for name, weight in list(transformer.get_submodule(part).named_parameters(prefix=part)):
            owner, _, leaf = name.rpartition(".")
            fake = torch.empty(weight.shape, dtype=torch.bfloat16, device=place)
            setattr(transformer.get_submodule(owner), leaf, nn.Parameter(fake, requires_grad=False))
    transformer.route = route
    return MaskedTransformer(
        transformer, name="spread", mask_id=facts.mask_id, eos_ids=facts.eos_ids
    )


def run(model: MaskedTransformer, *, with_kv_cache: bool) -> list[str]:
    """A forward over all, and with a memory one over some columns of some rows.

    Each is also run together with a second group of another width.
    """
    device = model.device
    tokens = torch.zeros(3, 12, dtype=torch.long, device=device)
    columns = torch.arange(12, device=device).expand(3, 12)
    attend = torch.ones(3, 12, 12, dtype=torch.bool, device=device)
    if not with_kv_cache:
        inputs = ForwardInputs(tokens, columns, columns[:, 3:9], attend=attend)
        narrow = ForwardInputs(tokens[:1, :5], columns[:1, :5], columns[:1, :2])
        logits = model.predict(inputs)
        assert devices(model.predict_groups([inputs, narrow])) == {logits.device}
        return [str(logits.device)]
    kv_cache = model.new_kv_cache(3, 12)
    whole = ForwardInputs(
        tokens, columns, columns, attend=attend, kv_cache=kv_cache, slots=slice(0, 12)
    )
    model.predict(whole)
    block, rows = columns[:2, 3:6], torch.arange(2, device=device)
    inputs = ForwardInputs(
        tokens[:2, 3:6], block, block - 3, kv_cache=kv_cache, slots=block, rows=rows
    )
    logits = model.predict(inputs)
    last = {"tokens": tokens[2:], "positions": columns[2:], "wanted": columns[2:]}
    wide = replace(whole, **last, attend=attend[2:], rows=slice(2, 3))
    assert devices(model.predict_groups([inputs, wide])) == {logits.device}
    return [str(logits.device), *(str(buffer.device) for buffer in kv_cache.buffers)]


def devices(parts: list[torch.Tensor]) -> set[torch.device]:
    return {part.device for part in parts}


def main(golden: Path) -> None:
    backend_registration._setup_privateuseone_for_python_backend("fake")
    seen: dict[str, object] = {}
    # One mode for all: frequencies are kept from model to model.
    with FakeTensorMode():
        for family, (name, device_map), with_kv_cache in product(FAMILIES, MAPS.items(), (0, 1)):
            model = spread(golden / family / "config.json", device_map)
            case = f"{family}, {name}, {'memory' if with_kv_cache else 'afresh'}"
            seen[case] = run(model, with_kv_cache=bool(with_kv_cache))
            model.transformer.route = None
            try:
                run(model, with_kv_cache=bool(with_kv_cache))
            except FakeTensorDeviceMismatchError as error:
                seen[f"{case}, without a route"] = str(error)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
