"""The greatest memory that a piece of work held."""

import ctypes
import gc
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """Measures memory held on a device in addition to the memory held at the start."""

    def __init__(self, device: torch.device) -> None:
        """Frees unused memory, and starts from there."""
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
            return
        _return_free_memory()
        self._is_known = _reset_resident_peak()
        self._before = _status_bytes("VmRSS") if self._is_known else 0

    def extra_bytes(self) -> int | None:
        """Returns the greatest excess so far; `None` if it is not known."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        return _status_bytes("VmHWM") - self._before if self._is_known else None


def _reset_resident_peak() -> bool:
    """Asks Linux to count the greatest resident set from now on."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _return_free_memory() -> None:
    # Freed memory that the C library keeps would hide as much of later allocations.
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise ValueError(f"{_STATUS} has a line {field!r}, got none. Run on Linux.")
