"""Reads the free memory of a device, and warns of weights that do not suit a device."""

import logging
from pathlib import Path

import torch

from dllm_decode.models.network.packed import has_bfloat16

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
# A model with fewer bytes of weights is fast in any dtype.
_MIN_SLOW_BYTES = 100_000_000


def free_bytes(device: torch.device) -> int | None:
    """Returns the free memory of a device; `None` if it is unknown."""
    if device.type == "cuda" and torch.cuda.is_available():
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    if device.type != "cpu" or not _MEMINFO.is_file():
        return None
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    kib_by_name = {
        name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)
    }
    available = kib_by_name["MemAvailable"] * 1024
    try:
        limit, used = (
            int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):
        # No limit, or another version of cgroups.
        return available
    return min(available, max(0, limit - used))


def warn_if_too_large(name: str, num_bytes: int, device: torch.device) -> None:
    """Logs a warning if the weights of a model are larger than what a device has free."""
    free = free_bytes(device)
    if free is not None and num_bytes > free:
        logging.getLogger("dllm_decode").warning(
            "The weights of %r take %.1f GB, and %s has %.1f GB free. Pass a smaller dtype or "
            "quantize='int8', spread the model with device='auto', or free memory.",
            name, num_bytes / 1e9, device, free / 1e9,
        )  # fmt: skip


def can_multiply_bfloat16() -> bool:
    """Returns False on an x86 CPU without AVX-512, where products in float32 are much faster."""
    return torch.backends.cpu.get_cpu_capability() != "AVX2" or has_bfloat16()


def warn_if_slow(name: str, num_bytes: int, dtype: torch.dtype, device: torch.device) -> None:
    """Logs a warning if a CPU has no instructions for the 16-bit numbers of a large model."""
    is_narrow = dtype in (torch.bfloat16, torch.float16)
    if (
        num_bytes >= _MIN_SLOW_BYTES
        and is_narrow
        and device.type == "cpu"
        and not can_multiply_bfloat16()
    ):
        logging.getLogger("dllm_decode").warning(
            "The weights of %r are in %s, for which this CPU has no instructions: float32 is "
            "several times faster and takes twice the memory. Pass dtype='float32'.",
            name, str(dtype).removeprefix("torch."),
        )  # fmt: skip
