"""Drafts without a mask predictor: from the text so far, or from the target itself."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.verify.ar_verify.drafting.base import Drafting
from dllm_decode.verify.drafts import Beginning, Draft
from samplers.checks import count_from


@dataclass(frozen=True)
class PromptLookup(Drafting):
    """Copies the tokens that followed an earlier occurrence of the last tokens in the text.

    The last `ngram` tokens are looked for, then fewer, down to one. If they occur several times,
    the latest place counts. A copy that reaches the end of the text continues with its own tokens,
    so that a repetition is drafted as long as wanted. Without a match, nothing is drafted.

    Source: Saxena 2023, "Prompt Lookup Decoding",
    https://github.com/apoorvumang/prompt-lookup-decoding.
    Differs: The original copies from the first place, up to the end of the text.

    Attributes:
        ngram: Most tokens that are looked for, at least 1.
        length: Tokens of a draft, at most; `DraftLength` bounds them too.

    Raises:
        ValueError: If an attribute is below 1.
    """

    ngram: Annotated[int, count_from(1, "tokens")] = 3
    length: Annotated[int, count_from(1, "tokens")] = 8

    @property
    def num_forwards(self) -> int:
        return 0

    def draft(
        self,
        beginning: Beginning,
        logits: Float[Tensor, "B K V"],
        lengths: Int[Tensor, " B"],
    ) -> Draft:
        tokens, first = beginning.canvas.tokens, beginning.first[:, None]
        begin = torch.full_like(first, -1)
        for size in range(min(self.ngram, tokens.shape[1] - 1), 0, -1):
            ends = torch.arange(size, tokens.shape[1] + 1, device=tokens.device)
            matches = (tokens.unfold(1, size, 1) == beginning.context(size)[:, None]).all(-1)
            # A token of the text must follow a match. Shorter matches count if no longer one does.
            latest = torch.where(matches & (ends < first), ends, -1).amax(-1, keepdim=True)
            begin = torch.where(begin < 0, latest, begin)
        offsets = torch.arange(logits.shape[1], device=tokens.device)
        copied = begin + offsets % (first - begin)
        counts = torch.where(begin.squeeze(1) < 0, 0, lengths.clamp(max=self.length))
        return Draft(tokens.gather(1, copied.clamp(min=0)), counts)


@dataclass(frozen=True)
class Jacobi(Drafting):
    """Lets the target iterate: its tokens after a rejected one are the next round's draft.

    Each forward of the target computes all tokens of the draft anew from the tokens before them in
    the last draft. Tokens that no longer change are accepted; the target alone writes the same.
    Above temperature 0 the iteration is the same, with noise keyed by position.

    Source: Santilli et al. 2023, "Accelerating Transformer Inference for Translation via Parallel
    Decoding", https://arxiv.org/abs/2305.10427, algorithm 2 (parallel GS-Jacobi decoding).
    Differs: The window moves on with the first wrong token in place of block by block. It begins
    with token 0 everywhere; positions that enter it later get a copy of its last token.

    Attributes:
        length: Tokens of a draft, at most; `DraftLength` bounds them too.

    Raises:
        ValueError: If the attribute is below 1.
    """

    length: Annotated[int, count_from(1, "tokens")] = 8

    @property
    def num_forwards(self) -> int:
        return 0

    def draft(
        self,
        beginning: Beginning,
        logits: Float[Tensor, "B K V"],
        lengths: Int[Tensor, " B"],
    ) -> Draft:
        guess = beginning.guess
        assert guess is not None
        places = torch.arange(logits.shape[1], device=guess.device).clamp(max=guess.shape[1] - 1)
        return Draft(guess[:, places], lengths.clamp(max=self.length))
