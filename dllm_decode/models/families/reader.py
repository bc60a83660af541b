"""Reads config.json key by key: each value is checked, and errors name the key and the file."""

from collections.abc import Iterable, Mapping
from sys import float_info
from typing import Any, TypeAlias

Config: TypeAlias = Mapping[str, Any]

# More than any network has: a larger number is a mistake, and would exhaust the memory.
_MAX_NUMBER = 2**31 - 1
MOST_LENGTH = 2**24
"""Tokens of the longest text or block that a configuration may name."""
_ABSENT = object()


class ConfigReader:
    """The values of a config.json by their types.

    A key that is absent, or null, has its default; without a default it is an error. A key inside
    an object is named as "rope_parameters.factor", or as "factor" of `mapping("rope_parameters")`.

    Attributes:
        file: Named in errors.
    """

    def __init__(self, config: Config, *, file: str = "config.json", prefix: str = "") -> None:
        self.file = file
        self._config = config
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Says whether a key is there, and not null."""
        return self.value(key) is not None

    def keys(self) -> list[str]:
        """Returns all keys, in the order of the file."""
        return list(self._config)

    def value(self, key: str) -> object:
        """Returns a value of any type; `None` if the key is absent or null."""
        value = self._found(key)
        return None if value is _ABSENT else value

    def positive_int(self, key: str, default: int | None = None, *, most: int = _MAX_NUMBER) -> int:
        """Reads an integer from 1 on."""
        return self.integer(key, default, least=1, most=most)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = _MAX_NUMBER
    ) -> int:
        """Reads an integer of a range."""
        value = self._value(key, default)
        if not is_integer(value, least, most):
            raise self.error(key, f"an integer from {least} to {most}", value)
        return int(value)

    def integers(
        self, key: str, default: list[int] | None = None, *, most: int = _MAX_NUMBER
    ) -> list[int]:
        """Reads one integer from 0 on, or a list of them."""
        value = self._value(key, default)
        listed: list[int] = value if type(value) is list else [value]
        if not all(is_integer(item, 0, most) for item in listed):
            raise self.error(key, f"integers from 0 to {most}", value)
        return listed

    def positive_number(
        self,
        key: str,
        default: float | None = None,
        *,
        above: float = 0.0,
        most: float = float_info.max,
    ) -> float:
        """Reads a finite number above `above` and at most `most`, integer or not."""
        value = self._value(key, default)
        # JSON may have an integer that is too large for a float.
        if type(value) not in (int, float) or not above < value <= most:
            bounded = f"a number above {above:g} and at most {most:g}"
            required = "a positive finite number" if most == float_info.max else bounded
            raise self.error(key, required, value)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Reads true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.error(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Reads a string."""
        value = self._value(key, default)
        if type(value) is not str:
            raise self.error(key, "a string", value)
        return value

    def mapping(self, key: str) -> "ConfigReader":
        """Returns a reader of the keys of an object."""
        value = self._value(key, None)
        if not isinstance(value, Mapping):
            raise self.error(key, "an object", value)
        return ConfigReader(value, file=self.file, prefix=f"{self._prefix}{key}.")

    def error(self, key: str, required: str, value: object) -> ValueError:
        """Returns the error that names a key, its file, and what its value must be."""
        name = self._prefix + key
        return ValueError(f"{self.file}: {name!r} must be {required}, got {as_json(value)}.")

    def is_one_of(self, key: str, allowed: Iterable[object]) -> bool:
        """Says whether a key is absent or has one of these values; true is not 1, nor false 0.

        Null is accepted if false is, because authors write both for "no".
        """
        value = self._found(key)
        kinds = [(type(item) is bool, item) for item in allowed]
        is_no = value is None and (True, False) in kinds
        return value is _ABSENT or is_no or (type(value) is bool, value) in kinds

    def _found(self, key: str) -> object:
        if key in self._config:
            return self._config[key]
        value: object = self._config
        for word in key.split("."):
            value = value.get(word, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self._found(key)
        if default is not None and (value is _ABSENT or value is None):
            return default
        if value is _ABSENT:
            raise ValueError(
                f"{self.file} must have the key {self._prefix + key!r}, which is missing. Take "
                f"{self.file} from the official repository; or, for a family of your own, change "
                "its read_shape."
            )
        return value


def is_integer(value: object, least: int, most: int) -> bool:
    """Says whether a value is an integer of a range; true and 1.0 are none."""
    # In Python, True is an integer, and 1.0 equals 1.
    return type(value) is int and least <= value <= most


def as_json(value: object) -> str:
    """Returns a value as messages quote it, null as JSON writes it."""
    return "null" if value is None else repr(value)
