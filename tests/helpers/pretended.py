"""A pretended accelerator: tensors that say they are on CUDA, and whose contents are the CPU's.

Under `Accelerator`, every tensor made on "cuda" or moved there is such a tensor. Operations are
computed on the CPU, and refused where CUDA would refuse them: on tensors of two devices, except
scalars and indices. Each wait of the host is counted: for reading a value, for a shape that depends
on values, and for copies between host and device.
Kernels, streams, memory, speed and rounding are not pretended.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# No machine has as many devices, so a value cached for this device never meets a real one's.
DEVICE = torch.device("cuda", 63)
MPS = torch.device("mps", 63)
_ROOT = Path(__file__).parents[2]
_CODE = tuple(f"{_ROOT / part}/" for part in ("dllm_decode", "samplers", "eval", "examples"))

# Members that the tensor answers itself; all others are computed on its contents.
_OWN = frozenset(
    [getattr(Tensor, name).__get__ for name in
     ("device", "dtype", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu", "ndim", "shape")]
    + [Tensor.__len__, Tensor.dim, Tensor.get_device, Tensor.is_floating_point, Tensor.numel,
       Tensor.size]
)  # fmt: skip
_WAITING = frozenset(
    [
        "__bool__", "__complex__", "__contains__", "__float__", "__format__", "__index__",
        "__int__", "__repr__", "allclose", "argwhere", "bincount", "equal", "is_nonzero", "item",
        "masked_select", "nonzero", "tolist", "unique", "unique_consecutive",
    ]
)  # fmt: skip
_MAKING = frozenset(["as_tensor", "asarray", "new_tensor", "tensor"])
_INDEXING = frozenset(["__getitem__", "__setitem__"])


class DeviceMixUpError(RuntimeError):
    """Tensors of two devices met."""


class NoFloat64Error(TypeError):
    """A float64 tensor would be made on a device without float64."""


class HostWaitError(RuntimeError):
    """The host would wait where waiting is forbidden."""


class Pretended(Tensor):
    """A tensor that says it is on an accelerator.

    Attributes:
        held: The CPU tensor with its contents; a view of the pretended one holds a view of it.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Pretended":
        wrapper = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=_device()
        )
        wrapper.held = held
        return wrapper

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} met a pretended tensor behind Python's back.")


class Accelerator(TorchFunctionMode):
    """Makes "cuda" a device, or "mps", and counts how often the host waits for it.

    Attributes:
        device: Device of all its tensors. Making a float64 tensor on Apple's is refused.
        waits: Number of waits by reason and place, such as "tolist in decode.finish_block".
    """

    active: "list[Accelerator]" = []  # noqa: RUF012 - of the process, as torch's own modes are

    def __init__(self, device: torch.device = DEVICE) -> None:
        super().__init__()
        self.device = device
        self.waits: Counter[str] = Counter()
        self.captures = False

    def __enter__(self) -> "Accelerator":
        self.active.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.active.pop()
        super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Refuses to wait, as CUDA does while it captures a graph."""
        self.captures = True
        try:
            yield
        finally:
            self.captures = False


def contents(value: Any) -> Any:
    """Replaces pretended tensors, also in containers, by their contents."""
    return _mapped(lambda part: part.held if isinstance(part, Pretended) else part, value)


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in _OWN:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    name = _name(func)
    if name in ("to", "cuda", "cpu"):
        return _move(name, args, kwargs)
    if name == "__iter__":
        return iter(args[0].unbind(0))
    tensors = _tensors((args, kwargs))
    pretended = [part for part in tensors if isinstance(part, Pretended)]
    device = kwargs.get("device")
    is_there = bool(pretended) if device is None else _is_there(device)
    if device is not None and is_there:
        kwargs = kwargs | {"device": "cpu"}
    if pretended:
        if name == "_has_compatible_shallow_copy_type" and len(pretended) < len(tensors):
            return False
        _check(name, args, tensors)
        _count(name, args, kwargs)
    result = func(*contents(args), **contents(kwargs))
    if name in _MAKING and result.numel() and (is_there != bool(pretended) or name == "new_tensor"):
        _wait(name)
    # An operation in place returns its argument.
    by_id = {id(contents(part)): part for part in tensors}
    return _mapped(lambda part: by_id.get(id(part), _made(part, is_there)), result)


def _made(tensor: Tensor, is_there: bool) -> Tensor:
    if not is_there:
        return tensor
    if tensor.dtype in (torch.float64, torch.complex128) and _device().type == "mps":
        raise NoFloat64Error(f"A tensor of float64 would be made in {_caller()}.")
    return Pretended(tensor)


def _device() -> torch.device:
    return Accelerator.active[-1].device if Accelerator.active else DEVICE


def _move(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Copies a tensor between host and device, or converts it on its device."""
    tensor, *rest = args
    was_there = isinstance(tensor, Pretended)
    if name == "to":
        candidates = [kwargs.get("device"), kwargs.get("other"), *rest[:1]]
        places = [_is_there(place) for place in candidates if _is_place(place)]
        is_there = places[0] if places else was_there
        rest = ["cpu" if _is_place(part) else part for part in rest]
        kwargs = {key: "cpu" if key == "device" else part for key, part in kwargs.items()}
    else:
        is_there, rest, kwargs = name == "cuda", ["cpu"], {}
    moved = contents(tensor).to(*contents(rest), **contents(kwargs))
    if is_there == was_there:
        return tensor if moved is contents(tensor) else _made(moved, is_there)
    if not kwargs.get("non_blocking") or _captures():
        _wait("copy to the device" if is_there else "copy to the host")
    return _made(moved.clone() if moved is contents(tensor) else moved, is_there)


