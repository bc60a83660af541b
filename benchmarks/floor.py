"""The machine's measured rates, and the least seconds that a forward can take."""

from typing import NamedTuple

import torch

from benchmarks.frame import least_seconds
from benchmarks.setting import Geometry, Setting


class Columns(NamedTuple):
    """Columns of one forward, of rows that compute equally many.

    Columns are computed (Q), attended to (K), or wanted, so that they pass through the head (W).
    """

    rows: int
    computed: int
    attended: int
    wanted: int


class Machine(NamedTuple):
    """The rates of one machine in one dtype.

    Attributes:
        bytes_per_s: Bytes read and written by a copy that is too large for any cache.
        flops_per_s: Operations of the fastest matrix product found.
    """

    bytes_per_s: float
    flops_per_s: float

    def seconds(self, setting: Setting, *groups: Columns) -> float:
        """Returns the longer of two times: to read all weights once, and to multiply by them."""
        sizes, dtype = setting.sizes, setting.torch_dtype
        read_s = weight_bytes(sizes, dtype) / self.bytes_per_s
        flops = sum(num_flops(sizes, group) for group in groups)
        return max(read_s, flops / self.flops_per_s)


def measure_machine(setting: Setting) -> Machine:
    """Measures both rates on the setting's device, in its dtype."""
    torch.set_num_threads(setting.num_threads)
    device = torch.device(setting.device)
    is_cuda = device.type == "cuda"
    source = torch.ones(2**28 if is_cuda else 2**26, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_s = least_seconds(lambda: target.copy_(source), device)
    sides = (4096, 8192) if is_cuda else (512, 1024, 2048)
    flops_per_s = max(_rate(side, setting) for side in sides)
    return Machine(2 * source.nbytes / copy_s, flops_per_s)


def _rate(side: int, setting: Setting) -> float:
    device = torch.device(setting.device)
    left, right = torch.randn(2, side, side, device=device).to(setting.torch_dtype)
    return 2 * side**3 / least_seconds(lambda: left @ right.T, device)


def weight_bytes(sizes: Geometry, dtype: torch.dtype) -> int:
    """Counts the weights that every forward reads: all but the embedding, of which it reads rows.

    Norms are left out.
    """
    layer = 4 * sizes.hidden_size**2 + 3 * sizes.hidden_size * sizes.mlp_hidden_size
    head = sizes.hidden_size * sizes.vocab_size
    return (sizes.num_layers * layer + head) * dtype.itemsize


def num_flops(sizes: Geometry, forward: Columns) -> int:
    """Counts the multiplications and additions of all matrix products of one forward.

    In the last layer, only keys and values are computed at columns that are not wanted.
    """
    hidden, inner = sizes.hidden_size, sizes.hidden_size * sizes.mlp_hidden_size
    fused, unfused = 3 * hidden**2, hidden**2 + 3 * inner
    full = sizes.num_layers - 1
    products = (full + 1) * forward.computed * fused
    products += (full * forward.computed + forward.wanted) * unfused
    products += forward.wanted * hidden * sizes.vocab_size
    queries = full * forward.computed + forward.wanted
    products += 2 * queries * forward.attended * hidden
    return 2 * forward.rows * products
