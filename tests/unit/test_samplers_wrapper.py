"""A wrapper says of itself what its base says, unless it needs more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samplers import (
    ALL_SAMPLERS,
    CreditDecoding,
    Decision,
    JointThreshold,
    Prophet,
    Sampler,
    View,
    Wrapper,
)
from samplers.view import Scope

WRAPPERS = [sampler for sampler in ALL_SAMPLERS if issubclass(sampler, Wrapper)]
DECIDES = {"init", "step"}


def overridable() -> set[str]:
    """Members of a sampler that another class may replace."""
    return {name for name in vars(Sampler) if not name.startswith("_")}


@dataclass(frozen=True)
class Unusual(Sampler[None]):
    """Says of itself what no default says."""

    remasks: bool = False

    @property
    def scope(self) -> Scope:
        return "suffix"

    @property
    def leave_one_out(self) -> bool:
        return self.remasks

    @property
    def reads_committed(self) -> bool:
        return True

    @property
    def files(self) -> tuple[Path, ...]:
        return (Path("weights"),)

    def check(self, *, model: str, gen_length: int, block_length: int) -> None:
        raise ValueError(f"asked about {model}, {gen_length} and {block_length}")

    def check_model(self, *, name: str, fingerprint: str) -> None:
        raise ValueError(f"asked about {name} of {fingerprint}")

    def max_steps(self, num_masks: int) -> int:
        return 10 * num_masks

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        raise NotImplementedError


def test_wrappers_are_known() -> None:
    assert set(WRAPPERS) == {CreditDecoding, Prophet}


def test_every_member_of_a_sampler_is_forwarded() -> None:
    """Whoever adds a member to `Sampler` must say here and in `Wrapper` what becomes of it."""
    forwarded = overridable() - DECIDES
    assert forwarded == {
        "scope", "leave_one_out", "reads_committed", "edits", "needs_whole_block", "files",
        "check", "check_model", "max_steps",
    }  # fmt: skip
    assert forwarded <= set(vars(Wrapper))


@pytest.mark.parametrize("wrapper", [*WRAPPERS, lambda base: Prophet(CreditDecoding(base))])
def test_a_wrapper_answers_as_its_base(wrapper: Any) -> None:
    wrapped = wrapper(Unusual())
    assert wrapped.scope == "suffix"
    assert wrapped.reads_committed
    assert not wrapped.leave_one_out
    assert wrapped.files == (Path("weights"),)
    assert wrapped.max_steps(3) == 30
    with pytest.raises(ValueError, match="asked about mini, 12 and 4"):
        wrapped.check(model="mini", gen_length=12, block_length=4)
    with pytest.raises(ValueError, match="asked about mini of 12ab"):
        wrapped.check_model(name="mini", fingerprint="12ab")


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_base_that_edits_is_refused(wrapper: Any) -> None:
    with pytest.raises(ValueError, match=f"{wrapper.__name__} must wrap a sampler that never edit"):
        wrapper(JointThreshold())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_base_that_re_masks_is_refused(wrapper: Any) -> None:
    with pytest.raises(ValueError, match=f"{wrapper.__name__} must wrap a sampler that never re-m"):
        wrapper(Unusual(remasks=True))
