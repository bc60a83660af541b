"""Writing tasks: one sentence out of given words."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from eval.tasks.base import Example, SampledTask, content_id
from eval.tasks.grammar import read_world, word_list
from eval.tasks.text_scores import grammar, includes, is_one_sentence, product
from samplers.checks import require_choice

LEVELS = ("easy", "medium", "hard")
MAX_WORDS = 8


class Scene(NamedTuple):
    """Words that go together; verbs in the form of `we ...`."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """All words."""
        return self.nouns + self.verbs + self.adjectives


@cache
def scenes() -> tuple[Scene, ...]:
    """Returns the scenes; no word is in two of them."""
    tables = read_world("scenes").values()
    return tuple(Scene(*(word_list(table[kind]) for kind in Scene._fields)) for table in tables)


@dataclass(frozen=True)
class WordsToSentence(SampledTask):
    """Given words, to be used in one English sentence of one's own.

    There are many right answers, whose words depend on each other: decoding in parallel breaks
    grammar first. `easy` words are of one scene, such as a kitchen; `medium` ones of two; `hard`
    ones each of another. Splits are disjoint in the set of words, which a prompt lists by alphabet.
    The reference is put together by rule.

    Source: the idea is that of "words to sentence" in Kang et al. 2025, "ParallelBench",
    https://arxiv.org/abs/2510.04767. Differs: words, wording and scores are our own, so that
    figures do not compare.

    Attributes:
        n: Number of words, 2 to 8.
        level: How far apart they are: `easy`, `medium` or `hard`.
    """

    n: int = 4
    level: str = "easy"

    name = "writing/words_to_sentence"
    version = 1
    primary = "answer"
    gen_length = 64
    scores_own_target = False  # Undefined without the package that checks grammar.

    def __post_init__(self) -> None:
        if not 2 <= self.n <= MAX_WORDS:
            raise ValueError(f"n must be a number of words from 2 to {MAX_WORDS}, got {self.n}.")
        require_choice("level", self.level, LEVELS)

    def sample(self, rng: random.Random) -> Example:
        """Draws the words of a sentence."""
        words = sorted(self._words(rng))
        prompt = (
            "Write one sentence in English that contains all of these words, each exactly "
            f"as it is written here: {joined(words)}. Answer with the sentence only."
        )
        meta = {"words": words, "level": self.level}
        return Example(prompt, reference(words), meta, id=content_id(" ".join(words)))

    def split_key(self, example: Example) -> str:
        return " ".join(example.meta["words"])

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary) is the product of the others. `included`: the text has every word, whole
        and uninflected. `sentence`: it has the form of one sentence. `grammar`: Harper finds
        nothing wrong. Without the package `harper-py`, `grammar` and `answer` are None.
        """
        included = float(includes(text, example.meta["words"]))
        sentence = float(is_one_sentence(text))
        checked = grammar(text)
        return {
            "answer": product(included, sentence, checked),
            "included": included,
            "sentence": sentence,
            "grammar": checked,
        }

    def _words(self, rng: random.Random) -> list[str]:
        if self.level == "hard":
            return [rng.choice(chosen.words) for chosen in rng.sample(scenes(), self.n)]
        if self.level == "easy":
            return rng.sample(rng.choice(scenes()).words, self.n)
        first, second = rng.sample(scenes(), 2)
        return rng.sample(first.words, self.n // 2) + rng.sample(second.words, -(-self.n // 2))


def joined(words: Sequence[str]) -> str:
    """Lists words as in a sentence: `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def reference(words: Sequence[str]) -> str:
    """Returns a sentence with all the words of one's scenes; dull, but right."""

    def those(kind: int, default: str) -> list[str]:
        pool = {word for one in scenes() for word in one[kind]}
        return [word for word in words if word in pool] or [default]

    nouns, verbs, adjectives = those(0, "house"), those(1, "meet"), those(2, "old")
    places = [f"the {joined(adjectives)} {nouns[0]}", *(f"the {noun}" for noun in nouns[1:])]
    return f"Every day we {joined(verbs)} near {joined(places)}."
