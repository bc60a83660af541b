"""Chooses the operations of a layer, and trusts a fused one only after it agreed with torch."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.operations import (
    Heads,
    LayerKV,
    Normed,
    Operations,
    Projected,
    Rotation,
    Scaling,
    Stream,
)
from dllm_decode.models.network.rounding import disagreement

Made = TypeVar("Made", Tensor, Normed, Heads)

ShapeClass: TypeAlias = tuple[str, *tuple[Hashable, ...]]
"""The operation's name, then all that its kernel is compiled for."""

Choice: TypeAlias = bool | Literal["auto"]
"""True: use it or raise. False: do without. "auto": use it where it works."""

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference that is put down to rounding, as a share of the largest number compared."""

_NAMES = ("add_norm", "rotate_and_store", "attend", "swiglu")
# Rows x heads x columns: attention from more queries fills a GPU without splitting keys.
_MOST_QUERIES = 8192


def operations_for(device: torch.device, dtype: torch.dtype, fused: Choice = "auto") -> Operations:
    """Returns the operations to use there, as torch is set now: fused ones have no gradients."""
    if not fused or device.type != "cuda" or dtype not in TOLERANCES:
        return plain
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return plain
    return _checked(device, dtype, fused is True)


@cache
def _checked(device: torch.device, dtype: torch.dtype, required: bool) -> "CheckedOperations":
    return CheckedOperations(f"{device} in {dtype}", load_kernels, required)


def load_kernels() -> tuple[Operations, tuple[type[Exception], ...]]:
    """Imports the Triton kernels, and names what they may raise when they do not compile."""
    # Only torch for CUDA on Linux brings Triton along.
    from dllm_decode.models.network import operations_triton

    return operations_triton, operations_triton.COMPILE_ERRORS


def least_ms(run: Callable[[], object], device: torch.device) -> float:
    """Returns the least milliseconds of some runs, each on cold caches, as in a forward.

    While these are cleared the run is launched, so launching does not count; a graph has none.
    """
    from triton.testing import do_bench

    with torch.cuda.device(device):
        return float(do_bench(run, warmup=1, rep=5, return_mode="min"))


@dataclass
class CheckedOperations:
    """Fused `Operations` that are compared with torch the first time that they meet a shape class.

    A shape class is all that a kernel is compiled for: sizes of heads and columns, and which parts
    are there. If a kernel does not compile, or differs by more than rounding, one warning says so,
    and torch's operation takes its place from then on. Without Triton torch has all of them.

    Attention must be faster as well, since torch has fused kernels of its own: both are timed once
    for each shape class, and the faster one is used.

    Attributes:
        place: Device and dtype, for messages.
        load: Returns the fused operations and the errors of their compiler.
        required: Raise instead of warning, and use what agrees even where torch is faster.
        failed: Names of the operations that are left to torch for good.
    """

    place: str
    load: Callable[[], tuple[Operations, tuple[type[Exception], ...]]]
    required: bool = False
    failed: set[str] = field(default_factory=set, init=False)
    _chosen: dict[ShapeClass, Operations] = field(default_factory=dict, init=False)

    def add_norm(self, stream: Stream, scaling: Scaling) -> Normed:
        kind = ("add_norm", stream.update is None, scaling.in_float32, stream.hidden.shape[-1])
        return self._checked(kind, lambda version: version.add_norm(stream, scaling))

    def rotate_and_store(
        self, projected: Projected, rotation: Rotation, store: LayerKV | None
    ) -> Heads:
        heads, num_kv_heads, scalings = projected
        sizes = (*heads.shape[2:], num_kv_heads, scalings is None)
        # Rows and slots are slices or tensors.
        places = () if store is None else tuple(map(type, store.target[:2]))
        kind = ("rotate_and_store", *sizes, *places)
        chosen = self._trusted(kind)
        if store is None or chosen is not None:
            return self._checked(
                kind, lambda version: version.rotate_and_store(projected, rotation, store)
            )
        # A kernel that stores in the wrong place must not do so in the real cache.
        copied = store._replace(keys=store.keys.clone(), values=store.values.clone())
        expected = plain.rotate_and_store(projected, rotation, store)

        def run(fused: Operations) -> tuple[Tensor, ...]:
            made = fused.rotate_and_store(projected, rotation, copied)
            return (*made, copied.keys, copied.values)

        self._compare(kind, run, (*expected, store.keys, store.values))
        return expected

    def attend(self, heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None) -> Float[Tensor, "B Q C"]:
        if heads.query[..., 0].numel() > _MOST_QUERIES:
            return plain.attend(heads, bias)
        kind = _attention_kind(heads, bias)
        is_known = self._trusted(kind) is not None
        mixed = self._checked(kind, lambda version: version.attend(heads, bias))
        if not is_known:
            self._race(kind, lambda version: version.attend(heads, bias), heads.query.device)
        return mixed

    def swiglu(self, gate_up: Float[Tensor, "B Q C"]) -> Float[Tensor, "B Q M"]:
        kind = ("swiglu", gate_up.shape[-1])
        return self._checked(kind, lambda version: version.swiglu(gate_up))

    def _checked(self, kind: ShapeClass, run: Callable[[Operations], Made]) -> Made:
        """Runs the chosen version, or the first time torch's, and compares."""
        chosen = self._trusted(kind)
        if chosen is not None:
            return run(chosen)
        expected = run(plain)
        self._compare(kind, lambda fused: _listed(run(fused)), _listed(expected))
        return expected

    def _trusted(self, kind: ShapeClass) -> Operations | None:
        return plain if kind[0] in self.failed else self._chosen.get(kind)

    def _compare(
        self,
        kind: ShapeClass,
        run: Callable[[Operations], tuple[Tensor, ...]],
        expected: tuple[Tensor, ...],
    ) -> None:
        # A comparison waits for the device, which a capture forbids.
        if not expected[0].numel() or _is_capturing():
            return
        try:
            fused, errors = self.load()
        except ImportError as error:
            self._fail(_NAMES, f"Triton cannot be imported ({error})", error)
            return
        try:
            found = run(fused)
        except torch.OutOfMemoryError:
            raise
        except errors as error:
            lines = str(error).splitlines() or [type(error).__name__]
            self._fail((kind[0],), f"it does not run ({lines[0]})", error)
            return
        for got, wanted in zip(found, expected, strict=True):
            difference, allowed = disagreement(got, wanted, TOLERANCES)
            if difference > allowed:
                differs = f"it differs from torch by {difference:.2g}"
                self._fail((kind[0],), f"{differs}, where {allowed:.2g} is put down to rounding")
                return
        self._chosen[kind] = fused

    def _race(
        self, kind: ShapeClass, run: Callable[[Operations], object], device: torch.device
    ) -> None:
        """Leaves a kind to torch unless the fused operation is faster."""
        fused = self._chosen.get(kind)
        if fused is None or self.required:
            return
        try:
            torch_ms, fused_ms = (
                least_ms(partial(run, version), device) for version in (plain, fused)
            )
        except torch.OutOfMemoryError:
            # What cannot be measured was not measured faster.
            torch_ms = fused_ms = 0.0
        if fused_ms >= torch_ms:
            self._chosen[kind] = plain

    def _fail(self, names: Sequence[str], reason: str, error: Exception | None = None) -> None:
        self.failed |= set(names)
        message = f"The fused {', '.join(names)} must not be used on {self.place}: {reason}"
        if self.required:
            raise RuntimeError(f"{message}. Pass fused='auto' to use torch then.") from error
        warnings.warn(
            f"{message}. Torch finds the same tokens, slower. To try no fused operation, pass "
            "fused=False to load_model.",
            stacklevel=2,
        )


def _attention_kind(heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None) -> ShapeClass:
    # What varies from forward to forward counts up to the next power of two: few kinds are met.
    (B, H, Q, D), (G, K) = heads.query.shape, heads.key.shape[1:3]
    rows, queries, keys = (1 << (size - 1).bit_length() for size in (B, H // G * Q, K))
    is_shared = None if bias is None else bias.shape[2] == 1
    return ("attend", is_shared, H, G, D, rows, queries, keys)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _listed(made: Made) -> tuple[Tensor, ...]:
    return (made,) if isinstance(made, Tensor) else made
