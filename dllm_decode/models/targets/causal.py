"""Causal language models that verify drafts: their keys and values roll back."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.sizes import COLUMN_STRIDE, round_up
from dllm_decode.models.targets.target_network import (
    CausalInputs,
    CausalNetwork,
    LayerKVs,
    TransformersNetwork,
)
from dllm_decode.models.targets.trees import ancestors, tree_mask, tree_positions

if TYPE_CHECKING:
    import transformers

# Greatest difference of a path's logits in a tree and alone, as a share of their range.
_TREE_TOLERANCE = 0.05


class Past(NamedTuple):
    """Keys and values of the tokens that a causal model has read, batch axis first everywhere.

    Rows have read different numbers of tokens, which are in the last slots of each row.

    Attributes:
        lengths: Tokens read.
        layers: Keys and values of each layer, (B, heads, slots, size) each.
    """

    lengths: Int[Tensor, " B"]
    layers: LayerKVs

    @property
    def num_slots(self) -> int:
        """Slots of each row."""
        return self.layers[0][0].shape[2] if self.layers else 0


class Reading(NamedTuple):
    """The result of reading some tokens.

    Attributes:
        logits: Predictions of the next token, of the columns that were asked for.
        past: The past before the reading.
        gaps: Empty slots between the past and the first token read.
        layers: Keys and values of the past, of the gap and of everything read.
    """

    logits: Float[Tensor, "B N V"]
    past: Past
    gaps: Int[Tensor, " B"]
    layers: LayerKVs

    def keep(self, num_kept: Int[Tensor, " B"], columns: Int[Tensor, "B M"] | None = None) -> Past:
        """Returns a past that keeps only some of the tokens that were read.

        Call at most once: if rows differ, the kept keys and values are moved in place.

        Args:
            num_kept: How many tokens of each row are kept, at least 1.
            columns: The kept columns of the reading, in ascending order; columns after the first
                `num_kept` are ignored. `None`: the first columns.
        """
        lengths = self.past.lengths + num_kept
        num_slots = int(lengths.max())
        slots = torch.arange(num_slots, device=lengths.device)
        # The slots of the past come first, then the gap, then the tokens that were read.
        is_new = slots >= num_slots - num_kept[:, None]
        source = slots + (self.past.num_slots + num_kept - num_slots)[:, None]
        if columns is not None:
            places = (source - self.past.num_slots).clamp(0, columns.shape[1] - 1)
            source = torch.where(is_new, self.past.num_slots + columns.gather(1, places), source)
        # Slots before a row's first token are never attended to; any will do.
        source = torch.where(is_new, source + self.gaps[:, None], source).clamp(min=0)
        start = int(source[0, 0])
        if (source == slots + start).all():
            block = slice(start, start + num_slots)
            return Past(lengths, tuple((k[:, :, block], v[:, :, block]) for k, v in self.layers))
        index = source[:, None, :, None]
        return Past(lengths, tuple((_move(k, index), _move(v, index)) for k, v in self.layers))


class CausalTarget:
    """A causal language model that continues any number of rows, each at its own pace.

    Attributes:
        name: Shown in records and messages.
        vocab_size: Number of logits, V.
        num_shared_ids: Ids below this mean the same to the mask predictor; no others are written.
        eos_ids: Tokens that end an answer, from the generation config.
        network: What is run.
        files: Files that it was read from; () if that is not known.
    """

    def __init__(
        self,
        model: "transformers.PreTrainedModel | CausalNetwork",
        *,
        name: str,
        num_shared_ids: int | None = None,
        files: tuple[Path, ...] = (),
    ) -> None:
        """Wraps a model in evaluation mode, every layer of which attends to all earlier tokens.

        `num_shared_ids=None` means all ids; `load_target` compares tokenizers.

        Raises:
            ValueError: If a layer does not attend to all earlier tokens, or there is no EOS.
        """
        self.name, self.files = name, files
        self.network: CausalNetwork = (
            model if isinstance(model, CausalNetwork) else TransformersNetwork(model, name=name)
        )
        self.eos_ids = self.network.eos_ids
        self.vocab_size = self.network.vocab_size
        self.is_compared = num_shared_ids is not None
        self.num_shared_ids = self.vocab_size if num_shared_ids is None else num_shared_ids
        self._has_read_trees = self.network.heeds_masks

    def __repr__(self) -> str:
        return f"CausalTarget({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self.network.device

    def start(self, num_rows: int) -> Past:
        """Returns the past of rows that have read nothing."""
        return Past(torch.zeros(num_rows, dtype=torch.long, device=self.device), ())

    @torch.no_grad()
    def read(
        self,
        past: Past,
        tokens: Int[Tensor, "B Q"],
        counts: Int[Tensor, " B"],
        *,
        num_logits: int,
        first_logits: Int[Tensor, " B"] | None = None,
        parents: Int[Tensor, "B N"] | None = None,
    ) -> Reading:
        """Reads further tokens in one forward.

        With `parents`, the columns after `first_logits` are the nodes of a tree: several ways in
        which the text may go on. A node sees the past, the columns up to the root, its ancestors
        and itself, and its position is that of the root plus its depth, so that its logits are what
        they would be if its path alone had been read.

        Args:
            past: What was read before; not changed.
            tokens: Tokens that follow the past; shorter rows are padded with any token.
            counts: Tokens of each row.
            num_logits: Number of consecutive columns of each row whose logits are returned.
            first_logits: The first of these columns; `None`: the last of the Q columns is the last
                of these.
            parents: For each of the N = `num_logits` - 1 columns after `first_logits` the number of
                its parent, counted from the first of these columns; -1: the root, which is
                the column at `first_logits`. `None`: each column follows the one before it.

        Raises:
            ValueError: If there are parents, but the model takes no positions, or its logits after
                a path in a small tree are not those after the path alone.
        """
        if parents is not None:
            self._check_trees()
        if first_logits is None:
            first_logits = torch.full_like(counts, tokens.shape[1] - num_logits)
        # The head computes the same columns of all rows, so rows are moved to align these columns.
        first, after = torch.stack([first_logits.max(), (counts - first_logits).max()]).tolist()
        gaps = first - first_logits
        width = first + max(after, num_logits)
        # A prompt is not padded, so that it often needs no attention mask.
        width = round_up(width, COLUMN_STRIDE) if past.num_slots else width
        tokens = _after_gaps(tokens, gaps, width=width)
        slots = torch.arange(past.num_slots, device=tokens.device)
        columns = torch.arange(width, device=tokens.device)
        wanted = columns[first : first + round_up(num_logits, COLUMN_STRIDE)]
        columns = columns - gaps[:, None]
        in_past = slots >= past.num_slots - past.lengths[:, None]
        if parents is None:
            attend = torch.cat([in_past, (columns >= 0) & (columns < counts[:, None])], dim=1)
            positions = columns.minimum(counts[:, None] - 1).clamp(min=0)
        else:
            tree = ancestors(parents)
            attend = tree_mask(in_past, columns >= 0, tree, root=first)
            positions = tree_positions(columns, tree, root=first)
        positions = past.lengths[:, None] + positions
        out = self.network.read(CausalInputs(tokens, positions, attend, past.layers, wanted))
        return Reading(out.logits[:, :num_logits], past, gaps, out.layers)

    def _check_trees(self) -> None:
        """Compares a path in a tree with the same path alone, once."""
        if self._has_read_trees:
            return
        if not self.network.takes_positions:
            raise ValueError(
                f"A target must take position_ids to read a draft tree, got {self.name}, which "
                "counts columns instead. Draft a path, as PathSearch does."
            )
        self._has_read_trees = True
        text = torch.arange(1, 6, device=self.device)[None] % self.vocab_size
        parents = torch.tensor([[-1, -1, 1]], device=self.device)
        path, length = text[:, [0, 1, 3, 4]], torch.full_like(text[:, 0], 4)
        root = torch.ones_like(length)
        past = self.start(1)
        tree = self.read(past, text, length + 1, num_logits=4, first_logits=root, parents=parents)
        alone = self.read(past, path, length, num_logits=3, first_logits=root).logits[0, 1:].float()
        difference = (tree.logits[0, 2:].float() - alone).abs().max()
        if not difference <= _TREE_TOLERANCE * (alone.max() - alone.min()):
            self._has_read_trees = False
            raise ValueError(
                f"A target must heed a mask and positions to read a draft tree, got {self.name}, "
                f"whose logits then differ by {float(difference):.2g}. Draft a path, as PathSearch "
                "does."
            )


def _after_gaps(
    tokens: Int[Tensor, "B Q"], gaps: Int[Tensor, " B"], *, width: int
) -> Int[Tensor, "B W"]:
    """Moves each row to the right; tokens before and after the row are arbitrary."""
    columns = torch.arange(width, device=tokens.device) - gaps[:, None]
    return tokens.gather(1, columns.clamp(0, tokens.shape[1] - 1))


def _move(
    part: Float[Tensor, "B H S D"], index: Int[Tensor, "B 1 N 1"]
) -> Float[Tensor, "B H N D"]:
    """Moves slots to the front in place, so that only one layer at a time is held twice."""
    moved = part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3]))
    return part[:, :, : index.shape[2]].copy_(moved)
