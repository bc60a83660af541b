"""ParallelBench, read from a user's checkout or copy, and the file layouts of both."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dllm_decode.core.stopping import cut_at
from dllm_decode.settings.files import REPAIR, checked_value, parse_json
from eval.tasks.base import Example, content_id, conversation
from eval.tasks.parallelbench_scores import SCORERS, UNKNOWN
from eval.tasks.problem_files import FileTask, Found, read_objects
from samplers.checks import require_choice

GEN_LENGTHS = {"waiting_line": 32, "waiting_line_n15": 128}
OTHER_GEN_LENGTH = 64

PARALLEL_BENCH = "parallelbench:"
"""Beginning of the addresses of its tasks."""

FORMS = ("free", "infill")
MASK = "[MASK]"

SPLIT = "test"
CONFIG = "task_config.yaml"
V1, V2_BETA, V2 = "v1", "v2 at 823e697", "v2"

OUTPUTS = (
    (V1, "dataset/parallel_bench/data/output"),
    (V2_BETA, "parallelbench/dataset/data/output"),
    (V2, "parallelbench/datasets/data/output"),
    (V2, "."),
)
"""Folders of `<split>/<category>/<task>.jsonl`, relative to the given one, with their version."""

HOW = (
    "give a checkout with dataset/parallel_bench/data/output (v1), the folder that `pb data "
    "--output_dir` wrote, or a local copy of the hub's furiosa-ai/ParallelBench (v2)"
)


class PromptConfig(msgspec.Struct):
    """A template with the names of inputs in braces, and upstream's name of the scorer."""

    prompt: str
    metric: str


class ShownExample(msgspec.Struct):
    """A demonstration: a question with its answer."""

    input: dict[str, Any]
    answer: Any


class Demonstrations(msgspec.Struct):
    """The demonstrations among a row's inputs; the other inputs fill the prompt."""

    icl_examples: list[ShownExample] | None = None


class TaskSource(NamedTuple):
    """A task that was found: its version, the files with its rows, and the place of its config.

    `config` is a file and the name of the config in it; None: each row has a config.
    """

    version: str
    files: Sequence[Path]
    config: tuple[Path, str] | None = None

    def rows(self) -> list[tuple[Found, PromptConfig]]:
        """Returns the rows with their configs."""
        rows = [row for file in self.files for row in _rows_of(file)]
        if self.config is None:
            return [
                (row, checked_value(row.fields, PromptConfig, row.where, REPAIR)) for row in rows
            ]
        file, name = self.config
        config = checked_value(_yaml(file).get(name), PromptConfig, f"{name!r} in {file}", REPAIR)
        return [(row, config) for row in rows]


def sources(root: Path) -> dict[str, TaskSource]:
    """Returns the tasks of a folder by name, such as `waiting_line/copy`.

    Raises ValueError if the folder does not exist, or holds no task.
    """
    if not root.is_dir():
        raise ValueError(f"ParallelBench is read from a folder, got {root}, which is none; {HOW}.")
    by_name: dict[str, TaskSource] = {}
    for name, source in (*_generated_tasks(root), *_hub_tasks(root)):
        by_name.setdefault(name, source)
    if not by_name:
        raise ValueError(f"{root} holds no task of ParallelBench in a layout known here; {HOW}.")
    return by_name


def _generated_tasks(root: Path) -> Iterator[tuple[str, TaskSource]]:
    for version, relative in OUTPUTS:
        for file in sorted((root / relative / SPLIT).glob("*/*.jsonl")):
            config = file.parent / CONFIG
            if config.is_file():
                name = f"{file.parent.name}/{file.stem}"
                yield name, TaskSource(version, [file], (config, name))


def _hub_tasks(root: Path) -> Iterator[tuple[str, TaskSource]]:
    for folder in sorted(path for path in root.glob("*-*") if path.is_dir()):
        if files := sorted(folder.glob(f"{SPLIT}-*.parquet")):
            yield folder.name.replace("-", "/", 1), TaskSource(V2, files)


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ValueError(
            f"{file} is read by the package `pyyaml`, got none; install the extra `eval`."
        ) from error
    try:
        return checked_value(
            yaml.safe_load(file.read_text(encoding="utf-8")), dict[str, Any], str(file), REPAIR
        )
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {str(error).splitlines()[0]}.") from error


def _rows_of(file: Path) -> list[Found]:
    if file.suffix != ".parquet":
        return read_objects(file)
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"{file} is read by the package `datasets`, got none; install the extra `eval`."
        ) from error
    with parquet.ParquetFile(file) as opened:
        rows = enumerate(opened.read().to_pylist(), start=1)
    return [Found(fields, f"Row {number} of {file}") for number, fields in rows]


