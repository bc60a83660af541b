"""Rotary position embedding: the frequencies of a model, and the rotation of each column."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, pi
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.models.network.operations import Rotation


@dataclass(frozen=True)
class Llama3Scaling:
    """Divides low frequencies by a factor, and leaves high ones alone.

    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783;
        rope type "llama3" of transformers.

    Attributes:
        factor: Divides frequencies that turn fewer than `low_turns` times in the original length.
        low_turns: `low_freq_factor` of the checkpoint.
        high_turns: `high_freq_factor`; frequencies that turn more often are kept.
        original_length: Tokens of the texts in the first training.
        attention_factor: Cosines and sines are multiplied by this.
    """

    factor: float
    low_turns: float
    high_turns: float
    original_length: int
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.low_turns < self.high_turns:
            raise ValueError(
                "low_freq_factor must be less than high_freq_factor, got "
                f"{self.low_turns} and {self.high_turns}."
            )

    def stretch(self, frequencies: Float[Tensor, " F"], theta: float) -> Float[Tensor, " F"]:
        turns = self.original_length * frequencies / (2 * pi)
        kept_share = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return frequencies * (kept_share + (1 - kept_share) / self.factor)

    def query_scale(self, positions: Int[Tensor, "B Q"]) -> None:
        return None


@dataclass(frozen=True)
class YarnScaling:
    """Divides low frequencies by a factor, leaves high ones alone, and interpolates in between.

    Source: Peng et al. 2023, "YaRN", https://arxiv.org/abs/2309.00071, as transformers computes it.
        Scaling queries by position is Ministral 3's, `llama_4_scaling_beta` of the checkpoint.

    Attributes:
        factor: How much longer the texts became; below 1 it shortens, and is not clamped.
        original_length: Tokens of the texts in the first training.
        fast_turns: Frequencies that turn more often in the original length are kept.
        slow_turns: Frequencies that turn less often are divided by `factor`.
        attention_factor: Cosines and sines are multiplied by this.
        truncate: The bounds of the ramp between both are rounded to whole frequencies.
        query_beta: Queries at position p are multiplied by
            1 + query_beta * ln(1 + floor(p / original_length)).
    """

    factor: float
    original_length: int
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    query_beta: float = 0.0

    def stretch(self, frequencies: Float[Tensor, " F"], theta: float) -> Float[Tensor, " F"]:
        dim = 2 * len(frequencies)
        turns = (self.fast_turns, self.slow_turns)
        low, high = (self._index(turns_at_bound, dim, theta) for turns_at_bound in turns)
        if self.truncate:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        width = high - low if high != low else 1e-3
        index = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
        divided_share = ((index - low) / width).clamp(0, 1)
        return frequencies / self.factor * divided_share + frequencies * (1 - divided_share)

    def query_scale(self, positions: Int[Tensor, "B Q"]) -> Float[Tensor, "B Q"] | None:
        if not self.query_beta:
            return None
        return 1 + self.query_beta * torch.log1p((positions // self.original_length).float())

    def _index(self, turns: float, dim: int, theta: float) -> float:
        """Returns the index of the frequency that turns `turns` times in the original length."""
        return dim * log(self.original_length / (turns * 2 * pi)) / (2 * log(theta))


RopeScaling: TypeAlias = Llama3Scaling | YarnScaling
"""Stretches the frequencies of a model that was trained on shorter texts."""


@dataclass(frozen=True)
class Rope:
    """How a model rotates its queries and keys.

    Source: Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864. Differs: component i turns
    with component i + dim / 2, as in every checkpoint here, not with its neighbour.

    Attributes:
        dim: Leading components of a head that turn; even. The others stay as they are.
        theta: Base of the frequencies.
        in_float32: Rotate in float32 whatever the dtype, else in the model's dtype.
        scaling: Of the frequencies; `None`: as trained.
    """

    dim: int
    theta: float
    in_float32: bool = False
    scaling: RopeScaling | None = None

    def frequencies(self, device: torch.device) -> Float[Tensor, " F"]:
        """Returns the angle by which a position turns each pair of components."""
        return _frequencies(self, device)

    def rotation(
        self, positions: Int[Tensor, "B Q"], dtype: torch.dtype, frequencies: Float[Tensor, " F"]
    ) -> Rotation:
        """Returns the cosines and sines of columns at these positions."""
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.scaling is not None:
            cos, sin = (part * self.scaling.attention_factor for part in (cos, sin))
        table_dtype = torch.float32 if self.in_float32 else dtype
        cos, sin = cos.to(table_dtype), sin.to(table_dtype)
        return Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))

    def query_scale(
        self, positions: Int[Tensor, "B Q"], dtype: torch.dtype
    ) -> Float[Tensor, "B 1 Q 1"] | None:
        """Returns the factor of rotated queries; `None`: no factor."""
        scale = None if self.scaling is None else self.scaling.query_scale(positions)
        return None if scale is None else scale.to(dtype)[:, None, :, None]


@lru_cache(maxsize=32)
def _frequencies(rope: Rope, device: torch.device) -> Float[Tensor, " F"]:
    # Not a buffer: building on the meta device leaves non-persistent buffers uninitialised, so that
    # a model loads without an error and gives NaN. On the CPU, as `pow` differs between devices.
    with torch.inference_mode(False), torch.device("cpu"):
        exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
        frequencies = 1.0 / rope.theta**exponents
        if rope.scaling is not None:
            frequencies = rope.scaling.stretch(frequencies, rope.theta)
        return frequencies.to(device)
