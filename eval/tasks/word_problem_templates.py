"""The 36 word-problem templates, and the names and objects that fill them.

A template is a question and a chain of steps. `{A}`, `{B}`, `{C}` are people, `{x}` and `{y}` are
plural objects, other slots are numbers; `s1`, `s2`, ... are the results of earlier steps.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


def words(text: str) -> tuple[str, ...]:
    """Returns the words of a text."""
    return tuple(text.split())


NAMES = words(
    "adam alice anna ben carl clara david diana emma eric fiona frank gina harry helen "
    "ivan jack julia kevin laura lucas maria nina oscar paul peter rita sam tina victor"
)
HELD_OUT_NAMES = words("bruno elsa hugo iris leo olga simon vera")
OBJECTS = words(
    "apples beads buttons candies cards carrots coins cookies flowers lemons marbles nuts "
    "oranges pears pencils pens plums shells stamps stones"
)
HELD_OUT_OBJECTS = words("hats keys kites masks")


class Step(NamedTuple):
    """One line of a solution: `prefix left operator right = result`.

    Attributes:
        prefix: Words before the equation, with slots for people and objects.
        left: A number slot, an earlier result (`s1`) or a constant (`2`).
        operator: One of `+ - * /`.
        right: As `left`.
    """

    prefix: str
    left: str
    operator: str
    right: str


@dataclass(frozen=True)
class Template:
    """A family of word problems that differ in numbers, people and objects only.

    Attributes:
        id: Name of the family.
        ranges: Number slots with their least and greatest value in a world of three-digit
            numbers, `a 5-400, b 2-300`. Narrower worlds clip them.
        question: Text of the question with its slots.
        lines: The steps, each `prefix | left operator right`.
        held_out: Whether the family belongs to the split `test_template` instead of `train`.
    """

    id: str
    ranges: str
    question: str
    lines: tuple[str, ...]
    held_out: bool = False

    @cached_property
    def slots(self) -> dict[str, tuple[int, int]]:
        """Number slots in order, each with its range in the world of three-digit numbers."""
        found = re.findall(r"(\w+) (\d+)-(\d+)", self.ranges)
        return {slot: (int(least), int(greatest)) for slot, least, greatest in found}

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The parsed steps."""
        parts = (line.split(" | ") for line in self.lines)
        return tuple(Step(prefix, *equation.split()) for prefix, equation in parts)

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
        return set(re.findall(r"(?<![{\w])[a-z_]+(?![\w}])", f"{self.question} {self.answer}"))


def named(operand: str) -> str:
    """Returns an operand as it stands in a format string: constants as they are, else a slot."""
    return operand if operand.isdigit() else f"{{{operand}}}"


