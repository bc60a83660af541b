"""A sampler as an algorithm of SGLang. Interface-tested, never run in an engine.

SGLang finds `register` by the entry point of the group `sglang.srt.plugins`. The name of the
algorithm is `dllm_decode`, and its file of options names the sampler:

    python -m sglang.launch_server --model-path inclusionAI/LLaDA2.0-mini \
        --dllm-algorithm dllm_decode --dllm-algorithm-config options.yaml

    sampler: ConfidenceThreshold(0.9)      # options.yaml
    seed: 0
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.engine.settle import moves_of
from samplers.base import Sampler, first_state, next_step
from samplers.facts import Fact
from samplers.logits.noise import row_keys
from samplers.logits.summary import Summary
from samplers.logits.truncation import Truncation
from samplers.registry import parse
from samplers.state import map_state
from samplers.view import View

# SGLang's loop computes the whole open block in every forward, after the block before it.
_GIVES = {
    Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED, Fact.ONE_STEP_A_FORWARD, Fact.OWN_COLUMN_LOGITS,
    Fact.SAMPLER_DECIDES, Fact.WHOLE_BLOCKS,
}  # fmt: skip

# These read how much of the answer is left, which SGLang does not tell.
_READS_LENGTH = ("DecayingThreshold",)

UNUSED = {
    "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
    "logit_bias": None, "json_schema": None, "regex": None, "ebnf": None, "structural_tag": None,
}  # fmt: skip
"""Options of a request that are not served, and the values that ask for nothing."""


class BlockState(NamedTuple):
    """The state of one request in its open block; each tensor has one row.

    Attributes:
        given: Positions whose token was there before the first step.
        unsettled: Positions whose token may change.
        noise_key: As in `View`.
        sampler: The sampler's own state; `None` before its first step, and without a state.
        has_begun: Whether the sampler has taken a step in this block.
    """

    given: Bool[Tensor, "1 L"]
    unsettled: Bool[Tensor, "1 L"]
    noise_key: Int[Tensor, " 1"]
    sampler: Any = None
    has_begun: bool = False


@dataclass(frozen=True)
class BlockSteps:
    """The steps of a sampler on one block of each request, as SGLang's `DllmAlgorithm` has them.

    A step writes `batch.input_ids` in place and returns which blocks were complete before it. This
    list is all that the host reads. Each request has its own temperature, `top_p` and `top_k`, with
    the meaning that they have in `DecodeConfig`.

    Attributes:
        sampler: A sampler whose scope is the block.
        block_size: Positions of a block.
        mask_id: The [MASK] token.
        seed: Seed of the noise, which also depends on the request's id and the position.

    Raises:
        ValueError: If the sampler needs more than SGLang's loop gives.
    """

    sampler: Sampler
    block_size: int
    mask_id: int
    seed: int = 0

    def __post_init__(self) -> None:
        missing = sorted(self.sampler.needs - _GIVES, key=lambda fact: fact.name)
        if missing:
            raise ValueError(
                f"{self.sampler!r} needs {missing[0].sentence}, which SGLang's loop is not. Use a "
                "sampler of one block, such as ConfidenceThreshold(0.9)."
            )
        for name in _READS_LENGTH:
            if f"{name}(" in repr(self.sampler):
                raise ValueError(
                    f"{self.sampler!r} needs the length of the answer, which SGLang does not tell. "
                    "Use a sampler such as ConfidenceThreshold(0.9)."
                )

    @staticmethod
    def of(options: Mapping[str, Any], *, block_size: int, mask_id: int) -> "BlockSteps":
        """Returns the steps that the options of an algorithm describe.

        Raises:
            ValueError: If `sampler` is missing or none, or an option is unknown.
        """
        known = {"sampler", "seed", "block_size"}
        if "sampler" not in options or not options.keys() <= known:
            raise ValueError(
                f"The options of dllm_decode must be {', '.join(sorted(known))}, with a sampler "
                f"such as ConfidenceThreshold(0.9), got {dict(options)!r}."
            )
        sampler = parse(str(options["sampler"]))
        return BlockSteps(sampler, block_size, mask_id, seed=int(options.get("seed", 0)))

    def max_steps(self, block_size: int) -> int:
        """Returns the number of steps of a block, and one more that finds the block complete."""
        return self.sampler.max_steps(block_size) + 1

    def init_step_state(self, batch: Any) -> list[BlockState]:
        """Returns the states of blocks before their first step."""
        unsettled = self._tokens(batch) == self.mask_id
        names = batch.rids or [str(row) for row in range(batch.batch_size)]
        digests = [blake2b(name.encode(), digest_size=8).digest() for name in names]
        requests = [int.from_bytes(digest, "little", signed=True) for digest in digests]
        keys = row_keys(self.seed, torch.tensor(requests, device=unsettled.device))
        rows = [slice(row, row + 1) for row in range(batch.batch_size)]
        return [BlockState(~unsettled[row], unsettled[row], keys[row]) for row in rows]

    def step(self, batch: Any, logits: Any, states: list[BlockState]) -> list[bool]:
        """Takes one step of all blocks.

        Args:
            batch: SGLang's `ForwardBatch`: each request has its open block in `input_ids`.
            logits: Logits of all of these positions, or SGLang's object with `full_logits`.
            states: Of each request; the list is updated in place.

        Returns:
            Which blocks were complete before the step, so that this forward has stored their final
            keys and values.
        """
        view = self._view(
            batch, logits if isinstance(logits, Tensor) else logits.full_logits, states
        )
        decision, held = next_step(self.sampler, view, self._held(view, states))
        complete = ~view.eligible.any(-1)
        given = torch.cat([state.given for state in states]) | complete[:, None]
        moves = moves_of(self.sampler, self.mask_id, view, decision, given)
        tokens = torch.where(moves.commit, moves.tokens, view.tokens)
        unsettled = view.eligible & ~moves.settle
        if moves.remask is not None:
            tokens = tokens.masked_fill(moves.remask, self.mask_id)
            unsettled = unsettled | moves.remask
        batch.input_ids.copy_(tokens.view(-1))
        for row, state in enumerate(states):
            states[row] = state._replace(
                unsettled=unsettled[row : row + 1], sampler=_row(held, row), has_begun=True
            )
        found: list[bool] = complete.tolist()
        return found

    def _tokens(self, batch: Any) -> Int[Tensor, "B L"]:
        tokens: Tensor = batch.input_ids
        if tokens.numel() != batch.batch_size * self.block_size:
            raise ValueError(
                f"Each request must have one block of {self.block_size} tokens, got "
                f"{tokens.numel()} tokens of {batch.batch_size} requests. Run SGLang without "
                "blocks that share a forward with their prompt."
            )
        return tokens.view(batch.batch_size, self.block_size)

    def _view(self, batch: Any, logits: Tensor, states: Sequence[BlockState]) -> View:
        tokens, eligible = self._tokens(batch), torch.cat([state.unsettled for state in states])
        temperature, truncation = _temperatures(batch.sampling_info)
        ids = torch.full((1,), self.mask_id, device=tokens.device)
        logits = logits.view(*tokens.shape, -1).index_fill(-1, ids, -torch.inf)
        start = batch.positions.view(tokens.shape)[:, 0]
        return View(
            tokens=tokens.clone(),
            computed=Summary(logits, truncation=truncation),
            masked=eligible & (tokens == self.mask_id),
            eligible=eligible,
            start=start,
            # The end of the answer is not known; for the sampler it is that of the block.
            gen_length=start + self.block_size,
            temperature=temperature,
            noise_keys=torch.cat([state.noise_key for state in states]),
            reads_committed=Fact.LOGITS_OF_COMMITTED in self.sampler.needs,
        )

    def _held(self, view: View, states: Sequence[BlockState]) -> Any:
        """Returns the sampler's state for all blocks; it begins anew in new blocks."""
        parts = [state.sampler for state in states]
        if not all(state.has_begun for state in states):
            fresh = first_state(self.sampler, view)
            parts = [
                state.sampler if state.has_begun else _row(fresh, row)
                for row, state in enumerate(states)
            ]
        return map_state(lambda *found: torch.cat(found), *parts)


