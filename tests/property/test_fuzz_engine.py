"""Laws 2 and 6 over the whole product of models, plug-ins and options, on random cases.

A case is a model with random weights in float64, a sampler, a cache policy, a block schedule, a
verifier, options, and 2 to 5 requests, most of them with templates and options of their own. It is
decoded three times: each request alone, all at once, and with fewer rows than requests, where
requests join late and some are cancelled. Tokens, the canvas after each step, and the costs of each
row must be equal; with `SelfVerify`, tokens and steps also equal those of plain decoding.

20,000 cases that are not refused take about an hour:

    pytest -m slow tests/property/test_fuzz_engine.py --fuzz-seeds 0:40000
"""

from collections import Counter

import pytest
from fuzzed import RARE, checked, described
from fuzzed_cases import SAMPLERS
from tiny_models import EVERY_FAMILY

from samplers import parse

PLUGINS = (
    "AdaptiveBlocks", "MultiBlock", "Sequential", "SlidingWindow", "SubBlocks",
    "NoCache", "PrefixCache", "DualCache", "FreeCache", "DelayedCache", "SettledCache",
    "PipelineCache", "SubBlockCache", "SuffixWindow",
    "NoVerifier", "SelfVerify", "ARVerify", "Guided", "S2D2",
)  # fmt: skip
NUM_SEEDS = 1600


def decoded(seeds: range) -> Counter[str]:
    """Checks the cases of some seeds, and counts their events."""
    events: Counter[str] = Counter()
    for seed in seeds:
        faults = checked(seed, events)
        if faults:
            pytest.fail(f"seed {seed}: " + "\n".join(faults) + f"\n{described(seed)}")
    return events


@pytest.mark.parametrize("first", [50, 150, 200])
def test_a_few_random_cases_decode_the_same_alone_together_and_with_few_rows(first: int) -> None:
    events = decoded(range(first, first + 50))
    assert events["decoded"] > 10
    for name in ("rows at different blocks", "a row joined inside another row's block"):
        assert events[name] > 0, name


@pytest.mark.slow
def test_random_cases_decode_the_same_alone_together_and_with_few_rows(
    pytestconfig: pytest.Config,
) -> None:
    text = pytestconfig.getoption("fuzz_seeds") or f"0:{NUM_SEEDS}"
    seeds = range(*map(int, text.split(":")))
    events = decoded(seeds)
    if len(seeds) < NUM_SEEDS:
        return
    classes = {type(parse(expression)).__name__ for expression in SAMPLERS}
    names = (*RARE, *PLUGINS, *classes, *EVERY_FAMILY)
    assert [name for name in names if not events[name]] == []
    assert events["decoded"] > 0.4 * len(seeds)
