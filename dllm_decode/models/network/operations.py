"""What a layer computes between its matrix products, as a set that has several versions."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


class Stream(NamedTuple):
    """The residual stream; its value is the sum, which the next norm makes on its way.

    Attributes:
        hidden: Up to the last update.
        update: What attention or MLP adds to it; `None`: nothing yet.
    """

    hidden: Float[Tensor, "B Q H"]
    update: Float[Tensor, "B Q H"] | None = None


class Scaling(NamedTuple):
    """An RMSNorm.

    Attributes:
        weight: What each component is multiplied by, at unit mean square.
        eps: Added to the mean square before its root.
        in_float32: The weight is multiplied by before rounding to the dtype, else after.
    """

    weight: Float[Tensor, " H"]
    eps: float
    in_float32: bool


class Normed(NamedTuple):
    """The value of a stream, and its RMSNorm."""

    hidden: Float[Tensor, "B Q H"]
    normed: Float[Tensor, "B Q H"]


class Rotation(NamedTuple):
    """Angles that columns are rotated by, in the dtype that they are rotated in.

    The first R of a head's D components turn; the others stay as they are.

    Attributes:
        cos: Component i turns with component i + R / 2, so both halves are the same.
        sin: Negative in the first half.
    """

    cos: Float[Tensor, "B 1 Q R"]
    sin: Float[Tensor, "B 1 Q R"]


class KVSlots(NamedTuple):
    """Where fresh keys and values go.

    Attributes:
        rows: Rows of the KV cache that are written and read.
        slots: Where in these rows fresh keys and values go.
        row_index: The rows as a column, to index together with `slots` where those are a tensor.
    """

    rows: slice | Int[Tensor, " B"]
    slots: slice | Int[Tensor, "B Q"]
    row_index: Int[Tensor, "B 1"] | None


class LayerKV(NamedTuple):
    """The KV cache of one layer, and where fresh keys and values go."""

    keys: Float[Tensor, "R G K D"]
    values: Float[Tensor, "R G K D"]
    target: KVSlots


class Projected(NamedTuple):
    """The result of the projections.

    Attributes:
        heads: Of queries, keys and values, in this order.
        num_kv_heads: Key heads, and value heads.
        scalings: Norms of queries and of keys, before rotation.
    """

    heads: Float[Tensor, "B Q C D"]
    num_kv_heads: int
    scalings: tuple[Scaling, Scaling] | None = None


class Heads(NamedTuple):
    """What attention takes."""

    query: Float[Tensor, "B H Q D"]
    key: Float[Tensor, "B G K D"]
    value: Float[Tensor, "B G K D"]


@runtime_checkable
class Operations(Protocol):
    """One version of the operations; `plain` is the one that the others agree with.

    In half precision all round where `plain` does.
    """

    def add_norm(self, stream: Stream, scaling: Scaling) -> Normed:
        """Adds a stream up, and normalises it."""
        ...

    def rotate_and_store(
        self, projected: Projected, rotation: Rotation, store: LayerKV | None
    ) -> Heads:
        """Makes projected heads ready for attention.

        Args:
            projected: Of the computed columns.
            rotation: Of queries and keys.
            store: Is written to in place, and read whole; `None`: only fresh keys are attended to.
        """
        ...

    def attend(self, heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None) -> Float[Tensor, "B Q C"]:
        """Attends from every query to every key, and joins the heads of each column.

        Args:
            heads: Query heads divided by key heads share a key head, in order.
            bias: See `LayerContext`.
        """
        ...

    def swiglu(self, gate_up: Float[Tensor, "B Q C"]) -> Float[Tensor, "B Q M"]:
        """Returns silu(gate) * up of two halves."""
        ...