def _is_place(value: Any) -> bool:
    return isinstance(value, (str, int, torch.device, Tensor)) and not isinstance(value, bool)


def _is_there(place: Any) -> bool:
    if isinstance(place, Tensor):
        return isinstance(place, Pretended)
    return isinstance(place, int) or torch.device(place).type == _device().type


def _check(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """Refuses tensors of two devices, as CUDA does."""
    cpu_tensors = [part for part in tensors if not isinstance(part, Pretended) and part.dim() > 0]
    if not cpu_tensors or name == "copy_":
        return
    if name in _INDEXING and isinstance(args[0], Pretended):
        # Indices may be on the CPU, and so may a tensor that is copied into a slice.
        if not isinstance(args[-1], Tensor) or args[-1].dim() == 0 or name == "__getitem__":
            return
        if isinstance(args[2], Pretended) or not _tensors(args[1]):
            return
    shapes = ", ".join(f"{type(part).__name__}{tuple(part.shape)}" for part in tensors)
    raise DeviceMixUpError(f"{name} got tensors of two devices in {_caller()}: {shapes}.")


def _count(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in ("numpy", "__array__"):
        raise TypeError("A tensor on an accelerator cannot become an array; copy it to the CPU.")
    if name in _INDEXING:
        _count_index(name, *args)
    elif name in _WAITING or (name in _AT_TIMES and _AT_TIMES[name](args, kwargs)):
        _wait(name)


# Functions that wait in some cases, and when they do.
_AT_TIMES: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], bool]] = {
    "copy_": lambda args, kwargs: isinstance(args[0], Pretended) != isinstance(args[1], Pretended),
    # With more test elements, CUDA sorts them and looks for unique ones.
    "isin": lambda args, kwargs: (
        isinstance(args[1], Tensor) and args[1].numel() >= 10 * args[0].numel() ** 0.145
    ),
    "repeat_interleave": lambda args, kwargs: (
        isinstance(args[1], Tensor) and kwargs.get("output_size") is None
    ),
    "where": lambda args, kwargs: len(args) == 1,
}


def _count_index(name: str, base: Tensor, index: Any, value: Any = 0) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, list) for part in parts):
        _wait("index by a list")
    indices = [part for part in parts if isinstance(part, Tensor)]
    masks = [part for part in indices if part.dtype is torch.bool]
    is_scalar = not isinstance(value, Tensor) or (
        not isinstance(value, Pretended) and not value.dim()
    )
    if masks and not (name == "__setitem__" and is_scalar and len(indices) == 1):
        _wait("index by a mask")
    if any(isinstance(part, Pretended) and not part.dim() for part in indices):
        _wait("index by a scalar")
    if any(not isinstance(part, Pretended) and part.dim() for part in indices):
        _wait("index from the CPU")
    if (
        isinstance(value, Tensor)
        and not is_scalar
        and isinstance(value, Pretended) != isinstance(base, Pretended)
    ):
        _wait("copy_")


def _captures() -> bool:
    return any(accelerator.captures for accelerator in Accelerator.active)


def _wait(reason: str) -> None:
    waiting = f"{reason} in {_caller()}"
    if _captures():
        raise HostWaitError(f"{waiting}, while a graph is captured.")
    for accelerator in Accelerator.active:
        accelerator.waits[waiting] += 1


def _caller() -> str:
    """Names the innermost running function of the project, or else "a test"."""
    frame = sys._getframe(1)
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith(_CODE):
            return f"{Path(outer.f_code.co_filename).stem}.{outer.f_code.co_qualname}"
        outer = outer.f_back
    return "a test"


def _name(func: Any) -> str:
    name: str = func.__name__
    # The accessor of a property is named like the property.
    return func.__self__.__name__ if name in ("__get__", "__set__") else name


def _tensors(value: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    _mapped(tensors.append, value)
    return tensors


def _mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()} if value else value
    if isinstance(value, (list, tuple)) and value and type(value) is not torch.Size:
        parts = [_mapped(change, part) for part in value]
        if hasattr(value, "_make"):
            return value._make(parts)
        return type(value)(parts)
    return value


class Operations(TorchDispatchMode):
    """Calls a function with each operation, its arguments and its result.

    Operations of `left_out` work are not reported.
    """

    def __init__(self, tell: Callable[[Any, Any, Any], object]) -> None:
        super().__init__()
        self.tell, self._is_left_out = tell, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._is_left_out:
            self.tell(func, (args, kwargs), result)
        return result

    def left_out(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def untold(*arguments: Any, **options: Any) -> Any:
            before, self._is_left_out = self._is_left_out, True
            try:
                return work(*arguments, **options)
            finally:
                self._is_left_out = before

        return untold


PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
