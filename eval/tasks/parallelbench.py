"""ParallelBench, from a user's own checkout or copy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.tasks.base import Example, content_id, conversation, cut_at
from eval.tasks.parallelbench_files import SPLIT, V1, Row, sources
from eval.tasks.parallelbench_scores import SCORERS, UNKNOWN
from eval.tasks.problem_files import FileTask

GEN_LENGTHS = {"waiting_line": 32, "waiting_line_n15": 128}
OTHER_GEN_LENGTH = 64


@dataclass(frozen=True)
class ParallelBench(FileTask):
    r"""A task of ParallelBench. Prompts, demonstrations and labels are those of the files.

    With seed 0 examples are the first of the file, in its order, which is short lists before long
    ones. Layouts, all below `path`; the first that has the task is read:

    - v1 (October 2025, commit 72de8f7): `dataset/parallel_bench/data/output/test` with
      `<category>/<task>.jsonl` and `<category>/task_config.yaml`.
    - v2 (March 2026, package `parallelbench`): the same files in
      `parallelbench/dataset/data/output/test` (commit 823e697) or in the folder that `pb data
      --output_dir` wrote (commit 1a74d98); a local copy of the hub's `furiosa-ai/ParallelBench`,
      one folder `<category>-<task>` each, as downloaded (`test-*.parquet`) or as `save_to_disk`
      writes it; and the prebuilt words of `words_to_sentence_*` in the checkout itself.

    v1 and v2 are different data: figures of one do not compare with those of the other.

    Source: Kang et al. 2025, "ParallelBench", https://arxiv.org/abs/2510.04767,
    https://github.com/furiosa-ai/ParallelBench.
    Differs: the scorers are our own, see `eval.tasks.parallelbench_scores`. A Latin square's rows
    are counted in cells; any solution of a sudoku is right (`answer_label` wants the stored one);
    grammar is Harper's, not LanguageTool's. The labels of `waiting_line/sort` are kept as stored,
    by first name, although its prompt asks for last names, so that right answers to the prompt are
    mostly counted wrong. Answers to v2 end at a blank line, two in puzzles, as they do there; those
    to v1 do not.

    Attributes:
        path: The folder.
        task: Category and name, such as `waiting_line/copy`.
        primary: Which score is reported first. `answer` is None where it needs a scorer that is
            missing; v2 publishes `grammar` for the tasks of writing.
    """

    path: str
    task: str
    primary: str = "answer"

    version = 1
    splits = (SPLIT,)
    scores_own_target = False  # Some labels are words, or texts that a grammar checker judges.

    @property
    def name(self) -> str:
        return f"parallelbench/{self.task}"

    @property
    def gen_length(self) -> int:
        return GEN_LENGTHS.get(self.task.partition("/")[0], OTHER_GEN_LENGTH)

    def read(self, split: str) -> list[Example]:
        there = sources(Path(self.path))
        if self.task not in there:
            raise ValueError(
                f"{self.path} has the tasks {', '.join(sorted(there))}, got {self.task!r}; "
                "those that v2 only has rules for come with its hub copy or `pb data`."
            )
        rows = there[self.task].rows()
        if not rows:
            raise ValueError(f"{self.name} has at least one row in {self.path}, got none.")
        known = SCORERS.get(rows[0].config.metric, UNKNOWN).names
        if self.primary not in known:
            raise ValueError(
                f"{self.name} has the scores {', '.join(known)}, got primary={self.primary!r}."
            )
        blank = "\n\n\n" if self.task.startswith("puzzles/") else "\n\n"
        stop = () if there[self.task].version == V1 else (blank,)
        return [_example(row, i, stop) for i, row in enumerate(rows)]

    def seed_of(self, split: str, seed: int) -> str:
        return f"{self.name};{seed}"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer as its scorer in `eval.tasks.parallelbench_scores` says.

        `answer` is None, never 0, where the task's scorer is unknown here or a package is missing.
        """
        meta = example.meta
        text = cut_at(text, meta["stop"])
        return SCORERS.get(meta["metric"], UNKNOWN).score(text, meta["input"], meta["label"])


def _example(row: Row, number: int, stop: tuple[str, ...]) -> Example:
    needs = SCORERS.get(row.config.metric, UNKNOWN).needs
    if needs and (not isinstance(row.answer, dict) or not set(needs) <= row.answer.keys()):
        raise ValueError(
            f"{row.where} has an answer with the fields {', '.join(needs)}, got "
            f"{str(row.answer)[:60]!r}; repair or remove it."
        )
    shown = [(filled(row, one.input), text_of(one.answer)) for one in row.shown]
    asked = filled(row, row.input)
    meta = {"input": row.input, "label": row.answer, "metric": row.config.metric, "stop": stop}
    name = f"{SPLIT}-{number}-{content_id(asked)}"
    return Example(conversation(shown, asked), text_of(row.answer), meta, id=name)


def filled(row: Row, given: Mapping[str, Any]) -> str:
    r"""Returns the prompt with its inputs; a literal `\n`, as some files have it, breaks a line."""
    try:
        return row.config.prompt.format_map(given).replace("\\n", "\n")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"{row.where} has what its prompt names, got {sorted(given)} for "
            f"{row.config.prompt[:60]!r} ({error}); repair or remove it."
        ) from None


def text_of(label: Any) -> str:
    """Returns a reference answer: the label, or what it gives as an example."""
    if isinstance(label, dict):
        named = (label.get(name) for name in ("example", "summary", "words", "text"))
        label = next((value for value in named if value), "")
    return ", ".join(map(str, label)) if isinstance(label, list) else str(label)
