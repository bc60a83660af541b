"""What a distilled model learns from: a teacher's answers, and the order of their tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.observers import Trace
from dllm_decode.core.output import DecodeOutput
from dllm_decode.loop import decode
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig
from dllm_decode.training.examples import Batch
from samplers import FixedSchedule, Sampler


class Demonstration(NamedTuple):
    """An answer of the teacher.

    Attributes:
        prompt: Token ids of the prompt.
        answer: Token ids of the answer, with the EOS that ends it if one does.
        ranks: Of each token of the answer in the order of commits, from 0.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ranks: tuple[int, ...]


def demonstrate(
    teacher: MaskPredictor,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    sampler: Sampler | None = None,
    cache: CachePolicy = NoCache(),
) -> tuple[list[Demonstration], DecodeOutput]:
    """Lets the teacher answer a batch of prompts.

    Args:
        teacher: The model whose answers are learned.
        prompts: Token ids, one sequence per row.
        config: How it decodes.
        sampler: Which positions it commits; `None`: one token a step, the most confident.
        cache: Which columns are recomputed.

    Returns:
        The answers in the order of the prompts, and all that the decode gave.
    """
    trace = Trace()
    block_length = config.resolved_block_length(teacher.causal_block_length, model=teacher.name)
    output = decode(
        teacher,
        prompts,
        FixedSchedule(block_length) if sampler is None else sampler,
        cache=cache,
        config=config,
        observers=[trace],
    )
    found = []
    lengths = output.lengths().tolist()
    for i, prompt in enumerate(prompts):
        steps = trace.steps[i][: lengths[i]]
        # What was filled in and not committed comes last.
        last = steps.masked_fill(steps < 0, torch.iinfo(steps.dtype).max)
        ranks = last.argsort(stable=True).argsort().tolist()
        answer = output.tokens[i, : lengths[i]].tolist()
        found.append(Demonstration(tuple(prompt), tuple(answer), tuple(ranks)))
    return found, output


def ranks_of(
    demonstrations: Sequence[Demonstration], eos_ids: tuple[int, ...]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Returns the teacher's orders as `TrajectoryForcing` wants them: by tokens without the EOS."""
    return {
        (*one.prompt, *(t for t in one.answer if t not in eos_ids)): one.ranks
        for one in demonstrations
    }


def make_rows(
    demonstrations: Sequence[Demonstration],
    *,
    gen_length: int,
    eos_id: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """Lays out prompts, left-padded, and answers, continued with EOS.

    Raises:
        ValueError: If an answer is longer than `gen_length`.
    """
    longest = max(len(one.answer) for one in demonstrations)
    if longest > gen_length:
        raise ValueError(
            f"gen_length must be at least {longest}, the length of the longest answer, got "
            f"{gen_length}."
        )
    start = max(len(one.prompt) for one in demonstrations)
    tokens: Int[Tensor, "B L"] = torch.full((len(demonstrations), start + gen_length), eos_id)
    for row, one in zip(tokens, demonstrations, strict=True):
        row[start - len(one.prompt) : start] = torch.tensor(one.prompt)
        row[start : start + len(one.answer)] = torch.tensor(one.answer)
    pads = torch.tensor([start - len(one.prompt) for one in demonstrations])
    return Batch(tokens.to(device), pads.to(device), gen_length)
