import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import FULLY_CONFIGURED, MODELS, new_tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor

from dllm_decode import DualCache, ForwardInputs, KVCache, SelfVerify, decode
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.models.loading import placement
from dllm_decode.models.loading.placement import DeviceMap, place
from dllm_decode.models.network.transformer import Transformer
from samplers import FixedSchedule

TESTS = Path(__file__).parents[4]
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8]]
CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
LLADA = MODELS / "llada"
FOLDER = pytest.mark.parametrize("folder", [MODELS / key for key in FULLY_CONFIGURED])


def logits(model: MaskedTransformer, kv_cache: KVCache | None) -> Tensor:
    """Returns logits of a full forward and, with a memory, of another over a block of two rows."""
    vocab_size = model.vocab_size
    tokens = torch.arange(36).reshape(3, 12) * 7 % vocab_size
    columns = torch.arange(12).expand(3, 12)
    attend = (torch.arange(12) >= torch.tensor([0, 2, 1])[:, None])[:, None]
    slots = None if kv_cache is None else slice(0, 12)
    inputs = ForwardInputs(
        tokens, columns, columns[:, 3:9], attend=attend, kv_cache=kv_cache, slots=slots
    )
    outputs = [model.predict(inputs)]
    if kv_cache is not None:
        rows, block = torch.tensor([2, 0]), columns[:2, 4:8]
        block_inputs = dataclasses.replace(
            inputs, tokens=(tokens[rows, 4:8] + 1) % vocab_size, positions=block, wanted=block - 4,
            attend=attend[rows], slots=block, rows=rows,
        )  # fmt: skip
        outputs.append(model.predict(block_inputs))
    return torch.cat([part.flatten() for part in outputs])


DISK_MAPS: dict[str, DeviceMap] = {
    "a layer": {"": "cpu", "layers.1": "disk"},
    "all layers": {"": "cpu", "layers": "disk"},
    "embedding and head": {"": "cpu", "embedding": "disk", "lm_head": "disk"},
    "everything": {"": "disk"},
}


