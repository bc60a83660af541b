"""Every recipe of the embedded models trains, writes a model that loads, and goes on."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from dllm_decode import load_model
from dllm_decode.models.loading.model_folder import find_model
from samplers import ConfidenceThreshold

RECIPES = Path(__file__).parents[4] / "examples" / "mini"
TABLE = tomllib.loads((RECIPES / "recipes.toml").read_text(encoding="utf-8"))
FEW = {"ledgers": 4, "stories": 2, "word_problems": 4, "equations": 2, "lists": 4}


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the recipe's module, with few rows a step and few steps an answer."""
    monkeypatch.syspath_prepend(str(RECIPES))
    import train

    monkeypatch.setattr(train, "SAMPLERS", {"at once": ConfidenceThreshold(0.0)})
    for recipe in train.TABLE["recipes"].values():
        for settings in (recipe, *recipe["runs"]):
            if "rows" in settings:
                rows = {name: FEW[name] for name in settings["rows"]}
                monkeypatch.setitem(settings, "rows", rows)
    return train


def record(folder: Path) -> Any:
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE["recipes"])
@pytest.mark.parametrize("first", [-1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_recipe_trains_its_last_run_or_all_runs(
    name: str, first: int, train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = train.TABLE["recipes"][name]
    monkeypatch.setitem(recipe, "runs", recipe["runs"][first:])
    train.main([name, "--samples", "10", "--evaluate-on", "1", "--output", str(tmp_path)])
    folders = [tmp_path / f"{name}-{i}" for i in range(1, len(recipe["runs"]))]
    runs = [record(folder) for folder in (*folders, tmp_path / name)]
    assert all(run["steps"] > 1 and run["samples"] >= 10 for run in runs)
    begun = [run["settings"]["start_from"] for run in runs]
    assert begun == [recipe.get("start_from", ""), *map(str, folders)]
    assert size_of(tmp_path / name, recipe["kind"]) == size_of(find_model(name), recipe["kind"])


def size_of(folder: Path, kind: str) -> tuple[int, ...]:
    """Returns the numbers of weights and tokens, and the shift and block length of a model."""
    if kind == "causal":
        causal = AutoModelForCausalLM.from_pretrained(folder)
        return causal.num_parameters(), causal.config.vocab_size
    model, _ = load_model(folder)
    weights = sum(weight.numel() for weight in model.parameters())
    return weights, model.vocab_size, model.logit_shift, model.causal_block_length


def test_a_longer_run_goes_on_from_the_checkpoint(train: Any, tmp_path: Path) -> None:
    options = ["mini-ar", "--evaluate-on", "1", "--output", str(tmp_path)]
    train.main([*options, "--samples", "8"])
    first = record(tmp_path / "mini-ar")
    train.main([*options, "--samples", "16", "--resume"])
    second = record(tmp_path / "mini-ar")
    assert (first["steps"], second["steps"]) == (2, 4)
    assert second["history"][:1] == first["history"]
    # A finished run is not trained again.
    train.main([*options, "--samples", "16", "--resume"])
    assert record(tmp_path / "mini-ar")["history"] == second["history"]


def test_a_setting_that_the_defaults_lack_is_named(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(train.TABLE["recipes"]["mini"], "hiden", 96)
    with pytest.raises(ValueError, match=r"must have settings of \[defaults\], got \['hiden'\]"):
        train.main(["mini"])
