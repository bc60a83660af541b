"""A model whose every conditional is known, so that only the sampler errs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from dllm_decode import ForwardInputs, KVCache
from eval.oracle.joint import Joint
from samplers.logits.noise import mix, uniform

# Finite, so that differences of logits are numbers; the probability is still 0.
_IMPOSSIBLE = -1e9

# Base of the digits in prompts.
_BASE = 32


@dataclass
class OracleModel:
    """A mask predictor that answers with the exact conditionals of a joint distribution.

    Its logits are the logarithms of the conditional probabilities given every token that the query
    sees; EOS follows an answer. If no answer agrees with these tokens, all tokens are equally
    likely. It has no keys and values, so no cache.

    Exact probabilities tie, and then every position would pick the same token. Noise far below any
    difference of probabilities, keyed by all tokens that are seen, breaks the ties.

    Attributes:
        joint: The distribution.
        noise: Half the width of the uniform noise on the logits; 0 leaves ties.
        logit_shift: As for every mask predictor.
    """

    joint: Joint
    noise: float = 1e-9
    logit_shift: int = 0
    name: str = "oracle"
    causal_block_length: int = 0
    max_length: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.eos_ids: tuple[int, ...] = (self.joint.num_symbols,)
        self.mask_id = self.eos_ids[0] + 1
        # The ids after [MASK] occur in prompts only: their last token, and digits.
        self.vocab_size = self.mask_id + 2 + _BASE
        self.banned_ids = tuple(range(self.mask_id + 1, self.vocab_size))
        self._answers = torch.tensor(list(self.joint.answers))
        shares = [float(p) for p in self.joint.answers.values()]
        self._shares = torch.tensor(shares, dtype=torch.float64)
        # 1 where an answer has a token at a position.
        self._holds = one_hot(self._answers, self.vocab_size).double().flatten(1)

    def prompt(self, sample: int, length: int = 3) -> list[int]:
        """Returns a prompt of at least `length` tokens: digits of `sample`, 0 and the end.

        Repeats of a prompt differ in their `sample`, and hence in their noise.
        """
        if length < 3:
            raise ValueError(f"A prompt has at least 3 tokens, got {length}.")
        zero = self._end_of_prompt + 1
        digits: list[int] = []
        while sample or len(digits) < length - 2:
            sample, digit = divmod(sample, _BASE)
            digits.append(zero + digit)
        return [*digits[::-1], zero, self._end_of_prompt]

    def is_right(self, tokens: Sequence[int]) -> bool:
        """Says whether tokens are a possible answer, followed by EOS."""
        length = self.joint.length
        return tuple(tokens[:length]) in self.joint.answers and {*tokens[length:]} <= {
            *self.eos_ids
        }

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        is_end = inputs.tokens == self._end_of_prompt
        if not is_end.any(-1).all():
            raise ValueError("The oracle answers its own prompts only; make them with `prompt`.")
        ends = is_end.long().argmax(-1, keepdim=True)
        start = inputs.positions.gather(1, ends) + 1
        at = inputs.positions.gather(1, inputs.wanted) + self.logit_shift - start
        visible = _visible(inputs)
        seen = self._known(inputs.tokens, inputs.positions - start, visible)
        return self._logits(seen, at) + self._ties(inputs, visible, at)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        raise ValueError("The oracle has no keys and values; decode it with NoCache().")

    @property
    def _end_of_prompt(self) -> int:
        return self.mask_id + 1

    def _known(
        self, tokens: Int[Tensor, "B K"], at: Int[Tensor, "B K"], visible: Bool[Tensor, "B q K"]
    ) -> Int[Tensor, "B q n"]:
        """Returns the token that is seen at each answer position, mask_id if none is."""
        length = self.joint.length
        inside = (at >= 0) & (at < length) & (tokens < self.mask_id)
        seen = visible & inside[:, None]
        held = tokens[:, None].expand_as(seen).masked_fill(~seen, self.mask_id)
        places = at.clamp(0, length - 1)[:, None].expand_as(seen)
        blank = torch.full((*seen.shape[:2], length), self.mask_id)
        # [MASK] is greater than every token, so that the least id at a place is its token.
        return blank.scatter_reduce(-1, places, held, "amin")

    def _logits(
        self, tokens: Int[Tensor, "B q n"], at: Int[Tensor, "B W"]
    ) -> Float[Tensor, "B W V"]:
        """Returns the logarithms of the conditional probabilities."""
        length, (B, q, _) = self.joint.length, tokens.shape
        agrees = (tokens[..., None, :] == self._answers) | (tokens[..., None, :] == self.mask_id)
        weights = agrees.all(-1) * self._shares
        total = weights.sum(-1)[..., None, None]
        conditionals = (weights @ self._holds).view(B, q, length, -1) / total
        conditionals = torch.where(total > 0, conditionals, 1.0)
        rows = torch.arange(B)[:, None]
        queries = torch.arange(q).expand(at.shape[1])
        inside = (at >= 0) & (at < length)
        logits = conditionals[rows, queries, at.clamp(0, length - 1)].log()
        after = torch.full_like(logits, _IMPOSSIBLE)
        after[..., self.eos_ids[0]] = 0.0
        return torch.where(inside[..., None], logits.clamp(min=_IMPOSSIBLE), after)

    def _ties(
        self, inputs: ForwardInputs, visible: Bool[Tensor, "B q K"], at: Int[Tensor, "B W"]
    ) -> Float[Tensor, "B W V"]:
        held = mix(mix(inputs.positions + 1) ^ inputs.tokens)[:, None]
        keys = mix(held.expand_as(visible).masked_fill(~visible, 0).sum(-1)) ^ mix(at)
        ids = torch.arange(self.vocab_size)
        return self.noise * (2.0 * uniform(mix(keys)[..., None] ^ mix(ids)) - 1.0)


def _visible(inputs: ForwardInputs) -> Bool[Tensor, "B q K"]:
    """Returns which columns each wanted column sees; one row if all see the same columns."""
    if inputs.attend is None:
        return torch.ones_like(inputs.tokens, dtype=torch.bool)[:, None]
    if inputs.attend.shape[1] == 1:
        return inputs.attend
    rows = torch.arange(len(inputs.tokens))[:, None]
    seen: Tensor = inputs.attend[rows, inputs.wanted]
    return seen
