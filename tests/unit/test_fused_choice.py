"""A fused operation is trusted after it agreed with torch; a planted fault is named once."""

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families_under_test import load_without_tokenizer as load_model
from pretended import DEVICE, Accelerator
from spied import MODELS

from dllm_decode import DualCache, FreeCache, decode
from dllm_decode.models.network import fused as choice
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.fused import CheckedOperations
from dllm_decode.models.network.operations import KVSlots, Stream
from samplers import FixedSchedule

FAMILIES = ("llada", "dream", "sdar")
PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]


class Kernels:
    """Torch's operations as a stand-in for kernels; each call is counted."""

    def __init__(self) -> None:
        self.num_calls = 0

    def add_norm(self, stream: Any, scaling: Any) -> Any:
        self.num_calls += 1
        return plain.add_norm(stream, scaling)

    def rotate_and_store(self, heads: Any, rotation: Any, store: Any, **options: Any) -> Any:
        self.num_calls += 1
        return plain.rotate_and_store(heads, rotation, store, **options)

    def swiglu(self, gate_up: Any) -> Any:
        self.num_calls += 1
        return plain.swiglu(gate_up)


class OneColumnOff(Kernels):
    """Stores keys and values one slot too far."""

    def rotate_and_store(self, heads: Any, rotation: Any, store: Any, **options: Any) -> Any:
        if store is not None:
            rows, slots, index = store.target
            if isinstance(slots, slice):
                num_slots = store.keys.shape[2]
                start, stop, _ = slots.indices(num_slots)
                slots = torch.arange(start, stop, device=heads.device).expand(heads.shape[:2])
                index = torch.arange(len(store.keys), device=heads.device)[rows][:, None]
            slots = (slots + 1) % store.keys.shape[2]
            store = store._replace(target=KVSlots(rows, slots, index))
        return super().rotate_and_store(heads, rotation, store, **options)


class NoUpdate(Kernels):
    """Forgets to add the update."""

    def add_norm(self, stream: Any, scaling: Any) -> Any:
        return super().add_norm(Stream(stream.hidden), scaling)


class HalvesExchanged(Kernels):
    """Takes the gate for the other half."""

    def swiglu(self, gate_up: Any) -> Any:
        return super().swiglu(torch.cat(gate_up.chunk(2, -1)[::-1], -1))


class DoesNotCompile(Kernels):
    """Has no compiler."""

    def add_norm(self, stream: Any, scaling: Any) -> Any:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")


class NotANumber(Kernels):
    """Answers NaN."""

    def swiglu(self, gate_up: Any) -> Any:
        return super().swiglu(gate_up) * torch.nan


FAULTS = {
    OneColumnOff: "the kernel rotate_and_store differs from torch by",
    NoUpdate: "the kernel add_norm differs from torch by",
    HalvesExchanged: "the kernel swiglu differs from torch by",
    NotANumber: "the kernel swiglu differs from torch by inf",
    DoesNotCompile: r"the kernel add_norm does not run \(Failed to find C compiler.\)",
}


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    choice._checked.cache_clear()
    yield
    choice._checked.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, kernels: Any) -> None:
    monkeypatch.setattr(choice, "load_kernels", lambda: (kernels, (RuntimeError,)))


def answers(family: str, device: str, **options: Any) -> torch.Tensor:
    model = load_model(MODELS / family, device=device, dtype=torch.float32, **options)[0]
    found = [
        decode(
            model, PROMPTS, FixedSchedule(2), cache=cache, gen_length=8, block_length=4
        ).tokens.cpu()
        for cache in (DualCache(), FreeCache())
    ]
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_that_agree_are_used(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    use(monkeypatch, kernels)
    expected = answers(family, "cpu")
    assert not kernels.num_calls
    with Accelerator():
        assert torch.equal(answers(family, "cuda", graphs=False), expected)
        with torch.inference_mode():
            operations = choice.operations_for(DEVICE, torch.float32)
    assert not operations.failed
    assert {kind[0] for kind in operations._agreed} == {"add_norm", "rotate_and_store", "swiglu"}
    # Compared once for each shape class, called again every time.
    assert kernels.num_calls > 10 * len(operations._agreed)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_once_and_changes_no_token(
    fault: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, fault())
    expected = answers(family, "cpu")
    with Accelerator(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert torch.equal(answers(family, "cuda", graphs=False), expected)
    (warning,) = caught
    with pytest.warns(UserWarning, match=FAULTS[fault]):
        warnings.warn(warning.message, stacklevel=1)
    assert "on cuda:63 in torch.float32" in str(warning.message)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_where_kernels_are_required(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, fault())
    with Accelerator(), pytest.raises(RuntimeError, match=FAULTS[fault]):
        answers("llada", "cuda", graphs=False, fused=True)


def test_kernels_are_not_used_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    use(monkeypatch, kernels)
    with Accelerator():
        answers("llada", "cuda", graphs=False, fused=False)
    assert not kernels.num_calls


def test_without_memory_nothing_is_given_up() -> None:
    def full() -> Any:
        def run(gate_up: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.")

        return SimpleNamespace(swiglu=run), (RuntimeError,)

    operations = CheckedOperations("there", full)
    with pytest.raises(torch.OutOfMemoryError):
        operations.swiglu(torch.ones(1, 2, 4))
    assert not operations.failed


def test_without_triton_a_warning_says_so() -> None:
    def absent() -> Any:
        raise ModuleNotFoundError("No module named 'triton'")

    operations = CheckedOperations("there", absent)
    with pytest.warns(UserWarning, match="Triton cannot be imported"):
        made = operations.swiglu(torch.ones(1, 2, 4))
    assert torch.equal(made, plain.swiglu(torch.ones(1, 2, 4)))
