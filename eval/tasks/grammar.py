"""Words and sentences of the generated tasks, read from the TOML files in `worlds`."""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

Slots = Mapping[str, str | int]

_WORD = re.compile(r"(?<![{\w])[a-z_]+(?![\w}])")


class Cast(NamedTuple):
    """People, and plural nouns of objects, that generated questions are about."""

    names: tuple[str, ...]
    objects: tuple[str, ...]


class Sentence(NamedTuple):
    """A text with slots in braces, such as `{name} {owns} {before} {thing}`.

    `wordings` has, by slot, the texts that may fill it, such as `has` or `had`, also with slots.
    """

    text: str
    wordings: Mapping[str, Sequence[str]]

    def write(self, rng: random.Random, slots: Slots) -> str:
        """Writes the sentence with drawn wordings."""
        return self.filled([rng.choice(texts) for texts in self.wordings.values()], slots)

    def all(self, slots: Slots) -> Iterator[str]:
        """Yields the sentence in all its wordings."""
        return (self.filled(chosen, slots) for chosen in product(*self.wordings.values()))

    def filled(self, chosen: Sequence[str], slots: Slots) -> str:
        """Writes the sentence with one wording for each of the slots that have several."""
        texts = (text.format_map(slots) for text in chosen)
        worded = dict(zip(self.wordings, texts, strict=True))
        return one_line(self.text.format_map({**slots, **worded}))

    def words(self) -> set[str]:
        """Returns every word that the sentence can have besides slots and marks."""
        return words_in(self.text, *(text for texts in self.wordings.values() for text in texts))


@cache
def read_world(name: str) -> Mapping[str, Any]:
    """Returns a file of `worlds` as tables."""
    file = Path(__file__).parent / "worlds" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@cache
def cast(kind: str) -> Cast:
    """Returns people and objects: the "known" ones, or "held_out" ones, which training lacks."""
    table = read_world("cast")[kind]
    return Cast(word_list(table["names"]), word_list(table["objects"]))


@cache
def sentences(world: str, part: str) -> Mapping[str, Sentence]:
    """Returns the sentences of one part of a world, such as "question", by name."""
    tables = read_world(world)[part]
    return {
        name: Sentence(table["text"], {slot: table[slot] for slot in table if slot != "text"})
        for name, table in tables.items()
    }


def word_list(text: str) -> tuple[str, ...]:
    """Returns the words of a text."""
    return tuple(text.split())


def one_line(text: str) -> str:
    """Returns a text with single spaces between its words."""
    return " ".join(text.split())


def words_in(*texts: str) -> set[str]:
    """Returns the words of texts without slots and marks."""
    return {word for text in texts for word in _WORD.findall(text)}