@dataclass(frozen=True)
class ParallelBench(FileTask):
    r"""A task of ParallelBench. Prompts, demonstrations and labels are those of the files.

    With seed 0 examples are the first of the file, in file order: short lists come before long
    lists. Layouts, all below `path`; the first layout that has the task is read:

    - v1 (October 2025, commit 72de8f7): `dataset/parallel_bench/data/output/test` with
      `<category>/<task>.jsonl` and `<category>/task_config.yaml`.
    - v2 (March 2026, package `parallelbench`): the same files in
      `parallelbench/dataset/data/output/test` (commit 823e697) or in the folder that `pb data
      --output_dir` wrote (commit 1a74d98); a local copy of the hub's `furiosa-ai/ParallelBench`,
      one folder `<category>-<task>` each with `test-*.parquet`, as downloaded.

    v1 and v2 are different data: figures of v1 do not compare with figures of v2. The tasks of
    writing are scored as in the version of the layout: by a product of scores, and from commit
    1a74d98 on by grammar alone.

    Source: Kang et al. 2025, "ParallelBench", https://arxiv.org/abs/2510.04767,
    https://github.com/furiosa-ai/ParallelBench.
    Differs: in no score named `answer`, `answer_strict` or `grammar`; other scores are our own, see
    `eval.tasks.parallelbench_scores`. The labels of `waiting_line/sort` are kept as stored, by
    first name, although its prompt asks for last names, so that right answers to the prompt are
    mostly counted wrong. Answers to v2 end at a blank line, in puzzles at two, as upstream's do;
    answers to v1 do not.

    Attributes:
        path: Folder of the checkout or copy.
        task: Category and name, such as `waiting_line/copy`.
        form: "free", or "infill": the answer is the row's `output_format`, in which each [MASK] is
            one open token and everything else is given, with EOS after it. Upstream infills at
            temperature 1.
    """

    path: str
    task: str
    form: str = "free"

    version = 4
    primary = "answer"
    splits = (SPLIT,)
    scores_own_target = False  # Some labels are words, or texts that a grammar checker judges.

    def __post_init__(self) -> None:
        require_choice("form", self.form, FORMS)

    @property
    def name(self) -> str:
        return f"parallelbench/{self.task}"

    @property
    def gen_length(self) -> int:
        return GEN_LENGTHS.get(self.task.partition("/")[0], OTHER_GEN_LENGTH)

    @property
    def block_length(self) -> int:
        return self.gen_length

    def read(self, split: str) -> list[Example]:
        available = sources(Path(self.path))
        if self.task not in available:
            raise ValueError(
                f"{self.path} has the tasks {', '.join(sorted(available))}, got {self.task!r}; "
                "those that v2 only has rules for come with its hub copy or `pb data`."
            )
        source = available[self.task]
        examples = [_example(*row, i, source.version) for i, row in enumerate(source.rows())]
        if not examples:
            raise ValueError(f"{self.name} has at least one row in {self.path}, got none.")
        return examples if self.form == "free" else [_infilled(example) for example in examples]

    def seed_of(self, split: str, seed: int) -> str:
        return f"{self.name};{seed}"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by the task's scorer in `eval.tasks.parallelbench_scores`.

        `answer` is None, never 0, where the task's scorer is unknown here or a package is missing.
        """
        meta, blank = example.meta, "\n\n\n" if self.task.startswith("puzzles/") else "\n\n"
        text = text if meta["version"] == V1 else cut_at(text, (blank,))
        scores = SCORERS.get(meta["metric"], UNKNOWN).score(text, meta["input"], meta["label"])
        by_grammar = meta["version"] == V2 and "grammar" in scores
        return {**scores, "answer": scores["grammar"]} if by_grammar else scores


def _example(row: Found, config: PromptConfig, number: int, version: str) -> Example:
    where = row.where
    if not {"input", "answer"} <= row.fields.keys():
        raise ValueError(
            f"{where} must have an 'input' and an 'answer', got {sorted(row.fields)}; "
            "repair or remove it."
        )
    # Hub tables hold input and answer as text; a label that is a list stays text, as in the files.
    row_input, label = (_unpacked(row.fields[name], where) for name in ("input", "answer"))
    demonstrations = (
        checked_value(row_input, Demonstrations, f"The input of {where}", REPAIR).icl_examples or []
    )
    inputs = {name: value for name, value in row_input.items() if name != "icl_examples"}
    needs = SCORERS.get(config.metric, UNKNOWN).needs
    if needs and (not isinstance(label, dict) or not set(needs) <= label.keys()):
        raise ValueError(
            f"{where} has an answer with the fields {', '.join(needs)}, got "
            f"{str(label)[:60]!r}; repair or remove it."
        )
    turns = [
        (prompt_of(config, demo.input, where), text_of(demo.answer)) for demo in demonstrations
    ]
    question = prompt_of(config, inputs, where)
    meta = {"input": inputs, "label": label, "metric": config.metric, "version": version,
            "output_format": row.fields.get("output_format"), "where": where}  # fmt: skip
    name = f"{SPLIT}-{number}-{content_id(question)}"
    return Example(conversation(turns, question), text_of(label), meta, id=name)


def _infilled(example: Example) -> Example:
    """Returns the example with its `output_format` as the template of the answer."""
    template = example.meta["output_format"]
    if not isinstance(template, str) or MASK not in template:
        raise ValueError(
            f"{example.meta['where']} must have an 'output_format' with {MASK} to be infilled, got "
            f"{template!r}; choose form=free."
        )
    return replace(example, template=template)


def _unpacked(value: Any, where: str) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    return parse_json(value.encode(), dict[str, Any], f"A field of {where}", REPAIR)


def prompt_of(config: PromptConfig, given: Mapping[str, Any], where: str) -> str:
    r"""Returns the prompt with its inputs; a literal `\n` of some files becomes a line break."""
    try:
        return config.prompt.format_map(given).replace("\\n", "\n")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"{where} has what its prompt names, got {sorted(given)} for "
            f"{config.prompt[:60]!r} ({error}); repair or remove it."
        ) from None


def text_of(label: Any) -> str:
    """Returns a reference answer: the label, or the example text that the label has."""
    if isinstance(label, dict):
        candidates = (label.get(name) for name in ("example", "summary", "words", "text"))
        label = next((value for value in candidates if value), "")
    return ", ".join(map(str, label)) if isinstance(label, list) else str(label)
