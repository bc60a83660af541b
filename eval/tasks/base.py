"""Tasks: examples with an id, a prompt and a reference answer, and a scorer of text."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from samplers.checks import shown

Turn = dict[str, str]
"""One chat turn, `{"role": "user" | "assistant", "content": text}`."""

SHARES: Mapping[str, int] = {"train": 18, "val": 1, "test": 1}
"""By split how many of 20 examples are of it, on average; see `split_of`."""
DEFAULT_NUM_EXAMPLES = 200
MAX_MISSES = 1_000
MAX_DRAWS = 10_000


@dataclass(frozen=True)
class Example:
    """One question with its reference answer.

    Attributes:
        prompt: The question as plain text, or chat turns ending with a user turn.
        target: A reference answer, as the model should write it. The task's own scorer gives it 1,
            unless the task says otherwise by `scores_own_target`.
        meta: Values that the scorer needs besides the text, and where the example comes from.
        id: Name, unique within task and split, a function of the content alone. By default a hash
            of the prompt.
        template: The answer with blanks, such as `[MASK]` for one token, that the model fills; EOS
            follows. Empty: nothing of the answer is given.
    """

    prompt: str | list[Turn]
    target: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default="", kw_only=True)
    template: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", content_id(str(self.prompt)))

    def turns(self) -> list[Turn]:
        """Returns the prompt as chat turns; plain text becomes one user turn."""
        return conversation([], self.prompt) if isinstance(self.prompt, str) else self.prompt


class Task(ABC):
    """A source of examples with a scorer. Concrete tasks are frozen dataclasses of settings.

    A property that is the same for all settings is a class attribute: `version = 1`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name, such as `lists/shuffle`."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Number that grows whenever prompts, targets or scores change for the same settings."""

    @property
    @abstractmethod
    def primary(self) -> str:
        """Name of the score that is reported first."""

    @property
    @abstractmethod
    def gen_length(self) -> int:
        """Default answer length in tokens, room for EOS included."""

    @property
    def block_length(self) -> int | None:
        """Published number of tokens per block, at most the answer's length; None: the model's."""
        return None

    @property
    def prompts(self) -> str:
        """Default use of plain text: "chat" puts it into the chat template, "plain" does not."""
        return "chat"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names that `examples` accepts."""
        return ("train", "val", "test")

    @property
    def marker(self) -> str:
        """Text of an answer after which its result comes; empty: the answer is its result."""
        return ""

    @property
    def scores_own_target(self) -> bool:
        """True if `score` gives every target 1; a run checks the first target before it decodes.

        False if a grammar checker judges the target, or its score needs an optional package.
        """
        return True

    @abstractmethod
    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Returns the examples of a split, the same in every process.

        Args:
            split: One of `splits`.
            num_examples: Number of examples; None is the task's own number.
            seed: Selects among the examples of the split.

        Raises:
            ValueError: If the split does not exist or `num_examples` is not positive.
        """

    @abstractmethod
    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Returns the scores of an answer, each in [0, 1], or None if undefined.

        The score named `primary` is always present. True and False count as 1 and 0.
        """

    def require(self, split: str, num_examples: int | None) -> None:
        """Raises ValueError if the split does not exist or `num_examples` is not positive."""
        if split not in self.splits:
            raise ValueError(f"split must be one of {', '.join(self.splits)}, got {split!r}.")
        if num_examples is not None and num_examples < 1:
            raise ValueError(f"limit must be at least 1, got {num_examples}.")

    def require_enough(self, split: str, num_available: int, wanted: int | None) -> None:
        """Raises ValueError if a split has fewer examples than were asked for."""
        if wanted is not None and wanted > num_available:
            raise ValueError(
                f"limit must be at most {num_available}, the number of examples with distinct ids "
                f"in the split {split!r} of {self.name}, got {wanted}."
            )


class GeneratedTask(Task):
    """A task whose examples are drawn by rule, without data files."""

    @abstractmethod
    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one example of a split, determined by the state of `rng`; prompts may repeat.

        Raises ValueError if the split does not exist, or no example of the split is found.
        """

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Draws `num_examples` examples, or 200, with distinct ids; fewer if no more are found.

        Raises ValueError if the split does not exist or has no example, `num_examples` is not
        positive, or different prompts have one id.
        """
        self.require(split, num_examples)
        wanted = DEFAULT_NUM_EXAMPLES if num_examples is None else num_examples
        rng = random.Random(self.seed_of(split, seed))
        by_id: dict[str, Example] = {}
        misses = 0
        while len(by_id) < wanted and misses < MAX_MISSES:
            example = self.draw(rng, split)
            first = by_id.setdefault(example.id, example)
            misses = 0 if first is example else misses + 1
            if first.prompt != example.prompt:
                raise ValueError(
                    f"Examples of {self.name} must have distinct ids, got {example.id!r} for "
                    f"{shown(first.prompt)} and {shown(example.prompt)}; without an id, an example "
                    "is named by its prompt."
                )
        return list(by_id.values())

    def seed_of(self, split: str, seed: int) -> str:
        """Returns the seed of the draws of a split."""
        return f"{self!r};{split};{seed}"

    def none_found(self, split: str, remedy: str, num_draws: int = MAX_DRAWS) -> ValueError:
        """Returns the error that `draw` raises after `num_draws` draws without an example."""
        return ValueError(
            f"{self!r} must have examples of the split {split!r}, got none in {num_draws} draws; "
            f"{remedy}."
        )


class SampledTask(GeneratedTask):
    """A generated task that draws examples of any split; a hash decides the split of each.

    The hash puts an example into one of 20 buckets: one is `val`, one `test`, the others `train`.
    A task whose splits differ in more, such as longer questions, overrides `draw`.
    """

    @abstractmethod
    def sample(self, rng: random.Random) -> Example:
        """Draws one example of any split, determined by the state of `rng`."""

    def split_key(self, example: Example) -> str:
        """Returns the text whose hash decides the split, by default the prompt.

        Examples that must not be in two splits, such as one problem with other names, share a key.
        """
        return str(example.prompt)

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        self.require(split, None)
        if split not in SHARES:
            raise ValueError(
                f"A split of {type(self).__name__} must be one of {', '.join(SHARES)}, got "
                f"{split!r}; override draw to draw examples of other splits."
            )
        for _ in range(MAX_DRAWS):
            example = self.sample(rng)
            if split_of(self.split_key(example)) == split:
                return example
        share = f"{SHARES[split]} in 20 of all is of this split"
        raise self.none_found(split, f"make more questions possible, {share}")


def split_of(key: str) -> str:
    """Returns the split of a key by its hash, independent of process and PYTHONHASHSEED."""
    return {0: "val", 1: "test"}.get(int(content_id(key), 16) % 20, "train")


def content_id(text: str) -> str:
    """Returns a short id of a text, independent of process and PYTHONHASHSEED."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def conversation(shown: Iterable[tuple[str, str]], asked: str) -> list[Turn]:
    """Returns chat turns: a user and an assistant turn for each pair of `shown`, then `asked`."""
    turns: list[Turn] = []
    for question, answer in shown:
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": answer})
    return [*turns, {"role": "user", "content": asked}]
