"""The 36 word-problem templates of `worlds/word_problems.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from eval.tasks.grammar import one_line, read_world, words_in


class Step(NamedTuple):
    """One line of a solution: `prefix left operator right = result`.

    An operand is a number slot, an earlier result (`s1`) or a constant (`2`).
    """

    prefix: str
    left: str
    operator: str
    right: str


@dataclass(frozen=True, eq=False)
class Template:
    """A family of word problems that differ in numbers, people and objects only.

    `slots` has the range of each number slot in the world of three-digit numbers, in order. A
    `held_out` family belongs to the split `test_template` instead of `train`.
    """

    id: str
    slots: Mapping[str, tuple[int, int]]
    question: str
    steps: tuple[Step, ...]
    held_out: bool

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Numbers that occur in the steps but in no slot, such as the 2 of "half of"."""
        operands = {operand for step in self.steps for operand in (step.left, step.right)}
        return tuple(sorted(int(operand) for operand in operands if operand.isdigit()))

    @cached_property
    def answer(self) -> str:
        """Text of the answer with its slots."""
        lines = [
            f"{step.prefix} {named(step.left)} {step.operator} {named(step.right)} = {{s{i}}} ."
            for i, step in enumerate(self.steps, start=1)
        ]
        return " ".join([*lines, f"#### {{s{len(lines)}}}"])

    def words(self) -> set[str]:
        """Returns every word that question and answer can contain besides slots and marks."""
        return words_in(self.question, self.answer)


def named(operand: str) -> str:
    """Returns an operand as a format string has it: constants as they are, otherwise a slot."""
    return operand if operand.isdigit() else f"{{{operand}}}"


@cache
def templates() -> Mapping[str, Template]:
    """Returns the templates by their ids."""
    found = {}
    for table in read_world("word_problems")["template"]:
        parts = (line.split(" | ") for line in table["steps"])
        steps = tuple(Step(prefix, *equation.split()) for prefix, equation in parts)
        held_out = table.get("held_out", False)
        slots, question = table["slots"], one_line(table["question"])
        found[table["id"]] = Template(table["id"], slots, question, steps, held_out)
    return found
