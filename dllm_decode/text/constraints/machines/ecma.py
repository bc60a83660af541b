"""Regular expressions of ECMA-262, with its flag u, as sets of texts."""

import re
from typing import Any, TypeAlias

from dllm_decode.text.constraints.machines.languages import NUM_CHARACTERS, Language
from dllm_decode.text.constraints.machines.limits import once
from dllm_decode.text.constraints.machines.networks import CharacterRanges, Network

ExpressionPart: TypeAlias = tuple[Any, ...]
"""A part of an expression: ("edge", label), ("cat", parts), ("alt", parts), or ("repeat", part,
least, most)."""

_DIGITS = ((48, 57),)
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "0": 0}
_REPEATED = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BOUNDS = re.compile(r"(?:\{([0-9]{1,5})(,([0-9]{0,5}))?\}|[*+?])\??")
# A brace that looks like bounds but is none would be read as characters.
_OTHER_BOUNDS = re.compile(r"\{,?[0-9]+(,[0-9]*)?\}")
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_$][\w$]*>|:)")
_PAIR = re.compile(r"u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{0*([0-9a-fA-F]{1,6})\}")
_MOST_GROUPS = 100
"""Groups inside each other, of which Python could not read many more."""
_ANY = ("repeat", ("edge", ((0, NUM_CHARACTERS - 1),)), 0, None)


class ExpressionError(ValueError):
    """A text that is no regular expression, or one that no automaton has; says what is wrong."""


def parse(text: str) -> ExpressionPart:
    """Returns the parts of an expression.

    Raises:
        ExpressionError: If there are none, or if no automaton has them.
    """
    parser = _Parser(text)
    node = parser.alternatives()
    if parser.place < len(text):
        raise ExpressionError("a parenthesis without a partner, ')'")
    return node


@once
def search(text: str) -> Language:
    """Returns the texts in which an expression is found."""
    return _language(("cat", [_ANY, parse(text), _ANY]))


def full_match(text: str) -> Language:
    """Returns the texts that an expression matches from end to end."""
    return _language(parse(text))


