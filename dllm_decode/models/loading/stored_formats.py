"""Weights that were quantised before they were stored, read as the numbers that they stand for.

A matrix of O rows and I columns is stored as several tensors. Activations are not quantised, so
that answers differ from those of servers which multiply in 4 or 8 bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dllm_decode.models.families.reader import ConfigReader, as_json

Parts: TypeAlias = Mapping[str, Shaped[Tensor, "..."]]
Shapes: TypeAlias = Mapping[str, list[int]]

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""Dtypes of tensors that are stored as they were trained, by their names in safetensors."""
# Keys that change what the stored numbers mean, or that add tensors.
_NOT_IMPLEMENTED = ("kv_cache_scheme", "sparsity_config", "transform_config")
_ORDERS = (None, False, "weight", "static")


class Header(NamedTuple):
    """Shape and dtype of a tensor, as safetensors writes them."""

    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class StoredFormat:
    """How a method stores a matrix; `X.weight` is stored as `X.` and the name of each part.

    Attributes:
        name: Shown in messages.
        parts: Tensors of a matrix; the first one has its numbers, the second one its scales.
        unread: Tensors about activations.
        size: Rows and columns of a matrix, given the shapes of its parts and the bits of a number.
        unpack: The matrix, given its parts and the bits of a number.
        bits: Bits of a number.
        group_size: Columns that share a scale, as the configuration says; `None`: not stated.
        transposed: Scales have a row for each group, and columns name their groups.
    """

    name: str
    parts: tuple[str, ...]
    unread: tuple[str, ...]
    size: Callable[[Shapes, int], list[int]]
    unpack: Callable[[Parts, int], Float[Tensor, "O I"]]
    bits: int = 4
    group_size: int | None = None
    transposed: bool = False

    def holds(self, key: str, dtype: str) -> bool:
        """Says whether a stored tensor is a part of a matrix in this format."""
        suffix = key.rpartition(".")[2]
        is_plain = suffix == "weight" and dtype in FLOATS
        return not is_plain and suffix in (*self.parts, *self.unread)

    def name_of(self, key: str) -> str:
        """Returns the name of the matrix that a stored tensor begins; else that of the tensor."""
        base, _, suffix = key.rpartition(".")
        return f"{base}.weight" if suffix in self.parts[:1] else key

    def unpacked(self, headers: Mapping[str, Header]) -> dict[str, Header]:
        """Returns the headers that files without quantised tensors would have.

        Raises:
            ValueError: If a matrix lacks a part, or its groups do not fit.
        """
        plain: dict[str, Header] = {}
        matrices: dict[str, dict[str, list[int]]] = {}
        for name, header in headers.items():
            if self.holds(name, header.dtype):
                base, _, suffix = name.rpartition(".")
                matrices.setdefault(base, {})[suffix] = header.shape
            else:
                plain[name] = header
        for base, shapes in matrices.items():
            missing = [suffix for suffix in self.parts if suffix not in shapes]
            if missing:
                raise ValueError(
                    f"{base}, which is stored by {self.name}, must have the tensors "
                    f"{', '.join(self.parts)}, got none for {', '.join(missing)}. Download the "
                    "whole repository, or load the original checkpoint."
                )
            plain[f"{base}.weight"] = Header(self._size(base, shapes), "BF16")
        return plain

    def read(self, base: str, parts: Parts) -> Float[Tensor, "O I"]:
        """Returns a matrix in float32; ValueError if its parts do not fit together."""
        try:
            return self.unpack(parts, self.bits)
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"The tensors of {base}, which is stored by {self.name}, must fit together, got "
                f"others ({str(error).splitlines()[0]}). Download the files again."
            ) from error

    def _size(self, base: str, shapes: Shapes) -> list[int]:
        """Returns the shape of a matrix; ValueError if its scales are of other groups."""
        size = self.size(shapes, self.bits)
        scales = shapes[self.parts[1]]
        *rows, num_groups = (scales[::-1] if self.transposed else scales) or [1]
        fits = rows in ([], size[:1]) and (self.transposed or size[1] % num_groups == 0)
        if not fits or (self.group_size and num_groups != -(-size[1] // self.group_size)):
            stated = "" if self.group_size is None else f" of {self.group_size}"
            raise ValueError(
                f"{base}, which is stored by {self.name}, must have a scale for each group{stated} "
                f"of its {size[0]} rows and {size[1]} columns, got scales of the shape {scales}. "
                "Load the original checkpoint."
            )
        return size


def stored_format(config: Mapping[str, Any], *, file: str) -> StoredFormat:
    """Returns how the weights of a checkpoint were stored.

    Raises:
        ValueError: If they were quantised in a way that cannot be read.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return AS_TRAINED
    if not isinstance(quantization, Mapping):
        raise _refusal(as_json(quantization), file)
    reader = ConfigReader(quantization, file=file, prefix="quantization_config.")
    method = str(quantization.get("quant_method", "an unknown method"))
    for key in _NOT_IMPLEMENTED:
        if quantization.get(key) and quantization[key] != {"format": "dense"}:
            raise reader.error(key, "absent or null", quantization[key])
    if method == "gptq":
        return _gptq(reader, file)
    if method == "compressed-tensors":
        return _compressed(reader, file)
    if method == "modelopt" and quantization.get("quant_algo") == "NVFP4":
        return _NVFP4_MODELOPT
    algorithm = f" {quantization['quant_algo']}" if "quant_algo" in quantization else ""
    raise _refusal(method + algorithm, file)


def _refusal(method: str, file: str) -> ValueError:
    return ValueError(
        "Weights must be stored as they were trained, or by GPTQ, compressed-tensors or ModelOpt's "
        f"NVFP4, got quantization_config of {method} in {file}, which cannot be read. Load the "
        "original checkpoint; quantize='int4' or 'int8' stores that in fewer bits."
    )


def _gptq(reader: ConfigReader, file: str) -> StoredFormat:
    kind = reader.text("checkpoint_format", "gptq")
    if kind != "gptq":
        raise _refusal(f"GPTQ as {kind}", file)
    # All columns are one group if it is -1.
    stated = reader.value("group_size") not in (None, -1)
    size = reader.positive_int("group_size") if stated else None
    return replace(_GPTQ, bits=_bits(reader, "bits"), group_size=size)


def _compressed(reader: ConfigReader, file: str) -> StoredFormat:
    """Reads the format; all groups of matrices must be stored alike."""
    kind = reader.text("format")
    if kind not in _COMPRESSED:
        raise _refusal(f"compressed-tensors {kind}", file)
    chosen, groups = _COMPRESSED[kind], reader.mapping("config_groups")
    found = {_weights(groups.mapping(name), chosen, file) for name in groups.keys()}  # noqa: SIM118
    if len(found) != 1:
        raise _refusal(f"compressed-tensors {kind} with {len(found)} kinds of groups", file)
    return found.pop()


def _weights(group: ConfigReader, chosen: StoredFormat, file: str) -> StoredFormat:
    weights = group.mapping("weights")
    if weights.value("actorder") not in _ORDERS:
        raise weights.error("actorder", "null, 'weight' or 'static'", weights.value("actorder"))
    if chosen is not _INTEGERS:
        return chosen
    if weights.text("type", "int") != "int":
        raise _refusal(f"{chosen.name} of the type {weights.text('type')}", file)
    size = weights.positive_int("group_size") if weights.has("group_size") else None
    parts = chosen.parts
    if not weights.boolean("symmetric", True):
        parts = (*parts, "weight_zero_point")
    return replace(chosen, bits=_bits(weights, "num_bits"), group_size=size, parts=parts)


def _bits(reader: ConfigReader, key: str) -> int:
    bits = reader.positive_int(key)
    if bits not in (4, 8):
        raise reader.error(key, "4 or 8", bits)
    return bits


def _numbers(words: Int[Tensor, "... N"], bits: int) -> Int[Tensor, "... M"]:
    """Returns the numbers of 32-bit words, those in the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers: Tensor = ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2)
    return numbers


def _spread(scales: Shaped[Tensor, "O G"], num_columns: int) -> Shaped[Tensor, "O I"]:
    """Returns the scale of each column's group."""
    return scales.repeat_interleave(num_columns // scales.shape[1], 1)


def _unpack_gptq(parts: Parts, bits: int) -> Float[Tensor, "O I"]:
    """Returns scale * (q - (z + 1)), in which z is stored as one less, as in version 1."""
    groups = parts["g_idx"].long()
    zeros = (_numbers(parts["qzeros"], bits) + 1)[groups].T
    numbers = _numbers(parts["qweight"].T, bits)
    return (numbers - zeros) * parts["scales"].float()[groups].T


def _unpack_integers(parts: Parts, bits: int) -> Float[Tensor, "O I"]:
    """Returns scale * (q - z); zero points are packed along the rows."""
    middle, num_rows = 2 ** (bits - 1), len(parts["weight_packed"])
    numbers = _numbers(parts["weight_packed"], bits) - middle
    if "weight_zero_point" in parts:
        zeros = _numbers(parts["weight_zero_point"].T, bits).T[:num_rows] - middle
        numbers = numbers - _spread(zeros, numbers.shape[1])
    matrix: Tensor = numbers * _spread(parts["weight_scale"].float(), numbers.shape[1])
    return matrix


def _unpack_float8(parts: Parts, bits: int) -> Float[Tensor, "O I"]:
    return parts["weight"].float() * parts["weight_scale"].float()


def _unpack_float4(packed: Int[Tensor, "O H"], scales: Float[Tensor, "O G"]) -> Tensor:
    """Returns scale * e2m1: of four bits the highest is the sign; even columns are low bits."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).int()
    values: Tensor = torch.cat([magnitudes, -magnitudes])[codes] * _spread(scales, codes.shape[1])
    return values


def _unpack_nvfp4(parts: Parts, bits: int) -> Float[Tensor, "O I"]:
    scales = parts["weight_scale"].float() / parts["weight_global_scale"]
    return _unpack_float4(parts["weight_packed"], scales)


def _unpack_modelopt(parts: Parts, bits: int) -> Float[Tensor, "O I"]:
    return _unpack_float4(parts["weight"], parts["weight_scale"].float() * parts["weight_scale_2"])


AS_TRAINED = StoredFormat(
    "no method", (), (), lambda shapes, bits: [], lambda parts, bits: torch.empty(0, 0)
)
"""Weights that were not quantised: no matrix has parts."""
_GPTQ = StoredFormat(
    "GPTQ", ("qweight", "scales", "qzeros", "g_idx"), (),
    lambda shapes, bits: [shapes["scales"][1], shapes["qweight"][0] * 32 // bits], _unpack_gptq,
    transposed=True,
)  # fmt: skip
_INTEGERS = StoredFormat(
    "compressed-tensors pack-quantized",
    ("weight_packed", "weight_scale", "weight_shape"), (),
    lambda shapes, bits: [shapes["weight_packed"][0], shapes["weight_packed"][1] * 32 // bits],
    _unpack_integers,
)  # fmt: skip
_NVFP4 = StoredFormat(
    "compressed-tensors nvfp4-pack-quantized",
    ("weight_packed", "weight_scale", "weight_global_scale"), ("input_global_scale",),
    lambda shapes, bits: [shapes["weight_packed"][0], shapes["weight_packed"][1] * 2],
    _unpack_nvfp4, group_size=16,
)  # fmt: skip
_NVFP4_MODELOPT = StoredFormat(
    "ModelOpt NVFP4", ("weight", "weight_scale", "weight_scale_2"), ("input_scale",),
    lambda shapes, bits: [shapes["weight"][0], shapes["weight"][1] * 2],
    _unpack_modelopt, group_size=16,
)  # fmt: skip
_FLOAT8 = StoredFormat(
    "compressed-tensors float-quantized", ("weight", "weight_scale"), ("input_scale",),
    lambda shapes, bits: shapes["weight"], _unpack_float8, bits=8,
)  # fmt: skip
_COMPRESSED = {
    "pack-quantized": _INTEGERS, "float-quantized": _FLOAT8, "nvfp4-pack-quantized": _NVFP4,
}  # fmt: skip
