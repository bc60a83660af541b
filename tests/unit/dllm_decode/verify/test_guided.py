from typing import Any

import pytest
from toys import HashModel, tiny_target

from dllm_decode import Guided, decode
from samplers import FixedSchedule, Prophet

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLER = FixedSchedule(4)
OPTIONS: Any = {"gen_length": 10, "block_length": 5}


def test_a_sampler_that_would_only_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="lets the sampler decide every step, got Guided"):
        decode(HashModel(), [[1]], Prophet(SAMPLER), verifier=Guided(tiny_target()), **OPTIONS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_proposals": 0}, "num_proposals must be a whole number, at least 1, got 0"),
        ({"top_k": 0}, "top_k must be a whole number, at least 1, got 0"),
        ({"ratio": 1.5}, r"ratio must be a share in \[0, 1\], got 1.5"),
        ({"threshold": 1.0}, r"threshold must be below 1, .*, got 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Guided(tiny_target(), **options)
