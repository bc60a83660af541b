"""Reads config.json key by key: every value is checked, and a wrong one named with its file."""

from collections.abc import Mapping
from sys import float_info
from typing import Any, TypeAlias

Config: TypeAlias = Mapping[str, Any]

# More than any network has; larger numbers are mistakes, and would be built before memory runs out.
_MOST = 2**31 - 1


class ConfigReader:
    """The values of a config.json by their types.

    A key that is absent or null has its default; without one it is an error. A key inside of an
    object is named as "rope_parameters.factor", or as "factor" of `mapping("rope_parameters")`.

    Attributes:
        file: Named in errors.
    """

    def __init__(self, config: Config, *, file: str = "config.json", prefix: str = "") -> None:
        self.file = file
        self._config = config
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Says whether a key has a value other than null."""
        return self.value(key) is not None

    def is_false(self, key: str) -> bool:
        """Says whether a key has the value false."""
        return self.value(key) is False

    def value(self, key: str) -> object:
        """Returns a value of any type; `None` where there is none."""
        if key in self._config:
            return self._config[key]
        value: object = self._config
        for word in key.split("."):
            value = value.get(word) if isinstance(value, Mapping) else None
        return value

    def positive_int(self, key: str, default: int | None = None, *, most: int = _MOST) -> int:
        """Reads an integer from 1 on."""
        return self.integer(key, default, least=1, most=most)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = _MOST
    ) -> int:
        """Reads an integer of a range."""
        value = self._value(key, default)
        # JSON has true and 1.0, which Python takes for integers or compares equal to some.
        if type(value) is not int or not least <= value <= most:
            raise self._error(key, f"an integer from {least} to {most}", value)
        return value

    def positive_number(self, key: str, default: float | None = None) -> float:
        """Reads a finite number above 0, integer or not."""
        value = self._value(key, default)
        # Any integer can stand in JSON, also one that no float holds.
        if type(value) not in (int, float) or not 0 < value <= float_info.max:
            raise self._error(key, "a positive finite number", value)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Reads true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self._error(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Reads a string."""
        value = self._value(key, default)
        if type(value) is not str:
            raise self._error(key, "a string", value)
        return value

    def integers(
        self, key: str, default: list[int] | None = None, *, least: int = 0, most: int = _MOST
    ) -> list[int]:
        """Reads one integer of a range, or a list of them."""
        value = self._value(key, default)
        listed = value if type(value) is list else [value]
        if any(type(item) is not int or not least <= item <= most for item in listed):
            raise self._error(key, f"integers from {least} to {most}", value)
        return listed

    def token_id(self, key: str, default: int | None = None, *, vocab_size: int) -> int:
        """Reads the id of a token."""
        return self.integer(key, default, most=vocab_size - 1)

    def mapping(self, key: str) -> "ConfigReader":
        """Reads an object: a reader of its keys."""
        value = self._value(key, None)
        if not isinstance(value, Mapping):
            raise self._error(key, "an object", value)
        return ConfigReader(value, file=self.file, prefix=f"{self._prefix}{key}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.value(key)
        if value is not None:
            return value
        if default is None:
            raise ValueError(
                f"{self.file} must have the key {self._prefix + key!r}, which is missing. Take "
                f"{self.file} from the official repository; or, for a family of your own, change "
                "its read_shape."
            )
        return default

    def _error(self, key: str, required: str, value: Any) -> ValueError:
        return ValueError(f"{self.file}: {self._prefix + key!r} must be {required}, got {value!r}.")
