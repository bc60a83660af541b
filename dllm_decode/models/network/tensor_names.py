"""Names the tensors of the network as in checkpoints, where a parameter may be several tensors."""

from collections.abc import Collection, Sequence

from torch import Tensor, nn


def tensors_of(
    module: nn.Module,
    prefix: str = "",
    *,
    qkv_rows: Sequence[int] = (),
    joined: Collection[str] = (),
) -> dict[str, Tensor]:
    """Names the parts of a layer, or of a module in it, as a checkpoint does.

    The parts are views: `gate.weight` is rows of a matrix, `experts.5.gate.weight` of a stack.

    Args:
        module: The layer or module.
        prefix: Begins the names, such as "layers.3.".
        qkv_rows: Rows of queries, keys and values.
        joined: See `Transformer.parts`.
    """
    named: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        name = prefix + name.removeprefix("attention.").removeprefix("mlp.")
        before, experts, kind = name.partition("experts.")
        if experts:
            for number, matrix in enumerate(parameter.data):
                expert = f"{before}experts.{number}.{kind}.weight"
                named |= _pieces(expert, matrix, qkv_rows, joined)
        else:
            named |= _pieces(name, parameter.data, qkv_rows, joined)
    return named


def _pieces(
    name: str, tensor: Tensor, qkv_rows: Sequence[int], joined: Collection[str]
) -> dict[str, Tensor]:
    """Splits queries, keys and values, or gate and up, unless the checkpoint joins them too."""
    for fused, kinds, rows in (
        ("gate_up.", ("gate.", "up."), [len(tensor) // 2] * 2),
        ("qkv.", ("query.", "key.", "value."), list(qkv_rows)),
    ):
        if fused in name and pattern_of(name)[0] not in joined:
            pieces = zip(kinds, tensor.split(rows), strict=True)
            return {name.replace(fused, kind): piece for kind, piece in pieces}
    return {name: tensor}


def pattern_of(name: str) -> tuple[str, dict[str, str]]:
    """Splits "layers.3.up.weight" into "layers.{n}.up.weight" and {"n": "3"}."""
    words = name.split(".")
    numbers = {}
    for i, word in enumerate(words):
        if word.isdigit():
            letter = "n" if i == 1 else "e"
            numbers[letter] = word
            words[i] = f"{{{letter}}}"
    return ".".join(words), numbers
