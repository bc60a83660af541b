import copy
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from spied import FAMILIES, MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.options import read_options
from benchmarks.setting import Setting
from dllm_decode import CachePolicy, DualCache, NoCache, decode, load_model
from dllm_decode.models import ForwardInputs, MaskedTransformer, new_llada, save_model
from dllm_decode.models.loading import pack, quantize
from dllm_decode.models.loading.pack import PackedLinear, check_packing, pack_matrices
from dllm_decode.models.network.transformer import Transformer
from samplers import FixedSchedule

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
CPU = torch.device("cpu")
# Of the largest number; sums in float32 are rounded once.
MOST = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
INPUTS = {
    "no row": torch.empty(0, 48),
    "no column": torch.empty(2, 0, 48),
    "one row": torch.randn(1, 48, generator=torch.Generator().manual_seed(0)),
    "a batch": torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(1)),
    "many rows": torch.randn(300, 48, generator=torch.Generator().manual_seed(2)),
    "transposed": torch.randn(2, 48, 7, generator=torch.Generator().manual_seed(3)).mT,
    "a slice": torch.randn(4, 6, 60, generator=torch.Generator().manual_seed(4))[:, ::2, 5:53],
}


def can_pack(dtype: torch.dtype) -> bool:
    try:
        check_packing(CPU, dtype)
    except ValueError:
        return False
    return True


DTYPE = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="no products"))
        for dtype in MOST
    ],
    ids=str,
)
needs_products = pytest.mark.skipif(not can_pack(torch.float32), reason="no products")


@pytest.fixture
def packed() -> MaskedTransformer:
    model: MaskedTransformer = load_model(MODELS / "dream", dtype=torch.float32, packed=True)[0]
    return model


def logits(model: MaskedTransformer) -> Tensor:
    tokens = torch.randint(500, (4, 24), generator=torch.Generator().manual_seed(0))
    columns = torch.arange(24).expand(4, 24)
    return model.predict(ForwardInputs(tokens, columns, columns)).float()


def tied_model(dtype: torch.dtype, folder: Path) -> MaskedTransformer:
    model = new_llada(
        vocab_size=90,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        mlp_hidden_size=48,
        mask_id=89,
        eos_ids=(88,),
        tied_head=True,
        dtype=dtype,
    )
    save_model(model, folder)
    return model


def num_bytes(model: MaskedTransformer) -> int:
    return sum(part.nbytes for part in model.parameters())


