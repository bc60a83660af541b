from pathlib import Path

from dllm_decode import compatibility
from samplers import ALL_SAMPLERS

DOCS = Path(__file__).parents[2] / "docs"
CACHES = (DOCS / "caches.md").read_text(encoding="utf-8")
SAMPLERS = (DOCS / "samplers.md").read_text(encoding="utf-8")


def test_the_table_of_what_combines_is_the_one_that_the_code_prints() -> None:
    assert compatibility.table().strip() in CACHES


def test_every_sampler_is_in_the_table_of_samplers() -> None:
    names = [sampler.__name__ for sampler in ALL_SAMPLERS]
    assert not [name for name in names if f"`{name}" not in SAMPLERS]


def test_no_placeholder_is_left() -> None:
    for document in DOCS.glob("*.md"):
        assert "<!--" not in document.read_text(encoding="utf-8"), document
