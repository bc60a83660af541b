"""Threshold unmasking that makes doubtful tokens [MASK] again (T2M)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import Probability, Share, count_from
from samplers.logits.float64 import in_float64
from samplers.logits.statistics import highest, highest_one
from samplers.view import View

Strategy = Literal["low_prob", "t2t_remask", "logit_diff"]


class T2MState(NamedTuple):
    """The history of a block.

    Attributes:
        post_steps: Steps that began with a full block.
        remasks: How often each position was re-masked.
        probability: Probability of each token in the last step, if that step could re-mask;
            otherwise 0.
    """

    post_steps: Int[Tensor, " B"]
    remasks: Int[Tensor, "B W"]
    probability: Float[Tensor, "B W"]


@dataclass(frozen=True)
class T2M(RevisingSampler[T2MState]):
    """Commits confident tokens, and makes tokens that the model doubts [MASK] again.

    Each step does both, from one forward:

        fill      the masks whose confidence exceeds `threshold`; if there is none, the most
                  confident one
        re-mask   tokens of earlier steps of the block that are doubtful and were re-masked fewer
                  than `max_remasks` times; at most max(1, int(`ratio` x tokens of earlier steps)),
                  the lowest score first

    | `strategy` | a token is doubtful if | score |
    | --- | --- | --- |
    | `"low_prob"` | its probability is below `tau` | its probability |
    | `"t2t_remask"` | the likeliest token is another one, above `tau` | 1 - that probability |
    | `"logit_diff"` | its probability fell by more than `tau` since the step before | -fall |

    A block ends, always full, when a step that began with a full block re-masks nothing, or when
    `max_post_steps` steps began with a full block. If every token of a full block is re-masked at
    once, the counts of `max_remasks` begin anew. Given tokens are never re-masked.

    Source: arXiv 2604.18738 and 2605.26436, 2026, https://arxiv.org/abs/2604.18738, for LLaDA 2.1;
    the rule is that of the authors' code, github.com/synsis/remasked_DLM at 1fe25ab,
    modeling_remask.py and modeling_llada2_moe.py. The defaults are the published setting; the code
    has other defaults (a tau of 0.5, 0.9 or 0.3 by strategy, 5 re-masks).
    Differs: From the paper, as the authors' code does: tokens that the step itself commits are not
    re-masked and not counted for `ratio`, and at least one token may be re-masked. From the
    authors' code: (a) its first forward adds a mask of 0 and 1 to the scores, so that later blocks
    are seen; here the model is block-causal from the first forward on. (b) It may write [MASK].
    (c) A block that ends by `max_post_steps` keeps keys and values of the forward before its last
    fill; here they are computed anew. Equal scores
    re-mask from the left.

    Attributes:
        threshold: Probability, in [0, 1], that a proposal must exceed to be committed.
        strategy: Which tokens are doubtful, see the table.
        tau: Threshold of the doubt, a probability in [0, 1].
        max_remasks: How often a position may be re-masked, at least 0.
        ratio: Share, in [0, 1], of the tokens of earlier steps that one step may re-mask.
        max_post_steps: Steps that may begin with a full block, at least 0.
        eos_early_stop: True if a full block that holds an EOS ends at once. If the decode has
            `stop_at_eos`, the answer ends too.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.7
    strategy: Strategy = "low_prob"
    tau: Probability = 0.3
    max_remasks: Annotated[int, count_from(0, "re-masks")] = 1
    ratio: Share = 0.25
    max_post_steps: Annotated[int, count_from(0, "steps")] = 16
    eos_early_stop: bool = True

    def max_steps(self, num_masks: int) -> int:
        # The counts begin anew only after a step that began with a full block.
        fills = num_masks * (1 + self.max_remasks)
        return fills * (1 + self.max_post_steps) + self.max_post_steps

    def init(self, view: View) -> T2MState:
        none = torch.zeros_like(view.tokens)
        return T2MState(none[:, 0], none, none.to(view.dtype))

    def step(self, view: View, state: T2MState) -> tuple[Decision, T2MState]:
        empty, filled = view.eligible & view.masked, view.eligible & ~view.masked
        commit = empty & (view.confidence > self.threshold)
        commit |= highest_one(view.confidence, empty)
        tokens = torch.where(commit, view.proposal, view.tokens)
        probability = view.probability(tokens)

        was_full = ~empty.any(-1)
        post_steps = state.post_steps + was_full
        has_filled = filled.any(-1, keepdim=True)
        remasks = state.remasks * has_filled
        doubtful, score = self._doubt(view, probability, state.probability)
        doubtful = doubtful & filled & (remasks < self.max_remasks)
        # More steps come only from a verifier that does not let the block end.
        doubtful = doubtful & (post_steps <= self.max_post_steps)[:, None]
        limit = (self.ratio * in_float64(filled.sum(-1))).long().clamp(min=1)
        remask = highest(-score, doubtful, limit.to(score.device))

        ends = was_full | (post_steps >= self.max_post_steps)
        if self.eos_early_stop:
            ends = ends | (view.is_eos(tokens) & view.eligible).any(-1)
        ends = ends & ~((empty & ~commit) | remask).any(-1)
        decision = Decision(commit, tokens, view.eligible & ends[:, None], remask)
        last_probability = torch.where(has_filled, probability, 0.0)
        return decision, T2MState(post_steps, remasks + remask, last_probability)

    def _doubt(
        self, view: View, probability: Float[Tensor, "B W"], previous: Float[Tensor, "B W"]
    ) -> tuple[Bool[Tensor, "B W"], Float[Tensor, "B W"]]:
        """Returns which tokens are doubtful, and a score: the lowest are re-masked first."""
        match self.strategy:
            case "low_prob":
                return probability < self.tau, probability
            case "t2t_remask":
                rival = view.most_likely
                rival_probability = view.probability(rival)
                is_rival = (rival_probability > self.tau) & (rival != view.tokens)
                return is_rival, 1.0 - rival_probability
            case "logit_diff":
                fall = previous - probability
                return fall > self.tau, -fall
