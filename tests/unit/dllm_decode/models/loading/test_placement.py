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
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading import placement
from dllm_decode.models.loading.placement import place
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


@pytest.mark.slow
def test_no_forward_meets_weights_activations_or_memory_of_another_device(golden_dir) -> None:
    """The accelerators are simulated: see the program that is run."""
    script = TESTS / "programs" / "two_devices.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(golden_dir / "models")], capture_output=True, text=True,
        check=True, cwd=TESTS.parent, env={"PYTHONPATH": f"{TESTS.parent}:{TESTS / 'helpers'}"},
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
    pieces = KVCache.of([KVCache(keys[:1], values[:1]), KVCache(keys[1:], values[1:])])
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


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_a_spread_model_gives_the_tokens_of_one_accelerator(
    family, golden_dir, monkeypatch
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    folder = golden_dir / "models" / family
    half = sum(part.nbytes for part in load_model(folder)[0].parameters()) // 2
    monkeypatch.setattr("accelerate.utils.get_max_memory", lambda: {0: 2 * half, 1: 3 * half})
    spread, _ = load_model(folder, device="auto")
    assert spread.transformer.route is not None
    answers = [
        decode(
            model, PROMPTS, FixedSchedule(3), cache=DualCache(), verifier=SelfVerify(2),
            gen_length=16, block_length=8,
        )
        for model in (spread, load_model(folder, device=0)[0])
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


@pytest.mark.parametrize("device", ["cuda:1", 1, torch.device("cuda:1")])
def test_one_device_holds_every_part(device, on_meta) -> None:
    layers = [f"layers.{i}" for i in range(3)]
    assert place(on_meta, device) == dict.fromkeys(
        ["embedding", *layers, "norm", "lm_head"], SECOND
    )


def test_accelerators_are_filled_in_turn_and_layers_stay_whole(on_meta, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(placement, "_SHARE", 1.0)
    layer = sum(parameter.nbytes for parameter in on_meta.layers[0].parameters())
    room = on_meta.embedding.weight.nbytes + 64
    # accelerate leaves room for one more layer on the first device.
    limits = {0: room + 3 * layer, 1: room + layer, "cpu": 100 * layer}
    monkeypatch.setattr("accelerate.utils.get_max_memory", limits.copy)
    placed = place(on_meta, "auto")
    assert list(placed.values()) == [FIRST, FIRST, FIRST, SECOND, SECOND, SECOND]
    limits[1] = layer
    with pytest.raises(ValueError, match=r"room for all weights, got none for .*lm_head\. Pass"):
        place(on_meta, "auto")


def test_limits_are_of_weights_in_their_dtype(monkeypatch) -> None:
    plain, _ = load_model(LLADA, dtype=torch.bfloat16)
    limit = sum(parameter.nbytes for parameter in plain.parameters()) * 3 // 2
    monkeypatch.setattr("accelerate.utils.get_max_memory", lambda: {"cpu": limit})
    model, _ = load_model(LLADA, dtype=torch.bfloat16, device="auto")
    assert model.transformer.route is None
    with pytest.raises(ValueError, match="must have room for all weights, got none for"):
        load_model(LLADA, dtype=torch.float32, device="auto")


def test_a_missing_device_is_refused_before_a_download(monkeypatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ValueError, match="got 'toaster'"):
        load_model("someone/model", device="toaster")


def test_a_spread_model_is_not_converted_or_moved() -> None:
    model, _ = load_model(LLADA)
    model.transformer.route = {"embedding": SECOND}
    for change in (torch.float64, "cpu"):
        with pytest.raises(ValueError, match=r"stays as it was loaded.* Load it again"):
            model.to(change)
