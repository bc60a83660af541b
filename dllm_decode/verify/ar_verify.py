"""Verification by an autoregressive model (DiffuSpec): it writes, the mask predictor drafts."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.models.causal import CausalTarget, Past
from dllm_decode.session import Session
from dllm_decode.verify.base import Verifier
from dllm_decode.verify.draft_length import DraftLength, Lengths
from dllm_decode.verify.judging import check_target, first_masks, judge, whole_answer, write
from dllm_decode.verify.path_search import Draft, PathSearch
from samplers.base import Sampler, State
from samplers.statistics import leading


@dataclass(frozen=True)
class ARVerify(Verifier):
    """Decodes as a causal target would alone, several tokens for each of its forwards.

    In each round the mask predictor looks at the canvas once, a path search makes a draft of what
    it sees, and the target reads the draft in one forward. The target says at every position which
    token it would write; as long as that is the draft's, it is as if the target had written it
    alone. The first token that differs is replaced by the target's and ends the round; behind a
    draft that it would have written whole, the target adds one token.

    Every token is the target's own: its most likely one at temperature 0, else a draw from its
    distribution with noise keyed by seed, row and position. So the answer is that of the target
    alone, whatever the drafts are worth, and at temperature 0 it is its greedy answer; rounding
    aside, since reading many tokens at once may round differently. The answer ends with one of the
    target's EOS tokens.

    The answer is written from left to right; blocks do not matter, and the sampler is not asked.
    The target reads each token once, and forgets what was rejected. The mask predictor may have any
    cache, since drafts may be approximate; `FreeCache()` keeps what stands to the left of the
    drafts, the others start anew in each round.

    Source: Li et al. 2025, "DiffuSpec: Unlocking Diffusion Language Models for Speculative
    Decoding", https://arxiv.org/abs/2510.02358, with one drafting forward a round.
    Differs: Rows at their own pace. The mask predictor sees the whole answer that is left, not the
    draft's part alone. At temperatures above 0 the paper accepts a searched token with probability
    min(1, p/q), which is only right for tokens drawn from q and favours what the search likes;
    here the target draws, and a draft is accepted if it is what was drawn.

    Attributes:
        target: Writes the answer.
        draft_length: How many tokens are drafted.
        search: Which tokens are drafted.
    """

    target: CausalTarget
    draft_length: DraftLength = field(default_factory=DraftLength)
    search: PathSearch = field(default_factory=PathSearch)

    def check(self, model: MaskPredictor) -> None:
        check_target(self.target, model, verifier="ARVerify")

    def eos_ids(self, model: MaskPredictor) -> tuple[int, ...]:
        return self.target.eos_ids

    def blocks(self, canvas: Canvas, block_length: int) -> Iterator[Block]:
        return whole_answer(canvas, verifier="ARVerify")

    @property
    def asks_sampler(self) -> bool:
        return False

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def advance(
        self, session: Session, sampler: Sampler, canvas: Canvas, block: Block, carry: State
    ) -> tuple[Canvas, State]:
        if carry is None:
            past, lengths = self.target.start(len(canvas)), self.draft_length.first(canvas.rows)
        else:
            assert isinstance(carry, tuple)
            past, lengths = Past(*carry[0]), Lengths(*carry[1])
        first = first_masks(canvas)
        left = canvas.masked.sum(-1)
        wanted = torch.minimum(lengths.length, left)
        logits = self._look(session, sampler, canvas, wanted)
        context = canvas.tokens.gather(1, self._context(canvas, first))
        draft = self.search.search(logits, wanted, context, canvas.eos_ids)
        judgement = judge(session, self.target, canvas, draft, past)
        written = session.choose(canvas, first, judgement.logits)
        accepted = _accepted(draft, written)
        # The target's token after the last accepted one: a correction, or one more.
        num = torch.minimum(accepted + 1, left)
        ends = torch.isin(written, torch.tensor(canvas.eos_ids, device=first.device))
        num = torch.minimum(num, leading(~ends) + 1)
        drafted = self._drafted(logits, wanted, canvas.eos_ids)
        after = self.draft_length.after(lengths, drafted, accepted)
        canvas = write(canvas, first, Draft(written, num))
        return canvas, (tuple(judgement.past(num)), tuple(after))

    def _look(
        self, session: Session, sampler: Sampler, canvas: Canvas, wanted: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K V"]:
        """Lets the mask predictor predict the next tokens of each row."""
        first = first_masks(canvas)
        # One position more, where the target's own token goes: observers see what was written.
        end = int((first + wanted).max()) + 1
        window = Block(int(first.min()), min(end, canvas.region_length))
        session.open()
        logits = session.look(canvas, window, sampler).within("block").logits
        offsets = torch.arange(int(wanted.max()), device=first.device)
        places = (first[:, None] - window.start + offsets).clamp(max=logits.shape[1] - 1)
        logits = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[2]))
        logits[..., self.target.num_shared_ids :] = -torch.inf
        return logits

    def _context(self, canvas: Canvas, first: Int[Tensor, " B"]) -> Int[Tensor, "B C"]:
        """Lists the columns before each row's first mask that the proxy looks at."""
        back = torch.arange(self.search.proxy.order - 1, 0, -1, device=first.device)
        return (canvas.start + first[:, None] - back).clamp(min=0)

    def _drafted(
        self, logits: Float[Tensor, "B K V"], wanted: Int[Tensor, " B"], eos_ids: tuple[int, ...]
    ) -> Int[Tensor, " B"]:
        """Counts the likeliest tokens before the first EOS among them."""
        tokens = logits.max(-1).indices
        ends = torch.isin(tokens, torch.tensor(eos_ids, device=tokens.device))
        return torch.minimum(leading(~ends), wanted)


def _accepted(draft: Draft, written: Int[Tensor, "B K1"]) -> Int[Tensor, " B"]:
    """Counts the drafted tokens up to the first that the target would not have written."""
    places = torch.arange(draft.tokens.shape[1], device=draft.counts.device)
    agree = (draft.tokens == written[:, :-1]) & (places < draft.counts[:, None])
    return leading(agree)
