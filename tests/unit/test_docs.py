from argparse import ArgumentParser
from pathlib import Path

from dllm_decode import compatibility
from eval.runs.arguments import add_run
from eval.runs.command import DEFAULT_SAMPLERS
from eval.runs.names import parse_task
from samplers import ALL_SAMPLERS

DOCS = Path(__file__).parents[2] / "docs"
CACHES = (DOCS / "caches.md").read_text(encoding="utf-8")
SAMPLERS = (DOCS / "samplers.md").read_text(encoding="utf-8")


def test_the_table_of_what_combines_is_the_one_that_the_code_prints() -> None:
    assert compatibility.table().strip() in CACHES


def test_every_sampler_is_in_the_table_of_samplers() -> None:
    names = [sampler.__name__ for sampler in ALL_SAMPLERS]
    assert not [name for name in names if f"`{name}" not in SAMPLERS]


def test_the_page_on_evaluation_says_what_a_run_does_without_options() -> None:
    """Which samplers, split, number of examples and seed was nowhere to be read."""
    _, _, page = (DOCS / "evaluation.md").read_text(encoding="utf-8").partition("Without options")
    said = page.partition("\n\n")[0]
    parser = ArgumentParser()
    add_run(parser)
    options = parser.parse_args(["lists/shuffle", "out"])
    selection = parse_task(options.task)
    assert selection.limit is None
    named = [*DEFAULT_SAMPLERS, options.model, selection.split]
    assert [one for one in named if f"`{one}`" not in said] == []
    assert f"{options.batch_size} rows" in said
    assert f"{len(selection.examples())} examples" in said
    assert f"`examples_seed`, {selection.examples_seed} without one" in " ".join(said.split())


def test_no_placeholder_is_left() -> None:
    for document in DOCS.glob("*.md"):
        assert "<!--" not in document.read_text(encoding="utf-8"), document
