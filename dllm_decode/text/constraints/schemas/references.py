"""Where the parts of a schema are, and which part a `$ref` names."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from samplers.checks import shown

MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
"""Keywords whose values have a part by name."""

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
"""Keywords whose values may be a list of parts."""

PARTS = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if",
    "then", "else",
)  # fmt: skip
"""Keywords whose values may be a part."""

_DEFINITIONS = ("$defs", "definitions")
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
# Characters at the beginning and at the end of a pointer that are shown.
_MAX_HALF = 100


class SchemaError(ValueError):
    """A schema that is invalid, or for which there is no automaton; says where, and why."""


class _Place(NamedTuple):
    """Where a part is.

    Attributes:
        base: The URI that its references are relative to.
        pointer: The JSON pointer.
    """

    base: str
    pointer: str


def below(pointer: str, names: Iterable[str]) -> str:
    """Returns the pointer of an inner part; the middle of a very long one is left out."""
    escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
    longer = "/".join([pointer, *escaped])
    is_long = len(longer) > 2 * _MAX_HALF + 5
    return f"{longer[:_MAX_HALF]} ... {longer[-_MAX_HALF:]}" if is_long else longer


def subschemas_of(part: dict[str, Any], maps: tuple[str, ...] = MAPS) -> Iterator[tuple[Any, Any]]:
    """Yields the names that lead to each part of a part, and the part."""
    for keyword, value in part.items():
        if keyword in maps and isinstance(value, dict):
            # A list is one of names, in `dependencies`.
            parts = value.items()
            yield from (
                ((keyword, name), inner) for name, inner in parts if type(inner) is not list
            )
        elif keyword in LISTS and isinstance(value, list):
            yield from (((keyword, str(number)), inner) for number, inner in enumerate(value))
        elif keyword in PARTS:
            yield (keyword,), value


class Document:
    """A schema and the places of its parts.

    Attributes:
        root: The full schema.
        ignores_siblings: In this draft of JSON Schema nothing next to a `$ref` counts.
    """

    def __init__(self, root: Any) -> None:
        """Finds the place of each part."""
        draft = str(root.get("$schema", "")) if isinstance(root, dict) else ""
        self.root = root
        self.ignores_siblings = any(name in draft for name in _OLD_DRAFTS)
        self._places: dict[int, _Place] = {}
        self._named: dict[str, Any] = {}
        self._find(root, _Place("", "#"))

    def pointer(self, part: Any) -> str:
        """Returns the JSON pointer of a part; that of the root if the part is not in the schema."""
        place = self._places.get(id(part))
        return place.pointer if place else "#"

    def target(self, part: dict[str, Any]) -> Any:
        """Returns the part that the `$ref` of a part names.

        Raises:
            SchemaError: If there is none in this document.
        """
        ref = part["$ref"]
        try:
            return self._named_part(urljoin(self._places[id(part)].base, ref))
        except (ValueError, TypeError, AttributeError, LookupError):
            raise SchemaError(
                f"{self.pointer(part)}/$ref must name a part of the same schema, such as "
                f"#/$defs/Name, got {shown(ref)}."
            ) from None

    def _named_part(self, uri: str) -> Any:
        """Returns the part that a URI names; raises LookupError if there is none."""
        document, fragment = urldefrag(uri)
        if uri.removesuffix("#") in self._named:
            return self._named[uri.removesuffix("#")]
        is_root = document in ("", urldefrag(self._places[id(self.root)].base)[0])
        target = self.root if is_root else self._named.get(document)
        if target is None or (fragment and not fragment.startswith("/")):
            raise LookupError
        names = [
            unquote(name).replace("~1", "/").replace("~0", "~") for name in fragment.split("/")[1:]
        ]
        for name in names:
            target = target[int(name) if isinstance(target, list) else name]
        if isinstance(target, dict) and id(target) not in self._places:
            self._find(target, _Place(document, below("#", names)))
        return target

    def _find(self, root: Any, place: _Place) -> None:
        """Notes the places and the names of a part and of all parts in it."""
        queue = [(root, place)]
        for part, (base, pointer) in queue:
            if not isinstance(part, dict) or id(part) in self._places:
                continue
            base = self._base_of(part, base)
            self._places[id(part)] = _Place(base, pointer)
            queue.extend(
                (inner, _Place(base, below(pointer, names)))
                for names, inner in subschemas_of(part, (*MAPS, *_DEFINITIONS))
            )

    def _base_of(self, part: dict[str, Any], base: str) -> str:
        """Returns the URI of a part, and notes its names."""
        own = part.get("$id", part.get("id"))
        if isinstance(own, str) and not (self.ignores_siblings and "$ref" in part):
            try:
                base = urljoin(base, own)
            except ValueError:
                return base
            self._named.setdefault(base.removesuffix("#"), part)
        if isinstance(part.get("$anchor"), str):
            self._named.setdefault(f"{urldefrag(base)[0]}#{part['$anchor']}", part)
        return base
