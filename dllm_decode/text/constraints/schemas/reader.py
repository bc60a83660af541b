"""Reads the keywords of a schema as sets of JSON values."""

import json
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

from dllm_decode.text.constraints.machines.ecma import search
from dllm_decode.text.constraints.machines.languages import Language, lengths, words
from dllm_decode.text.constraints.machines.limits import require_states
from dllm_decode.text.constraints.schemas import formats
from dllm_decode.text.constraints.schemas.numbers import NUMBERS, equal_to, is_bound, numbers_of
from dllm_decode.text.constraints.schemas.references import Document, SchemaError
from dllm_decode.text.constraints.schemas.values import (
    ANY,
    EVERYTHING,
    NONE,
    OF_TYPE,
    Arrays,
    Names,
    Node,
    Objects,
    Values,
    both,
    either,
    outside,
)
from samplers.checks import shown

MAX_LENGTH = 1_000
"""Characters of a text, at most; an answer has fewer in any case."""

# Most nodes that are read one within the other to find out whether there is a value.
_MAX_NESTED = 40


class _LoopError(SchemaError):
    """A part that leads back to itself without a level of nesting."""


class _Facts(NamedTuple):
    """The demands of the keywords of one part; all must hold.

    Attributes:
        sets: Sets of values.
        formats: Sets of values that only a validator of formats asks for.
        nodes: Further sets.
    """

    sets: list[Values]
    formats: list[Values]
    nodes: list[Node]


