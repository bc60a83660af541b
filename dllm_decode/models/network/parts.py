"""Names the tensors of the network as in checkpoints, where a parameter may be several tensors."""

from collections.abc import Sequence

from torch import Tensor, nn


def parts_of(module: nn.Module, qkv_rows: Sequence[int] = ()) -> dict[str, Tensor]:
    """Names the parts of a layer, or of a module in it, as a checkpoint does.

    The parts are views: `gate.weight` is rows of a matrix, `experts.5.gate.weight` of a stack.

    Args:
        module: The layer or module.
        qkv_rows: Rows of queries, keys and values, which are parts; (): `qkv.weight` is one part.
    """
    named: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        name = name.removeprefix("attention.").removeprefix("mlp.")
        prefix, experts, kind = name.partition("experts.")
        if experts:
            for number, matrix in enumerate(parameter.data):
                named |= _pieces(f"{prefix}experts.{number}.{kind}.weight", matrix, qkv_rows)
        else:
            named |= _pieces(name, parameter.data, qkv_rows)
    return named


def _pieces(name: str, tensor: Tensor, qkv_rows: Sequence[int]) -> dict[str, Tensor]:
    for fused, kinds, rows in (
        ("gate_up.", ("gate.", "up."), [len(tensor) // 2] * 2),
        ("qkv.", ("query.", "key.", "value."), list(qkv_rows)),
    ):
        if fused in name and rows:
            pieces = zip(kinds, tensor.split(rows), strict=True)
            return {name.replace(fused, kind): piece for kind, piece in pieces}
    return {name: tensor}
