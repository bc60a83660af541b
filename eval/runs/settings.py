"""What is run: a setting, and the place of this process among several."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dllm_decode import CachePolicy, MaskPredictor, NoCache, NoVerifier, Verifier
from eval.runs import prompts
from eval.runs.names import Selection, digest_of
from eval.runs.records import Settings
from eval.tasks import Example
from samplers import Sampler

_LAUNCH_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
}


@runtime_checkable
class Tokenizer(prompts.Tokenizer, Protocol):
    """What a run needs of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...


@dataclass(frozen=True)
class Place:
    """Which of several processes this is.

    Attributes:
        rank: From 0.
        world_size: Number of processes.
        local_rank: Among the processes of its machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @staticmethod
    def of_launch() -> "Place":
        """Reads what `accelerate launch`, `torchrun` or `mpirun` tells each of its processes."""
        found = {"rank": 0, "world_size": 1, "local_rank": 0}
        for field_name, variables in _LAUNCH_VARIABLES.items():
            told = [os.environ[name] for name in variables if name in os.environ]
            found |= {field_name: int(told[0])} if told else {}
        return Place(**found)


ALONE = Place()


@dataclass(frozen=True)
class Run:
    """One setting: a model on some examples with a sampler, a cache and a verifier.

    Attributes:
        model: The mask predictor.
        tokenizer: Its tokenizer.
        selection: Which examples.
        sampler: Which positions to commit.
        cache: Which columns to recompute.
        verifier: How proposals are checked.
        gen_length: Answer length in tokens; None is the task's.
        block_length: Tokens per block, None is the task's; at most the answer's length is used.
        temperature: Of the proposals.
        seed: Of the noise.
        stop_at_eos: Whether rows stop at EOS.
        batch_size: Rows decoded together.
        prompts: "chat" or "plain"; None is the task's habit.
        model_source: What `load_model` was given; None is the model's name.
        revision: What `load_model` was given.
        dtype: Of the parameters.
        trace: Record step and confidence of every position. Costs a little time each step.
    """

    model: MaskPredictor
    tokenizer: Tokenizer
    selection: Selection
    sampler: Sampler
    cache: CachePolicy = field(default_factory=NoCache)
    verifier: Verifier = field(default_factory=NoVerifier)
    gen_length: int | None = None
    block_length: int | None = None
    temperature: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True
    batch_size: int = 16
    prompts: str | None = None
    model_source: str | None = None
    revision: str | None = None
    dtype: str = "float32"
    trace: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, got {self.batch_size}.")
        if self.prompts not in (None, "chat", "plain"):
            raise ValueError(f"prompts is 'chat' or 'plain', got {self.prompts!r}.")

    @property
    def length(self) -> int:
        """Answer length in tokens."""
        return self.selection.task.gen_length if self.gen_length is None else self.gen_length

    def settings(self, examples: Sequence[Example]) -> Settings:
        """Returns what decides the answers to these examples."""
        inner = self.model.causal_block_length
        task = self.selection.task
        block_length = task.block_length if self.block_length is None else self.block_length
        return Settings(
            model=self.model_source or self.model.name,
            revision=self.revision,
            dtype=self.dtype,
            task=self.selection.address,
            task_version=self.selection.task.version,
            examples=digest_of(examples),
            num_examples=len(examples),
            sampler=repr(self.sampler) if self.verifier.asks_sampler else "",
            cache=repr(self.cache),
            verifier=repr(self.verifier),
            gen_length=self.length,
            block_length=max(inner, min(block_length, self.length)),
            temperature=self.temperature,
            seed=self.seed,
            stop_at_eos=self.stop_at_eos,
            batch_size=self.batch_size,
            prompts=self.prompts or self.selection.prompts,
        )
