"""The command `models MODEL`: what a model needs and how its authors decode it."""

import argparse
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap

import torch

from dllm_decode.cli.listing import show
from dllm_decode.models.families import FAMILIES
from dllm_decode.models.loading.devices import free_bytes
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.model_folder import find_config
from dllm_decode.models.loading.model_needs import ModelNeeds, needs_of
from dllm_decode.models.loading.stored_formats import AS_TRAINED
from dllm_decode.settings.addresses import parse_model

_PUBLISHED = Path(__file__).parent / "help/published.toml"
_DTYPES = (torch.float32, torch.bfloat16)
_COLUMNS = 1024
_ROWS = 8
_BLOCK = 32


def run(options: argparse.Namespace) -> int:
    """Lists all models, or prints what a model needs."""
    if options.model is None:
        return show(options)
    address = parse_model(options.model)
    folder = find_config(address.source, options.revision or None)
    parts = asdict(address)
    named = {name: parts[name] for name in ("family", "mask_id", "block_length")}
    needs = needs_of(folder, **named)
    key = next((name for name, family in FAMILIES.items() if family is needs.family), "")
    for line in (
        *_facts(options.model, needs, key, folder),
        "",
        *_memory(needs),
        "",
        *_command(options.model, needs, key),
    ):
        sys.stdout.write(f"{line}\n")
    return 0


def _facts(model: str, needs: ModelNeeds, key: str, folder: Path) -> Iterator[str]:
    facts, family = needs.facts, needs.family
    length = facts.causal_block_length
    sees = f"in blocks of {length}, each sees those before it" if length else "in both directions"
    yield model
    yield f"  family         {family.name}{f' ({key})' if key else ''}"
    yield f"  parameters     {needs.num_parameters:,}"
    if needs.stored is not AS_TRAINED:
        yield f"  stored         by {needs.stored.name}; loaded in bfloat16, see the memory below"
    yield f"  attention      {sees}"
    yield f"  [MASK]         {facts.mask_id}"
    yield f"  EOS            {', '.join(map(str, facts.eos_ids))}"
    if needs.max_length is not None:
        yield f"  trained for    {needs.max_length:,} columns"
    yield f"  chat template  {'yes' if _has_template(folder) else 'none'}"


def _has_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    is_stated = config.is_file() and bool(read_json(config).get("chat_template"))
    return is_stated or (folder / "chat_template.jinja").is_file()


def _memory(needs: ModelNeeds) -> Iterator[str]:
    yield f"Memory         weights   keys and values of {_COLUMNS:,}   logits of {_BLOCK} columns"
    yield f"                            1 row      {_ROWS} rows       1 row      {_ROWS} rows"
    for dtype in _DTYPES:
        kv, logits = needs.kv_bytes(dtype, _COLUMNS), needs.logit_bytes(dtype, _BLOCK)
        sizes = (kv, kv * _ROWS, logits, logits * _ROWS)
        yield f"  {_name(dtype):9} {_size(needs.weight_bytes(dtype)):>10}" + "".join(
            f"{_size(size):>12}" for size in sizes
        )
    yield from _devices(needs)


def _devices(needs: ModelNeeds) -> Iterator[str]:
    """Yields for each kind of device here the dtypes in which the weights fit."""
    kinds = ["cuda"] if torch.cuda.is_available() else []
    for kind in [*kinds, "cpu"]:
        free = free_bytes(torch.device(kind))
        if free is None:
            continue
        fitting = [_name(dtype) for dtype in _DTYPES if needs.weight_bytes(dtype) < free]
        fits = f"the weights fit in {' or '.join(fitting)}" if fitting else "the weights do not fit"
        yield f"  {kind} has {_size(free)} free: {fits}."


def _command(model: str, needs: ModelNeeds, key: str) -> Iterator[str]:
    published = tomllib.loads(_PUBLISHED.read_text(encoding="utf-8")).get(key)
    if published is None:
        return
    yield from wrap(f"Its authors decode with: {published['said']}.", 80)
    yield f"  dllm-decode generate --model {shlex.quote(model)} \\"
    words = shlex.split(published["options"])
    for name, value in zip(words[::2], words[1::2], strict=True):
        yield f"      {name} {value if value[0].isdigit() else f'{chr(34)}{value}{chr(34)}'} \\"
    yield '      "YOUR QUESTION"'


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(num_bytes: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes / 1e3:.1f} kB"
