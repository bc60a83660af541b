"""A model whose every conditional is known, so that only the sampler errs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode import ForwardInputs, KVCache
from eval.oracle.joint import Joint
from samplers.logits.noise import mix, uniform

# Nearly impossible, and still finite: differences of logits stay numbers.
_IMPOSSIBLE = -1e9

# Base of the digits in prompts, and the greatest number of joints.
_BASE = 32


@dataclass
class OracleModel:
    """A mask predictor that answers with the exact conditionals of joint distributions.

    Its logits are the logarithms of the conditional probabilities given every token that the query
    sees; EOS follows an answer. If no answer agrees with these tokens, all tokens are equally
    likely. It has no keys and values, so no cache.

    Exact probabilities tie, and then every position would pick the same token. Noise far below any
    difference of probabilities, keyed by all tokens that are seen, breaks the ties.

    Attributes:
        joints: Distributions that prompts may ask for.
        noise: Half the width of the uniform noise on the logits; 0 leaves ties.
        logit_shift: As for every mask predictor.
        num_impossible: Rows so far whose tokens no answer agrees with.
    """

    joints: Sequence[Joint]
    noise: float = 1e-9
    logit_shift: int = 0
    name: str = "oracle"
    banned_ids: tuple[int, ...] = ()
    causal_block_length: int = 0
    max_length: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_impossible: int = 0

    def __post_init__(self) -> None:
        self.eos_ids: tuple[int, ...] = (max(joint.num_symbols for joint in self.joints),)
        self.mask_id = self.eos_ids[0] + 1
        # The ids after [MASK] are those of prompts: their last token, and digits.
        self.vocab_size = self.mask_id + 2 + _BASE
        self.banned_ids = tuple(range(self.mask_id + 1, self.vocab_size))
        self._tables = [_Table.of(joint, self.vocab_size, self.mask_id) for joint in self.joints]

    def prompt(self, sample: int, joint: int = 0, length: int = 3) -> list[int]:
        """Returns a prompt of at least so many tokens, which asks for a joint.

        Repeats of a prompt differ in the number of their sample, and hence in their noise.
        """
        if length < 3 or not 0 <= joint < min(_BASE, len(self.joints)):
            raise ValueError(
                f"A prompt has at least 3 tokens and one of {len(self.joints)} joints, got length "
                f"{length} and joint {joint}."
            )
        zero = self._end_of_prompt + 1
        digits: list[int] = []
        while sample or len(digits) < length - 2:
            sample, digit = divmod(sample, _BASE)
            digits.append(zero + digit)
        return [*digits[::-1], zero + joint, self._end_of_prompt]

    def is_right(self, tokens: Sequence[int], joint: int = 0) -> bool:
        """Says whether tokens are a possible answer, followed by EOS."""
        length = self.joints[joint].length
        tail = set(tokens[length:])
        return tuple(tokens[:length]) in self.joints[joint].answers and tail <= {*self.eos_ids}

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        is_end = inputs.tokens == self._end_of_prompt
        if not is_end.any(-1).all():
            raise ValueError("The oracle answers its own prompts only; make them with `prompt`.")
        ends = is_end.long().argmax(-1, keepdim=True)
        joints = (inputs.tokens.gather(1, ends - 1) - self._end_of_prompt - 1).squeeze(1)
        start = inputs.positions.gather(1, ends) + 1
        at = inputs.positions.gather(1, inputs.wanted) + self.logit_shift - start
        visible = _visible(inputs)
        logits = torch.full((*at.shape, self.vocab_size), _IMPOSSIBLE, dtype=torch.float64)
        for index, table in enumerate(self._tables):
            rows = joints == index
            known = table.known(
                inputs.tokens[rows], (inputs.positions - start)[rows], visible[rows]
            )
            logits[rows] = self._logits(table, known, at[rows])
        return logits + self._ties(inputs, visible, at)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        raise ValueError("The oracle has no keys and values; decode it with NoCache().")

    @property
    def _end_of_prompt(self) -> int:
        return self.mask_id + 1

    def _logits(
        self, table: "_Table", known: Int[Tensor, "B q n"], at: Int[Tensor, "B W"]
    ) -> Float[Tensor, "B W V"]:
        weights = table.agreement(known)
        impossible = weights.sum(-1) == 0
        self.num_impossible += int(impossible.any(-1).sum())
        conditionals = table.conditionals(weights)
        conditionals[impossible] = 1.0
        rows = torch.arange(len(at))[:, None]
        queries = torch.arange(known.shape[1]).expand(at.shape[1])
        inside = (at >= 0) & (at < table.length)
        logits = conditionals[rows, queries, at.clamp(0, table.length - 1)].log()
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


@dataclass(frozen=True)
class _Table:
    """A joint distribution as tensors; `indicators` is 1 if an answer has a token at a position."""

    symbols: Int[Tensor, "S n"]
    probabilities: Float[Tensor, " S"]
    indicators: Float[Tensor, "S nV"]
    mask_id: int

    @staticmethod
    def of(joint: Joint, vocab_size: int, mask_id: int) -> "_Table":
        symbols = torch.tensor(list(joint.answers))
        return _Table(
            symbols=symbols,
            probabilities=torch.tensor(
                [float(p) for p in joint.answers.values()], dtype=torch.float64
            ),
            indicators=torch.nn.functional.one_hot(symbols, vocab_size).double().flatten(1),
            mask_id=mask_id,
        )

    @property
    def length(self) -> int:
        """Positions of an answer."""
        return self.symbols.shape[1]

    def known(
        self, tokens: Int[Tensor, "B K"], at: Int[Tensor, "B K"], visible: Bool[Tensor, "B q K"]
    ) -> Int[Tensor, "B q n"]:
        """Returns the token that is seen at each answer position, mask_id if none is."""
        inside = (at >= 0) & (at < self.length) & (tokens < self.mask_id)
        seen = visible & inside[:, None]
        held = tokens[:, None].expand_as(seen).masked_fill(~seen, self.mask_id)
        places = at.clamp(0, self.length - 1)[:, None].expand_as(seen)
        blank = torch.full((*seen.shape[:2], self.length), self.mask_id)
        # The mask is the greatest id, so that the least id at a place is its token.
        return blank.scatter_reduce(-1, places, held, "amin")

    def agreement(self, known: Int[Tensor, "B q n"]) -> Float[Tensor, "B q S"]:
        """Returns the probability of each answer that agrees with what is known, 0 for others."""
        known = known[..., None, :]
        agrees = (known == self.symbols) | (known == self.mask_id)
        return agrees.all(-1) * self.probabilities

    def conditionals(self, weights: Float[Tensor, "B q S"]) -> Float[Tensor, "B q n V"]:
        """Returns the distribution of the token at each position, NaN if no answer is left."""
        counts = weights @ self.indicators
        return counts.view(*counts.shape[:-1], self.length, -1) / weights.sum(-1)[..., None, None]


def _visible(inputs: ForwardInputs) -> Bool[Tensor, "B q K"]:
    """Returns which columns the wanted ones see; a single row if all see the same."""
    if inputs.attend is None:
        return torch.ones_like(inputs.tokens, dtype=torch.bool)[:, None]
    if inputs.attend.shape[1] == 1:
        return inputs.attend
    rows = torch.arange(len(inputs.tokens))[:, None]
    seen: Tensor = inputs.attend[rows, inputs.wanted]
    return seen
