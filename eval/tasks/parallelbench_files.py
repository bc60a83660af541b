"""Where a ParallelBench checkout or copy keeps its tasks, and how they are read."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from eval.tasks.problem_files import objects_of

SPLIT = "test"
CONFIG = "task_config.yaml"
V1, V2 = "v1", "v2"

OUTPUTS = (
    (V1, "dataset/parallel_bench/data/output"),
    (V2, "parallelbench/dataset/data/output"),
    (V2, "parallelbench/datasets/data/output"),
    (V2, "."),
)
"""Folders of `<split>/<category>/<task>.jsonl`, relative to the given one, with their version."""

TABLES = (f"{SPLIT}-*.parquet", f"{SPLIT}/*.parquet", f"{SPLIT}/data-*.arrow", "data-*.arrow")
"""What a hub copy's folder of one task may hold."""

RECIPES = f"parallelbench/datasets/data/task_configs/{SPLIT}"
PREBUILT = "parallelbench/datasets/data/resources"

HOW = (
    "give a checkout with dataset/parallel_bench/data/output (v1), the folder that `pb data "
    "--output_dir` wrote, or a local copy of the hub's furiosa-ai/ParallelBench (v2)"
)


class Row(NamedTuple):
    """One question as the files hold it.

    Attributes:
        where: Names file and line, for messages.
        input: What fills the prompt; `icl_examples` in it are demonstrations.
        answer: The label: a text, or fields of which `example` may be a right answer.
        prompt: Template with the names of inputs in braces.
        metric: Upstream's name of the scorer.
    """

    where: str
    input: Mapping[str, Any]
    answer: Any
    prompt: str
    metric: str


class Source(NamedTuple):
    """A task that is there.

    Attributes:
        version: `v1` or `v2`.
        rows: Reads its rows.
    """

    version: str
    rows: Callable[[], list[Row]]


def sources(root: Path) -> dict[str, Source]:
    """Returns the tasks of a folder by name, such as `waiting_line/copy`.

    Raises:
        ValueError: If the folder does not exist, or holds no task.
    """
    if not root.is_dir():
        raise ValueError(f"ParallelBench is read from a folder, got {root}, which is none; {HOW}.")
    found: dict[str, Source] = {}
    for name, source in (*_generated(root), *_hub_copy(root), *_prebuilt(root)):
        found.setdefault(name, source)
    if not found:
        raise ValueError(f"{root} holds no task of ParallelBench in a layout known here; {HOW}.")
    return found


def _generated(root: Path) -> Iterator[tuple[str, Source]]:
    for version, relative in OUTPUTS:
        for file in sorted((root / relative / SPLIT).glob("*/*.jsonl")):
            if (file.parent / CONFIG).is_file():
                name = f"{file.parent.name}/{file.stem}"
                yield name, Source(version, partial(_read_lines, file, name))


def _read_lines(file: Path, name: str) -> list[Row]:
    config_file = file.parent / CONFIG
    config = _mapping(_yaml(config_file).get(name), f"{name!r} in {config_file}")
    prompt, metric = _texts(config, ("prompt", "metric"), f"{name!r} in {config_file}")
    return _rows(file, prompt, metric)


def _rows(file: Path, prompt: str, metric: str) -> list[Row]:
    found = objects_of(file.read_text(encoding="utf-8"), file)
    return [_row(fields, prompt, metric, where) for fields, where in found]


def _hub_copy(root: Path) -> Iterator[tuple[str, Source]]:
    for folder in sorted(path for path in root.glob("*-*") if path.is_dir()):
        for pattern in TABLES:
            if files := sorted(folder.glob(pattern)):
                yield folder.name.replace("-", "/", 1), Source(V2, partial(_read_tables, files))


def _read_tables(files: Iterable[Path]) -> list[Row]:
    rows = []
    for file in files:
        for number, fields in enumerate(_table(file), start=1):
            where = f"Row {number} of {file}"
            prompt, metric = _texts(fields, ("prompt", "metric"), where)
            rows.append(_row(fields, prompt, metric, where))
    return rows


def _prebuilt(root: Path) -> Iterator[tuple[str, Source]]:
    for recipe in sorted((root / RECIPES).glob("*.yaml")):
        tasks = _yaml(recipe).get("tasks")
        # The other recipes are rules, or name another file.
        for name, config in tasks.items() if isinstance(tasks, dict) else ():
            is_built = isinstance(config, dict) and config.get("type") == "prebuilt"
            file = root / PREBUILT / str(config.get("source")) if is_built else root
            if file.is_file():
                prompt, metric = _texts(config, ("prompt", "metric"), f"{name!r} in {recipe}")
                yield f"{recipe.stem}/{name}", Source(V2, partial(_rows, file, prompt, metric))


def _row(fields: Mapping[str, Any], prompt: str, metric: str, where: str) -> Row:
    if "input" not in fields or "answer" not in fields:
        raise ValueError(
            f"{where} must have an 'input' and an 'answer', got {sorted(fields)}; "
            "repair or remove it."
        )
    # The hub's tables hold both as text; a label that is a list stays one, as in the files.
    given, answer = (_unpacked(fields[name], where) for name in ("input", "answer"))
    given = _mapping(given, f"The input of {where}")
    for shown in given.get("icl_examples") or []:
        if not isinstance(shown, dict) or not {"input", "answer"} <= shown.keys():
            raise ValueError(
                f"Demonstrations of {where} have an 'input' and an 'answer', got "
                f"{str(shown)[:60]!r}; repair or remove it."
            )
    return Row(where, given, answer, prompt, metric)


def _unpacked(value: Any, where: str) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} holds JSON in its fields, got {value[:60]!r} ({error}); repair it."
        ) from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds named fields, got {str(value)[:60]!r}; repair it.")
    return value


def _texts(fields: Mapping[str, Any], names: tuple[str, ...], where: str) -> list[str]:
    missing = [name for name in names if not isinstance(fields.get(name), str)]
    if missing:
        raise ValueError(f"{where} must have the texts {', '.join(names)}, got no {missing[0]!r}.")
    return [fields[name] for name in names]


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ValueError(
            f"{file} is read by the package `pyyaml`, got none; install the extra `eval`."
        ) from error
    try:
        return _mapping(yaml.safe_load(file.read_text(encoding="utf-8")), str(file))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {str(error).splitlines()[0]}.") from error


def _table(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise ValueError(
            f"{file} is read by the package `datasets`, got none; install the extra `eval`."
        ) from error
    with file.open("rb") as opened:
        is_parquet = file.suffix == ".parquet"
        table = parquet.read_table(opened) if is_parquet else ipc.open_stream(opened).read_all()
        rows: list[dict[str, Any]] = table.to_pylist()
    return rows
