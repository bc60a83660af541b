import importlib.util

import pytest
import torch
from tiny_models import FULLY_CONFIGURED, MODELS, load_tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor
from torch.nn import functional as F

from dllm_decode import ForwardInputs
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.models.loading import quantize
from dllm_decode.models.network.transformer import Transformer

# In an environment that has the extra `int8`, torchao's own sources raise warnings: give pytest
# -W "ignore:invalid escape sequence".
needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="needs the extra int8"
)
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# Rows end on a step; beyond half a step, bfloat16 rounds what comes out.
MOST_STEPS = {torch.float32: 0.51, torch.bfloat16: 1.01}

LLADA = MODELS / "llada"
FOLDER = pytest.mark.parametrize("folder", [MODELS / key for key in FULLY_CONFIGURED])


def logits(model: MaskedTransformer) -> Tensor:
    tokens = torch.randint(500, (4, 24), generator=torch.Generator().manual_seed(0))
    tokens %= model.vocab_size
    columns = torch.arange(24).expand(4, 24)
    inputs = (part.to(model.device) for part in (tokens, columns, columns))
    return model.predict(ForwardInputs(*inputs)).float()


def num_bytes(parameters: list[Tensor]) -> int:
    """What is really held: torchao's tensors say what they stand for."""
    held = [part for one in parameters for part in (getattr(one, "qdata", one), one)]
    return sum(part.nbytes for part in held[::2])


@FOLDER
@needs_torchao
@DTYPE
def test_a_matrix_is_within_half_a_step_of_what_it_was(dtype, folder) -> None:
    plain, _ = load_model(folder, dtype=dtype)
    eight, _ = load_model(folder, dtype=dtype, quantize="int8")
    matrices = 0
    pairs = zip(plain.named_parameters(), eight.named_parameters(), strict=True)
    for (name, old), (_, new) in pairs:
        if ".layers." not in name or old.ndim == 1:
            assert torch.equal(new, old)
            continue
        matrices += 1
        assert num_bytes([new]) == old.numel()
        product = F.linear(torch.eye(old.shape[1], dtype=dtype), new).T.float()
        step = old.float().abs().amax(1, keepdim=True) / 127
        error = ((product - old.float()).abs() / step).max()
        assert 0.1 < error < MOST_STEPS[dtype]
    assert matrices == 4 * plain.transformer.config.num_layers


@FOLDER
@needs_torchao
def test_groups_in_one_call_are_groups_one_by_one(folder) -> None:
    model, _ = load_model(folder, quantize="int8")
    columns = [torch.arange(width).expand(2, -1) for width in (7, 3)]
    groups = [ForwardInputs(part + 5, part, part[:, 1:]) for part in columns]
    for got, group in zip(model.predict_groups(groups), groups, strict=True):
        torch.testing.assert_close(got, model.predict(group), atol=1e-4, rtol=1e-4)


@FOLDER
@needs_torchao
@DTYPE
def test_logits_are_close(dtype, folder) -> None:
    plain = logits(load_model(folder, dtype=dtype)[0])
    error = logits(load_model(folder, dtype=dtype, quantize="int8")[0]) - plain
    assert 0.01 < error.square().mean().sqrt() / plain.std() < 0.05


@needs_torchao
@DTYPE
def test_logits_of_fp8_are_near_in_half_the_bytes(dtype) -> None:
    """Three bits behind the point: each weight is within a sixteenth of itself."""
    plain, _ = load_model("mini", dtype=dtype)
    eight, _ = load_model("mini", dtype=dtype, quantize="fp8")
    for old, new in zip(plain.transformer.layers, eight.transformer.layers, strict=True):
        old_rows, new_rows = old.attention.qkv.weight, new.attention.qkv.weight
        assert new_rows.qdata.dtype == torch.float8_e4m3fn
        product = F.linear(torch.eye(old_rows.shape[1], dtype=dtype), new_rows).T.float()
        error = (product - old_rows.float()).abs()
        # Least steps are those of the smallest numbers that are written with a full exponent.
        least = old_rows.float().abs().amax(1, keepdim=True) / 448 * 2**-9
        assert (error <= 0.07 * old_rows.float().abs() + least).all()
        assert error.max() > 0
    spread = logits(plain)
    assert 0.01 < (logits(eight) - spread).square().mean().sqrt() / spread.std() < 0.2


@needs_torchao
@pytest.mark.skipif(
    importlib.util.find_spec("mslk") is not None, reason="that library has int4 on a CPU"
)
def test_int4_on_a_cpu_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="torchao cannot store this model as int4 on cpu"):
        load_model("mini", dtype=torch.bfloat16, quantize="int4")


@needs_torchao
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_logits_of_int4_are_near() -> None:
    plain, _ = load_model("mini", device="cpu", dtype=torch.bfloat16)
    four, _ = load_model("mini", dtype=torch.bfloat16, quantize="int4", device="cuda")
    spread = logits(plain)
    error = logits(four).cpu() - spread
    assert 0.01 < error.square().mean().sqrt() / spread.std() < 0.6


@pytest.mark.parametrize("kind", quantize.KINDS)
def test_a_mixture_of_experts_is_refused_by_name(kind, monkeypatch) -> None:
    monkeypatch.setattr(quantize, "find_spec", lambda name: object())
    monkeypatch.setattr(Transformer, "to_empty", lambda *args, **kwargs: pytest.fail("built"))
    with pytest.raises(ValueError, match=f"left out for a mixture of experts, got '{kind}'"):
        load_tiny("sdar_moe", quantize=kind)


@needs_torchao
def test_a_quantised_model_is_not_saved(tmp_path) -> None:
    model, _ = load_model(LLADA, quantize="int8")
    with pytest.raises(ValueError, match=r"got 'llada', some of which are quantised"):
        save_model(model, tmp_path / "saved")


def test_what_cannot_be_quantised_is_refused_before_anything_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Transformer, "to_empty", lambda *args, **kwargs: pytest.fail("built"))
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'needs torchao.* pip install "\.\[int8\]"'):
        load_model(LLADA, quantize="int8")
    with pytest.raises(ValueError, match="must be one of int8, int4, fp8 or None, got 'int2'"):
        load_model(LLADA, quantize="int2")
    monkeypatch.setattr(quantize, "find_spec", lambda name: object())
    for device, places in (({"": "cpu", "norm": "disk"}, "cpu, files"), ({"": "disk"}, "files")):
        with pytest.raises(ValueError, match=f"must be on one device, got a map to {places}"):
            load_model(LLADA, quantize="int8", device=device, offload_folder=tmp_path)
