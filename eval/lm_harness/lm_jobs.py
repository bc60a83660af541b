"""The harness' requests: each once, in batches of prompts that are decoded alike."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from lm_eval.api.instance import Instance

from dllm_decode.core.user_warnings import warn_user
from eval.lm_harness.generation import Generation

Item = TypeVar("Item")


class LmJob(NamedTuple):
    """A request, and the number of its repeat."""

    request: Instance
    repeat: int


class JobPrompt(NamedTuple):
    """A job's number, its token ids and the options of its answer."""

    number: int
    tokens: list[int]
    generation: Generation


def distinct(requests: Sequence[Instance]) -> tuple[list[LmJob], list[int]]:
    """Returns the jobs, and for each request the number of the job that answers it.

    The harness repeats requests so that all processes have equally many.
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


def alike(prompts: Sequence[JobPrompt], batch_size: int) -> list[list[JobPrompt]]:
    """Makes batches of prompts that are decoded alike, long prompts first.

    A lack of memory then shows at once, and rows need little padding.
    """

    def how(prompt: JobPrompt) -> tuple[int, float]:
        return prompt.generation.gen_length, prompt.generation.temperature

    ordered = sorted(prompts, key=lambda prompt: (how(prompt), -len(prompt.tokens)))
    groups = (list(group) for _, group in groupby(ordered, key=how))
    return [batch for group in groups for batch in chunks(group, batch_size)]


def chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Cuts a sequence; the last part may be short."""
    return [list(items[first : first + size]) for first in range(0, len(items), size)]


def warn_of_unknown(requests: Sequence[Instance]) -> None:
    """Warns of tasks whose accuracy is wrong because `nll='mc'` cannot tell what is greedy.

    The choices of a document with several requests are compared by their likelihood.
    """
    several = {(request.task_name, request.doc_id) for request in requests if request.idx > 0}
    tasks = {str(r.task_name) for r in requests if (r.task_name, r.doc_id) not in several}
    if tasks:
        warn_user(
            "--nll mc cannot tell whether greedy decoding gives the text, so 'is_greedy' is False "
            f"in {', '.join(sorted(tasks))}. Use --nll l2r."
        )