TEMPLATES = (
    Template(
        "gain_lose",
        "a 5-400, b 2-300, c 2-300",
        (
            "{A} has {a} {x} . {A} finds {b} more {x} and then gives {c} {x} to {B} . how many {x}"
            " does {A} have now ?"
        ),
        (
            "{A} now has | a + b",
            "after giving some away {A} has | s1 - c",
        ),
    ),
    Template(
        "boxes_extra",
        "a 2-30, b 2-30, c 2-200",
        (
            "there are {a} boxes with {b} {x} in each box . {A} adds {c} more {x} . how many {x} "
            "are there in total ?"
        ),
        (
            "the boxes hold | a * b",
            "in total there are | s1 + c",
        ),
    ),
    Template(
        "share_rest",
        "a 10-400, b 2-200, c 2-12",
        (
            "{A} has {a} {x} and loses {b} of them . the rest are shared equally by {c} friends . "
            "how many {x} does each friend get ?"
        ),
        (
            "the rest is | a - b",
            "each friend gets | s1 / c",
        ),
    ),
    Template(
        "times_total",
        "a 3-330, k 2-12",
        "{A} has {a} {x} . {B} has {k} times as many {x} . how many {x} do they have together ?",
        (
            "{B} has | a * k",
            "together they have | a + s1",
        ),
    ),
    Template(
        "change",
        "a 2-30, p 2-30, m 50-900",
        (
            "{A} buys {a} {x} for {p} dollars each and pays with {m} dollars . how many dollars "
            "does {A} get back ?"
        ),
        (
            "the {x} cost | a * p",
            "{A} gets back | m - s1",
        ),
    ),
    Template(
        "more_pages",
        "a 5-300, b 2-200",
        (
            "{A} read {a} pages on monday and {b} more pages on tuesday than on monday . how many "
            "pages did {A} read in total ?"
        ),
        (
            "on tuesday {A} read | a + b",
            "in total {A} read | a + s1",
        ),
    ),
    Template(
        "leak",
        "a 50-900, r 2-60, h 2-15",
        (
            "a tank holds {a} liters of water . it loses {r} liters each hour for {h} hours . how "
            "many liters are left ?"
        ),
        (
            "the tank loses | r * h",
            "the water left is | a - s1",
        ),
    ),
    Template(
        "half_then",
        "a 4-800, b 2-300",
        (
            "{A} has {a} {x} . half of the {x} are sold and then {A} finds {b} more {x} . how many"
            " {x} does {A} have now ?"
        ),
        (
            "half of the {x} is | a / 2",
            "now {A} has | s1 + b",
        ),
        held_out=True,
    ),
    Template(
        "buy_two",
        "a 2-20, p 2-25, b 2-20, q 2-25",
        (
            "{A} buys {a} {x} for {p} dollars each and {b} {y} for {q} dollars each . how many "
            "dollars does {A} pay in total ?"
        ),
        (
            "the {x} cost | a * p",
            "the {y} cost | b * q",
            "in total {A} pays | s1 + s2",
        ),
    ),
    Template(
        "wage_spend",
        "w 5-40, a 2-10, b 2-10, c 5-300",
        (
            "{A} earns {w} dollars each hour . {A} works {a} hours on monday and {b} hours on "
            "tuesday and then pays {c} dollars for {x} . how many dollars are left ?"
        ),
        (
            "the hours are | a + b",
            "{A} earns | s1 * w",
            "the dollars left are | s2 - c",
        ),
    ),
    Template(
        "trees",
        "a 2-15, b 2-15, c 2-100, d 2-12",
        (
            "there are {a} rows with {b} trees in each row . {c} trees are cut . each tree left "
            "gives {d} {x} . how many {x} do the trees give ?"
        ),
        (
            "the rows hold | a * b",
            "the trees left are | s1 - c",
            "the trees give | s2 * d",
        ),
    ),
    Template(
        "chain_three",
        "a 3-100, b 2-80, k 2-6",
        (
            "{A} has {a} {x} . {B} has {b} more {x} than {A} . {C} has {k} times as many {x} as "
            "{B} . how many {x} do {B} and {C} have together ?"
        ),
        (
            "{B} has | a + b",
            "{C} has | s1 * k",
            "together they have | s1 + s2",
        ),
    ),
    Template(
        "bus",
        "a 5-90, b 2-60, c 2-60, d 2-60",
        (
            "a bus has {a} people . {b} people get on and {c} people get off . then {d} more "
            "people get on . how many people are on the bus now ?"
        ),
        (
            "after some get on there are | a + b",
            "after some get off there are | s1 - c",
            "now there are | s2 + d",
        ),
    ),
    Template(
        "save_split",
        "a 2-40, d 2-20, b 2-200, k 2-10",
        (
            "{A} saves {a} dollars each day for {d} days and then pays {b} dollars for {x} . the "
            "rest is shared equally by {k} friends . how many dollars does each friend get ?"
        ),
        (
            "{A} saves | a * d",
            "the rest is | s1 - b",
            "each friend gets | s2 / k",
        ),
        held_out=True,
    ),
    Template(
        "cakes",
        "a 2-12, b 3-25, n 2-30",
        (
            "one cake needs {a} eggs and {b} cups of milk . {A} makes {n} cakes . how many more "
            "cups of milk than eggs does {A} need ?"
        ),
        (
            "the eggs are | a * n",
            "the cups are | b * n",
            "{A} needs more cups | s2 - s1",
        ),
    ),
    Template(
        "fence",
        "a 3-60, b 2-40, p 2-9",
        (
            "a garden is {a} meters long and {b} meters wide . a fence costs {p} dollars each "
            "meter . how many dollars does the fence cost ?"
        ),
        (
            "long and wide make | a + b",
            "the fence needs | s1 * 2",
            "the fence costs | s2 * p",
        ),
    ),
    Template(
        "price_cut",
        "p 5-60, d 2-40, n 2-20, m 50-900",
        (
            "{x} cost {p} dollars each . {B} pays {d} dollars for each one and {A} pays the rest ."
            " {A} buys {n} {x} and has {m} dollars now . how many dollars are left ?"
        ),
        (
            "for each one {A} pays | p - d",
            "the {x} cost {A} | s1 * n",
            "the dollars left are | m - s2",
        ),
        held_out=True,
    ),
    Template(
        "teams",
        "a 5-120, b 5-120, k 2-12, c 2-9",
        (
            "{a} boys and {b} girls make teams of {k} people . each team gets {c} balls . how many"
            " balls do the teams get ?"
        ),
        (
            "the people are | a + b",
            "the teams are | s1 / k",
            "the teams get | s2 * c",
        ),
    ),
    Template(
        "shop_day",
        "a 2-20, p 2-25, b 2-20, q 2-25, c 5-300",
        (
            "a shop sells {a} {x} for {p} dollars each and {b} {y} for {q} dollars each . the shop"
            " pays {c} dollars for water . how many dollars are left ?"
        ),
        (
            "the {x} give | a * p",
            "the {y} give | b * q",
            "in total the shop gets | s1 + s2",
            "the dollars left are | s3 - c",
        ),
    ),
    Template(
        "trip",
        "m 100-950, v 5-60, h 2-8, w 5-60, g 2-8",
        (
            "a trip is {m} miles long . {A} goes {v} miles each hour for {h} hours and then {w} "
            "miles each hour for {g} hours . how many miles are left ?"
        ),
        (
            "first {A} goes | v * h",
            "then {A} goes | w * g",
            "in total {A} goes | s1 + s2",
            "the miles left are | m - s3",
        ),
    ),
    Template(
        "farm_feed",
        "a 2-25, k 2-8, c 2-60, d 2-9",
        (
            "a farm has {a} cows and {k} times as many hens . {c} hens are sold . each animal left"
            " needs {d} cups of water . how many cups of water does the farm need ?"
        ),
        (
            "the hens are | a * k",
            "the hens left are | s1 - c",
            "the animals are | s2 + a",
            "the farm needs | s3 * d",
        ),
    ),
    Template(
        "library",
        "a 2-20, b 2-25, c 2-200, d 2-200, k 2-12",
        (
            "there are {a} rows with {b} {x} in each row . {c} {x} are sold and then {A} gives"
            " {d} more {x} . the {x} are shared equally by {k} boxes . how many {x} does "
            "each box get ?"
        ),
        (
            "the rows hold | a * b",
            "after some are sold there are | s1 - c",
            "now there are | s2 + d",
            "each box gets | s3 / k",
        ),
        held_out=True,
    ),
    Template(
        "share_bill",
        "a 2-15, p 2-25, b 2-15, q 2-15, k 2-10",
        (
            "{A} buys {a} cakes for {p} dollars each and {b} cups of milk for {q} dollars each . "
            "the cost is shared equally by {k} friends . how many dollars does each friend pay ?"
        ),
        (
            "the cakes cost | a * p",
            "the cups cost | b * q",
            "in total the cost is | s1 + s2",
            "each friend pays | s3 / k",
        ),
    ),
    Template(
        "ages",
        "a 2-120, b 2-99",
        (
            "{A} is {a} years old . {B} is {b} years older than {A} . {C} is two times as old as "
            "{B} . how many years do they have together ?"
        ),
        (
            "{B} is | a + b",
            "{C} is | s1 * 2",
            "{A} and {B} have | a + s1",
            "together they have | s3 + s2",
        ),
    ),
    Template(
        "earn_more",
        "w 8-50, h 3-15, v 5-40, g 2-12, c 2-200",
        (
            "{A} earns {w} dollars each hour and works {h} hours . {B} earns {v} dollars each hour"
            " and works {g} hours . then {A} gets {c} more dollars . how many more dollars than "
            "{B} does {A} have ?"
        ),
        (
            "{A} earns | w * h",
            "{B} earns | v * g",
            "{A} earns more by | s1 - s2",
            "now {A} has more by | s3 + c",
        ),
    ),
    Template(
        "packs",
        "a 2-30, b 2-20, c 2-200, k 2-12, p 2-15",
        (
            "{a} friends need {b} {x} each . {A} has {c} {x} now and buys boxes with {k} {x} in "
            "each box for {p} dollars . how many dollars does {A} pay ?"
        ),
        (
            "the friends need | a * b",
            "{A} needs more | s1 - c",
            "the boxes are | s2 / k",
            "{A} pays | s3 * p",
        ),
    ),
    Template(
        "shop_three",
        "a 2-15, p 2-20, b 2-15, q 2-20, c 5-150, m 100-950",
        (
            "{A} buys {a} {x} for {p} dollars each and {b} {y} for {q} dollars each and one toy "
            "for {c} dollars . {A} pays with {m} dollars . how many dollars does {A} get back ?"
        ),
        (
            "the {x} cost | a * p",
            "the {y} cost | b * q",
            "the two cost | s1 + s2",
            "in total the cost is | s3 + c",
            "{A} gets back | m - s4",
        ),
    ),
    Template(
        "school",
        "g 2-6, c 2-6, n 3-15, k 3-15, d 2-60",
        (
            "a school has {g} rows of {c} rooms . each room has {n} boys and {k} girls . today {d}"
            " people are not there . how many people are there today ?"
        ),
        (
            "the rooms are | g * c",
            "the boys are | s1 * n",
            "the girls are | s1 * k",
            "the people are | s2 + s3",
            "today there are | s4 - d",
        ),
    ),
    Template(
        "harvest",
        "a 2-10, b 2-10, c 2-20, k 2-12",
        (
            "there are {a} rows with {b} trees in each row . each tree gives {c} {x} . half of the"
            " {x} are sold . the rest are shared equally by {k} boxes . how many {x} does each box"
            " get ?"
        ),
        (
            "the rows hold | a * b",
            "the trees give | s1 * c",
            "half of the {x} is | s2 / 2",
            "the rest is | s2 - s3",
            "each box gets | s4 / k",
        ),
    ),
    Template(
        "goal",
        "w 5-20, h 3-12, c 5-100, b 5-200, n 2-6, m 200-980",
        (
            "{A} earns {w} dollars each hour and works {h} hours each week and pays {c} dollars "
            "each week . {A} has {b} dollars now and saves for {n} weeks . a bus costs {m} dollars"
            " . how many more dollars does {A} need ?"
        ),
        (
            "each week {A} earns | w * h",
            "each week {A} saves | s1 - c",
            "the weeks give | s2 * n",
            "now {A} has | s3 + b",
            "{A} needs more | m - s4",
        ),
    ),
    Template(
        "two_taps",
        "r 3-40, h 2-10, q 3-40, g 2-10, l 2-200, k 2-12",
        (
            "one tank gets {r} liters each hour for {h} hours and one tank gets {q} liters each "
            "hour for {g} hours . {l} liters of water are lost . the rest is shared equally by {k}"
            " rows of trees . how many liters does each row get ?"
        ),
        (
            "first there are | r * h",
            "then there are | q * g",
            "in total there are | s1 + s2",
            "the rest is | s3 - l",
            "each row gets | s4 / k",
        ),
        held_out=True,
    ),
    Template(
        "read_rest",
        "a 3-40, d 2-8, b 3-40, e 2-8, m 100-950, k 2-10",
        (
            "{A} read {a} pages each day for {d} days and then {b} pages each day for {e} days . "
            "the book has {m} pages . {A} needs to read the rest in {k} days . how many pages is "
            "it each day ?"
        ),
        (
            "first {A} read | a * d",
            "then {A} read | b * e",
            "in total {A} read | s1 + s2",
            "the rest is | m - s3",
            "each day {A} needs | s4 / k",
        ),
    ),
    Template(
        "party",
        "n 2-12, a 1-4, b 1-4, p 1-9, q 2-12, c 2-150",
        (
            "{n} friends need {a} cups and {b} toys each . cups cost {p} dollars each and toys "
            "cost {q} dollars each . {A} gets {c} dollars back . how many dollars does {A} pay in "
            "total ?"
        ),
        (
            "the cups are | n * a",
            "the toys are | n * b",
            "the cups cost | s1 * p",
            "the toys cost | s2 * q",
            "in total the cost is | s3 + s4",
            "{A} pays | s5 - c",
        ),
    ),
    Template(
        "egg_week",
        "h 2-25, e 1-5, c 2-120, d 2-60, k 2-12, p 2-15",
        (
            "a farm has {h} hens . each hen gives {e} eggs each day . after 7 days {A} gives {c} "
            "eggs to {B} and loses {d} eggs . the rest are shared equally by boxes of {k} eggs . "
            "each box costs {p} dollars . how many dollars do the boxes cost ?"
        ),
        (
            "the hens give | h * e",
            "the days give | s1 * 7",
            "after giving some away there are | s2 - c",
            "after some are lost there are | s3 - d",
            "the boxes are | s4 / k",
            "the boxes cost | s5 * p",
        ),
    ),
    Template(
        "two_workers",
        "w 5-30, v 5-30, a 2-6, b 2-6, n 2-5, c 5-200",
        (
            "{A} earns {w} dollars each day and {B} earns {v} dollars each day . {A} works {a} "
            "days each week and {B} works {b} days each week for {n} weeks . they pay {c} dollars "
            "for a bus and the rest is shared equally by two . how many dollars does each one get "
            "?"
        ),
        (
            "each week {A} earns | a * w",
            "each week {B} earns | b * v",
            "each week they have | s1 + s2",
            "the weeks give | s3 * n",
            "the rest is | s4 - c",
            "each one gets | s5 / 2",
        ),
        held_out=True,
    ),
    Template(
        "stock",
        "a 2-15, b 2-20, c 2-150, d 2-150, k 2-12, p 2-20, e 5-200",
        (
            "a shop has {a} boxes with {b} {x} in each box . the shop loses {c} {x} and gets {d} "
            "more {x} . the {x} are shared equally by bags of {k} {x} . each bag costs {p} dollars"
            " . the shop pays {e} dollars for water . how many dollars are left ?"
        ),
        (
            "the boxes hold | a * b",
            "after some are lost there are | s1 - c",
            "now there are | s2 + d",
            "the bags are | s3 / k",
            "the bags cost | s4 * p",
            "the dollars left are | s5 - e",
        ),
    ),
)

TEMPLATE_IDS = tuple(template.id for template in TEMPLATES)
