"""Tasks and plug-ins by text, as the command line and sweep files name them."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isabstract
from pathlib import Path
from typing import Any, NoReturn

import torch

import dllm_decode
from dllm_decode import CachePolicy, CausalTarget, Verifier, blocks, verify
from dllm_decode.blocks import BlockSchedule
from eval.runs.addresses import construct, split_address, whole_number
from eval.runs.records import digest
from eval.sandbox.code_runner import NO_CODE, CodeRunner
from eval.tasks import (
    Equations,
    Example,
    Gsm8k,
    HumanEval,
    LatinSquare,
    Ledgers,
    ListTask,
    Mbpp,
    ParallelBench,
    Sudoku4,
    Task,
    WordProblems,
    WordsToSentence,
)
from eval.tasks.checks import require_examples, require_target_score
from eval.tasks.jsonl import JsonLines
from samplers import Sampler, parse
from samplers.checks import shown
from samplers.expression import import_class, parse_plugin

TASKS: Mapping[str, Callable[..., Task]] = {
    "word_problems": WordProblems,
    "equations": Equations,
    "ledgers": Ledgers,
    "gsm8k": Gsm8k,
    "humaneval": HumanEval,
    "mbpp": Mbpp,
    "puzzles/latin": LatinSquare,
    "puzzles/sudoku4": Sudoku4,
    "writing/words_to_sentence": WordsToSentence,
}
LISTS = "lists/"
JSON_LINES = "jsonl:"
PARALLEL_BENCH = "parallelbench:"
SELECTION = ("split", "limit", "examples_seed")
MAX_LIMIT = 1_000_000
_EXAMPLE = "word_problems?split=test&limit=200"

TITLES = {"blocks": "block schedule"}
"""What messages call a part of a setting, where that is not its name."""


@dataclass(frozen=True)
class Selection:
    """Some examples of a task.

    Attributes:
        address: The canonical address.
        task: The task with its settings.
        split: Which split.
        limit: Number of examples, None is the task's own number.
        examples_seed: Selects among the examples of the split.
    """

    address: str
    task: Task
    split: str = "test"
    limit: int | None = None
    examples_seed: int = 0

    def examples(self) -> Sequence[Example]:
        """Returns the examples, the same in every process.

        Raises:
            ValueError: If the split has fewer than `limit`, does not exist or cannot be read, an
                example is not as its types say, or two have one id.
        """
        if self.limit is not None and self.limit > MAX_LIMIT:
            raise ValueError(f"limit must be at most {MAX_LIMIT}, got {self.limit}.")
        found = self.task.examples(self.split, self.limit, self.examples_seed)
        require_examples(self.address, found)
        self.task.require_enough(self.split, len(found), self.limit)
        _require_distinct_ids(self.address, found)
        return found

    def require_scores(self, examples: Sequence[Example]) -> None:
        """Checks that the task scores the target of its first example.

        What is wrong with a scorer is better known before anything is decoded.

        Args:
            examples: As `examples` returns them.

        Raises:
            ValueError: If it does not return the scores that a task must.
        """
        for example in examples[:1]:
            require_target_score(self.address, self.task, example)

    @property
    def prompts(self) -> str:
        """Where plain prompts go by default: into the "chat" template, or "plain" as they are."""
        return self.task.prompts


def _require_distinct_ids(address: str, examples: Sequence[Example]) -> None:
    # Records are found again by the id of their example.
    for name, times in Counter(example.id for example in examples).most_common(1):
        if times > 1:
            raise ValueError(
                f"The examples of {shown(address)} must have distinct ids, got {name!r} {times} "
                "times. Without an id of its own, an example is named by its prompt."
            )


def digest_of(examples: Sequence[Example]) -> str:
    """Returns a hash of ids, prompts and targets, so that changed examples are noticed."""
    return digest([[example.id, example.prompt, example.target] for example in examples])


def parse_task(address: str, code: CodeRunner = NO_CODE) -> Selection:
    """Reads an address such as `word_problems?split=test&limit=200` or `lists/shuffle?n=6`.

    Before the question mark stands a task, behind it `split`, `limit`, `examples_seed` and the
    task's own options.

    Args:
        address: The address.
        code: Runs the programs of a task that is scored by running them.

    Raises:
        ValueError: If the address names no task, or an option that the task does not have.
    """
    name, options = split_address(address, _EXAMPLE)
    make = _maker(name)
    own = {key: text for key, text in options.items() if key not in SELECTION}
    task = construct(name, make, own, others=SELECTION).allowing(code)
    query = "&".join(f"{key}={text}" for key, text in options.items())
    return Selection(
        address=f"{name}?{query}" if query else name,
        task=task,
        split=options.get("split", "test"),
        limit=whole_number("limit", options["limit"]) if "limit" in options else None,
        examples_seed=whole_number("examples_seed", options.get("examples_seed", "0")),
    )


def parse_sampler(text: str) -> Sampler:
    """Builds a sampler from its repr, from "module:Class(...)", or from "@card.json".

    Raises:
        ValueError: If the text does not describe one.
    """
    return parse(_of_card(text[1:], "sampler") if text.startswith("@") else text)


def _of_card(path: str, part: str) -> str:
    """Returns the sampler, cache, verifier or block schedule that a card of `calibrate` certifies.

    Raises:
        ValueError: If the file is no such card.
    """
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
        # Cards of format 1 name no schedule.
        chosen = {"blocks": "Sequential()", **written["expressions"]}[part]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"A {TITLES.get(part, part)} after @ must be named by a card that calibrate wrote, "
            f"got {shown(path)}."
        ) from None
    return str(chosen)


def parse_cache(text: str) -> CachePolicy:
    """Builds a cache policy from its repr.

    Raises:
        ValueError: If the text does not describe one.
    """
    text = _of_card(text[1:], "cache") if text.startswith("@") else text
    return parse_plugin(text, CachePolicy, _exported(CachePolicy))  # type: ignore[type-abstract]  # never constructed


def no_target(source: str) -> CausalTarget:
    """Refuses to load a target."""
    raise ValueError(f"Targets cannot be loaded here, got CausalTarget({source!r}).")


def parse_verifier(text: str, target: Callable[[str], CausalTarget] = no_target) -> Verifier:
    """Builds a verifier from its repr, such as `ARVerify(CausalTarget('mini-ar'))`.

    Args:
        text: The expression.
        target: Loads a target by embedded name, folder or hub id.

    Raises:
        ValueError: If the text does not describe a verifier.
    """
    text = _of_card(text[1:], "verifier") if text.startswith("@") else text
    known = {**{name: getattr(verify, name) for name in verify.__all__}, "CausalTarget": target}
    return parse_plugin(text, Verifier, known)  # type: ignore[type-abstract]  # never constructed


def check_verifier(text: str) -> str:
    """Reads a verifier as `parse_verifier` does, but loads no target.

    A mistyped expression is thus refused before a model is loaded.

    Returns:
        The verifier's repr.

    Raises:
        ValueError: If the text does not describe a verifier.
    """
    return repr(parse_verifier(text, _unloaded))


def _unloaded(source: str) -> CausalTarget:
    return CausalTarget.of_network(_Unloaded(), name=source, eos_ids=())


class _Unloaded:
    """Stands for the network of a target that is not loaded; it is never run."""

    vocab_size = 0
    takes_positions = True
    heeds_masks = True

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def read(self, *args: object, **options: object) -> NoReturn:
        raise NotImplementedError("This target is not loaded.")


def parse_blocks(text: str) -> BlockSchedule:
    """Builds a block schedule from its repr, such as `MultiBlock(32, open_at=0.5)`.

    Raises:
        ValueError: If the text does not describe one.
    """
    return blocks.parse(_of_card(text[1:], "blocks") if text.startswith("@") else text)


def _exported(base: type) -> dict[str, Callable[..., Any]]:
    exported = ((name, getattr(dllm_decode, name)) for name in dllm_decode.__all__)
    return {
        name: value
        for name, value in exported
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def _maker(name: str) -> Callable[..., Task]:
    if name.startswith(LISTS):
        return partial(ListTask, name.removeprefix(LISTS))
    if name.startswith(JSON_LINES):
        return partial(JsonLines, name.removeprefix(JSON_LINES))
    if name.startswith(PARALLEL_BENCH):
        return _parallel_bench(name)
    if ":" in name:
        return _own(name)
    if name not in TASKS:
        others = (
            f"{LISTS}<keyword>", f"{JSON_LINES}<file>", f"{PARALLEL_BENCH}<folder>#<task>",
            "<module>:<Class> of your own",
        )  # fmt: skip
        known = ", ".join([*TASKS, *others])
        raise ValueError(
            f"A task must be one of {known}, got {shown(name)}; an address is such as {_EXAMPLE!r}."
        )
    return TASKS[name]


def _own(name: str) -> Callable[..., Task]:
    module, _, kind = name.partition(":")
    found = import_class(module, kind, (Task,))
    if isabstract(found):
        lacking = ", ".join(sorted(vars(found)["__abstractmethods__"]))
        raise ValueError(
            f"{shown(name)} must define all that a task has, got none of {lacking}. A value that "
            "is always the same is a class attribute, such as: version = 1"
        )
    return found


def _parallel_bench(name: str) -> Callable[..., Task]:
    folder, _, task = name.removeprefix(PARALLEL_BENCH).rpartition("#")
    if not folder:
        raise ValueError(
            f"ParallelBench is addressed as {PARALLEL_BENCH}<folder>#<task>, such as "
            f"'{PARALLEL_BENCH}ParallelBench#waiting_line/copy', got {shown(name)}."
        )

    return partial(ParallelBench, folder, task)
