"""The only object that calls the model, so that the bill cannot be cheated."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.caches import CachePolicy
from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import Inputs, MaskPredictor
from samplers.base import Sampler, View
from samplers.noise import row_keys


class Session:
    """Runs the model for one decode and counts what that costs.

    The logit shift, padding and block-causal attention are settled here; samplers, caches and
    verifiers never meet them.

    Attributes:
        view: The view made last, for observers.
        forwards: Calls of the model.
        nfe: Forwards each row took part in.
        query_positions: Columns computed for each row, summed over its forwards.
    """

    def __init__(
        self,
        model: MaskPredictor,
        canvas: Canvas,
        cache: CachePolicy,
        *,
        temperature: float,
        seed: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._temperature = temperature
        self._seed = seed
        self._memory = model.new_memory(len(canvas), canvas.length) if cache.needs_memory else None
        self._banned = torch.tensor(sorted({model.mask_id, *model.banned_ids}), device=model.device)
        self._step = 0
        self.view: View | None = None
        self.forwards = 0
        self.nfe = torch.zeros(len(canvas), dtype=torch.long, device=model.device)
        self.query_positions = torch.zeros_like(self.nfe)

    def open(self) -> None:
        """Starts a block: the cache counts its forwards anew."""
        self._step = 0

    def look(self, canvas: Canvas, block: Block, sampler: Sampler) -> View:
        """Runs one forward and returns what the sampler may see of it."""
        end = block.end if sampler.scope == "block" else canvas.region_length
        window = slice(block.start, end)
        logits = self._predict(canvas, canvas.columns(Block(block.start, end)))
        masked = canvas.masked
        in_block = torch.arange(block.start, end, device=masked.device) < block.end
        self._step += 1
        self.view = View(
            tokens=canvas.region[:, window],
            logits=logits,
            masked=masked[:, window],
            eligible=masked[:, window] & in_block & canvas.running[:, None],
            start=block.start,
            gen_length=canvas.gen_length,
            committed=canvas.committed,
            temperature=self._temperature,
            keys=row_keys(self._seed, canvas.rows, canvas.committed),
        )
        return self.view

    def _predict(self, canvas: Canvas, window: slice) -> Float[Tensor, "B W V"]:
        """Returns logits that predict the window's columns, banned tokens at -inf."""
        shift = self._model.logit_shift
        needed = slice(window.start - shift, window.stop - shift)
        columns = self._cache.recompute(canvas, needed, self._step)
        if self._model.causal_block_length:
            # Later blocks are invisible to this one: leaving them out changes nothing.
            columns = columns[:, : window.stop]
        columns = columns.contiguous()
        predictors = torch.arange(needed.start, needed.stop, device=columns.device)
        wanted = torch.searchsorted(columns, predictors.repeat(len(columns), 1))
        logits = self._model.predict(
            Inputs(
                tokens=canvas.tokens.gather(1, columns),
                positions=(columns - canvas.pads[:, None]).clamp(min=0),
                wanted=wanted,
                attend=self._attend(canvas, columns),
                memory=self._memory,
                slots=None if self._memory is None else columns,
                rows=None if len(canvas) == len(self.nfe) else canvas.rows,
            )
        )
        self.forwards += 1
        self.nfe[canvas.rows] += 1
        self.query_positions[canvas.rows] += columns.shape[1]
        return logits.index_fill_(-1, self._banned, -torch.inf)

    def _attend(
        self, canvas: Canvas, columns: Int[Tensor, "B Q"]
    ) -> Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None:
        """Hides padding and, from a block-causal model, later blocks."""
        keys = columns
        if self._memory is not None:
            keys = torch.arange(canvas.length, device=columns.device).expand(len(columns), -1)
        pads = canvas.pads[:, None]
        present = (keys >= pads)[:, None] if canvas.padded else None
        length = self._model.causal_block_length
        if not length:
            return present
        earlier = ((keys - pads) // length)[:, None] <= ((columns - pads) // length)[..., None]
        return earlier if present is None else earlier & present
