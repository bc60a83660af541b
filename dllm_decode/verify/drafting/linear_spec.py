"""Drafts of one block on a target's own keys and values (Nemotron-Labs-Diffusion)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.models.targets.target_network import CausalInputs
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafts import Draft, DraftStart
from dllm_decode.verify.target_verifier import require_target
from samplers.checks import Probability, count_from
from samplers.logits.statistics import highest_one


@dataclass(frozen=True)
class LinearSpec(Drafting):
    """Fills a block of [MASK] after the last token; the block reads the target's keys and values.

    Columns of the block see each other in both directions. They see the text as the target has read
    it, from left to right, and nothing of the block is stored. The first forward of the target
    reads the prompt and has no draft.

        text of the target       the block
        p  p  p  p  s  s         s  _  _  _  _     s: the last token, which the target has not read

    Source: NVIDIA 2026, Nemotron-Labs-Diffusion, `linear_spec_generate` of the checkpoint. Its
    drafts are made with an adapter: `load_drafter(model, "linear_spec_lora")`.
    Differs: Batches. The answer never exceeds `gen_length`. `max_thinking_tokens` is not offered.

    Attributes:
        drafter: The target of the decode with the adapter, or the target itself.
        length: Columns of the block, at least 2: the last token and the masks. `DraftLength` bounds
            the draft too; `DraftLength(31, 31)` takes all masks of a block of 32.
        threshold: Probability, in [0, 1], of masks that a forward fills, and the most confident one
            in any case, until none is left; 0: all in one forward.

    Raises:
        ValueError: If `drafter` is no target of a network of this package, or a number is outside
            its range.
    """

    drafter: CausalTarget
    length: Annotated[int, count_from(2, "tokens")] = 32
    threshold: Probability = 0.0

    num_forwards = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_target("LinearSpec", self.drafter)
        if not self.drafter.network.heeds_masks:
            raise ValueError(
                "The drafter of LinearSpec must be made by as_causal_target(model) of a mask "
                f"predictor, which also reads in both directions, got {self.drafter!r}."
            )

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        past, canvas, first = start.past, start.canvas, start.first_unsettled
        assert past is not None
        # A row that joins has a prompt that the target has not read.
        is_read = past.lengths == first - 1
        num_forwards = torch.zeros_like(first)
        block = start.context(1).repeat(1, self.length)
        block[:, 1:] = canvas.mask_id
        columns = torch.arange(self.length, device=block.device)
        slots = torch.arange(past.num_slots, device=block.device)
        in_past = slots >= past.num_slots - past.lengths[:, None]
        attend = torch.cat([in_past, torch.ones_like(block, dtype=torch.bool)], 1)
        attend = attend[:, None].expand(-1, self.length, -1)
        positions = past.lengths[:, None] + columns
        holes = (block == canvas.mask_id) & is_read[:, None]
        while holes.any():
            num_forwards += holes.any(-1)
            inputs = CausalInputs(block, positions, attend, past.layers, columns)
            seen = self.drafter.network.read(inputs).logits.float()
            seen[..., canvas.mask_id] = -torch.inf
            best = seen.softmax(-1).max(-1)
            fill = holes & (best.values >= self.threshold)
            fill |= highest_one(best.values, holes)
            block = torch.where(fill, best.indices, block)
            holes &= ~fill
        counts = lengths.clamp(max=self.length - 1) * is_read
        return Draft(block[:, 1:], counts, own_forwards=num_forwards, forward_width=self.length)
