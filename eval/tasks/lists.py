"""List operations with one word an item, whose exact answer distribution is known."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial

from eval.tasks.base import MAX_DRAWS, Example, GeneratedTask, split_of
from eval.tasks.grammar import cast
from samplers.checks import require_choice

Items = tuple[str, ...]

TRAIN_LENGTHS = (3, 8)
LONG_LENGTHS = (9, 10)
NUM_SYMBOLS = 3
MAX_SUM = 200
MAX_ENUMERATED = 50_000
FIXED_LENGTH = ("pair_sum", "city")


@dataclass(frozen=True)
class ListQuestion:
    """A question about a list.

    `number` is a position from 1, a count or a sum, or 0 for none; `word` is the new item.
    """

    keyword: str
    items: Items
    number: int = 0
    word: str = ""


Outputs = Callable[[ListQuestion], Iterator[Items]]


@dataclass(frozen=True)
class ListTask(GeneratedTask):
    """One operation on a list of words: `insert_at 2 kites : [ leo olga ]` -> `[ leo kites olga ]`.

    Operations with one right answer: `copy`, `reverse`, `sort` (alphabetical), `replace_at i w`,
    `insert_at i w` (the new item is then at position i), `remove_at i`; positions count from 1.
    Operations with several, the reference drawn uniformly: `replace_any w`, `remove_any`,
    `insert_any w`, `shuffle` (any order, also the given order), `agree n` (one of three symbols n
    times), `pair_sum N` (two numbers of at least 1), `city` (one of two two-word names).

    Splits: `train`, `val` and `test` are disjoint in the prompt; `test_length` has lists of 9 and
    10 items, or n copies for `agree`.

    Attributes:
        keyword: The operation.
        n: Length of the given list, copies for `agree`; None draws it from 3 to 8. Must be None
            for `pair_sum` and `city`, which have one length only.
    """

    keyword: str = "shuffle"
    n: int | None = None

    version = 1
    primary = "answer"
    gen_length = 16

    def __post_init__(self) -> None:
        require_choice("keyword", self.keyword, tuple(OUTPUTS))
        if self.n is not None and self.keyword in FIXED_LENGTH:
            raise ValueError(f"{self.keyword!r} has one length only, got n={self.n}; leave n out.")
        if self.n is not None and not 2 <= self.n <= LONG_LENGTHS[1]:
            raise ValueError(f"n is a length from 2 to {LONG_LENGTHS[1]}, got {self.n}.")

    @property
    def name(self) -> str:
        return f"lists/{self.keyword}"

    @property
    def splits(self) -> tuple[str, ...]:
        lengths_vary = self.n is None and self.keyword not in FIXED_LENGTH
        return ("train", "val", "test", *(["test_length"] if lengths_vary else []))

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one prompt of a split and one of its right answers, uniformly."""
        self.require(split, None)
        for _ in range(MAX_DRAWS):
            request = self._draw_request(rng, split)
            prompt = self._prompt(request)
            if split == "test_length" or split_of(prompt) == split:
                answer = draw_output(request, rng)
                return Example(prompt, render(answer), {"request": request})
        raise self.none_found(split, "choose a greater n")

    def seed_of(self, split: str, seed: int) -> str:
        # The style is part of the text that chose the examples of all published figures.
        task = f"ListTask(keyword={self.keyword!r}, n={self.n}, style='brackets')"
        return f"{task};{split};{seed}"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary, lenient): the items after the last `[` and up to the next `]`, quotes
        and commas aside, are a right answer. `answer_strict`: the text is, word for word, a right
        answer as the prompt writes lists.
        """
        request: ListQuestion = example.meta["request"]
        items = parse(text)
        right = is_valid(request, items)
        strict = right and text.split() == render(items).split()
        return {"answer": float(right), "answer_strict": float(strict)}

    def _prompt(self, request: ListQuestion) -> str:
        arguments = [str(part) for part in (request.number, request.word) if part]
        items = [render(request.items)] if request.items else []
        return " ".join([self.keyword, *arguments, ":", *items])

    def _draw_request(self, rng: random.Random, split: str) -> ListQuestion:
        lengths = LONG_LENGTHS if split == "test_length" else TRAIN_LENGTHS
        n = rng.randint(*lengths) if self.n is None else self.n
        num_items = {"agree": NUM_SYMBOLS, "pair_sum": 0, "city": 4}.get(self.keyword, n)
        *items, word = rng.sample(words_of_lists(), num_items + 1)
        greatest = {"replace_at": n, "insert_at": n + 1, "remove_at": n}.get(self.keyword)
        number = n if self.keyword == "agree" else 0
        if self.keyword == "pair_sum":
            number = rng.randint(3, MAX_SUM)
        elif greatest is not None:
            number = rng.randint(1, greatest)
        new = word if self.keyword.startswith(("replace_", "insert_")) else ""
        return ListQuestion(self.keyword, tuple(items), number, new)


@cache
def words_of_lists() -> Items:
    """Returns the 32 words: people and objects that no training problem mentions, and others."""
    known, held_out = cast("known"), cast("held_out")
    return tuple(
        sorted((*held_out.names, *held_out.objects, *known.names[:10], *known.objects[:10]))
    )


def replace_items(items: Items, start: int, end: int, word: str) -> Items:
    """Returns the items with [start, end) replaced by the word, or removed if it is empty."""
    return items[:start] + ((word,) if word else ()) + items[end:]


def edit_rule(width: int) -> Outputs:
    """Returns the rule that puts the word, if any, in the place of `width` items.

    Operations `..._at` use the position that the request names, other operations any position.
    """

    def outputs(request: ListQuestion) -> Iterator[Items]:
        anywhere = range(len(request.items) - width + 1)
        starts = (request.number - 1,) if request.keyword.endswith("_at") else anywhere
        return (replace_items(request.items, i, i + width, request.word) for i in starts)

    return outputs


def pair_sum(request: ListQuestion) -> Iterator[Items]:
    """Lists the ordered pairs of numbers of at least 1 with the given sum."""
    total = request.number
    return ((str(first), str(total - first)) for first in range(1, total))


OUTPUTS: Mapping[str, Outputs] = {
    "copy": lambda request: iter([request.items]),
    "reverse": lambda request: iter([request.items[::-1]]),
    "sort": lambda request: iter([tuple(sorted(request.items))]),
    "replace_at": edit_rule(1),
    "insert_at": edit_rule(0),
    "remove_at": edit_rule(1),
    "replace_any": edit_rule(1),
    "remove_any": edit_rule(1),
    "insert_any": edit_rule(0),
    "shuffle": lambda request: permutations(request.items),
    "agree": lambda request: ((item,) * request.number for item in request.items),
    "pair_sum": pair_sum,
    "city": lambda request: iter([request.items[:2], request.items[2:]]),
}
"""The right answers to a request, each once."""


def valid_outputs(request: ListQuestion) -> tuple[Items, ...]:
    """Returns every right answer to a request; at most 50,000."""
    size = factorial(len(request.items)) if request.keyword == "shuffle" else 1
    if size > MAX_ENUMERATED:
        raise ValueError(
            f"valid_outputs lists at most {MAX_ENUMERATED} answers, got {size}; use a shorter list."
        )
    return tuple(OUTPUTS[request.keyword](request))


def is_valid(request: ListQuestion, items: Items) -> bool:
    """Says whether the items are a right answer to a request."""
    if request.keyword == "shuffle":
        return sorted(items) == sorted(request.items)
    return any(items == answer for answer in OUTPUTS[request.keyword](request))


def draw_output(request: ListQuestion, rng: random.Random) -> Items:
    """Draws a right answer, uniformly."""
    if request.keyword == "shuffle":
        return tuple(rng.sample(request.items, len(request.items)))
    return rng.choice(tuple(OUTPUTS[request.keyword](request)))


def render(items: Items) -> str:
    """Writes a list as words."""
    return " ".join(["[", *items, "]"])


def parse(text: str) -> Items:
    """Reads the items after the last `[`, if any, and up to the next `]`, if any."""
    inner = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return tuple(re.sub(r"[\",']", " ", inner).split())
