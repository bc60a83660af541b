"""A JSON schema as a regular expression over the JSON texts that are valid for it.

The expression matches valid texts only, but not all of them: objects have no further properties
and keep the schema's order, and strings that a `pattern` describes have no escapes.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

from dllm_decode.text.constraints.apart import are_apart
from dllm_decode.text.constraints.expressions import literal, whole_text, without_escaped
from dllm_decode.text.constraints.ranges import Bound, decimals_between, integers_between
from samplers.checks import shown

_NULL = "null"
_BOOLEAN = "(?:true|false)"
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'

_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-]{_MINUTE})"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": r"[a-zA-Z0-9_%+-]+(?:\.[a-zA-Z0-9_%+-]+)*@(?:[a-zA-Z0-9-]+\.)+[a-zA-Z]{2,}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "uri": r"https?://[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)*(?::[0-9]+)?(?:/[a-zA-Z0-9._~%+=&?/-]*)?",
}

# Keywords that do not change which texts are valid.
_NOTES = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "$comment", "$defs", "definitions",
}  # fmt: skip

_SPACES = re.compile(
    r"(?:[ \t\n\r?*+|)]|\\[ntr]|\((?:\?:)?|\[(?:[ \t\n\r]|\\[ntr])+\]|\{[0-9]+(?:,[0-9]*)?\})*"
)
_MAX_BOUND = 10**18
# A longer expression takes minutes to compile.
_MAX_LENGTH = 200_000

Schema: TypeAlias = Any


def expression_of(schema: Schema, *, depth: int, whitespace: str) -> str:
    """Returns a regular expression, without anchors, of valid JSON texts; see `JsonSchema`.

    Raises:
        ValueError: If `schema` is not a JSON schema, or has an unsupported keyword.
    """
    if not isinstance(whitespace, str) or not _SPACES.fullmatch(whitespace):
        raise ValueError(
            "whitespace must be an expression of spaces, tabs and line ends, as JSON allows, such "
            f"as ' ?' or '[ \\n]*', got {shown(whitespace)}."
        )
    space = f"(?:{whole_text(whitespace, owner='whitespace')})"
    return _Reader(schema, depth, space).read(schema, "#", ())


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of one schema.

    Attributes:
        root: The full schema, in which `$ref` is looked up.
        depth: Most levels of nesting where the schema leaves the shape open.
        space: Expression of the white space that may separate parts.
        parts: Expressions of the parts that a `$ref` has named, by that `$ref`.
    """

    root: Schema
    depth: int
    space: str
    parts: dict[str, str] = field(default_factory=dict)

    def read(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        """Returns the expression of the part at JSON pointer `path`, reached through `refs`."""
        if schema is True:
            return self._any(self.depth)
        if not isinstance(schema, dict):
            raise ValueError(f"{path} of a JSON schema must be an object, got {shown(schema)}.")
        keyword = next((name for name in _BESIDE if name in schema), "")
        if keyword:
            readers = {
                "$ref": self._ref, "anyOf": self._any_of, "oneOf": self._one_of,
                "allOf": self._all_of,
            }  # fmt: skip
            _require_keywords(schema, {keyword, *_BESIDE[keyword]}, path)
            expression = readers.get(keyword, self._listed)(schema, path, refs)
        else:
            expression = self._typed(schema, path, refs)
        if len(expression) > _MAX_LENGTH:
            raise ValueError(
                f"{path} of a JSON schema must have an expression of at most {_MAX_LENGTH} "
                f"characters, got {len(expression)}. Make the schema smaller."
            )
        return expression

    def _ref(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        ref = schema["$ref"]
        if ref in refs:
            raise ValueError(
                f"{path}/$ref must not lead back to itself, got {shown(ref)}; a regular language "
                "cannot nest without end. Write the levels out."
            )
        # A part that several `$ref` name is read once.
        if ref not in self.parts:
            self.parts[ref] = self.read(self._part(ref, path), ref, (*refs, ref))
        return self.parts[ref]

    def _part(self, ref: Any, path: str) -> Schema:
        """Returns the part of the schema that a `$ref` names."""
        part: Any = self.root
        names = ref.split("/")[1:] if isinstance(ref, str) and ref.startswith("#/") else [None]
        for name in names:
            name = name.replace("~1", "/").replace("~0", "~") if name else name
            if not isinstance(part, Mapping) or name not in part:
                raise ValueError(
                    f"{path}/$ref must name a part of the schema, such as #/$defs/Name, got "
                    f"{shown(ref)}."
                )
            part = part[name]
        return part

    def _parts(self, schema: Schema, keyword: str, path: str, refs: tuple[str, ...]) -> list[str]:
        """Returns the expressions of the parts that a keyword lists."""
        return [
            self.read(part, f"{path}/{keyword}/{number}", refs)
            for number, part in enumerate(_list_of(schema, keyword, path))
        ]

    def _any_of(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        return _either(self._parts(schema, "anyOf", path, refs))

    def _one_of(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        expressions = self._parts(schema, "oneOf", path, refs)
        for first, second in combinations(range(len(expressions)), 2):
            parts = schema["oneOf"][first], schema["oneOf"][second]
            if not are_apart(*parts, resolve=lambda ref: self._part(ref, path)):
                raise ValueError(
                    f"{path}/oneOf must have parts that no value follows both, got {first} and "
                    f"{second}. Tell them apart by their type, or by a required property with "
                    "another const in each; or use anyOf."
                )
        return _either(expressions)

    def _all_of(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        parts = self._parts(schema, "allOf", path, refs)
        if len(parts) > 1:
            raise ValueError(
                f"{path}/allOf must have one part, got {len(parts)}. Write the parts as one schema."
            )
        return parts[0]

    def _listed(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        keyword = "enum" if "enum" in schema else "const"
        values = _list_of(schema, "enum", path) if keyword == "enum" else [schema["const"]]
        if "type" in schema:
            types = _types_of(schema, path)
            values = [value for value in values if any(_IS_OF[name](value) for name in types)]
            if not values:
                raise ValueError(f"{path}/{keyword} must have a value of the type {types}.")
        return _either(self._value(value) for value in values)

    def _value(self, value: Any) -> str:
        """Returns the expression of one value."""
        if isinstance(value, dict):
            parts = [
                f"{self._value(key)}{self._colon}{self._value(item)}" for key, item in value.items()
            ]
            return self._within("{", parts, "}")
        if isinstance(value, list):
            return self._within("[", [self._value(item) for item in value], "]")
        return literal(json.dumps(value, ensure_ascii=False))

    def _typed(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        implied = next((name for name, keys in _KEYWORDS.items() if keys & schema.keys()), None)
        if "type" not in schema and implied is None:
            _require_keywords(schema, set(), path)
            return self._any(self.depth)
        types = _types_of(schema, path) if "type" in schema else [implied or ""]
        allowed = set().union(*(_KEYWORDS.get(name, set()) for name in types))
        _require_keywords(schema, allowed | {"type"}, path)
        readers = {
            "string": self._string, "array": self._array, "object": self._object,
            "integer": self._integer, "number": self._decimal,
        }  # fmt: skip
        return _either(
            readers[name](schema, path, refs) if name in readers else _SCALARS[name]
            for name in types
        )

    def _string(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        least, most = _bounds(schema, "minLength", "maxLength", path)
        rules = [name for name in ("pattern", "format") if name in schema]
        if len(rules) + bool(least or most is not None) > 1:
            raise ValueError(
                f"{path} of a JSON schema must have one of pattern, format and bounds of its "
                f"length, got {', '.join(schema)}. Write the length into the pattern."
            )
        if "format" in schema:
            name = schema["format"]
            if name not in _FORMATS:
                raise ValueError(
                    f"{path}/format must be one of {', '.join(_FORMATS)}, got {shown(name)}."
                )
            return f'"{_FORMATS[name]}"'
        if "pattern" in schema:
            pattern = schema["pattern"]
            if not isinstance(pattern, str):
                raise ValueError(f"{path}/pattern must be a text, got {shown(pattern)}.")
            return f'"(?:{without_escaped(whole_text(pattern, owner=f"{path}/pattern"))})"'
        return f'"{_CHARACTER}{_times(least, most)}"'

    def _integer(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        if not _KEYWORDS["integer"] & schema.keys():
            return _INTEGER
        low, high = _range_of(schema, path)
        least = None if low is None else low.value + low.is_open
        most = None if high is None else high.value - high.is_open
        if least is not None and most is not None and least > most:
            raise ValueError(f"{path} must allow an integer, got {shown(schema)}.")
        return integers_between(least, most)

    def _decimal(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        if not _KEYWORDS["number"] & schema.keys():
            return _NUMBER
        return decimals_between(*_range_of(schema, path))

    def _array(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        least, most = _bounds(schema, "minItems", "maxItems", path)
        if "prefixItems" in schema:
            parts = self._parts(schema, "prefixItems", path, refs)
            if least > len(parts) or (most is not None and most < len(parts)):
                raise ValueError(
                    f"{path}/prefixItems must have as many items as minItems and maxItems allow, "
                    f"got {len(parts)}."
                )
            return self._within("[", parts, "]")
        items = schema.get("items", True)
        if items is True:
            return self._repeated("[", self._any(max(0, self.depth - 1)), "]", least, most)
        return self._repeated("[", self.read(items, f"{path}/items", refs), "]", least, most)

    def _object(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict | None):
            raise ValueError(f"{path}/properties must be an object, got {shown(properties)}.")
        if (
            not isinstance(required, list)
            or not set(map(str, required)) <= (properties or {}).keys()
        ):
            raise ValueError(f"{path}/required must list properties, got {shown(required)}.")
        if not properties:
            return self._map(schema, path, refs)
        parts = []
        for name, part in properties.items():
            value = self.read(part, f"{path}/properties/{_pointed(name)}", refs)
            parts.append(f"{self._value(name)}{self._colon}{value}")
        suffixes, tail = [], ""
        for name, part in zip(reversed(properties), reversed(parts), strict=True):
            suffixes.append(f"{part}{tail}")
            next_part = f"{self._comma}{part}"
            tail = f"{next_part}{tail}" if name in required else f"(?:{next_part})?{tail}"
        # An object begins with its first required property, or with an optional one before that.
        places = [place for place, name in enumerate(properties) if name in required]
        num_first = places[0] + 1 if places else len(properties)
        body = f"{_either(suffixes[::-1][:num_first])}{self.space}"
        return rf"\{{{self.space}{body if places else f'(?:{body})?'}\}}"

    def _map(self, schema: Schema, path: str, refs: tuple[str, ...]) -> str:
        """Returns the expression of an object whose properties may have any names."""
        values = schema.get("additionalProperties", True)
        if values is False:
            return self._within("{", [], "}")
        inner = (
            self._any(max(0, self.depth - 1))
            if values is True
            else self.read(values, f"{path}/additionalProperties", refs)
        )
        return self._repeated("{", f"{_TEXT}{self._colon}{inner}", "}", 0, None)

    def _any(self, depth: int) -> str:
        """Returns the expression of any JSON value with at most `depth` levels of nesting."""
        alternatives = [_NULL, _BOOLEAN, _NUMBER, _TEXT]
        if depth:
            inner = self._any(depth - 1)
            alternatives.append(self._repeated("[", inner, "]", 0, None))
            alternatives.append(self._repeated("{", f"{_TEXT}{self._colon}{inner}", "}", 0, None))
        return _either(alternatives)

    def _repeated(self, begin: str, part: str, end: str, least: int, most: int | None) -> str:
        """Returns the expression of `part`, repeated from `least` to `most` times."""
        if most == 0:
            return self._within(begin, [], end)
        bounds = max(least - 1, 0), None if most is None else most - 1
        body = f"{part}(?:{self._comma}{part}){_times(*bounds)}{self.space}"
        body = body if least else f"(?:{body})?"
        return f"{literal(begin)}{self.space}{body}{literal(end)}"

    def _within(self, begin: str, parts: list[str], end: str) -> str:
        """Returns the expression of the parts in order, each once."""
        body = f"{self._comma.join(parts)}{self.space}" if parts else ""
        return f"{literal(begin)}{self.space}{body}{literal(end)}"

    @property
    def _colon(self) -> str:
        return f"{self.space}:{self.space}"

    @property
    def _comma(self) -> str:
        return f"{self.space},{self.space}"


_TEXT = f'"{_CHARACTER}*"'
_SCALARS = {"null": _NULL, "boolean": _BOOLEAN}
_LOWS, _HIGHS = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_RANGE = {*_LOWS, *_HIGHS}

# Keywords that describe a part alone, and the other keywords that may occur with each.
_BESIDE: dict[str, set[str]] = {
    "$ref": set(), "enum": {"type"}, "const": {"type"},
    "anyOf": {"discriminator"}, "oneOf": {"discriminator"}, "allOf": set(),
}  # fmt: skip

# The supported keywords of each type.
_KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "integer": _RANGE,
    "number": _RANGE,
    "string": {"pattern", "format", "minLength", "maxLength"},
}

_IS_OF: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _types_of(schema: Schema, path: str) -> list[str]:
    """Returns the types that a part of a schema names."""
    declared = schema["type"]
    types = declared if isinstance(declared, list) else [declared]
    if not types or not all(isinstance(name, str) and name in _IS_OF for name in types):
        raise ValueError(f"{path}/type must be one of {', '.join(_IS_OF)}, got {shown(declared)}.")
    return list(dict.fromkeys(types))


def _range_of(schema: Schema, path: str) -> tuple[Bound | None, Bound | None]:
    """Returns the narrowest bounds of the numbers that a part allows."""
    for name in sorted(_RANGE & schema.keys()):
        value = schema[name]
        # JSON has one kind of numbers: 1.0 is an integer.
        is_number = _IS_OF["number"](value) and abs(value) <= _MAX_BOUND
        if not is_number or value != int(value):
            raise ValueError(
                f"{path}/{name} must be an integer of at most {_MAX_BOUND}, got {shown(value)}."
            )
    lows = [Bound(int(schema[name]), name != "minimum") for name in _LOWS if name in schema]
    highs = [Bound(int(schema[name]), name != "maximum") for name in _HIGHS if name in schema]
    low = max(lows, default=None)
    high = min(highs, key=lambda bound: (bound.value, not bound.is_open), default=None)
    if low is not None and high is not None:
        is_open = low.is_open or high.is_open
        if low.value + is_open > high.value:
            raise ValueError(f"{path} must allow a number, got {shown(schema)}.")
    return low, high


def _pointed(name: str) -> str:
    """Returns a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _require_keywords(schema: Schema, allowed: set[str], path: str) -> None:
    """Raises ValueError if a part of a schema has a keyword that is not allowed there."""
    for name in schema:
        if name not in allowed | _NOTES:
            raise ValueError(
                f"{path}/{_pointed(name)} of a JSON schema must be left out, because constraints "
                f"do not know it there; they know {', '.join(sorted(allowed)) or 'no keyword'}."
            )


def _list_of(schema: Schema, name: str, path: str) -> list[Any]:
    values = schema[name]
    if not isinstance(values, list) or not values:
        raise ValueError(f"{path}/{name} must be a list that is not empty, got {shown(values)}.")
    return values


def _bounds(schema: Schema, low_name: str, high_name: str, path: str) -> tuple[int, int | None]:
    """Returns the bounds of a length."""
    for name in (low_name, high_name):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{path}/{name} must be an integer of at least 0, got {shown(value)}.")
    low, high = schema.get(low_name, 0), schema.get(high_name)
    if high is not None and high < low:
        raise ValueError(f"{path}/{high_name} must be at least {low_name}={low}, got {high}.")
    return low, high


def _either(parts: Iterable[str]) -> str:
    """Returns an expression that matches any of the given expressions."""
    listed = list(dict.fromkeys(parts))
    return listed[0] if len(listed) == 1 else f"(?:{'|'.join(listed)})"


def _times(least: int, most: int | None) -> str:
    """Returns the suffix that makes an expression repeat."""
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{most}}}"
