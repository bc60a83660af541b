"""Sets of JSON values: scalars as automata, arrays and objects as shapes.

A node names a set of values without building it: ("part", number, is_negated), ("value", JSON,
is_negated), ("and", nodes) or ("or", nodes). Shapes have nodes for their parts, so that a schema
may lead back to itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dllm_decode.text.constraints.machines.languages import EVERY, NOTHING, Language
from dllm_decode.text.constraints.machines.limits import TooLargeError
from dllm_decode.text.constraints.schemas.numbers import INTEGERS, NUMBERS

Node: TypeAlias = tuple[Any, ...]

ANY: Node = ("and", ())
NONE: Node = ("or", ())

_MAX_SHAPES = 300


def both(nodes: Iterable[Node]) -> Node:
    """Returns the node of the values that are in all sets."""
    parts: set[Node] = set()
    for node in nodes:
        if node == NONE:
            return NONE
        parts |= set(node[1] if node[0] == "and" else [node])
    return parts.pop() if len(parts) == 1 else ("and", tuple(sorted(parts, key=_rank)))


def either(nodes: Iterable[Node]) -> Node:
    """Returns the node of the values that are in one of the sets."""
    parts: dict[Node, None] = {}
    for node in nodes:
        if node == ANY:
            return ANY
        parts |= dict.fromkeys(node[1] if node[0] == "or" else [node])
    return next(iter(parts)) if len(parts) == 1 else ("or", tuple(parts))


def outside(node: Node) -> Node:
    """Returns the node of the values that are not in a set."""
    if node[0] == "and":
        return either(map(outside, node[1]))
    if node[0] == "or":
        return both(map(outside, node[1]))
    return (node[0], node[1], not node[2])


def _rank(node: Node) -> tuple[int, int, str]:
    """Orders nodes, parts by their number."""
    return (0, node[1], "") if node[0] == "part" else (1, 0, repr(node))


@dataclass(frozen=True)
class Arrays:
    """Arrays of a shape.

    Attributes:
        first: Node of each of the first items, which may be absent.
        rest: Node of all further items.
        least: Fewest items.
        most: Most items; `None` for no bound.
        counted: A node, and the fewest and most items that it must hold for.
    """

    first: tuple[Node, ...] = ()
    rest: Node = ANY
    least: int = 0
    most: int | None = None
    counted: tuple[tuple[Node, int, int | None], ...] = ()

    def at(self, place: int) -> Node:
        """Returns the node of an item."""
        return self.first[place] if place < len(self.first) else self.rest

    def meet(self, other: "Arrays") -> "Arrays":
        """Returns the arrays of both shapes."""
        places = range(max(len(self.first), len(other.first)))
        return Arrays(
            first=tuple(both([self.at(place), other.at(place)]) for place in places),
            rest=both([self.rest, other.rest]),
            least=max(self.least, other.least),
            most=_least_of(self.most, other.most),
            counted=tuple(dict.fromkeys(self.counted + other.counted)),
        )

    def nodes(self) -> Iterator[Node]:
        """Yields the nodes of items."""
        for node in (*self.first, self.rest):
            yield node
            for counted, _, _ in self.counted:
                yield both([node, counted])
                yield both([node, outside(counted)])


@dataclass(frozen=True)
class Names:
    """Members of an object whose names are not listed.

    Attributes:
        names: Their names, and perhaps listed ones.
        node: Node of their values.
        is_unasked: The schema lists the members, and says nothing of others.
    """

    names: Language = EVERY
    node: Node = ANY
    is_unasked: bool = False

    def meet(self, other: "Names") -> "Names":
        """Returns the names of both, with values of both nodes."""
        is_unasked = self.is_unasked or other.is_unasked
        return Names(self.names & other.names, both([self.node, other.node]), is_unasked)


@dataclass(frozen=True)
class Objects:
    """Objects of a shape.

    Attributes:
        members: Name and node of each listed member, in the order in which they are written.
        others: Members of further names; no two sets of names have a name in common.
        required: Names that must be there, all of which are listed.
        least: Fewest members.
        most: Most members; `None` for no bound.
    """

    members: tuple[tuple[str, Node], ...] = ()
    others: tuple[Names, ...] = (Names(),)
    required: frozenset[str] = frozenset()
    least: int = 0
    most: int | None = None

    @staticmethod
    def of(members: Mapping[str, Node], required: Iterable[str] = (), **fields: Any) -> "Objects":
        """Returns a shape; required names that are not listed are added to the members."""
        shape = Objects(**fields)
        listed = dict(members)
        listed |= {name: shape.at(name) for name in sorted(required) if name not in listed}
        return replace(
            shape,
            members=tuple(listed.items()),
            others=tuple(other for other in shape.others if other.node != NONE),
            required=frozenset(required),
        )

    @property
    def is_open(self) -> bool:
        """True if members of names that are not listed may have any value."""
        return [(other.names, other.node) for other in self.others] == [(EVERY, ANY)]

    def at(self, name: str) -> Node:
        """Returns the node of a member."""
        for listed, node in self.members:
            if listed == name:
                return node
        return next((other.node for other in self.others if other.names.has(name)), NONE)

    def meet(self, other: "Objects") -> "Objects":
        """Returns the objects of both shapes."""
        first, second = dict(self.members), dict(other.members)
        members = {
            name: both([
                first[name] if name in first else self.at(name),
                second[name] if name in second else other.at(name),
            ])
            for name in (first | second)
        }  # fmt: skip
        others = (one.meet(two) for one in self.others for two in other.others)
        return Objects(
            members=tuple(members.items()),
            others=tuple(cell for cell in others if cell.node != NONE and not cell.names.is_empty),
            required=self.required | other.required,
            least=max(self.least, other.least),
            most=_least_of(self.most, other.most),
        )

    def nodes(self) -> Iterator[Node]:
        """Yields the nodes of members."""
        for _, node in self.members:
            yield node
        for other in self.others:
            yield other.node


def _least_of(first: int | None, second: int | None) -> int | None:
    bounds = [bound for bound in (first, second) if bound is not None]
    return min(bounds) if bounds else None


LITERALS = frozenset(("null", "true", "false"))


@dataclass(frozen=True)
class Values:
    """A set of JSON values, by their type.

    Attributes:
        literals: Those of null, true and false.
        numbers: Decimal texts of the numbers.
        is_exact: It matters whether a number is equal to a bound.
        strings: The strings.
        arrays: The shapes of arrays, one of which an array must have.
        objects: The shapes of objects, likewise.
        is_narrowed: The set lacks some of the values that it should have.
    """

    literals: frozenset[str] = frozenset()
    numbers: Language = NOTHING
    is_exact: bool = False
    strings: Language = NOTHING
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()
    is_narrowed: bool = False

    @property
    def is_surely_empty(self) -> bool:
        """True if there is certainly no value in the set."""
        has_value = self.literals or self.arrays or self.objects or self.is_narrowed
        return not has_value and self.numbers.is_empty and self.strings.is_empty

    def meet(self, other: "Values") -> "Values":
        """Returns the values that are in both sets."""
        return Values(
            literals=self.literals & other.literals,
            numbers=self.numbers & other.numbers,
            is_exact=self.is_exact or other.is_exact,
            strings=self.strings & other.strings,
            arrays=_apart(one.meet(two) for one in self.arrays for two in other.arrays),
            objects=_apart(one.meet(two) for one in self.objects for two in other.objects),
            is_narrowed=(self.is_narrowed and not other.is_surely_empty)
            or (other.is_narrowed and not self.is_surely_empty),
        )

    def join(self, other: "Values") -> "Values":
        """Returns the values that are in one of the sets."""
        return Values(
            literals=self.literals | other.literals,
            numbers=self.numbers | other.numbers,
            is_exact=self.is_exact or other.is_exact,
            strings=self.strings | other.strings,
            arrays=_apart((*self.arrays, *other.arrays)),
            objects=_apart((*self.objects, *other.objects)),
            is_narrowed=self.is_narrowed or other.is_narrowed,
        )

    def outside(self) -> "Values":
        """Returns values that are not in the set; shapes that have no form here are left out.

        The set itself must not lack values.
        """
        is_bounded = self.numbers not in (NUMBERS, INTEGERS, NOTHING)
        is_whole = all(shape.is_open for shape in self.objects)
        return Values(
            literals=LITERALS - self.literals,
            numbers=NUMBERS - self.numbers,
            is_exact=is_bounded,
            strings=EVERY - self.strings,
            arrays=_none_of(Arrays(), map(_not_array, self.arrays)),
            objects=_none_of(Objects(), map(_not_object, self.objects)),
            is_narrowed=not is_whole or any(map(_is_partly_negated, self.arrays)),
        )


def _apart(shapes: Iterable[Any]) -> tuple[Any, ...]:
    """Returns shapes, each once."""
    found: dict[Any, None] = {}
    for shape in shapes:
        found.setdefault(shape)
        if len(found) > _MAX_SHAPES:
            raise TooLargeError(f"more than {_MAX_SHAPES} alternatives of arrays or objects")
    return tuple(found)


def _none_of(every: Any, negations: Iterable[list[Any]]) -> tuple[Any, ...]:
    """Returns the shapes that are in one shape of each list."""
    shapes = (every,)
    for negation in negations:
        shapes = _apart(one.meet(two) for one in shapes for two in negation)
    return shapes


def _not_array(array: Arrays) -> list[Arrays]:
    """Returns shapes that no array of a shape has."""
    shapes = [] if array.most is None else [Arrays(least=array.most + 1)]
    if array.least:
        shapes.append(Arrays(most=array.least - 1))
    for place, node in enumerate(array.first):
        shapes.append(Arrays(first=(ANY,) * place + (outside(node),), least=place + 1))
    num_first = len(array.first)
    if num_first or array.rest == NONE:
        # An item after the first ones, of which there may be none if `rest` is ANY.
        first = (ANY,) * num_first + (outside(array.rest),)
        shapes.append(Arrays(first=first, least=num_first + 1))
    elif array.rest != ANY:
        shapes.append(Arrays(counted=((outside(array.rest), 1, None),)))
    return shapes + [Arrays(rest=outside(node)) for node, least, _ in array.counted if least == 1]


def _is_partly_negated(array: Arrays) -> bool:
    """Returns whether there are arrays that neither have a shape nor are in its `_not_array`."""
    is_rest_left = bool(array.first) and array.rest not in (ANY, NONE)
    return is_rest_left or any((least, most) != (1, None) for _, least, most in array.counted)


def _not_object(shape: Objects) -> list[Objects]:
    """Returns shapes that no object of a shape has."""
    shapes = [Objects.of({name: NONE}) for name in sorted(shape.required)]
    shapes += [
        Objects.of({name: outside(node)}, [name]) for name, node in shape.members if node != ANY
    ]
    if shape.least:
        shapes.append(Objects(most=shape.least - 1))
    if shape.most is not None:
        shapes.append(Objects(least=shape.most + 1))
    return shapes


EVERYTHING = Values(LITERALS, NUMBERS, False, EVERY, (Arrays(),), (Objects(),))
"""All JSON values."""

OF_TYPE = {
    "null": Values(frozenset(["null"])),
    "boolean": Values(frozenset(["true", "false"])),
    "integer": Values(numbers=INTEGERS),
    "number": Values(numbers=NUMBERS),
    "string": Values(strings=EVERY),
    "array": Values(arrays=(Arrays(),)),
    "object": Values(objects=(Objects(),)),
    "any": EVERYTHING,
}
"""All values of each type."""
