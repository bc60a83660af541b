"""Rollouts: decodes whose canvases can all be rebuilt, and the observer that records them.

Four steps of an answer of 3 tokens on a block-causal model, whose last block has a fourth column:

    canvas before step 0    [M M M|M]      writes   step 0: position 1 gets "b"
    canvas before step 1    [M b M|M]               step 1: positions 0 and 3 get "a" and "x"
    canvas before step 2    [a b M|x]               step 2: position 1 is [MASK] again
    canvas before step 3    [a M M|x]               step 3: positions 1 and 2 get "c" and EOS
    after the last step     [a c E|x]
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.files import append_text, mend_last_line, whole_lines
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.output import DecodeOutput, before_end
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import Row
from dllm_decode.engine.commit_state import log_probabilities
from dllm_decode.engine.decoder import Decoder


class Write(NamedTuple):
    """A token that a step wrote.

    Attributes:
        step: Step of the row, from 0.
        position: Place in the answer, from 0. On a block-causal model positions from `gen_length`
            on fill up the last block.
        token: The token; the model's `mask_id` where the step took a token back.
        logprob: As `Commits.logprobs`; `None` if the distribution that was drawn from excludes the
            token, or if the sampler did not choose the token.
        model_logprob: As `Commits.model_logprobs`; `None` if the sampler did not choose the token:
            the engine wrote an EOS, or the token is [MASK].
    """

    step: int
    position: int
    token: int
    logprob: float | None = None
    model_logprob: float | None = None

    @property
    def is_commit(self) -> bool:
        """True if the sampler chose the token."""
        return self.model_logprob is not None


class Rollout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer with everything that its steps wrote, so that it can be scored under new weights.

    Attributes:
        prompt: Token ids.
        template: First tokens of the answer, `mask_id` where the answer was open.
        tokens: The answer, `gen_length` tokens. Positions that were open at the end hold an EOS.
        length: Number of positions, with those that fill up the answer's last block.
        writes: Everything that the steps wrote, in the order of the steps.
        finish: As `finish_reason` of `Answer`.
        forwards: Forwards of the model that the row took part in.
        config: The options of the decode.
        model: Name of the model.
        mask_id: The model's [MASK] token.
        weights: Version of the weights: a text that changes with the weights, see `version_of`.
        sampler: The sampler, as text.
        cache: The cache policy, as text. If it is approximate, scores differ from the record.
        verifier: The verifier, as text.
        blocks: The block schedule, as text.
        is_constrained: True if the answer had to be one of some texts. Then the tokens of a
            step were drawn together, and `Write.logprob` is not of the distribution drawn from.

    Raises:
        ValueError: If the writes do not end in the tokens of the answer.
    """

    prompt: tuple[int, ...]
    template: tuple[int, ...]
    tokens: tuple[int, ...]
    length: int
    writes: tuple[Write, ...]
    finish: Literal["stop", "length"]
    forwards: int
    config: DecodeConfig
    model: str
    mask_id: int
    weights: str
    sampler: str
    cache: str
    verifier: str
    blocks: str
    is_constrained: bool = False

    def __post_init__(self) -> None:
        steps = [write.step for write in self.writes]
        if steps != sorted(steps) or min(steps, default=0) < 0:
            raise ValueError(f"Steps of writes must begin with 0 and ascend, got {steps}.")
        for write in self.writes:
            if not 0 <= write.position < self.length:
                raise ValueError(
                    f"Positions of writes must be in [0, {self.length}), got {write.position}."
                )
        written = self._begun()
        for write in self.writes:
            written[write.position] = write.token
        for position, (token, last) in enumerate(zip(self.tokens, written, strict=False)):
            if last not in (token, self.mask_id):
                raise ValueError(
                    f"The writes of a rollout must end in its tokens, got {token} at position "
                    f"{position}, where {last} is written last. Keep tokens and writes together."
                )

    def _begun(self) -> list[int]:
        """Returns the answer before the first step."""
        return [*self.template, *[self.mask_id] * (self.length - len(self.template))]

    @property
    def commits(self) -> tuple[Write, ...]:
        """The writes that the sampler chose: its actions, including tokens that changed later."""
        return tuple(write for write in self.writes if write.is_commit)

    def canvases(self) -> Int[Tensor, "T L"]:
        """Returns the canvas before each step and after the last one, prompt included."""
        num_steps = self.writes[-1].step + 1 if self.writes else 0
        canvases = torch.tensor([*self.prompt, *self._begun()]).repeat(num_steps + 1, 1)
        for write in self.writes:
            canvases[write.step + 1 :, len(self.prompt) + write.position] = write.token
        return canvases

    def to_json(self) -> str:
        """Returns the rollout as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(line: str | bytes) -> "Rollout":
        """Reads what `to_json` returned.

        Raises:
            ValueError: If the line is no rollout.
        """
        try:
            return msgspec.json.decode(line, type=Rollout)
        except msgspec.DecodeError as error:
            raise ValueError(f"A line must be a rollout as to_json writes it: {error}.") from None


def save_rollouts(path: str | Path, rollouts: Iterable[Rollout]) -> None:
    """Appends rollouts to a file, one a line: all, or none if there is no room.

    A torn last line of a killed process is removed.
    """
    mend_last_line(Path(path), b'{"prompt":')
    append_text(Path(path), "".join(f"{rollout.to_json()}\n" for rollout in rollouts))


def read_rollouts(path: str | Path) -> Iterator[Rollout]:
    """Yields the rollouts of a file, in its order, without a torn last line.

    Raises:
        ValueError: If another line is no rollout; the message has its number.
    """
    for where, line in whole_lines(Path(path)):
        try:
            yield Rollout.from_json(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


class RolloutRecorder:
    """Records everything that the steps of each row write.

    Pass it in `observers`; it serves one call of `run`. If a verifier decides in the sampler's
    place, its steps are recorded with the distribution of the view, which need not be the
    verifier's.
    """

    def __init__(self) -> None:
        self._writes: dict[int, list[Write]] = {}
        self._steps: dict[int, int] = {}

    def __call__(self, event: StepEvent) -> None:
        before, after, filled = event.before, event.after, event.eos_filled
        # No forward sees an EOS that fills up an answer which has ended.
        is_rest = filled & event.ended[:, None] & (before.tokens == before.mask_id)
        changed = (before.tokens != after.tokens) & before.after_prompt & ~is_rest
        rows, columns = changed.nonzero().unbind(-1)
        tokens = after.tokens[rows, columns]
        column_logprobs = log_probabilities(event.view, after.tokens.gather(1, event.columns))
        positions = columns - before.prompt_lengths[rows]
        offsets = positions - event.view.positions[rows, 0]
        offsets = offsets.clamp(0, event.columns.shape[1] - 1)
        logprobs = [part[rows, offsets].tolist() for part in column_logprobs]
        is_commit = ~filled[rows, columns] & (tokens != before.mask_id)
        numbers = torch.stack([rows, positions, tokens, is_commit]).T.tolist()
        indices = [row.request.index for row in event.rows]
        for (row, position, token, is_chosen), *pair in zip(numbers, *logprobs, strict=True):
            index = indices[row]
            logs = [value if is_chosen and value > -torch.inf else None for value in pair]
            write = Write(self._steps.get(index, 0), position, token, *logs)
            self._writes.setdefault(index, []).append(write)
        for index in indices:
            self._steps[index] = self._steps.get(index, 0) + 1

    def rollout(
        self, decoder: Decoder, request: Request, output: DecodeOutput, weights: str
    ) -> Rollout:
        """Returns the rollout of a request that has ended, and drops the request's writes."""
        tokens = tuple(output.tokens[0].tolist())
        answer = before_end(tokens, output.eos_ids)
        is_constrained = request.constraint is not None
        has_stopped = bool(output.unsettled.any()) or request.stop.stops(answer)
        has_ended = has_stopped or is_constrained or len(answer) < len(tokens)
        row = Row.of(request, decoder.block_multiple, decoder.model.mask_id)
        return Rollout(
            prompt=tuple(request.prompt),
            template=tuple(request.template),
            tokens=tokens,
            length=row.end - row.prompt_length,
            writes=tuple(self._writes.pop(request.index, ())),
            finish="stop" if has_ended else "length",
            forwards=int(output.nfe[0]),
            config=request.config,
            model=decoder.model.name,
            mask_id=decoder.model.mask_id,
            weights=weights,
            sampler=repr(decoder.sampler),
            cache=repr(decoder.cache),
            verifier=repr(decoder.verifier),
            blocks=repr(decoder.blocks),
            is_constrained=is_constrained,
        )
