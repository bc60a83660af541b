"""A wrapper answers as its base does, unless the wrapper needs more."""

from pathlib import Path
from typing import Any

import pytest
from plugins_under_test import plugin

from samplers import ALL_SAMPLERS, CreditDecoding, FixedSchedule, Prophet, Sampler, Wrapper
from samplers.facts import Fact, PlugIn

WRAPPERS = [sampler for sampler in ALL_SAMPLERS if issubclass(sampler, Wrapper)]
# A base with a belief revises its tokens, and is refused.
DECIDES = {"init", "step", "belief"}


def overridable() -> set[str]:
    """Returns the members of a sampler that another class may replace."""
    return {name for name in vars(Sampler) | vars(PlugIn) if not name.startswith("_")}


def refuse(self: Any, **asked: Any) -> None:
    raise ValueError(f"asked about {asked}")


# A sampler whose members differ from the defaults.
UNUSUAL = plugin(
    Sampler, scope="suffix", files=(Path("weights"),), check=refuse, check_model=refuse,
    needs=frozenset({Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED}), step=refuse,
    max_steps=lambda self, num_masks: 10 * num_masks,
)  # fmt: skip


def test_every_member_of_a_sampler_is_forwarded() -> None:
    """A new member of `Sampler` must be listed here, and forwarded by `Wrapper` or not."""
    forwarded = overridable() - DECIDES
    assert forwarded == {
        "scope", "needs", "gives", "files", "check", "check_model", "max_steps", "with_tokenizer",
    }  # fmt: skip
    assert forwarded <= set(vars(Wrapper))


@pytest.mark.parametrize(
    "wrapper", [*WRAPPERS, lambda base: Prophet(CreditDecoding(base), answer_start=0)]
)
def test_a_wrapper_answers_as_its_base(wrapper: Any) -> None:
    wrapped = wrapper(UNUSUAL)
    assert wrapped.scope == "suffix"
    assert wrapped.needs >= UNUSUAL.needs
    assert Fact.LOGITS_OF_COMMITTED in wrapped.needs
    assert wrapped.gives == UNUSUAL.gives
    assert wrapped.files == (Path("weights"),)
    assert wrapped.max_steps(3) == 30
    with pytest.raises(ValueError, match=r"asked about .*mini.*12.*4"):
        wrapped.check(model_name="mini", gen_length=12, block_length=4)
    with pytest.raises(ValueError, match=r"asked about .*mini.*12ab"):
        wrapped.check_model(model_name="mini", fingerprint="12ab")


def test_a_wrapper_with_a_state_needs_whole_blocks_unless_it_says_otherwise() -> None:
    assert Fact.WHOLE_BLOCKS in Prophet().needs
    assert Fact.WHOLE_BLOCKS not in CreditDecoding().needs
    assert Fact.WHOLE_BLOCKS in CreditDecoding(FixedSchedule()).needs


def test_a_wrapper_sees_as_much_as_the_widest_of_both() -> None:
    assert CreditDecoding().scope == "block"
    assert CreditDecoding(Prophet()).scope == Prophet().scope == "suffix"
    assert CreditDecoding(Prophet(marker=(3,))).scope == Prophet(Prophet(gap="all")).scope
    assert Prophet(gap="all").scope == "answer"