@DTYPE
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("hidden", INPUTS.values(), ids=INPUTS)
def test_products_are_those_of_the_plain_matrix(hidden, with_bias, dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(33, 48, generator=generator).to(dtype)
    bias = 10 * torch.randn(33, generator=generator).to(dtype) if with_bias else None
    hidden = hidden.to(dtype)
    got, plain = PackedLinear(weight, bias)(hidden), F.linear(hidden, weight, bias)
    assert got.shape == plain.shape
    assert got.dtype == dtype
    assert not hidden.numel() or plain.abs().max() > 1
    # Sums of 48 products; those that cancel keep the error of the largest.
    largest = plain.float().abs().max().item() if plain.numel() else 0.0
    torch.testing.assert_close(got, plain, rtol=0, atol=MOST[dtype] * largest)


@DTYPE
@pytest.mark.parametrize("cache", [NoCache(), DualCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_plain_model(family: str, cache: CachePolicy, dtype) -> None:
    tokens = []
    for is_packed in (False, True):
        model, _ = load_model(MODELS / family, dtype=dtype, packed=is_packed)
        out = decode(
            model,
            PROMPTS,
            FixedSchedule(8),
            cache=cache,
            gen_length=32,
            block_length=8,
            stop_at_eos=False,
        )
        tokens.append(out.tokens)
    assert torch.equal(*tokens)
    assert len(tokens[0].unique()) > 10


@DTYPE
@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_is_packed_and_nothing_is_held_twice(family: str, dtype) -> None:
    plain, _ = load_model(MODELS / family, dtype=dtype)
    model, _ = load_model(MODELS / family, dtype=dtype, packed=True)
    assert not any(isinstance(part, nn.Linear) for part in model.modules())
    found = [part for part in model.modules() if isinstance(part, PackedLinear)]
    assert len(found) == 4 * plain.transformer.config.num_layers + 1
    assert all(part.weight.is_mkldnn for part in found)
    assert num_bytes(model) == num_bytes(plain)
    assert (model.dtype, model.device) == (dtype, CPU)
    biases = [part.bias is not None for part in found]
    assert sum(biases) == plain.transformer.config.qkv_bias * plain.transformer.config.num_layers


@needs_products
def test_a_plain_matrix_is_gone_before_the_next_is_packed(monkeypatch) -> None:
    transformer = load_model(MODELS / "dream", dtype=torch.float32)[0].transformer
    modules = [part for part in transformer.modules() if isinstance(part, nn.Linear)]
    alive = [weakref.ref(part.weight) for part in modules]
    num_matrices = len(modules)
    del modules
    held = []

    class Counted(PackedLinear):
        def __init__(self, *arguments: Tensor) -> None:
            held.append(sum(one() is not None for one in alive))
            super().__init__(*arguments)

    monkeypatch.setattr(pack, "PackedLinear", Counted)
    pack_matrices(transformer)
    assert held == list(range(num_matrices, 0, -1))
    assert all(one() is None for one in alive)


@DTYPE
def test_a_tied_head_is_a_packed_copy_of_the_embedding(dtype, tmp_path) -> None:
    plain = tied_model(dtype, tmp_path)
    model, _ = load_model(tmp_path, packed=True)
    head, embedding = model.transformer.lm_head, model.transformer.embedding
    assert isinstance(head, PackedLinear)
    assert not embedding.weight.is_mkldnn
    assert num_bytes(model) == num_bytes(plain) + embedding.weight.nbytes
    expected, calls = logits_of_ids(plain), []
    head.register_forward_hook(lambda *arguments: calls.append(arguments))
    torch.testing.assert_close(
        logits_of_ids(model), expected, rtol=0, atol=4 * MOST[dtype] * expected.abs().max().item()
    )
    assert len(calls) == 1


def logits_of_ids(model: MaskedTransformer) -> Tensor:
    columns = torch.arange(20).expand(2, 20)
    return model.predict(ForwardInputs(columns * 3 % 90, columns, columns)).float()


# What a packed model cannot do


STAYS = "A packed model stays as it was loaded, got a call that "


@needs_products
@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: model.double(),
        lambda model: model.to("meta"),
        lambda model: model.transformer.to(torch.bfloat16),
        lambda model: model.transformer.layers[0].mlp.down.to(torch.bfloat16),
    ],
    ids=["dtype", "double", "device", "transformer", "matrix"],
)
def test_it_is_not_moved_or_converted(packed, move) -> None:
    before = logits(packed)
    with pytest.raises(ValueError, match=STAYS + "moves or converts it"):
        move(packed)
    assert {part.dtype for part in packed.parameters()} == {torch.float32}
    assert torch.equal(logits(packed), before)


@needs_products
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (copy.deepcopy, STAYS + "copies or pickles it"),
        (pickle.dumps, STAYS + "copies or pickles it"),
        (lambda model: model.state_dict(), STAYS + "reads its state dict"),
        (lambda model: model.transformer.parts(), "got a packed model, which has none"),
    ],
    ids=["deepcopy", "pickle", "state_dict", "parts"],
)
def test_its_weights_are_not_read(packed, call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call(packed)


@needs_products
def test_its_weights_are_not_written(packed) -> None:
    plain, _ = load_model(MODELS / "dream", dtype=torch.float32)
    with pytest.raises(ValueError, match=STAYS + "writes its state dict"):
        packed.load_state_dict(plain.state_dict())


@needs_products
def test_it_is_not_saved(tmp_path) -> None:
    model, _ = load_model(MODELS / "llada", dtype=torch.float32, packed=True)
    with pytest.raises(ValueError, match="got 'llada', some of which are quantised, packed or"):
        save_model(model, tmp_path / "saved")


@needs_products
def test_it_is_not_trained(packed) -> None:
    tokens = torch.arange(6)[None]
    hidden = packed.transformer(tokens)
    assert packed.transformer.head(hidden).shape == (1, 6, packed.vocab_size)
    with pytest.raises(ValueError, match="of a packed model have no gradients"):
        packed.transformer.head(hidden.requires_grad_())
    packed.requires_grad_(True)
    with pytest.raises(ValueError, match="of a packed model have no gradients"):
        packed.transformer(tokens)
    with pytest.raises(ValueError, match="of a packed model have no gradients"):
        packed.transformer.head(hidden.detach())
    assert logits(packed).isfinite().all()


# What cannot be packed


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_other_dtypes_are_refused_before_anything_is_read(dtype, monkeypatch) -> None:
    monkeypatch.setattr(Transformer, "to_empty", lambda *args, **kwargs: pytest.fail("built"))
    with pytest.raises(ValueError, match=f"are torch.bfloat16 or torch.float32, got {dtype}"):
        load_model(MODELS / "llada", dtype=dtype, packed=True)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="A packed model is on the CPU, got 'cuda:0'"):
        check_packing(torch.device("cuda:0"), torch.float32)


def test_several_devices_are_refused(tmp_path) -> None:
    spread = {"device": {"": "cpu", "norm": "disk"}, "offload_folder": tmp_path}
    with pytest.raises(ValueError, match="packed model is on one device, got a map to cpu, files"):
        load_model(MODELS / "llada", dtype=torch.float32, packed=True, **spread)


@needs_products
def test_a_map_to_the_cpu_alone_is_a_way_to_say_cpu() -> None:
    model, _ = load_model(MODELS / "llada", dtype=torch.float32, packed=True, device={"": "cpu"})
    assert model.transformer.packed


def test_quantised_weights_are_not_packed_too(monkeypatch) -> None:
    monkeypatch.setattr(quantize, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="got quantize='int8' and packed=True"):
        load_model(MODELS / "llada", dtype=torch.float32, quantize="int8", packed=True)


class Lacking:
    """A torch without one operator, or whose operator refuses."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def __getattr__(self, name: str) -> object:
        if name == self.missing:
            raise AttributeError(f"'_OpNamespace' 'mkldnn' object has no attribute '{name}'")
        return lambda *arguments: refuse() if self.missing == "support" else arguments[0]


def refuse() -> None:
    raise RuntimeError("bf16 path needs the cpu support avx512bw\nand more lines")


@pytest.mark.parametrize("missing", ["_reorder_linear_weight", "_linear_pointwise", "support"])
def test_without_the_operators_loading_says_so(missing, monkeypatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", Lacking(missing))
    reason = "avx512bw\\)" if missing == "support" else f"no attribute '{missing}'"
    with pytest.raises(ValueError, match=f"need oneDNN's products of .*{reason}.* Leave packed"):
        load_model(MODELS / "llada", dtype=torch.bfloat16, packed=True)


# The benchmark


@needs_products
def test_a_benchmark_packs_its_model_on_demand() -> None:
    words = ["--device", "cpu", "--geometry", "tiny", "--dtype", "float32"]
    assert not read_options("", words).setting.packed
    setting = read_options("", [*words, "--packed"]).setting
    assert setting == Setting("tiny", dtype="float32", packed=True)
    assert setting.model().transformer.packed
