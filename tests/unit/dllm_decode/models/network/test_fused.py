"""A fused operation is trusted after it agreed with torch; a planted fault is named once."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended import DEVICE, PROMPTS, Accelerator, Recorder
from tiny_models import MODELS
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import DualCache, FreeCache, decode
from dllm_decode.models.graphs.runner import GraphRunner
from dllm_decode.models.network import fused as choice
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.fused import CheckedOperations
from dllm_decode.models.network.operations import Heads, Stream
from samplers import FixedSchedule

FAMILIES = ("llada", "dream", "sdar")
NAMES = ("add_norm", "rotate_and_store", "attend", "swiglu")


class Kernels:
    """Torch's operations as a stand-in for kernels, but for some faults; each call is counted.

    Attributes:
        num_calls: By operation.
        num_keys: Keys of each call of attention.
    """

    def __init__(self, **faults: Any) -> None:
        self.num_calls, self.num_keys = Counter[str](), list[int]()
        for name in NAMES:
            operation = faults.get(name, getattr(plain, name))
            setattr(self, name, partial(self._counted, name, operation))

    def _counted(self, name: str, operation: Any, *arguments: Any) -> Any:
        self.num_calls[name] += 1
        if name == "attend":
            self.num_keys.append(arguments[0].key.shape[2])
        return operation(*arguments)


def one_slot_off(projected: Any, rotation: Any, store: Any) -> Any:
    made = plain.rotate_and_store(projected, rotation, store)
    for part in () if store is None else (store.keys, store.values):
        part.copy_(part.roll(1, 2))
    return made


def one_slot_off_later(projected: Any, rotation: Any, store: Any) -> Any:
    """Attention reads the right keys and values; only later forwards would read wrong ones."""
    made = Heads(*(part.clone() for part in plain.rotate_and_store(projected, rotation, store)))
    one_slot_off(projected, rotation, store)
    return made


def has_no_compiler(*arguments: Any) -> Any:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one.")


# The operation that is at fault, and what it does.
FAULTS: dict[str, tuple[str, Any]] = {
    "keys and values are stored one slot too far": ("rotate_and_store", one_slot_off),
    "keys and values that were read well are stored elsewhere": (
        "rotate_and_store", one_slot_off_later
    ),
    "the update is not added": (
        "add_norm", lambda stream, scaling: plain.add_norm(Stream(stream.hidden), scaling)
    ),
    "gate and up are exchanged": (
        "swiglu", lambda gate_up: plain.swiglu(torch.cat(gate_up.chunk(2, -1)[::-1], -1))
    ),
    "NaN": ("swiglu", lambda gate_up: plain.swiglu(gate_up) * torch.nan),
    "the mask is forgotten": ("attend", lambda heads, bias: plain.attend(heads, None)),
    "there is no compiler": ("add_norm", has_no_compiler),
}  # fmt: skip
REASONS = {
    "NaN": "it differs from torch by inf",
    "there is no compiler": r"it does not run \(Failed to find C compiler.\)",
}


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    choice._checked.cache_clear()
    yield
    choice._checked.cache_clear()


class Watch:
    """Says what was decided to be faster, and counts how often it was asked."""

    def __init__(self, kernels: Kernels, kernels_ms: float) -> None:
        self.kernels = kernels
        self.kernels_ms = kernels_ms
        self.num_asked = 0

    def __call__(self, run: Any, device: torch.device) -> float:
        assert device == DEVICE
        self.num_asked += 1
        before = self.kernels.num_calls.total()
        run()
        return 1.0 if self.kernels.num_calls.total() == before else self.kernels_ms


def use(monkeypatch: pytest.MonkeyPatch, kernels: Any, *, kernels_ms: float = 0.5) -> Watch:
    """Has kernels of these milliseconds, where torch takes one."""
    watch = Watch(kernels, kernels_ms)
    monkeypatch.setattr(choice, "load_kernels", lambda: (kernels, (RuntimeError,)))
    monkeypatch.setattr(choice, "least_ms", watch)
    return watch


def answers(family: str, device: str, **options: Any) -> torch.Tensor:
    model = load_model(MODELS / family, device=device, dtype=torch.float32, **options)[0]
    found = [
        decode(
            model, PROMPTS, FixedSchedule(2), cache=cache, gen_length=8, block_length=4
        ).tokens.cpu()
        for cache in (DualCache(), FreeCache())
    ]
    return torch.stack(found)


@pytest.mark.exhaustive(7)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_once_and_changes_no_token(
    fault: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, operation = FAULTS[fault]
    reason = REASONS.get(fault, "it differs from torch by")
    use(monkeypatch, Kernels(**{name: operation}))
    expected = answers(family, "cpu")
    with Accelerator():
        told = f"The fused {name} must not be used on cuda:63 in torch.float32: {reason}"
        with pytest.warns(UserWarning, match=told) as caught:
            first = answers(family, "cuda", graphs=False)
        assert len(caught) == 1
        # A warning would be an error here.
        second = answers(family, "cuda", graphs=False)
        with torch.inference_mode():
            operations = choice.operations_for(DEVICE, torch.float32)
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    # The others are used all the same.
    assert operations.failed == {name}
    assert {kind[0] for kind in operations._chosen} >= {*NAMES} - {name}


def test_a_fault_is_an_error_where_kernels_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Kernels(add_norm=has_no_compiler))
    with (
        Accelerator(),
        pytest.raises(RuntimeError, match=r"The fused add_norm .*\. Pass fused='auto'"),
    ):
        answers("llada", "cuda", graphs=False, fused=True)


def out_of_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_without_memory_nothing_is_given_up() -> None:
    kernels = Kernels(swiglu=out_of_memory)
    operations = CheckedOperations("there", lambda: (kernels, (RuntimeError,)))
    with pytest.raises(torch.OutOfMemoryError):
        operations.swiglu(torch.ones(1, 2, 4))
    assert not operations.failed


@pytest.mark.parametrize(("family", "kernels_ms"), [("llada", 0.5), ("dream", 1.0), ("sdar", 2.0)])
def test_operations_that_agree_are_used_where_they_are_faster(
    family: str, kernels_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels()
    watch = use(monkeypatch, kernels, kernels_ms=kernels_ms)
    expected = answers(family, "cpu")
    assert not kernels.num_calls
    with Accelerator():
        assert torch.equal(answers(family, "cuda", graphs=False), expected)
        with torch.inference_mode():
            operations = choice.operations_for(DEVICE, torch.float32)
    assert not operations.failed
    assert {kind[0] for kind in operations._chosen} == {*NAMES}
    num_kinds = len([kind for kind in operations._chosen if kind[0] == "attend"])
    assert num_kinds >= 2
    # Compared and timed once for each shape class, torch's as well.
    assert watch.num_asked == 2 * num_kinds
    num_uses = len(kernels.num_keys) - 2 * num_kinds
    assert num_uses > 2 * num_kinds if kernels_ms < 1.0 else num_uses == 0


def test_each_shape_class_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()

    def time(run: Any, device: torch.device) -> float:
        before = len(kernels.num_keys)
        run()
        is_torch = len(kernels.num_keys) == before
        return 1.0 if is_torch else 100.0 / kernels.num_keys[-1]

    monkeypatch.setattr(choice, "least_ms", time)
    operations = CheckedOperations("there", lambda: (kernels, ()))

    def is_used(num_keys: int, num_columns: int = 4, **masks: Any) -> bool:
        query, key = torch.randn(1, 2, num_columns, 8), torch.randn(2, 1, 1, num_keys, 8)
        bias = torch.zeros(1, 1, 1, num_keys) if masks else None
        heads = Heads(query, *key)
        for _ in range(2):
            before = len(kernels.num_keys)
            found = operations.attend(heads, bias)
        torch.testing.assert_close(found, plain.attend(heads, bias))
        return len(kernels.num_keys) > before

    assert not is_used(20)
    assert is_used(300)
    assert is_used(290)
    assert not is_used(33)
    assert is_used(500, mask=True)
    assert len(operations._chosen) == 4
    # A tile of queries is full of heads that share a key head.
    assert is_used(300, num_columns=3)
    assert len(operations._chosen) == 4


def test_kernels_that_are_required_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    watch = use(monkeypatch, kernels, kernels_ms=9.0)
    expected = answers("llada", "cpu")
    assert not watch.num_asked
    with Accelerator():
        assert torch.equal(answers("llada", "cuda", graphs=False, fused=True), expected)
        assert not watch.num_asked
        num_calls = len(kernels.num_keys)
        assert num_calls > 10
        answers("llada", "cuda", graphs=False, fused=False)
    assert len(kernels.num_keys) == num_calls


def test_nothing_is_compared_or_timed_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    watch = use(monkeypatch, kernels)
    options: Any = {"cache": DualCache(), "gen_length": 8, "block_length": 4, "stop_at_eos": False}
    here = load_model(MODELS / "llada", dtype=torch.float32)[0]
    expected = decode(here, PROMPTS, FixedSchedule(2), **options)
    with Accelerator() as accelerator:
        monkeypatch.setattr(choice, "_is_capturing", lambda: accelerator.captures)
        there = load_model(MODELS / "llada", device="cuda", dtype=torch.float32)[0]
        recorder = Recorder(accelerator.capturing)
        there._runner = GraphRunner(capture=recorder)
        for _ in range(3):
            # A wait in a capture would end all graphs, with a warning.
            out = decode(there, PROMPTS, FixedSchedule(2), **options)
            assert torch.equal(out.tokens.cpu(), expected.tokens)
        # Forwards of several groups of rows run without a graph.
        assert recorder.num_replayed >= 5
        num_asked = watch.num_asked
        assert num_asked > 0
        choice._checked.cache_clear()
        with accelerator.capturing(), torch.inference_mode():
            operations = choice.operations_for(accelerator.device, torch.float32)
            part = torch.ones(1, 1, 4, 8, device="cuda")
            operations.attend(Heads(part, part, part), None)
        assert not operations._chosen
    assert watch.num_asked == num_asked


def test_without_memory_to_measure_torch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    monkeypatch.setattr(choice, "least_ms", out_of_memory)
    operations = CheckedOperations("there", lambda: (kernels, ()))
    heads = Heads(*torch.randn(3, 1, 1, 4, 8))
    for _ in range(3):
        operations.attend(heads, None)
    assert len(kernels.num_keys) == 1
    assert not operations.failed


def test_many_queries_are_left_to_torch_untried() -> None:
    operations = CheckedOperations("there", lambda: (SimpleNamespace(), ()))
    heads = Heads(*torch.randn(3, 2, 4, choice._MOST_QUERIES // 8 + 1, 8))
    assert torch.equal(operations.attend(heads, None), plain.attend(heads, None))
    assert not operations._chosen
