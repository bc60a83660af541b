"""A user's own questions, one JSON object a line."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from eval.tasks.base import Example, content_id
from eval.tasks.gsm8k import FLEXIBLE, normalised
from eval.tasks.problem_files import FileTask, Found, read_objects
from eval.tasks.task_checks import is_prompt
from samplers.checks import require_choice, require_count, shown

_MATCHES = ("auto", "exact", "number", "contains")
_NUMBER = re.compile(r"\s*[-+$]?[\d,]*\.?\d+\s*")
_ELLIPSIS = re.compile(r"\.{2,}")


@dataclass(frozen=True)
class JsonLines(FileTask):
    """Questions from a file: each line has `prompt` (or `question`) and `answer`.

    A prompt is text or a list of chat turns. Further fields are kept in `meta`; a field `id` names
    the example. There is one split, `test`: the file, in its order.

    Attributes:
        path: The file.
        match: When an answer is right: "exact" (equal but for white space and case), "number" (the
            last numbers of text and answer are equal), "contains" (the answer occurs), or
            "auto": "number" if the answer is a number or ends with "#### " and one, else "exact".
        gen_length: Default answer length in tokens.
    """

    path: str
    match: str = "auto"
    gen_length: int = 128

    version = 3
    primary = "answer"
    splits = ("test",)

    def __post_init__(self) -> None:
        require_choice("match", self.match, _MATCHES)
        require_count("gen_length", self.gen_length, 1)

    @property
    def name(self) -> str:
        return f"jsonl:{self.path}"

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Returns the first `num_examples` of the file, or all; `seed` changes nothing."""
        return super().examples(split, num_examples)

    def read(self, split: str) -> list[Example]:
        if not Path(self.path).is_file():
            raise ValueError(
                f"jsonl:FILE must name a file of examples, got no such file: {self.path!r}."
            )
        return [self._scorable(row) for row in read_objects(Path(self.path))]

    def _scorable(self, row: Found) -> Example:
        """Returns the example of a line; raises ValueError if `match` can score no answer to it."""
        example = _example(row)
        is_empty = self.match == "contains" and not _plain(example.target)
        if is_empty or self.score(example, example.target)["answer"] != 1.0:
            kind = "a text" if is_empty else "a number"
            raise ValueError(
                f"{row.where} must have {kind} as its answer with match={self.match}, got "
                f"{shown(example.target)}; repair or remove the line."
            )
        return example

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer: `answer` (primary) as `match` says."""
        wanted = example.target
        is_number = _NUMBER.fullmatch(wanted.rpartition("#### ")[2]) is not None
        if self.match == "number" or (self.match == "auto" and is_number):
            gold = _last_number(wanted)
            return {"answer": float(gold is not None and _last_number(text) == gold)}
        if self.match == "contains":
            return {"answer": float(_plain(wanted) in _plain(text))}
        return {"answer": float(_plain(text) == _plain(wanted))}


def _last_number(text: str) -> Decimal | str | None:
    """Returns the last number, or its text if it is no valid number, such as a version."""
    numbers = [match[0] for match in FLEXIBLE.finditer(_ELLIPSIS.sub(" ", text))]
    numbers = [normalised(number) for number in numbers if any(map(str.isdigit, number))]
    if not numbers:
        return None
    try:
        return Decimal(numbers[-1])
    except InvalidOperation:
        return numbers[-1]


def _plain(text: str) -> str:
    return " ".join(text.split()).lower()


def _example(row: Found) -> Example:
    fields = dict(row.fields)
    names = ", ".join(fields) or "none"
    prompt = fields.pop("prompt", None) or fields.pop("question", None)
    answer = fields.pop("answer", None)
    is_answer = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    if not is_prompt(prompt) or not is_answer:
        raise ValueError(
            f"{row.where} must have a 'prompt' (or 'question': text or chat turns) and an 'answer' "
            f"(text or a number), got the fields {names}; repair or remove the line."
        )
    name = fields.pop("id", None)
    default_id = content_id(json.dumps([prompt, answer], sort_keys=True))
    return Example(prompt, str(answer), fields, id=default_id if name is None else str(name))
