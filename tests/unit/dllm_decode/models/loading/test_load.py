import json
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from tiny_models import EVERY_FAMILY, edit_config, load_tiny, new_tiny, write_gemma
from tiny_models import load_without_tokenizer as load_model
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from dllm_decode.models import MaskedTransformer, load_target, save_model
from dllm_decode.models import load_model as load_required
from dllm_decode.models.loading import load, model_folder, placement, weights


@pytest.fixture
def folder(tmp_path) -> Path:
    save_model(new_tiny(), tmp_path / "small")
    return tmp_path / "small"


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def same(one: MaskedTransformer, other: MaskedTransformer) -> bool:
    ours, theirs = one.transformer.parts(), other.transformer.parts()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_an_embedded_model_is_loaded_by_its_name_and_others_are_refused(
    folder, monkeypatch
) -> None:
    monkeypatch.setattr(model_folder, "ASSETS", folder.parent)
    assert load_model("small")[0].name == "small"
    with pytest.raises(FileNotFoundError, match=r"embedded name \(small\), got 'smal'"):
        load_model("smal")
    with pytest.raises(FileNotFoundError, match=r"which is none of these\. Check the path"):
        load_model(folder / "absent")


class Hub:
    """Stands in for the hub: returns a folder or raises an error, and records the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, here: Any, there: Any = None) -> None:
        self.here, self.there = here, there
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr("huggingface_hub.snapshot_download", self)

    def __call__(self, hub_id: str, **options: Any) -> str:
        self.asked.append({"hub_id": hub_id, **options})
        answer = self.here if options["local_files_only"] else self.there
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def test_a_hub_id_is_downloaded_without_code_and_pickles(folder, monkeypatch) -> None:
    hub = Hub(monkeypatch, LocalEntryNotFoundError("not cached"), folder)
    model, _ = load_model("someone/small-1.5", revision="abc")
    assert model.name == "someone/small-1.5"
    here, there = hub.asked
    assert here | {"local_files_only": False} == there
    assert (there["hub_id"], there["revision"]) == ("someone/small-1.5", "abc")
    assert not [end for end in there["allow_patterns"] if end.endswith((".py", ".bin", ".pt", "*"))]


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_the_hub_is_asked_for_what_is_not_in_the_cache_alone(
    name, folder, tmp_path, monkeypatch
) -> None:
    """Without a network, the hub was asked again and again for 24 seconds."""
    partial = tmp_path / "partial"
    partial.mkdir()
    if name.endswith("json"):
        (partial / name).write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    for cached, answers in ((folder, [True]), (partial, [True, False])):
        hub = Hub(monkeypatch, cached, folder)
        load_model("someone/small")
        assert [call["local_files_only"] for call in hub.asked] == answers


def test_without_a_network_a_hub_id_ends_in_one_sentence_that_helps(monkeypatch) -> None:
    Hub(monkeypatch, *[ConnectionError("a long story")] * 2)
    with pytest.raises(OSError, match="'someone/model' is not a folder here") as caught:
        load_model("someone/model")
    assert "pass the path of its folder" in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(OSError, match="'someone/model' with revision='v2' is not a folder"):
        load_model("someone/model", revision="v2")


def test_gguf_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "model.gguf").touch()
    for source in (tmp_path, tmp_path / "model.gguf", "someone/LLaDA-8B-GGUF"):
        with pytest.raises(ValueError, match="must be safetensors files, got GGUF in "):
            load_model(source)


def test_a_gpu_is_taken_by_default_and_named_once(monkeypatch, caplog) -> None:
    assert placement.chosen_device(None) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    placement._tell_of_cuda.cache_clear()
    assert [placement.chosen_device(None) for _ in range(2)] == ["auto", "auto"]
    assert placement.chosen_device("cpu") == "cpu"
    assert caplog.messages == [
        "Models are loaded onto a GPU; pass device='cpu' to load_model for the CPU."
    ]


def test_an_error_of_transformers_names_the_folder(tmp_path) -> None:
    folder = write_gemma(tmp_path / "gemma")
    edit_config(folder, text_config={"hidden_size": "64"})
    message = f"cannot read the model in {str(folder)!r} .* Check its config.json"
    with pytest.raises(ValueError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        (torch.bfloat16, {}), (torch.float64, {}),
        (torch.float32, {"tied_head": True}), (torch.float32, {"num_kv_heads": 1}),
        (torch.float32, {"eos_ids": (40, 3)}), (torch.float32, {"rope_theta": 1e4}),
    ],
    ids=str,
)  # fmt: skip
def test_what_was_saved_is_loaded_bit_for_bit(dtype, changes, tmp_path) -> None:
    model = new_tiny(**changes).to(dtype)
    save_model(model, tmp_path)
    loaded, _ = load_model(tmp_path)
    assert loaded.dtype == dtype
    assert loaded.transformer.config == model.transformer.config
    assert (loaded.mask_id, loaded.eos_ids) == (model.mask_id, model.eos_ids)
    assert same(loaded, model)


def test_shards_are_the_single_file(folder, tmp_path) -> None:
    single, _ = load_model(folder)
    save_model(single, tmp_path / "sharded", max_shard_bytes=4000)
    files = sorted(path.name for path in (tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert same(load_model(tmp_path / "sharded")[0], single)
    on_disk = [load_file(tmp_path / "sharded" / name) for name in files]
    # A tensor may be larger than a shard; several together may not.
    assert all(sum(t.nbytes for t in s.values()) <= 4000 or len(s) == 1 for s in on_disk)


def test_a_causal_model_alone_goes_to_cuda_where_others_are_spread(monkeypatch) -> None:
    """With CUDA, the loader asked for the device "auto", which does not exist."""
    devices = []
    cpu = torch.device("cpu")
    monkeypatch.setattr(
        "dllm_decode.models.loading.target.available", lambda device: devices.append(device) or cpu
    )
    load_model("mini-long-ar", family="causal", device="auto")
    assert devices == ["cuda"]


def test_a_seed_is_a_model() -> None:
    assert same(new_tiny(seed=3), new_tiny(seed=3))
    assert not same(new_tiny(seed=3), new_tiny(seed=4))
    for name, part in new_tiny(seed=3).transformer.parts().items():
        assert (part != 0).all(), name
        assert part.std() < 0.03, name


def test_a_new_model_is_made_in_its_dtype_from_the_start(monkeypatch) -> None:
    made = set[torch.dtype]()

    def normal(part: torch.Tensor, *args: object, **kwargs: object) -> None:
        if not part.is_meta:
            made.add(part.dtype)

    monkeypatch.setattr(torch.Tensor, "normal_", normal)
    assert new_tiny(dtype=torch.bfloat16).dtype == torch.bfloat16
    assert made == {torch.bfloat16}


def test_one_tensor_at_a_time_is_read(folder, monkeypatch) -> None:
    """Counts living tensors, not bytes: each tensor is freed before the next one is read."""
    alive: list[weakref.ref[torch.Tensor]] = []
    opened_as_before = weights.safe_open

    @contextmanager
    def watched(*args: Any, **kwargs: Any) -> Iterator[SimpleNamespace]:
        def get_tensor(name: str) -> torch.Tensor:
            assert not any(reference() is not None for reference in alive)
            tensor = opened.get_tensor(name)
            alive.append(weakref.ref(tensor))
            return tensor

        with opened_as_before(*args, **kwargs) as opened:
            yield SimpleNamespace(
                keys=opened.keys, get_slice=opened.get_slice, get_tensor=get_tensor
            )

    monkeypatch.setattr(weights, "safe_open", watched)
    model, _ = load_model(folder)
    assert len(alive) == len(model.transformer.parts())


def test_missing_left_over_and_misshaped_tensors_are_all_named(folder, monkeypatch) -> None:
    """The error comes before memory is allocated."""
    layer = "model.transformer.blocks.1"
    monkeypatch.setattr(load, "allocate", lambda *args, **kwargs: pytest.fail("built"))
    edit_weights(folder, **{
        f"{layer}.q_proj.weight": None, "model.transformer.ln_f.weight": None,
        f"{layer}.q_proj.bias": torch.zeros(16), f"{layer}.ff_proj.weight": torch.zeros(24, 15),
    })  # fmt: skip
    with pytest.raises(ValueError, match="got 4 differences") as caught:
        load_model(folder)
    for problem in (
        f"missing {layer}.q_proj.weight", "missing model.transformer.ln_f.weight",
        f"left over {layer}.q_proj.bias",
        f"{layer}.ff_proj.weight of shape [24, 15] instead of [24, 16]",
    ):  # fmt: skip
        assert problem in str(caught.value)


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text, encoding="latin-1")


def removed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def quantised(folder: Path) -> None:
    weight = torch.zeros((24, 16), dtype=torch.int8)
    edit_weights(folder, **{"model.transformer.blocks.0.up_proj.weight": weight})


def sharded(folder: Path) -> list[Path]:
    save_model(new_tiny(), folder, max_shard_bytes=4000)
    return sorted(folder.glob("*.safetensors"))


def without_a_shard(folder: Path) -> None:
    sharded(folder)[-1].unlink()


def with_a_tensor_twice(folder: Path) -> None:
    """The tensor that was read last won."""
    first, second = sharded(folder)[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor + 1}, second)


# Files that are cut, changed or not JSON at any place: property/test_fuzz_files.py.
INDEX = "model.safetensors.index.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
NAMES_NO_FILES = rf"{re.escape(INDEX)}': 'weight_map' must say in which file"
DAMAGES: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (quantised, ValueError, r"as F64, F32, BF16, F16, got I8 for model\.transformer\.blocks\.0\.up_"
     r"proj\.weight in '.*model\.safetensors'"),
    (without_a_shard, FileNotFoundError, r"model-0000\d-of-0000\d\.safetensors are missing"),
    (with_a_tensor_twice, ValueError, r"one weight file, got .* in .*-00002-of-.*'"),
    (pickled, FileNotFoundError, r"files only, got pytorch_model\.bin"),
    (removed("model.safetensors"), FileNotFoundError, r"model\.safetensors are missing"),
    (removed("config.json"), FileNotFoundError, r"A model folder holds a config\.json"),
    *((written(INDEX, text), ValueError, rf"{re.escape(INDEX)}'")
      for text in ("{", '{"weight_map": 3}')),
    *((written(INDEX, json.dumps({"weight_map": files})), ValueError, NAMES_NO_FILES)
      for files in ({}, {"a": 1}, {"a": "../model.safetensors"})),
    (written("config.json", POINTER), ValueError, "json' must hold its content, got a pointer"),
    (written("model.safetensors", POINTER), ValueError, "got a pointer of Git LFS. Run `git lfs"),
    (written("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000), ValueError,
     r"config\.json' must not be nested deeper"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "kind", "message"), DAMAGES)
def test_damage_is_named_by_its_file(
    damage: Callable[[Path], object], kind: type[Exception], message: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(kind, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("number", "dtype"), [(torch.nan, None), (-torch.inf, torch.bfloat16)], ids=str
)
def test_a_weight_that_is_no_number_is_named(number, dtype, folder) -> None:
    name = "model.transformer.blocks.1.q_proj.weight"
    weight = load_file(folder / "model.safetensors")[name].clone()
    weight[3, 5] = number
    edit_weights(folder, **{name: weight})
    with pytest.raises(ValueError, match=rf"got NaN or infinity in {name} of .*model\.safetensors"):
        load_model(folder, dtype=dtype)


def test_large_weights_whose_sum_overflows_are_numbers(folder) -> None:
    name = "model.transformer.blocks.1.q_proj.weight"
    weight = torch.full_like(load_file(folder / "model.safetensors")[name], 3e38)
    edit_weights(folder, **{name: weight})
    load_model(folder)
    with pytest.raises(ValueError, match=r"finite number in torch\.float16, got .*infinity"):
        load_model(folder, dtype="float16")


def test_a_missing_tokenizer_is_an_error_unless_asked_for(folder) -> None:
    """The tokenizer was `None`, which failed much later, in the first call that encoded a text."""
    with pytest.raises(FileNotFoundError, match=r"must hold tokenizer\.json.*'optional'"):
        load_required(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"The tokenizer files in .* cannot be read"):
        load_required(folder)


def test_names_of_transformers_are_accepted(folder) -> None:
    assert load_model(folder, dtype="bfloat16")[0].dtype == torch.bfloat16
    assert load_model(folder, dtype="auto", device_map="cpu")[0].dtype == torch.float32
    model, _ = load_model(folder, torch_dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "bf16"}, "or 'auto', got 'bf16'"),
        # All but one of these failed later on, and complex64 was loaded.
        ({"dtype": torch.complex64}, "dtype must be one of bfloat16, .* got torch.complex64"),
        ({"torch_dtype": torch.float8_e4m3fn}, "or 'auto', got torch.float8_e4m3fn"),
        ({"dtype": ["a"]}, r"or 'auto', got \['a'\]"),
        ({"device": "meta", "device_map": "cpu"}, "device_map must be left out beside device"),
        ({"dtype": "float32", "torch_dtype": "float32"}, "torch_dtype must be left out beside dty"),
        ({"compile": 1}, "compile must be True or False, got 1"),
        ({"compile": True, "quantize": "int8"}, "compile must be False for a quantised model"),
        ({"graphs": "yes"}, "graphs must be True or False, got 'yes'"),
        ({"graphs": True, "quantize": "int4"}, "graphs must be False for a quantised model"),
        ({"graphs": True, "compile": True}, "must be compiled or have graphs, but not both"),
        ({"device": {"": "cpu"}}, "device must be one device, or 'auto' .*, got {'': 'cpu'}"),
        ({"device": "mps"}, "A device must be one that .* got 'mps'"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_checks_of_types")
def test_options_that_do_not_fit_are_refused(options, sentence, folder) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_model(folder, **options)


def test_generation_config_adds_tokens_that_end_an_answer(folder) -> None:
    before = load_model(folder)[0].eos_ids
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [7, before[0]]}))
    assert load_model(folder)[0].eos_ids == (*before, 7)
    path.write_text(json.dumps({"eos_token_id": "x"}))
    with pytest.raises(ValueError, match=r"generation_config\.json': 'eos_token_id' must be"):
        load_model(folder)


def test_the_length_that_a_model_was_trained_for_is_known(folder) -> None:
    assert load_model(folder)[0].max_length is None
    edit_config(folder, max_sequence_length=4096)
    assert load_model(folder)[0].max_length == 4096
    # Such values counted as absent.
    for wrong in ("4096", True, -1):
        edit_config(folder, max_sequence_length=wrong)
        with pytest.raises(ValueError, match="'max_sequence_length' must be an integer from 1"):
            load_model(folder)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("family", sorted(set(EVERY_FAMILY) - {"llada", "a2d_llama", "a2d_qwen2"}))
def test_only_what_the_llada_format_can_say_is_saved(family, tmp_path) -> None:
    model = load_tiny(family)
    # This makes the model look new, and not loaded.
    model.family = None
    with pytest.raises(ValueError, match="Only models of the LLaDA family can be saved"):
        save_model(model, tmp_path)
    assert not list(tmp_path.iterdir())


def write_tokenizer(folder: Path, size: int) -> None:
    ids = {f"t{i}": i for i in range(size)}
    Tokenizer(BPE(vocab=ids, merges=[])).save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    # As on the hub: remote code on offer, which must neither be run nor asked about.
    config = {"auto_map": {"AutoTokenizer": ["remote.Remote", None]}, "tokenizer_class": "Remote"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "remote.py").write_text("raise SystemExit('remote code was run')\n")


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llada", PreTrainedTokenizerFast), ("dream", Qwen2Tokenizer), ("sdar", Qwen2Tokenizer)],
)
def test_the_tokenizer_is_loaded_without_remote_code(
    family, kind, golden_dir, tmp_path, monkeypatch
) -> None:
    shutil.copytree(golden_dir / "models" / family, tmp_path / family)
    write_tokenizer(tmp_path / family, 505)
    monkeypatch.setattr(sys, "stdin", None)
    model, tokenizer = load_model(tmp_path / family)
    assert isinstance(tokenizer, kind)
    assert tokenizer.convert_ids_to_tokens(7) == "t7"
    expected = set(range(len(tokenizer), 512)) - {model.mask_id}
    assert len(expected) > 2
    assert set(model.banned_ids) == expected


def test_ids_with_a_meaning_are_not_banned(golden_dir, tmp_path) -> None:
    shutil.copytree(golden_dir / "models" / "llada", tmp_path / "llada")
    write_tokenizer(tmp_path / "llada", 490)
    model, _ = load_model(tmp_path / "llada")
    assert set(model.banned_ids) == set(range(490, 512)) - {500, 508}


def test_a_revision_of_anything_but_a_hub_id_is_refused(folder) -> None:
    """The revision was ignored, and records of an evaluation named one that was never read."""
    for source, what in (("mini", "an embedded model"), (folder, "a folder")):
        with pytest.raises(ValueError, match=f"which is {what}; only a hub id has revisions, got "):
            load_model(source, revision="v2")
    _, tokenizer = load_model("mini")
    with pytest.raises(ValueError, match="revision must be left out with 'mini-ar'"):
        load_target("mini-ar", tokenizer, revision="v2")


def test_a_stored_head_that_is_the_embedding_is_taken_and_another_named(tmp_path) -> None:
    """Such a head was an error, although many tied checkpoints have one."""
    model = new_tiny(tied_head=True)
    save_model(model, tmp_path)
    name = "model.transformer.ff_out.weight"
    edit_weights(tmp_path, **{name: model.transformer.embedding.weight.detach().clone()})
    assert same(load_model(tmp_path)[0], model)
    edit_weights(tmp_path, **{name: model.transformer.embedding.weight.detach() + 1})
    with pytest.raises(ValueError, match=f"so {name} must equal model.transformer.wte.weight"):
        load_model(tmp_path)


def test_weights_that_are_there_twice_are_said(folder, tmp_path, caplog) -> None:
    """Shards were silently read, although transformers reads the single file."""
    save_model(new_tiny(seed=1), tmp_path / "shards", max_shard_bytes=4000)
    shutil.copytree(tmp_path / "shards", folder, dirs_exist_ok=True)
    assert same(load_model(folder)[0], new_tiny())
    assert "holds weights twice: model.safetensors is read, and not the files" in caplog.text


def test_no_compiler_is_imported_to_load_and_to_generate() -> None:
    """The import of a compiler took half of the time to the first answer."""
    program = (
        "import sys; from dllm_decode import generate, load_model\n"
        "model, tokenizer = load_model('mini', device='cpu')\n"
        "generate(model, tokenizer, 'What is 3 plus 4?', gen_length=8)\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trust_remote_code": True}, "trust_remote_code is no option of load_model: no code of"),
        ({"load_in_4bit": True}, "load_in_4bit is no option of load_model: quantize='int4'"),
        ({"token": "t"}, "token is no option of load_model: run `hf auth login`"),
        ({"dtpye": "float32"}, "an option of load_model, such as dtype, "),
    ],
)
def test_an_option_of_others_is_refused_with_what_to_pass_instead(
    options: dict[str, Any], sentence: str
) -> None:
    """The error was a bare TypeError of Python."""
    for loads in (load_required, load_target):
        said = sentence.replace("load_model", loads.__name__)
        with pytest.raises(TypeError, match=re.escape(said)):
            loads("mini-ar", **{"tokenizer": "required", **options})
