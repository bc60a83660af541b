import importlib.util

import pytest
import torch
from tiny_models import FAMILIES, FULLY_CONFIGURED, MODELS, load_tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor

from dllm_decode import DualCache, ForwardInputs, generate
from dllm_decode import load_model as load_with_tokenizer
from dllm_decode.models import MaskedTransformer, replace_weights, save_model
from dllm_decode.models.loading import load, quantize
from dllm_decode.models.network.eight_bits import EightBitLinear, can_multiply_int8
from dllm_decode.models.network.packed import Linear
from dllm_decode.models.network.transformer import Transformer

needs_vnni = pytest.mark.skipif(not can_multiply_int8(), reason="needs AVX-512 VNNI")
# In an environment that has the extra `int8`, torchao's own sources raise warnings: give pytest
# -W "ignore:invalid escape sequence".
needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="needs the extra int8"
)
KIND = pytest.mark.parametrize("kind", [pytest.param("int8", marks=needs_vnni), "fp8"])
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)

LLADA = MODELS / "llada"
FOLDER = pytest.mark.parametrize("folder", [MODELS / key for key in FULLY_CONFIGURED])


def logits(model: MaskedTransformer) -> Tensor:
    tokens = torch.randint(500, (4, 24), generator=torch.Generator().manual_seed(0))
    tokens %= model.vocab_size
    columns = torch.arange(24).expand(4, 24)
    inputs = (part.to(model.device) for part in (tokens, columns, columns))
    return model.predict(ForwardInputs(*inputs)).float()


@FOLDER
@needs_vnni
def test_groups_in_one_call_are_groups_one_by_one(folder) -> None:
    model, _ = load_model(folder, quantize="int8")
    columns = [torch.arange(width).expand(2, -1) for width in (7, 3)]
    groups = [ForwardInputs(part + 5, part, part[:, 1:]) for part in columns]
    for got, group in zip(model.predict_groups(groups), groups, strict=True):
        torch.testing.assert_close(got, model.predict(group), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *[(family, "fp8") for family in (*FAMILIES, "llada_moe")],
        *[
            pytest.param(family, "int8", marks=needs_vnni)
            for family in (*FAMILIES, "llada_moe", "open_dllm")
        ],
    ],
)
@DTYPE
def test_logits_are_close(dtype, kind, family) -> None:
    """Networks have a tied head, biases, or experts; experts stay unquantised."""
    plain = logits(load_tiny(family, dtype=dtype))
    eight = load_tiny(family, dtype=dtype, quantize=kind)
    layers = [part for part in eight.modules() if isinstance(part, EightBitLinear)]
    assert (eight.transformer.lm_head in layers) == (kind == "int8")
    assert len(layers) >= 2 * eight.transformer.config.num_layers + (kind == "int8")
    most = {"int8": 0.1, "fp8": 0.2}[kind]
    assert 0.001 < (logits(eight) - plain).square().mean().sqrt() / plain.std() < most


@needs_vnni
def test_a_row_decodes_to_the_same_tokens_alone_and_in_a_batch() -> None:
    model, tokenizer = load_with_tokenizer("mini", quantize="int8")
    questions = ["emma has 3 apples . how many ?", "a tank holds 98 liters .", "ben buys 2 nuts ."]
    options = {"gen_length": 32, "cache": DualCache()}
    together = generate(model, tokenizer, questions, **options)
    for question, answer in zip(questions, together, strict=True):
        assert [answer] == list(generate(model, tokenizer, question, **options))


@KIND
def test_a_quantised_model_stays_where_and_as_it_is(kind) -> None:
    model, _ = load_model(LLADA, quantize=kind)
    with pytest.raises(ValueError, match="or quantised, stays as it was loaded"):
        model.float()
    with pytest.raises(ValueError, match=rf"is not quantised, got .* with quantize='{kind}'"):
        replace_weights(model, LLADA)


def test_a_model_in_float8_is_recorded_after_its_weights_are_replaced() -> None:
    eager, _ = load_with_tokenizer("mini", quantize="fp8")
    model, tokenizer = load_with_tokenizer("mini", quantize="fp8", graphs=True)
    assert not any(isinstance(part, Linear) for part in model.transformer.layers.modules())
    options = {"gen_length": 16, "block_length": 8, "cache": DualCache()}
    question = "emma has 3 apples . how many ?"
    assert [*generate(model, tokenizer, question, **options)] == [
        *generate(eager, tokenizer, question, **options)
    ]
    assert model._graphs.calls.total() > model._graphs.calls[None] > 0


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
def test_stacked_experts_are_refused_where_torchao_stores(kind, monkeypatch) -> None:
    monkeypatch.setattr(quantize, "find_spec", lambda name: object())
    monkeypatch.setattr(Transformer, "to_empty", lambda *args, **kwargs: pytest.fail("built"))
    monkeypatch.setattr(load, "only_device", lambda placed: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ValueError, match=f"mixture of experts on cuda, got '{kind}'"):
        load_tiny("sdar_moe", quantize=kind)


@KIND
def test_a_quantised_model_is_not_saved(kind, tmp_path) -> None:
    model, _ = load_model(LLADA, quantize=kind)
    with pytest.raises(ValueError, match=r"got 'llada', some of which are quantised"):
        save_model(model, tmp_path / "saved")


def test_what_cannot_be_quantised_is_refused_before_anything_is_read(monkeypatch) -> None:
    monkeypatch.setattr(Transformer, "to_empty", lambda *args, **kwargs: pytest.fail("built"))
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'on cuda needs torchao.* pip install "\.\[int8\]"'):
        quantize.check_quantization("int8", torch.device("cuda"))
    with pytest.raises(ValueError, match="must be one of int8, int4, fp8 or None, got 'int2'"):
        load_model(LLADA, quantize="int2")
    placed = {"norm": torch.device("cuda:1"), "layers.0": torch.device("cuda:0")}
    with pytest.raises(ValueError, match="must be on one device, got cuda:0, cuda:1"):
        load.only_device(placed)


def test_float8_needs_tensor_cores_for_it(monkeypatch) -> None:
    capabilities = {"cuda:0": (8, 0), "cuda:1": (8, 9)}
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capabilities[str(device)]
    )
    quantize.check_quantization("fp8", torch.device("cuda:1"))
    for device, found in (("cuda:0", "cuda:0 with 8.0"), ("mps", "mps with 0.0")):
        with pytest.raises(ValueError, match=f"capability 8.9 or higher, .* got {found}"):
            quantize.check_quantization("fp8", torch.device(device))


def test_bits_that_make_a_cpu_slower_are_refused_by_name(monkeypatch) -> None:
    with pytest.raises(ValueError, match="'int8', 'fp8' or None on a CPU, got 'int4', which is"):
        load_model(LLADA, quantize="int4", device="cpu")
    monkeypatch.setattr(quantize, "can_multiply_int8", lambda: False)
    with pytest.raises(ValueError, match=r"AVX-512 VNNI on a CPU, .* got a CPU that has none"):
        load_model(LLADA, quantize="int8", device="cpu")
