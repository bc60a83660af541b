"""A model is saved as its authors would have written it."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny, new_tiny
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import ForwardInputs
from dllm_decode import load_model as load_required
from dllm_decode.cli.main import main
from dllm_decode.models import MaskedTransformer, save_model


def logits(model: MaskedTransformer) -> torch.Tensor:
    tokens, columns = torch.arange(5, 21)[None], torch.arange(16)[None]
    return model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=columns))


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_saved_model_has_the_official_names_and_its_own_logits(
    family: str, tmp_path: Path
) -> None:
    model = load_tiny(family)
    save_model(model, tmp_path)
    official = load_file(MODELS / family / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert official.keys() == saved.keys()
    assert all(torch.equal(official[name], saved[name]) for name in official)
    # The saved files state [MASK], so that only the name of a family must be given again.
    options = {key: v for key, v in OPTIONS.get(family, {}).items() if key == "family"}
    loaded, _ = load_model(tmp_path, device="cpu", **options)
    assert loaded.fingerprint == model.fingerprint
    assert (loaded.mask_id, loaded.eos_ids) == (model.mask_id, model.eos_ids)
    assert loaded.causal_block_length == model.causal_block_length
    assert torch.equal(logits(loaded), logits(model))
    config = json.loads((MODELS / family / "config.json").read_text())
    written = json.loads((tmp_path / "config.json").read_text())
    added = written.keys() - config.keys()
    assert added <= {"mask_token_id", "block_length", "block_size", "bd_size", "torch_dtype"}
    assert written.items() >= {k: v for k, v in config.items() if "dtype" not in k}.items()


def test_a_changed_model_is_saved_with_its_tokenizer_and_in_another_dtype(tmp_path: Path) -> None:
    model, tokenizer = load_required("mini", device="cpu", dtype="float32")
    model.transformer.embedding.weight.data[0, 0] = 0.5
    save_model(model, str(tmp_path / "new"), dtype=torch.bfloat16)
    loaded, words = load_required(tmp_path / "new", device="cpu")
    assert loaded.dtype == torch.bfloat16
    assert loaded.transformer.embedding.weight[0, 0] == 0.5
    assert words.get_vocab() == tokenizer.get_vocab()
    assert words.chat_template == tokenizer.chat_template
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"generation_config.json", "tokenizer.json"} <= names
    assert json.loads((tmp_path / "new/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_model_is_not_saved_over_its_own_files(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "sdar", tmp_path / "own")
    model, _ = load_model(tmp_path / "own", device="cpu")
    with pytest.raises(ValueError, match="must go to a folder of its own"):
        save_model(model, tmp_path / "own")
    assert (tmp_path / "own" / "model.safetensors").is_file()


def test_a_new_model_is_saved_with_a_tokenizer(tmp_path: Path) -> None:
    _, tokenizer = load_required("mini")
    ids = {"mask_id": tokenizer.mask_token_id, "eos_ids": (tokenizer.eos_token_id,)}
    save_model(new_tiny(vocab_size=len(tokenizer), **ids), tmp_path, tokenizer=tokenizer)
    assert load_required(tmp_path)[1].get_vocab() == tokenizer.get_vocab()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_files_of_the_earlier_model_are_replaced(tmp_path: Path) -> None:
    """Every safetensors file of the folder was erased, filters that took hours included."""
    save_model(new_tiny(seed=1), tmp_path, max_shard_bytes=4000)
    assert list(tmp_path.glob("model-00002-of-*.safetensors"))
    others = {"filter.safetensors", "model-00001-of-00099.safetensors", "notes.txt"}
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    save_model(new_tiny(seed=2), tmp_path)
    model = {"config.json", "generation_config.json", "model.safetensors"}
    assert names_in(tmp_path) == model | others
    assert {(tmp_path / name).read_text() for name in others} == {"of somebody else"}
    assert torch.equal(logits(load_model(tmp_path)[0]), logits(new_tiny(seed=2)))


def test_nothing_of_an_earlier_model_becomes_part_of_the_new_one(tmp_path: Path) -> None:
    """Its tokenizer and its EOS stayed, and were those of the new model."""
    save_model(load_required("mini")[0], tmp_path)
    assert {"tokenizer.json", "chat_template.jinja"} <= names_in(tmp_path)
    shutil.copytree(MODELS / "llada", tmp_path / "source")
    (tmp_path / "source" / "generation_config.json").unlink()
    model, _ = load_model(tmp_path / "source")
    save_model(model, tmp_path)
    assert names_in(tmp_path) == {"config.json", "model.safetensors", "source"}
    loaded, tokenizer = load_model(tmp_path)
    assert (loaded.eos_ids, tokenizer) == (model.eos_ids, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("adapter_config.json", "{}"), ("tokenizer.json", "{}"), ("chat_template.jinja", ""),
        ("generation_config.json", "{}"), ("model.safetensors", ""), ("config.json", '{"a": 1}'),
    ],
)  # fmt: skip
def test_files_that_would_become_part_of_the_model_are_refused(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"do not become part of it, .* with {name}\. Choose"):
        save_model(new_tiny(), tmp_path)
    assert (names_in(tmp_path), (tmp_path / name).read_text()) == ({name}, text)


def test_a_model_is_not_saved_next_to_its_adapter(tmp_path: Path) -> None:
    """The adapter that was in use was erased; transformers would have added it a second time."""
    save_model(new_tiny(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"with adapter_config\.json\. Choose"):
        save_model(new_tiny(seed=1), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


FULL = """
import resource, signal, sys
from dllm_decode.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
raise SystemExit(main(["export", sys.argv[1]]))
"""


def test_a_full_disk_leaves_the_earlier_model_and_is_one_sentence(tmp_path: Path) -> None:
    """The earlier weights were removed first, and the error was a traceback."""
    save_model(load_required("mini")[0], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert re.fullmatch(r"dllm-decode export: '.*' must .*, got: .*File too large.*\n", ran.stderr)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


SAVE = """
import sys
from dllm_decode.models import load_model, save_model
*sources, scratch, folder = sys.argv[1:]
models = [load_model(source, tokenizer="optional", device="cpu")[0] for source in sources]
# The first save imports modules.
save_model(models[0], scratch, max_shard_bytes=20_000)
print("ready", flush=True)
while True:
    for model in models:
        for max_shard_bytes in (20_000, 10**9):
            save_model(model, folder, max_shard_bytes=max_shard_bytes)
