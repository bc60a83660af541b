"""Fields that declare their range."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import jaxtyping
import pytest

from samplers import ConfidenceThreshold, Sampler
from samplers.checks import CheckedFields, Share, count_from, require_count


@dataclass(frozen=True)
class Declared(CheckedFields):
    length: Annotated[int, count_from(1, "tokens")] | None = None
    order: Literal["up", "down"] = "up"
    flips: bool = False
    base: Sampler = field(default_factory=ConfidenceThreshold)
    share: "Share" = 0.5
    note: str = ""


@dataclass(frozen=True)
class Narrowed(Declared):
    most: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("most", self.most, 2)


REFUSED = [
    ({"length": 0}, "length must be a whole number of tokens, at least 1, got 0."),
    ({"order": "left"}, 'order must be one of "up", "down", got \'left\'.'),
    ({"order": None}, 'order must be one of "up", "down", got None.'),
    ({"flips": 1}, "flips must be True or False, got 1."),
    ({"base": 0.9}, "base must be a Sampler such as ConfidenceThreshold(), got 0.9."),
    ({"share": 2.0}, "share must be a share in [0, 1], got 2.0."),
    ({"most": 1}, "most must be a whole number, at least 2, got 1."),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_a_value_out_of_its_declared_range_is_refused(
    options: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared as a whole text
        Narrowed(**options)  # type: ignore[arg-type]
    assert str(refused.value) == sentence


def test_values_in_their_range_are_taken() -> None:
    narrowed = Narrowed(4, "down", True, ConfidenceThreshold(0.5), 1.0, "any text", 2)
    assert narrowed.length == 4
    assert Narrowed().length is None