class Reader:
    """Evaluates the nodes of one schema; the values of a node are read once."""

    def __init__(self, document: Document) -> None:
        """Takes a schema that was checked."""
        self.document = document
        self._parts: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._values: dict[Node, Values] = {}
        self._reading: dict[Node, None] = {}
        self._made_parts: dict[str, dict[str, Any]] = {}

    def node(self, part: Any) -> Node:
        """Returns the node of the values that are valid for a part of a schema."""
        if isinstance(part, bool) or part == {}:
            return ANY if part is not False else NONE
        if id(part) not in self._numbers:
            self._numbers[id(part)] = len(self._parts)
            self._parts.append(part)
        return ("part", self._numbers[id(part)], False)

    def values(self, node: Node) -> Values:
        """Returns the values of a node.

        Raises:
            SchemaError: If they cannot be told.
        """
        if node in self._values:
            return self._values[node]
        if node in self._reading:
            raise _LoopError(
                f"{self.where(node)} must not lead back to itself without a level of nesting."
            )
        require_states(0)
        self._reading[node] = None
        try:
            result = self._without_empty(self._read(node))
        finally:
            del self._reading[node]
        self._values[node] = result
        return result

    def where(self, node: Node) -> str:
        """Returns the pointer of a part that a node is made of."""
        while node[0] in ("and", "or") and node[1]:
            node = node[1][0]
        return self.document.pointer(self._parts[node[1]]) if node[0] == "part" else "#"

    def _read(self, node: Node) -> Values:
        if node[0] == "and":
            return self._meet(map(self.values, node[1]))
        if node[0] == "or":
            result = Values()
            for part in node[1]:
                result = result.join(self.values(part))
            return result
        if node[0] == "value":
            values = self._listed([json.loads(node[1])])
            return values.outside() if node[2] else values
        return self._of_part(self._parts[node[1]], is_negated=node[2])

    def _meet(self, sets: Iterable[Values]) -> Values:
        result = EVERYTHING
        for number, values in enumerate(sets):
            result = self._without_empty(result.meet(values)) if number else values
        return result

    def _without_empty(self, values: Values) -> Values:
        """Returns the same values without shapes that no value has."""
        return replace(
            values,
            arrays=tuple(array for array in values.arrays if not self._is_empty_array(array)),
            objects=tuple(shape for shape in values.objects if not self._is_empty_object(shape)),
        )

    def _is_empty_array(self, array: Arrays) -> bool:
        if array.most is not None and array.most < array.least:
            return True
        places = range(min(array.least, len(array.first) + 1))
        return any(self.is_empty(array.at(place)) for place in places) or any(
            least > 0 and (array.most == 0 or self.is_empty(node))
            for node, least, _ in array.counted
        )

    def _is_empty_object(self, shape: Objects) -> bool:
        if shape.most is not None and shape.most < max(shape.least, len(shape.required)):
            return True
        members = dict(shape.members)
        return any(self.is_empty(members[name]) for name in shape.required)

    def is_empty(self, node: Node) -> bool:
        """Returns whether it is certain that a node has no value."""
        if node in (ANY, NONE):
            return node == NONE
        if node in self._reading or len(self._reading) > _MAX_NESTED:
            return False
        try:
            return self.values(node).is_surely_empty
        except _LoopError:
            return False

    def _value(self, value: Any) -> Values:
        """Returns the set of one value that is no text."""
        if value is None or isinstance(value, bool):
            return Values(frozenset([json.dumps(value)]))
        if isinstance(value, int | float):
            if not is_bound(value):
                raise SchemaError(f"A value of enum must be a short number, got {shown(value)}.")
            return Values(numbers=equal_to(Decimal(repr(value))))
        if isinstance(value, list):
            first = tuple(("value", json.dumps(item), False) for item in value)
            return Values(arrays=(Arrays(first, NONE, len(value), len(value)),))
        members = {name: ("value", json.dumps(item), False) for name, item in value.items()}
        return Values(objects=(Objects.of(members, value, others=()),))

    def _of_part(self, part: dict[str, Any], *, is_negated: bool) -> Values:
        facts = self._facts(part)
        if not is_negated:
            return self._meet((*facts.sets, *facts.formats, *map(self.values, facts.nodes)))
        # Nothing is known of a text outside a format, or outside a set that lacks values.
        is_narrowed = bool(facts.formats) or any(values.is_narrowed for values in facts.sets)
        result = Values(is_narrowed=is_narrowed)
        for values in facts.sets:
            if not values.is_narrowed:
                result = result.join(values.outside())
        for node in facts.nodes:
            result = result.join(self.values(outside(node)))
        return result

    def _facts(self, part: dict[str, Any]) -> _Facts:
        facts = _Facts([], [], [])
        if "$ref" in part:
            facts.nodes.append(self.node(self.document.target(part)))
            if self.document.ignores_siblings:
                return facts
        types = part.get("type", "any")
        allowed = Values()
        for name in [types] if isinstance(types, str) else types:
            allowed = allowed.join(OF_TYPE[name])
        facts.sets.append(allowed)
        if "enum" in part:
            facts.sets.append(self._listed(part["enum"]))
        if "const" in part:
            facts.sets.append(self._listed([part["const"]]))
        for read in (
            self._read_strings, self._read_numbers, self._read_arrays, self._read_objects,
            self._read_logic,
        ):  # fmt: skip
            read(part, facts)
        return facts

    def _listed(self, listed: list[Any]) -> Values:
        """Returns the set of some values."""
        texts = [value for value in listed if isinstance(value, str)]
        result = Values(strings=words(texts))
        for value in listed:
            if not isinstance(value, str):
                result = result.join(self._value(value))
        return result

    def _read_strings(self, part: dict[str, Any], facts: _Facts) -> None:
        least, most = int(part.get("minLength", 0)), part.get("maxLength")
        if least or most is not None:
            kept = None if most is None else min(int(most), max(least, MAX_LENGTH))
            texts = lengths(least, kept)
            facts.sets.append(replace(EVERYTHING, strings=texts, is_narrowed=kept != most))
        name = part.get("format")
        if isinstance(name, str) and name in formats.NAMES:
            facts.formats.append(replace(EVERYTHING, strings=formats.texts_of(name)))
        if "pattern" in part:
            facts.sets.append(replace(EVERYTHING, strings=search(part["pattern"])))

    def _read_numbers(self, part: dict[str, Any], facts: _Facts) -> None:
        numbers, is_exact = numbers_of(part)
        if numbers != NUMBERS:
            facts.sets.append(replace(EVERYTHING, numbers=numbers, is_exact=is_exact))

    def _read_arrays(self, part: dict[str, Any], facts: _Facts) -> None:
        items, first = part.get("items", True), part.get("prefixItems", [])
        if isinstance(items, list):
            # Before draft 2020-12 a list of items was the prefix.
            first, items = items, part.get("additionalItems", True)
        most = part.get("maxItems")
        counted: tuple[tuple[Node, int, int | None], ...] = ()
        if "contains" in part:
            bounds = int(part.get("minContains", 1)), part.get("maxContains")
            if bounds != (0, None):
                counted = ((self.node(part["contains"]), *bounds),)
        array = Arrays(
            tuple(map(self.node, first)), self.node(items), int(part.get("minItems", 0)),
            None if most is None else int(most), counted,
        )  # fmt: skip
        if array != Arrays():
            facts.sets.append(replace(EVERYTHING, arrays=(array,)))

    def _read_objects(self, part: dict[str, Any], facts: _Facts) -> None:
        listed, required = part.get("properties", {}), part.get("required", [])
        patterns = [
            (search(pattern), self.node(inner))
            for pattern, inner in part.get("patternProperties", {}).items()
        ]
        members = {}
        names = self.values(self.node(part.get("propertyNames", True))).strings
        for name, inner in listed.items():
            fitting = [node for texts, node in patterns if texts.has(name)]
            members[name] = both([self.node(inner), *fitting]) if names.has(name) else NONE
        most = part.get("maxProperties")
        shape = Objects.of(
            members, required, others=self._others(part, patterns, names),
            least=int(part.get("minProperties", 0)), most=None if most is None else int(most),
        )  # fmt: skip
        if shape != Objects():
            # Names of a format may be left out, so that nothing is known of other names.
            has_names = "propertyNames" in part
            facts.sets.append(replace(EVERYTHING, objects=(shape,), is_narrowed=has_names))
        self._read_dependencies(part, facts)

    def _others(
        self, part: dict[str, Any], patterns: list[tuple[Language, Node]], possible: Language
    ) -> tuple[Names, ...]:
        """Returns the sets of names that are not listed, and the values of their members."""
        cells: list[tuple[Language, tuple[Node, ...]]] = [(possible, ())]
        for names, node in patterns:
            split = []
            for cell, nodes in cells:
                split += [(cell & names, (*nodes, node)), (cell - names, nodes)]
            cells = [(cell, nodes) for cell, nodes in split if not cell.is_empty]
        rest = self.node(part.get("additionalProperties", True))
        is_unasked = "properties" in part and "additionalProperties" not in part
        return tuple(
            Names(cell, node=both(nodes) if nodes else rest, is_unasked=is_unasked and not nodes)
            for cell, nodes in cells
        )

    def _read_dependencies(self, part: dict[str, Any], facts: _Facts) -> None:
        """Reads the members that must be there, or the schema that must hold, if one is there."""
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, then in part.get(keyword, {}).items():
                has = self._made({"type": "object", "required": [name]})
                is_list = isinstance(then, list)
                node = self._made({"required": then}) if is_list else self.node(then)
                facts.nodes.append(either([outside(has), both([has, node])]))

    def _made(self, part: dict[str, Any]) -> Node:
        """Returns the node of a part that is not in the schema; equal parts have one node."""
        return self.node(self._made_parts.setdefault(json.dumps(part), part))

    def _read_logic(self, part: dict[str, Any], facts: _Facts) -> None:
        facts.nodes.extend(map(self.node, part.get("allOf", [])))
        if "anyOf" in part:
            facts.nodes.append(either(map(self.node, part["anyOf"])))
        if "oneOf" in part:
            context = self._meet((*facts.sets, *facts.formats))
            facts.nodes.append(self._one_of([self.node(inner) for inner in part["oneOf"]], context))
        if "not" in part:
            facts.nodes.append(outside(self.node(part["not"])))
        if "if" in part and ("then" in part or "else" in part):
            condition = self.node(part["if"])
            then, other = (self.node(part.get(keyword, True)) for keyword in ("then", "else"))
            facts.nodes.append(either([both([condition, then]), both([outside(condition), other])]))

    def _one_of(self, nodes: list[Node], context: Values) -> Node:
        """Returns the node of values that exactly one of some nodes has.

        Nodes that no value of the context has in common need not be told apart.
        """
        choices = []
        for number, node in enumerate(nodes):
            rivals = nodes[:number] + nodes[number + 1 :]
            if node not in rivals:
                apart = [outside(rival) for rival in rivals if self._overlap(node, rival, context)]
                choices.append(both([node, *apart]))
        return either(choices)

    def _overlap(self, first: Node, second: Node, context: Values) -> bool:
        """Returns whether a value of the context may be in both sets."""
        node = both([first, second])
        if node == NONE:
            return False
        try:
            return not self._without_empty(self.values(node).meet(context)).is_surely_empty
        except _LoopError:
            return True