"""


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_a_whole_model(tmp_path: Path) -> None:
    """The models differ in weights, shards and EOS; the folder must hold one of them."""
    sources, folder = [tmp_path / "0", tmp_path / "1"], tmp_path / "out"
    for number, source in enumerate(sources):
        model = load_tiny("llada")
        model.transformer.embedding.weight.data += number
        save_model(model, source)
        ends = json.dumps({"eos_token_id": 7 + number})
        (source / "generation_config.json").write_text(ends)
    expected = [load_model(source)[0] for source in sources]
    save_model(expected[0], folder)
    (folder / "filter.safetensors").write_text("of somebody else")
    command = [sys.executable, "-c", SAVE, *map(str, (*sources, tmp_path / "scratch", folder))]
    chance, found = random.Random(0), set()
    for _ in range(10):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 2.0))
            process.kill()
        loaded, _ = load_model(folder)
        whole = [
            loaded.eos_ids == model.eos_ids and torch.equal(logits(loaded), logits(model))
            for model in expected
        ]
        assert sum(whole) == 1
        assert (folder / "filter.safetensors").read_text() == "of somebody else"
        found.add(whole.index(True))
    assert found == {0, 1}


def test_the_command_line_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(["export", str(folder), "--model", "mini", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == f"{folder} holds mini, in float32.\n"
    exported, model = load_required(folder)[0], load_required("mini", dtype="float32")[0]
    assert exported.dtype == torch.float32
    assert torch.equal(logits(exported), logits(model))
    assert main(["export", str(tmp_path / "other"), "--model", "mini-uniform"]) == 2
    assert "must be a network of this package" in capsys.readouterr().err
