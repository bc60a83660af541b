"""Pools settings that differ only in their seed: an example's values are averaged over seeds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from eval.metrics.statistics import Number, mean
from eval.runs.records import Record, score_of
from eval.runs.settings import RunSettings

Identity: TypeAlias = tuple[str, str, str]
"""Id, prompt and target of an example."""

Key = TypeVar("Key", str, Identity)


@dataclass(frozen=True)
class Pooled:
    """The records of one setting under all its seeds, sorted by example.

    `settings` has the first of the seeds.
    """

    settings: RunSettings
    seeds: tuple[int, ...]
    records: tuple[Record, ...]

    @property
    def finished(self) -> list[Record]:
        """The records of examples that did not raise."""
        return [record for record in self.records if record["error"] is None]

    @property
    def failed(self) -> list[Record]:
        """The records of examples that raised."""
        return [record for record in self.records if record["error"] is not None]


def pools(results: Mapping[RunSettings, Sequence[Record]]) -> list[Pooled]:
    """Returns one pool for each group of settings that differ only in their seed, in order."""
    groups: dict[RunSettings, list[RunSettings]] = defaultdict(list)
    for setting in results:
        groups[setting.with_seed(0)].append(setting)
    pooled = []
    for group in groups.values():
        records = [record for setting in group for record in results[setting]]
        # Sorted by id, so that sums do not depend on the order of writing.
        records.sort(key=lambda record: str(record["example"]))
        pooled.append(Pooled(group[0], tuple(s.config.seed for s in group), tuple(records)))
    return pooled


def identity(record: Record) -> Identity:
    """Returns the key of an example: not only its id, because edited files keep ids."""
    return str(record["example"]), record.get("prompt", ""), str(record.get("target", ""))


def primary_scores(pool: Pooled) -> dict[Identity, float]:
    """Returns the primary score by example; an error is wrong, an undefined score is left out.

    Empty if no finished example has a score, for example without an optional scorer: otherwise the
    errors alone would give an accuracy of 0.
    """
    if pool.finished and all(score_of(record) is None for record in pool.finished):
        return {}
    return per_example((identity(record), score_of(record)) for record in pool.records)


def per_example(values: Iterable[tuple[Key, Number | None]]) -> dict[Key, float]:
    """Averages each example's values over its seeds; values of None are left out."""
    defined: dict[Key, list[Number]] = defaultdict(list)
    for example, value in values:
        if value is not None:
            defined[example].append(value)
    return {example: mean(numbers) for example, numbers in defined.items()}


def means_of(records: Iterable[Record], name: str) -> dict[str, float]:
    """Averages a numeric field of the records over each example's seeds."""
    numbers: Iterable[Mapping[str, Any]] = records
    return per_example((record["example"], record[name]) for record in numbers)