def _temperatures(info: Any) -> tuple[Float[Tensor, " B"] | float, Truncation | None]:
    """Returns the temperature of draws, and how logits are truncated before samplers see them."""
    if info is None or info.is_all_greedy:
        return 0.0, None
    # SGLang writes temperature 0 as a top_k of 1.
    is_greedy = info.top_ks <= 1
    temperature = torch.where(is_greedy, 0.0, info.temperatures.view(-1))
    if not (info.need_top_p_sampling or info.need_top_k_sampling):
        return temperature, None
    # SGLang's "all" is 2^30.
    is_cut = ~is_greedy & ((info.top_ps < 1.0) | (info.top_ks < 1 << 30))
    truncation = Truncation(
        torch.where(is_cut, temperature, 0.0),
        torch.where(is_cut, info.top_ps, 1.0),
        torch.where(is_cut, info.top_ks, 0),
    )
    return torch.where(is_cut, 1.0, temperature), truncation


def _row(state: Any, row: int) -> Any:
    return map_state(lambda part: part[row : row + 1], state)


def refusal_of(options: Any) -> str | None:
    """Returns why a request with these `SamplingParams` cannot be served; `None` if it can."""
    found = [name for name, default in UNUSED.items() if getattr(options, name) != default]
    return f"{', '.join(found)} must be left out with dllm_decode." if found else None


def register() -> None:
    """Adds the algorithm `dllm_decode` to SGLang, which calls this function when it starts."""
    from sglang.srt.dllm.algorithm import algo_name_to_cls
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm

    class DllmDecode(DllmAlgorithm):  # type: ignore[misc]  # SGLang is not installed
        """A sampler of dllm_decode."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            options = config.algorithm_config or {}
            steps = BlockSteps.of(options, block_size=config.block_size, mask_id=config.mask_id)
            self.init_step_state, self.max_steps = steps.init_step_state, steps.max_steps
            self.step = steps.step

        @classmethod
        def validate_request(cls, req: Any) -> str | None:
            return refusal_of(req.sampling_params)

    algo_name_to_cls["dllm_decode"] = DllmDecode
