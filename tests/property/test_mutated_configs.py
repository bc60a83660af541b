"""Every key of every config.json with a wrong value: refused by its name, or not read at all."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny, load_without_tokenizer
from torch import Tensor

from dllm_decode.models import MaskedTransformer

LARGE = 2**31 - 1
WRONG: tuple[Any, ...] = (
    None, True, "4096", "a", [], ["a"], {}, -1, -0.5, LARGE, 10**400, 1e308, float("nan"),
    float("inf"),
)  # fmt: skip
# Documented words for "as other keys say", which may make another model of the file.
OTHERWISE = ("head_dim", "mlp_hidden_size", "num_key_value_heads", "n_kv_heads")


def mutations(document: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields the way to a value, the wrong value and the document that has it."""
    for path in paths_of(document):
        for value in WRONG:
            mutated = copy.deepcopy(document)
            holder = mutated
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            yield path, value, mutated


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the way to each value in a document."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    for key, part in parts:
        yield from paths_of(part, (*path, key))


def is_clear(error: ValueError, path: tuple[Any, ...], value: Any) -> bool:
    """Says whether a refusal names the key; values that do not fit others are named together."""
    key = next(key for key in reversed(path) if isinstance(key, str))
    if "config.json" in str(error) and any(f"{key}{end}" in str(error) for end in "'."):
        return True
    is_possible = value is True or value == LARGE or (value is None and key in OTHERWISE)
    unfit = ("must hold exactly the tensors that ", "config.json' of a ")
    return is_possible and any(words in str(error) for words in unfit)


def may_differ(key: Any, value: Any) -> bool:
    """Says whether this value is one that another model may have."""
    return (value is None and key in OTHERWISE) or (value == LARGE and key == "rope_theta")


def facts_of(model: MaskedTransformer) -> tuple[Any, ...]:
    """Returns all that a decode reads of a model, except for its logits."""
    return (
        model.mask_id, model.eos_ids, model.banned_ids, model.logit_shift,
        model.causal_block_length, model.is_causal_too,
    )  # fmt: skip


def logits_of(model: MaskedTransformer) -> Tensor:
    tokens = torch.tensor([[1, 2, 3, model.mask_id, model.mask_id]])
    with torch.no_grad():
        hidden = model.transformer(tokens, torch.arange(5)[None])
        return model.transformer.head(hidden)


@pytest.mark.slow
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_wrong_value_is_refused_by_its_key_or_changes_nothing(
    family: str, tmp_path: Path
) -> None:
    """No value is drawn, hence there is no seed."""
    folder = tmp_path / family
    shutil.copytree(MODELS / family, folder)
    whole = load_tiny(family)
    document = json.loads((folder / "config.json").read_text())
    refused = 0
    for path, value, mutated in mutations(document):
        (folder / "config.json").write_text(json.dumps(mutated))
        found, case = None, f"{path} is {str(value)[:20]!r}"
        try:
            found, _ = load_without_tokenizer(folder, **OPTIONS.get(family, {}))
        except ValueError as error:
            refusal = error
        if found is None:
            assert is_clear(refusal, path, value), (case, str(refusal)[:300])
            refused += 1
        elif not may_differ(path[-1], value):
            assert facts_of(found) == facts_of(whole), case
            assert torch.equal(logits_of(found), logits_of(whole)), case
    assert refused > 100
