"""The contract between model and engine: one call, explicit about every column."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer, one slot for each canvas column.

    Keys are stored after rotation: columns never move, so a stored key stays correct. A slot
    holds what the last forward that computed the column wrote; forwards write in place.

    Attributes:
        keys: Zeros until written; axis 0 is the layer.
        values: As `keys`.
        further: Caches of the layers that follow, on other devices.
        reserve: A longer cache, which begins with the slots of this one; `None`: there is none.
    """

    keys: Float[Tensor, "N R H K D"]
    values: Float[Tensor, "N R H K D"]
    further: tuple["KVCache", ...] = ()
    reserve: "KVCache | None" = None

    @staticmethod
    def of(parts: Sequence["KVCache"]) -> "KVCache":
        """Returns the cache of all layers, given a cache for each run of layers on one device."""
        return replace(parts[0], further=tuple(parts[1:]))

    @property
    def buffers(self) -> tuple[Float[Tensor, "_ R H K D"], ...]:
        """All keys and values of all layers; axis 1 is the row, axis 3 the slot."""
        parts = (self, *self.further)
        return tuple(buffer for part in parts for buffer in (part.keys, part.values))

    @property
    def num_slots(self) -> int:
        """Slots of each row, K."""
        return self.keys.shape[3]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers, the reserve included."""
        longest = self if self.reserve is None else self.reserve
        return sum(buffer.nbytes for buffer in longest.buffers)

    def layer(self, index: int) -> tuple[Float[Tensor, "R H K D"], Float[Tensor, "R H K D"]]:
        """Returns the keys and values of one layer; writing to them changes this cache."""
        part, index = self.part_of(index)
        return part.keys[index], part.values[index]

    def part_of(self, index: int) -> tuple["KVCache", int]:
        """Returns the part of the cache that has a layer, and the number of the layer in it."""
        part = self
        for following in self.further:
            if index < len(part.keys):
                break
            part, index = following, index - len(part.keys)
        return part, index

    def first(self, num_slots: int) -> "KVCache":
        """Returns the first slots; writing to them changes this cache."""
        if num_slots == self.num_slots:
            return self
        further = tuple(part.first(num_slots) for part in self.further)
        keys, values = (part[..., :num_slots, :] for part in (self.keys, self.values))
        return KVCache(keys, values, further, self if self.reserve is None else self.reserve)

    def of_rows(self, rows: slice) -> "KVCache":
        """Returns the cache of some rows; writing to it changes this cache."""
        further = tuple(part.of_rows(rows) for part in self.further)
        return KVCache(self.keys[:, rows], self.values[:, rows], further)

    def widened(self, num_slots: int) -> "KVCache":
        """Returns a cache with more slots: slots of the reserve if it has them, else a copy.

        Slots of a reserve keep their keys and values; slots that a copy adds are zeros.
        """
        if self.reserve is not None and num_slots <= self.reserve.num_slots:
            return self.reserve.first(num_slots)
        padding = (0, 0, 0, num_slots - self.num_slots)
        further = tuple(part.widened(num_slots) for part in self.further)
        return KVCache(pad(self.keys, padding), pad(self.values, padding), further)


def zeroed_cache(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> KVCache:
    """Allocates a cache for some layers; `size` is the shape of `keys`."""
    keys, values = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
    return KVCache(keys, values)


@dataclass(frozen=True)
class ForwardInputs:
    """One forward over Q columns of B rows.

    Attributes:
        tokens: Ids of the computed columns.
        positions: Rotary positions of the computed columns, in tokens; pads may have any from 0 on.
        wanted: Indices into the Q computed columns whose logits are returned.
        attend: True where a query may see a key. K is Q without a cache, else the cache's slots.
            One query row applies to all. `None`: every query sees every key.
        kv_cache: Keys and values that are read and overwritten; `None` computes all keys afresh.
        slots: Where the fresh keys and values go in the cache; required with a cache. A slice, the
            same slots in every row, is cheapest.
        rows: Which rows of the cache the B rows of this call are, no row twice; `None`: all of
            them, in order. A slice is read without a copy. A tensor is on the CPU, so that a model
            can read the numbers without waiting.
        belief: The logits of the wanted columns that a uniform-state model reads, -inf throughout
            in a column that has none; `None`: no column has one.
    """

    tokens: Int[Tensor, "B Q"]
    positions: Int[Tensor, "B Q"]
    wanted: Int[Tensor, "B W"]
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None = None
    kv_cache: KVCache | None = None
    slots: slice | Int[Tensor, "B Q"] | None = None
    rows: slice | Int[Tensor, " B"] | None = None
    belief: Float[Tensor, "B W V"] | None = None

    def attending_within(
        self, attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"]
    ) -> "ForwardInputs":
        """Returns inputs in which a query sees a key only if `attend` allows this too."""
        return replace(self, attend=attend if self.attend is None else attend & self.attend)


@runtime_checkable
class MaskPredictor(Protocol):
    """A masked-diffusion language model: token ids in, logits of the wanted columns out.

    Attributes:
        name: Shown in records and messages.
        vocab_size: Number of logits, V.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer; the first one fills the columns after the end.
        banned_ids: Ids besides `mask_id` that must never be emitted (vocabulary padding).
        logit_shift: 0 when the logits at a column predict that column, 1 when they predict the
            next.
        causal_block_length: Tokens per block of a block-causal model, 0 for a bidirectional one.
        max_length: Columns that the model was trained for, prompt and answer together; `None`:
            unknown.
        device: Where tensors are expected.
    """

    name: str
    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]
    logit_shift: int
    causal_block_length: int
    max_length: int | None

    @property
    def device(self) -> torch.device: ...

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Runs one forward without gradients; the returned tensor is the caller's to change."""
        ...

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Allocates a zeroed cache; raises ValueError if the model has no keys and values."""
        ...


@runtime_checkable
class GroupPredictor(Protocol):
    """A model that computes several groups of rows in one call; a `MaskPredictor` need not be one.

    A `MaskedTransformer` is one, a wrapped model of transformers is not.
    """

    def predict_groups(self, groups: Sequence[ForwardInputs]) -> list[Float[Tensor, "_ _ V"]]:
        """Returns the logits that `predict` returns for each group alone, up to rounding.

        Even float64 may round differently, because larger matrix products sum in another order.

        Args:
            groups: At least one, each with its own rows, width, mask, slots and wanted columns. All
                use views of one KV cache, such as different `KVCache.first(n)`, or none. No row of
                the cache is in two groups.
        """
        ...


@runtime_checkable
class Compilable(Protocol):
    """A model that can run through `torch.compile`; a `MaskPredictor` need not be one.

    Attributes:
        compiled: True if forwards, and the statistics of their logits, are compiled.
    """

    compiled: bool


@runtime_checkable
class RoutesByBlock(Protocol):
    """A model in which the tokens of a block choose experts together; others need not be one.

    Attributes:
        routing_block_length: Columns of such a block, which divides `causal_block_length`; a
            forward must compute all of them or none. 1: each token chooses by itself.
    """

    @property
    def routing_block_length(self) -> int: ...


@runtime_checkable
class UniformState(Protocol):
    """A model whose canvas begins as random tokens in place of [MASK].

    Its `mask_id` is `vocab_size`, which is no token: it marks columns of later blocks. The wanted
    columns are the canvas; the columns before them are its context, and later ones are not read. It
    need not read `ForwardInputs.belief`.

    Attributes:
        block_length: Tokens of a block, by default; published code calls a block a canvas.
        unread_ids: Tokens that a prompt must not have, such as those of images.
    """

    block_length: int
    unread_ids: tuple[int, ...]


@runtime_checkable
class AnySubset(Protocol):
    """A model that predicts any tokens from any others; a `MaskPredictor` need not be one.

    A forward predicts each wanted column from the columns that its own row of `attend` names, not
    from itself and not from [MASK]. A column that others read depends on its own token and on the
    columns that its own row of `attend` names.

    Attributes:
        reads_any_subset: True.
    """

    reads_any_subset: bool


def predict_all(
    model: MaskPredictor, groups: Sequence[ForwardInputs]
) -> list[Float[Tensor, "_ _ V"]]:
    """Returns the logits of each group, from as few calls of the model as `num_calls` says."""
    if len(groups) > 1 and isinstance(model, GroupPredictor):
        return model.predict_groups(groups)
    return [model.predict(group) for group in groups]


def num_calls(model: MaskPredictor, groups: Sequence[ForwardInputs]) -> int:
    """Counts the calls of the model that `predict_all` makes."""
    # The length first, because isinstance of a protocol takes as long as a small tensor operation.
    return 1 if len(groups) > 1 and isinstance(model, GroupPredictor) else len(groups)


@runtime_checkable
class Fingerprinted(Protocol):
    """A model that can be told from others of the same name; a `MaskPredictor` need not be one.

    Attributes:
        fingerprint: Equal if the weights are equal, even if the names differ.
    """

    @property
    def fingerprint(self) -> str: ...


def fingerprint_of(model: MaskPredictor) -> str:
    """Returns the fingerprint of a model, or its name if it has no fingerprint."""
    return model.fingerprint if isinstance(model, Fingerprinted) else model.name
