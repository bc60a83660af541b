"""Settings that differ by their seed only are one row: an example's seeds are averaged first."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.metrics.statistics import Number, mean
from eval.runs.records import Record, Settings


@dataclass(frozen=True)
class Pool:
    """The records of one setting under all its seeds.

    Attributes:
        settings: With the first of the seeds.
        seeds: In the order in which they were run.
        records: Of all seeds, by example.
    """

    settings: Settings
    seeds: tuple[int, ...]
    records: tuple[Record, ...]

    @property
    def num_expected(self) -> int:
        """How many records there will be."""
        return self.settings.num_examples * len(self.seeds)

    @property
    def finished(self) -> list[Record]:
        """The records of examples that did not raise."""
        return [record for record in self.records if record["error"] is None]

    @property
    def failed(self) -> list[Record]:
        """The records of examples that raised."""
        return [record for record in self.records if record["error"] is not None]


def pools(results: Mapping[Settings, Sequence[Record]]) -> list[Pool]:
    """Returns one pool for all settings that differ by their seed only, in the settings' order."""
    alike: dict[Settings, list[Settings]] = defaultdict(list)
    for setting in results:
        alike[setting.with_seed(0)].append(setting)
    found = []
    for group in alike.values():
        own = [record for setting in group for record in results[setting]]
        # In the order of the ids, so that the order of writing leaves no trace in any sum.
        own.sort(key=lambda record: str(record["example"]))
        found.append(Pool(group[0], tuple(setting.seed for setting in group), tuple(own)))
    return found


def per_example(values: Iterable[tuple[str, Number | None]]) -> dict[str, float]:
    """Averages each example's values over its seeds; None is left out."""
    defined: dict[str, list[Number]] = defaultdict(list)
    for example, value in values:
        if value is not None:
            defined[example].append(value)
    return {example: mean(own) for example, own in defined.items()}


def field(records: Iterable[Record], name: str) -> dict[str, float]:
    """Averages a number of the records over each example's seeds."""
    numbers: Iterable[Mapping[str, Any]] = records
    return per_example((record["example"], record[name]) for record in numbers)
