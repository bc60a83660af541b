"""Drafts without a mask predictor: copies from the text so far, or from further texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafting.ngram import id_tensor
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import count_from

_END = -1


@dataclass(frozen=True)
class Pool(Drafting):
    """Copies the tokens that followed earlier occurrences of the last tokens in the row's text.

    The last `order` - 1 tokens are looked for, then fewer, down to one; among places with equally
    many, the latest comes first. The first `size` places with different continuations make a tree;
    `size=1` makes a path, which every target can read. A copy that reaches the end of the text
    continues with its own tokens, so that a repetition is drafted as long as wanted. Without a
    match, nothing is drafted.

    The text is the row's own prompt and answer, so that drafts do not depend on other rows. Texts
    given to `fit` come before the prompt of every row.

    Source: Saxena 2023, "Prompt Lookup Decoding",
    https://github.com/apoorvumang/prompt-lookup-decoding, and for `fit` He et al. 2023, "REST:
    Retrieval-Based Speculative Decoding", https://arxiv.org/abs/2311.08252.
    Differs: The original copies from the first place, up to the end of the text, one continuation.
    REST looks in its texts alone and takes the most frequent continuations.

    Attributes:
        order: Tokens of the longest n-grams, the tokens looked for and the next one; at least 2.
        size: Continuations of a draft, at most.
        length: Tokens of a continuation, at most; `DraftLength` bounds them too.
        texts: Ids of further texts, each followed by an id -1; made by `fit`.

    Raises:
        ValueError: If an attribute is below its least value.
    """

    order: Annotated[int, count_from(2, "tokens")] = 4
    size: Annotated[int, count_from(1)] = 4
    length: Annotated[int, count_from(1, "tokens")] = 8
    texts: Int[Tensor, " N"] = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long), repr=False, compare=False
    )

    num_forwards = 0

    def fit(self, sequences: Sequence[Sequence[int] | Int[Tensor, " _"]]) -> "Pool":
        """Returns a pool that also copies from these sequences of token ids, and no others.

        A record of a run does not name them: runs with other sequences need other folders.

        Raises:
            ValueError: If a sequence holds anything but token ids.
        """
        rows = [functional.pad(id_tensor(row), (0, 1), value=_END) for row in sequences]
        return replace(self, texts=torch.cat([self.texts[:0], *rows]))

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        canvas = start.canvas.tokens
        first = start.first_unsettled[:, None] + len(self.texts)
        texts = self.texts.to(canvas.device).expand(len(canvas), -1)
        tokens = torch.cat([texts, canvas], -1)
        reach = torch.arange(self.length, device=tokens.device)
        worth = self._worth(tokens, first)
        ahead = functional.pad(tokens, (0, self.length), value=_END).unfold(1, self.length, 1)
        copies, found = [], []
        # Each continuation has to differ from those that were chosen before it.
        for _ in range(self.size):
            best = worth.max(-1, keepdim=True)
            begin = best.indices
            copy = tokens.gather(1, begin + reach % (first - begin).clamp(min=1))
            copies.append(copy)
            found.append(best.values > 0)
            is_same = (ahead[:, : worth.shape[1]] == copy[:, None]).all(-1)
            worth = worth.masked_fill(is_same, 0).scatter(1, begin, 0)
        paths = torch.stack(copies, 1)
        # A copy ends where its text ends.
        kept = (paths != _END).cumprod(-1).bool() & torch.stack(found, 1)
        kept = kept & (reach < lengths[:, None])[:, None]
        return Draft(copies[0], kept[:, 0].sum(-1)) if self.size == 1 else _tree_of(paths, kept)

    def _worth(self, tokens: Int[Tensor, "B T"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B T"]:
        """Returns a greater number for better places to begin a copy; 0: no token matches."""
        ends = torch.arange(tokens.shape[1], device=tokens.device)
        worth = torch.zeros_like(tokens)
        matches = ends < first
        for back in range(1, self.order):
            sought = tokens.gather(1, (first - back).clamp(min=0))
            earlier = functional.pad(tokens, (back, 0), value=_END)[:, : tokens.shape[1]]
            matches = matches & (earlier == sought) & (first >= back)
            worth += matches * tokens.shape[1]
        return worth + ends * (worth > 0)


def _tree_of(paths: Int[Tensor, "B S N"], kept: Bool[Tensor, "B S N"]) -> Draft:
    """Returns the tree of all paths; equal prefixes of several paths are the same nodes."""
    is_equal = (paths[:, :, None] == paths[:, None]) & kept[:, :, None] & kept[:, None]
    # A node belongs to the first path that begins with the same tokens.
    owner = is_equal.cumprod(-1).argmax(2)
    own = torch.arange(paths.shape[1], device=paths.device)[:, None]
    places = torch.arange(paths.shape[2], device=paths.device)
    parents = (owner * len(places) + places)[..., :-1]
    parents = functional.pad(parents, (1, 0), value=-1).flatten(1)
    kept = (kept & (owner == own)).flatten(1)
    return Draft(paths.flatten(1), kept.sum(-1), parents=parents).subtree(kept)