@FOLDER
@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("with_kv_cache", [False, True], ids=["afresh", "kv_cache"])
@pytest.mark.parametrize("device_map", DISK_MAPS.values(), ids=DISK_MAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_in_files_give_the_same_logits(
    dtype, device_map, with_kv_cache, folder, tmp_path
) -> None:
    plain, _ = load_model(folder, dtype=dtype)
    files = tmp_path / "files"
    spread, _ = load_model(folder, dtype=dtype, device=device_map, offload_folder=files)
    assert (spread.device, spread.dtype) == (CPU, dtype)
    assert list(files.glob("*.bin"))
    for model in (plain, spread):
        assert not any(parameter.requires_grad for parameter in model.parameters())
    found, expected = (
        logits(model, model.new_kv_cache(3, 12) if with_kv_cache else None)
        for model in (spread, plain)
    )
    assert torch.equal(found, expected)


def test_between_forwards_weights_are_in_files_alone(tmp_path) -> None:
    spread, _ = load_model(LLADA, device={"": "disk"}, offload_folder=tmp_path)
    for _ in range(2):
        assert {parameter.device.type for parameter in spread.parameters()} == {"meta"}
        logits(spread, spread.new_kv_cache(3, 12))
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert written == sum(parameter.nbytes for parameter in spread.parameters())


def test_files_of_another_model_are_overwritten(tmp_path) -> None:
    for seed in (1, 2):
        save_model(new_tiny(seed=seed), tmp_path / str(seed))
        options = {"device": {"": "disk"}, "offload_folder": tmp_path / "files"}
        spread, _ = load_model(tmp_path / str(seed), **options)
        assert torch.equal(logits(spread, None), logits(new_tiny(seed=seed), None))


def test_a_tied_model_in_files_shares_its_weight_where_it_is_computed(tmp_path) -> None:
    save_model(new_tiny(tied_head=True), tmp_path / "model")
    options = {"device": {"": "cpu", "layers": "disk"}, "offload_folder": tmp_path / "files"}
    spread, _ = load_model(tmp_path / "model", **options)
    assert torch.equal(logits(spread, None), logits(new_tiny(tied_head=True), None))


@pytest.mark.slow
def test_no_forward_meets_weights_activations_or_memory_of_another_device(golden_dir) -> None:
    """The accelerators are simulated: see the program that is run."""
    script = TESTS / "programs" / "two_devices.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(golden_dir / "models")], capture_output=True, text=True,
        check=True, cwd=TESTS.parent, env={"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
    )  # fmt: skip
    seen = json.loads(ran.stdout)
    refused = {case: result for case, result in seen.items() if case.endswith("without a route")}
    assert len(refused) == len(seen) / 2 == 4 * 3 * 2
    assert all("found at least two devices" in result for result in refused.values())
    for family in ("llada", "dream", "sdar"):
        # First the device of logits, equal to that of tokens; then of keys and values by layers.
        assert seen[f"{family}, halves, afresh"] == ["fake:0"]
        first, second = ["fake:0"] * 2, ["fake:1"] * 2
        assert seen[f"{family}, halves, memory"] == ["fake:0", *first, *second]
        assert seen[f"{family}, in turn, memory"][:5] == ["fake:1", *second, *first]
        assert seen[f"{family}, ends apart, memory"] == ["fake:0", *second]


def test_a_memory_in_pieces_is_one_memory() -> None:
    model = new_tiny(num_layers=3)
    whole = model.new_kv_cache(3, 12)
    pieces = model.new_kv_cache(3, 12)
    keys, values = pieces.keys, pieces.values
    pieces = KVCache(keys[:1], values[:1], KVCache(keys[1:], values[1:]))
    assert torch.equal(logits(model, pieces), logits(model, whole))
    assert pieces.num_bytes == whole.num_bytes
    assert torch.equal(torch.cat(pieces.buffers[::2]), whole.keys)
    for layer in range(3):
        for ours, theirs in zip(pieces.layer(layer), whole.layer(layer), strict=True):
            assert torch.equal(ours, theirs)
    few, many = pieces.first(5), pieces.widened(15)
    assert [part.shape[3] for part in few.buffers] == [5] * 4
    few.layer(2)[0].fill_(7.0)
    assert (keys[2, :, :, :5] == 7.0).all()
    assert torch.equal(torch.cat(many.buffers[1::2])[..., :12, :], values)
    assert not any(part[..., 12:, :].any() for part in many.buffers)


SPREAD: dict[str, DeviceMap] = {
    "on the CPU in part": {"": 0, "layers.1": "cpu", "lm_head": "cpu"},
    "on two accelerators": {"": 1, "embedding": 0, "layers.0": 0},
}


@pytest.mark.gpu
@pytest.mark.parametrize("device_map", SPREAD.values(), ids=SPREAD)
@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_a_spread_model_gives_the_tokens_of_one_accelerator(family, device_map, golden_dir) -> None:
    if device_map[""] and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    answers = [
        decode(
            load_model(golden_dir / "models" / family, device=device)[0], PROMPTS,
            FixedSchedule(3), cache=DualCache(), verifier=SelfVerify(2), gen_length=16,
            block_length=8,
        )
        for device in (0, device_map)
    ]  # fmt: skip
    assert torch.equal(answers[0].tokens, answers[1].tokens)


def imagined(device: str | int | torch.device) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


@pytest.fixture
def on_meta(monkeypatch) -> Transformer:
    """Returns a network that allocates nothing; every device counts as available."""
    monkeypatch.setattr(placement, "available", imagined)
    with torch.device("meta"):
        return Transformer(new_tiny(num_layers=3).transformer.config)


def test_the_longest_name_decides(on_meta) -> None:
    placed = place(on_meta, {"": "cuda:0", "layers": "cpu", "layers.1": "cuda:1"})
    assert placed.kept == {
        "embedding": FIRST, "layers.0": CPU, "layers.1": SECOND, "layers.2": CPU, "norm": FIRST,
        "lm_head": FIRST,
    }  # fmt: skip
    assert placed.computed == {**placed.kept, "layers.0": FIRST, "layers.2": FIRST}


@pytest.mark.parametrize("device", ["cuda:1", {"": "cuda:1"}, {"": torch.device("cuda:1")}])
def test_one_device_needs_no_route(device, on_meta) -> None:
    placed = place(on_meta, device)
    assert set(placed.kept.values()) == set(placed.computed.values()) == {SECOND}


def test_automatic_maps_fill_devices_in_turn_and_keep_layers_whole(
    on_meta, tmp_path, monkeypatch
) -> None:
    """Next to its own layers, the first device needs room for a layer that is kept elsewhere."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    layer = sum(parameter.nbytes for parameter in on_meta.layers[0].parameters())
    room = on_meta.embedding.weight.nbytes + 64
    for extra, expected in (
        (2 * layer, (FIRST, FIRST, SECOND, None, None, None)),
        (3 * layer, (FIRST, FIRST, FIRST, SECOND, SECOND, CPU)),
    ):
        limits = {0: room + extra, 1: layer + 64, "cpu": layer + 64}
        placed = place(on_meta, "auto", max_memory=limits, offload_folder=tmp_path)
        assert tuple(placed.kept.values()) == expected
        away = {part: FIRST for part, place in placed.kept.items() if place in (CPU, None)}
        assert placed.computed == {**placed.kept, **away}


def test_limits_are_of_weights_in_their_dtype() -> None:
    plain, _ = load_model(LLADA, dtype=torch.bfloat16)
    limit = sum(parameter.nbytes for parameter in plain.parameters()) * 5 // 4
    model, _ = load_model(LLADA, dtype=torch.bfloat16, device="auto", max_memory={"cpu": limit})
    assert model.transformer.route is None
    with pytest.raises(ValueError, match="got no folder for those of"):
        load_model(LLADA, dtype=torch.float32, device="auto", max_memory={"cpu": limit})


def test_a_missing_device_is_refused_before_a_download(monkeypatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    for device in ("toaster", {"": "cpu", "layers.3": "toaster"}):
        with pytest.raises(ValueError, match="got 'toaster'"):
            load_model("someone/model", device=device)


def test_what_fits_nowhere_goes_to_files(tmp_path) -> None:
    limits = {"cpu": "60KB"}
    model, _ = load_model(LLADA, device="auto", max_memory=limits, offload_folder=tmp_path)
    assert list(tmp_path.glob("layers.1.*.bin"))
    assert torch.equal(logits(model, None), logits(load_model(LLADA)[0], None))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": {"embedding": "cpu", "layers": "cpu", "norm": "cpu"}}, "got none for lm_head"),
        ({"device": {"": "cpu", "layers.7": "cpu"}}, r"embedding, layers\.0, .* got 'layers\.7'"),
        ({"device": {"": "cpu", "layers.1.mlp": "disk"}}, r"got 'layers\.1\.mlp'. A layer stays"),
        ({"device": {"": "cpu", "model.norm": "cpu"}}, "got 'model.norm'"),
        (
            {"device": {"": "cpu", "norm": "disk"}},
            r"got no folder for those of norm\..*offload_folder",
        ),
        ({"device": {"": "cpu", "norm": "cuda:99"}}, "got 'cuda:99'"),
        ({"device": {"": "cpu", "norm": "toaster"}}, "got 'toaster'"),
        ({"device": {"": "cpu", "norm": "meta"}}, "A device must hold values, got 'meta'"),
        ({"device": "meta"}, "A device must hold values, got 'meta'"),
        ({"max_memory": {"cpu": "1GB"}}, r"max_memory sets limits for device='auto', got .*'cpu'"),
    ],
    ids=str,
)
def test_impossible_maps_are_refused_by_name(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_model(LLADA, **options)


def test_a_tied_embedding_stays_where_it_is_computed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(placement, "available", imagined)
    tied = new_tiny(tied_head=True).transformer
    for device_map in ({"": "cuda:0", "embedding": "cpu"}, {"": "cpu", "embedding": "disk"}):
        with pytest.raises(ValueError, match="is its head too, so it stays where it is computed"):
            place(tied, device_map, offload_folder=tmp_path)


def test_a_spread_model_is_not_converted_moved_or_saved(tmp_path) -> None:
    spread, _ = load_model(LLADA, device={"": "disk"}, offload_folder=tmp_path / "files")
    for change in (torch.float64, "cpu"):
        with pytest.raises(ValueError, match=r"stays as it was loaded.* Load it again"):
            spread.to(change)
    with pytest.raises(ValueError, match=r"got 'llada', .* Load it on one device, as"):
        save_model(spread, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
