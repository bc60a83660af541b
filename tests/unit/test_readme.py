from pathlib import Path

from dllm_decode import compatibility
from samplers import ALL_SAMPLERS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_table_of_what_combines_is_the_one_that_the_code_prints() -> None:
    assert compatibility.table().strip() in README


def test_every_sampler_is_in_the_table_of_samplers() -> None:
    missing = [sampler.__name__ for sampler in ALL_SAMPLERS if f"`{sampler.__name__}" not in README]
    assert not missing


def test_no_placeholder_is_left() -> None:
    assert "<!--" not in README