def _language(node: ExpressionPart) -> Language:
    network = Network()
    start = network.node()
    return network.language(start, _put(network, node, start))


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        """Begins at the first character."""
        self.text, self.place, self.depth = text, 0, 0

    def alternatives(self) -> ExpressionPart:
        parts = [self._sequence()]
        while self._took("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else ("alt", parts)

    def _took(self, text: str) -> bool:
        """Moves past a text if it comes next."""
        comes = self.text.startswith(text, self.place)
        self.place += len(text) if comes else 0
        return comes

    def _next(self) -> str:
        if self.place >= len(self.text):
            raise ExpressionError("an end where a part must follow")
        self.place += 1
        return self.text[self.place - 1]

    def _sequence(self) -> ExpressionPart:
        parts = []
        while self.place < len(self.text) and self.text[self.place] not in "|)":
            part = self._atom()
            bounds = self._bounds()
            if bounds is not None:
                if part[1] in ("^", "$"):
                    raise ExpressionError("a repetition of an anchor")
                part = ("repeat", part, *bounds)
                if self._bounds() is not None:
                    raise ExpressionError("two repetitions in a row")
            parts.append(part)
        return ("cat", parts)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Returns the bounds of a repetition, if one comes next."""
        match = _BOUNDS.match(self.text, self.place)
        if match is None:
            return None
        self.place = match.end()
        if match[1] is None:
            return _REPEATED[match[0][0]]
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if most is not None and most < least:
            raise ExpressionError(f"bounds in the wrong order, {match[0]!r}")
        return least, most

    def _atom(self) -> ExpressionPart:
        character = self._next()
        if character == "(":
            return self._group()
        if character in "^$":
            return ("edge", character)
        if character == ".":
            return ("edge", _others(_LINE_ENDS))
        if character == "[":
            return ("edge", self._class())
        if character == "\\":
            return ("edge", self._escape(is_in_class=False))
        if character in "*+?":
            raise ExpressionError(f"a repetition of nothing, {character!r}")
        if bounds := _OTHER_BOUNDS.match(self.text, self.place - 1):
            raise ExpressionError(
                f"bounds of another form than {{n}}, {{n,}} or {{n,m}}, of up to 5 digits, "
                f"{bounds[0]!r}"
            )
        return ("edge", ((ord(character), ord(character)),))

    def _group(self) -> ExpressionPart:
        if self.text.startswith("?", self.place):
            match = _GROUP.match(self.text, self.place)
            if match is None:
                begin = self.text[self.place : self.place + 3]
                raise ExpressionError(f"a look-around or a group of an unknown kind, '({begin}'")
            self.place = match.end()
        self.depth += 1
        if self.depth > _MOST_GROUPS:
            raise ExpressionError(f"more than {_MOST_GROUPS} groups inside each other")
        node = self.alternatives()
        self.depth -= 1
        if not self._took(")"):
            raise ExpressionError("a parenthesis without a partner, '('")
        return node

    def _escape(self, *, is_in_class: bool) -> CharacterRanges:
        character = self._next()
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else _others(ranges)
        code = self._code(character, is_in_class=is_in_class)
        return ((code, code),)

    def _code(self, character: str, *, is_in_class: bool) -> int:
        """Returns the character of an escape."""
        pair = _PAIR.match(self.text, self.place - 1)
        if pair:
            self.place = pair.end()
            high, low = (int(half, 16) for half in pair.groups())
            return 0x10000 + ((high - 0xD800) << 10) + low - 0xDC00
        match = _CODE.match(self.text, self.place - 1)
        if match:
            self.place = match.end()
            code = int(match[match.lastindex or 0], 16)
            if code < NUM_CHARACTERS:
                return code
        if character == "c":
            return ord(self._next()) % 32
        if character == "b" and is_in_class:
            return 8
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isascii() and character.isalnum():
            raise ExpressionError(f"an escape that no automaton has, '\\{character}'")
        return ord(character)

    def _class(self) -> CharacterRanges:
        is_negative = self._took("^")
        parts: list[tuple[int, int]] = []
        while not self._took("]"):
            ranges = self._class_part()
            rest = self.text[self.place : self.place + 2]
            if rest[:1] == "-" and rest[1:] not in ("]", "") and _is_one(ranges):
                before = self.place
                self.place += 1
                high = self._class_part()
                if not _is_one(high):
                    self.place = before
                elif high[0][0] < ranges[0][0]:
                    raise ExpressionError("a range in the wrong order")
                else:
                    ranges = ((ranges[0][0], high[0][0]),)
            parts.extend(ranges)
        return _others(tuple(parts)) if is_negative else _sorted(tuple(parts))

    def _class_part(self) -> CharacterRanges:
        character = self._next()
        if character == "\\":
            return self._escape(is_in_class=True)
        return ((ord(character), ord(character)),)


def _is_one(ranges: CharacterRanges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _sorted(ranges: CharacterRanges) -> CharacterRanges:
    """Returns a set of characters as ranges that are apart."""
    parts: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if parts and low <= parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], max(high, parts[-1][1]))
        else:
            parts.append((low, high))
    return tuple(parts)


def _others(ranges: CharacterRanges) -> CharacterRanges:
    """Returns the characters that are not in a set."""
    parts, begin = [], 0
    for low, high in _sorted(ranges):
        if low > begin:
            parts.append((begin, low - 1))
        begin = high + 1
    return (*parts, (begin, NUM_CHARACTERS - 1)) if begin < NUM_CHARACTERS else tuple(parts)


def _put(network: Network, node: ExpressionPart, start: int) -> int:
    """Adds a part after a node of the network; returns the node after the part.

    No edge leads back to the first node, so that several parts may begin there.
    """
    kind = node[0]
    end = start
    if kind == "cat":
        for part in node[1]:
            end = _put(network, part, end)
        return end
    if kind == "repeat":
        return _put_repeated(network, node, start)
    end = network.node()
    if kind == "edge":
        network.edge(start, node[1], end)
    else:
        for part in node[1]:
            network.edge(_put(network, part, start), "", end)
    return end


def _put_repeated(network: Network, node: ExpressionPart, start: int) -> int:
    _, part, least, most = node
    for _ in range(least):
        start = _put(network, part, start)
    end = network.node()
    if most is None:
        loop = network.node()
        network.edge(start, "", loop)
        network.edge(_put(network, part, loop), "", loop)
        network.edge(loop, "", end)
        return end
    network.edge(start, "", end)
    for _ in range(most - least):
        start = _put(network, part, start)
        network.edge(start, "", end)
    return end
