"""What the harness asks for: each request once, in batches of what goes together."""

import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from lm_eval.api.instance import Instance

from eval.lm_harness.generation import Generation

Item = TypeVar("Item")


class LmJob(NamedTuple):
    """A request that is to be answered, and which of its repeats."""

    request: Instance
    repeat: int


class Prompt(NamedTuple):
    """A job's number, its token ids and how they are continued."""

    number: int
    tokens: list[int]
    generation: Generation


def distinct(requests: Sequence[Instance]) -> tuple[list[LmJob], list[int]]:
    """Leaves out what the harness asks again so that all processes have as many requests.

    Returns:
        The jobs, and for each request the number of the job that answers it.
    """
    num_seen: Counter[int] = Counter()
    numbers: dict[tuple[int, int], int] = {}
    jobs: list[LmJob] = []
    places: list[int] = []
    for request in requests:
        # A repeat, wanted or not, is the same object once more.
        repeat = num_seen[id(request)] % (request.repeats or 1)
        num_seen[id(request)] += 1
        if (id(request), repeat) not in numbers:
            numbers[id(request), repeat] = len(jobs)
            jobs.append(LmJob(request, repeat))
        places.append(numbers[id(request), repeat])
    return jobs, places


def alike(prompts: Sequence[Prompt], batch_size: int) -> list[list[Prompt]]:
    """Makes batches of prompts that are decoded alike, long prompts first.

    Should the memory not suffice, it shows at once; and rows of a batch are padded little.
    """

    def how(prompt: Prompt) -> tuple[int, float]:
        return prompt.generation.gen_length, prompt.generation.temperature

    ordered = sorted(prompts, key=lambda prompt: (how(prompt), -len(prompt.tokens)))
    groups = (list(group) for _, group in groupby(ordered, key=how))
    return [batch for group in groups for batch in chunks(group, batch_size)]


def chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Cuts a sequence; the last part may be short."""
    return [list(items[first : first + size]) for first in range(0, len(items), size)]


def warn_of_unknown(unknown: Sequence[Instance], requests: Sequence[Instance]) -> None:
    """Warns if accuracies will be wrong since it is not known which answers are greedy.

    Where a document has several requests, its choices are compared by their likelihood.

    Args:
        unknown: The requests of whose answers it is not known.
        requests: All of them.
    """
    several = {(request.task_name, request.doc_id) for request in requests if request.idx > 0}
    tasks = {r.task_name for r in unknown if (r.task_name, r.doc_id) not in several}
    if tasks:
        warnings.warn(
            "Whether decoding gives the very text is not known with nll='mc', so it counts as no "
            f"in {', '.join(sorted(str(task) for task in tasks))}; nll='l2r' tells.",
            stacklevel=3,
        )
