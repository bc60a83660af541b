"""Models by address."""

from pathlib import Path

import pytest
from tiny_models import MODELS

from dllm_decode.settings.addresses import ModelAddress, parse_model
from dllm_decode.settings.models import load


def test_a_model_is_told_what_its_files_do_not_say(tmp_path: Path) -> None:
    """The command line could not name a family, so some published checkpoints did not load."""
    assert parse_model("GSAI-ML/LLaDA-8B") == ModelAddress("GSAI-ML/LLaDA-8B")
    parsed = parse_model("path/to/open-dcoder?mask_id=151665&family=open_dllm")
    assert parsed == ModelAddress("path/to/open-dcoder", family="open_dllm", mask_id=151665)
    custom = parse_model("folder?family=my_package.families:MINE&block_length=4&adapter=a%26b")
    assert (custom.block_length, custom.adapter) == (4, "a&b")
    for address, message in (
        ("folder?fam=x", "A model has the options family, mask_id, .*, got 'fam'"),
        ("folder?mask_id=x", "mask_id must be a whole number, got 'x'"),
        ("folder?family", "name=value"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_model(address)
    odd = tmp_path / "odd?family=llada"
    odd.mkdir()
    assert parse_model(str(odd)) == ModelAddress(str(odd))


def test_an_address_opens_a_model_as_its_options_say() -> None:
    folder = str(MODELS / "open_dllm")
    with pytest.raises(ValueError, match="name its family: family='open_dllm'"):
        load(folder, needs_tokenizer=False)
    model = load(f"{folder}?family=open_dllm&mask_id=508", needs_tokenizer=False).model
    assert (model.name, model.mask_id, model.logit_shift) == ("open_dllm", 508, 1)
