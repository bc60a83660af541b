"""Tasks by address, as command lines and sweep files name them: `lists/shuffle?limit=9&n=6`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from inspect import isabstract
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from dllm_decode.settings.addresses import construct, read_option, split_address
from dllm_decode.settings.files import digest
from eval.tasks import Example, Gsm8k, Ledgers, ListTask, ParallelBench, Task, WordProblems
from eval.tasks.jsonl import JsonLines
from eval.tasks.lists import OUTPUTS
from eval.tasks.parallelbench import PARALLEL_BENCH, sources
from eval.tasks.task_checks import require_examples, require_target_score
from samplers.checks import shown
from samplers.expression import import_class

TASKS: Mapping[str, Callable[..., Task]] = {
    "word_problems": WordProblems,
    "ledgers": Ledgers,
    "gsm8k": Gsm8k,
}
LISTS = "lists/"
JSON_LINES = "jsonl:"
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Limit: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
SELECTION: Mapping[str, Any] = {"split": str, "limit": _Limit, "examples_seed": _Count}
"""By option of every task its type."""
MAX_LIMIT = 1_000_000
_EXAMPLE = "word_problems?split=test&limit=200"


@dataclass(frozen=True)
class Selection:
    """Some examples of a task.

    Attributes:
        address: The canonical address.
        limit: Number of examples; None is the task's own number.
        examples_seed: Selects among the examples of the split.
    """

    address: str
    task: Task
    split: str = "test"
    limit: int | None = None
    examples_seed: int = 0

    def examples(self) -> Sequence[Example]:
        """Returns the examples, the same in every process.

        Raises ValueError if the split has fewer examples than `limit`, does not exist or cannot be
        read, a part of an example has a wrong type, or two examples have one id.
        """
        if self.limit is not None and self.limit > MAX_LIMIT:
            raise ValueError(f"limit must be at most {MAX_LIMIT}, got {self.limit}.")
        examples = self.task.examples(self.split, self.limit, self.examples_seed)
        if not examples:
            raise ValueError(f"{shown(self.address)} must have at least one example, got none.")
        require_examples(self.address, examples)
        self.task.require_enough(self.split, len(examples), self.limit)
        # Records are found again by the id of their example.
        for name, times in Counter(example.id for example in examples).most_common(1):
            if times > 1:
                raise ValueError(
                    f"The examples of {shown(self.address)} must have distinct ids, got {name!r} "
                    f"{times} times. Without an id of its own, an example is named by its prompt."
                )
        return examples

    def require_scores(self, examples: Sequence[Example]) -> None:
        """Raises ValueError if answers cannot be scored; the first example's target is scored."""
        for example in examples[:1]:
            require_target_score(self.address, self.task, example)


def digest_of_examples(examples: Sequence[Example]) -> str:
    """Returns a hash of ids, prompts, targets and templates, so that changes are noticed."""
    parts = ([example.id, example.prompt, example.target, example.template] for example in examples)
    return digest([part if part[-1] else part[:-1] for part in parts])


def parse_task(address: str) -> Selection:
    """Reads an address such as `word_problems?split=test&limit=200` or `lists/shuffle?n=6`.

    After the question mark come `split`, `limit`, `examples_seed` and the task's own options.

    Raises ValueError if the address names no task, or an option that the task does not have.
    """
    name, options = split_address(address, _EXAMPLE)
    rest = {key: text for key, text in options.items() if key not in SELECTION}
    task = construct(name, _maker(name), rest, others=SELECTION)
    query = "&".join(f"{key}={_escaped(text)}" for key, text in options.items())
    return Selection(
        address=f"{name}?{query}" if query else name,
        task=task,
        **{
            key: read_option(key, options[key], kind)
            for key, kind in SELECTION.items()
            if key in options
        },
    )


def expand_patterns(addresses: Iterable[str]) -> tuple[str, ...]:
    """Returns addresses with the tasks that match in place of each pattern, such as `lists/*`.

    `*` and `[...]` mean what they mean in a shell. In a pattern of ParallelBench, such as
    `parallelbench:FOLDER#waiting_line/*`, they are part of the task, not of the folder. The options
    after the question mark are those of every task.

    Raises ValueError if no task matches a pattern.
    """
    return tuple(chain.from_iterable(map(_expand_pattern, addresses)))


def _expand_pattern(address: str) -> Sequence[str]:
    name, question, options = address.strip().partition("?")
    folder, mark, pattern = "", "", name
    if name.startswith(PARALLEL_BENCH):
        folder, mark, pattern = name.rpartition("#")
    if ":" in name and not mark:
        return [address]
    if not {"*", "["} & set(pattern):
        return [address]
    known = [*TASKS, *(f"{LISTS}{keyword}" for keyword in OUTPUTS)]
    if mark:
        known = sorted(sources(Path(folder.removeprefix(PARALLEL_BENCH))))
    found = [task for task in known if fnmatchcase(task, pattern)]
    if not found:
        raise ValueError(
            f"{shown(name)} must match a task, got none that does among {', '.join(known)}. Tasks "
            f"of ParallelBench are matched in a folder: '{PARALLEL_BENCH}FOLDER#*'."
        )
    return [f"{folder}{mark}{task}{question}{options}" for task in found]


def _escaped(text: str) -> str:
    """Escapes an option so that `split_address` reads it back."""
    return text.replace("%", "%25").replace("&", "%26")


def _maker(name: str) -> Callable[..., Task]:
    if name.startswith(LISTS):
        return partial(ListTask, name.removeprefix(LISTS))
    if name.startswith(JSON_LINES):
        return partial(JsonLines, name.removeprefix(JSON_LINES))
    if name.startswith(PARALLEL_BENCH):
        return _parallel_bench(name)
    if ":" in name:
        return _own_class(name)
    if name not in TASKS:
        others = (
            f"{LISTS}<keyword>", f"{JSON_LINES}<file>", f"{PARALLEL_BENCH}<folder>#<task>",
            "<module>:<Class> of your own",
        )  # fmt: skip
        tasks = ", ".join([*TASKS, *others])
        raise ValueError(
            f"A task must be one of {tasks}, got {shown(name)}; an address is such as {_EXAMPLE!r}."
        )
    return TASKS[name]


def _own_class(name: str) -> Callable[..., Task]:
    module, _, kind = name.partition(":")
    task_class = import_class(module, kind, (Task,))
    if isabstract(task_class):
        lacking = ", ".join(sorted(vars(task_class)["__abstractmethods__"]))
        raise ValueError(
            f"{shown(name)} must define all that a task has, got none of {lacking}. A value that "
            "is always the same is a class attribute, such as: version = 1"
        )
    if task_class.__hash__ is None:
        raise ValueError(
            f"{shown(name)} must be a frozen dataclass, got one that can be changed; write "
            "@dataclass(frozen=True)."
        )
    return task_class


def _parallel_bench(name: str) -> Callable[..., Task]:
    folder, _, task = name.removeprefix(PARALLEL_BENCH).rpartition("#")
    if not folder:
        raise ValueError(
            f"ParallelBench is addressed as {PARALLEL_BENCH}<folder>#<task>, such as "
            f"'{PARALLEL_BENCH}ParallelBench#waiting_line/copy', got {shown(name)}."
        )

    return partial(ParallelBench, folder, task)
