"""The notebook runs from top to bottom, as a person with no more than this package would run it."""

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    return [cell for cell in found["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of its last expression, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_the_notebook_is_kept_without_outputs_and_its_links_lead_somewhere() -> None:
    for cell in cells("code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    texts = "".join("".join(cell["source"]) for cell in cells("markdown"))
    targets = [part.split(")")[0] for part in texts.split("](")[1:]]
    assert targets
    for target in targets:
        assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_something() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    pages, printed = [], []
    for cell in cells("code"):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            shown = run_cell("".join(cell["source"]), names)
        printed.append(told.getvalue())
        pages += [shown] if shown is not None else []
        assert printed[-1] or shown is not None
    assert "#### 34" in printed[0]
    assert "on 8 problems" in printed[2]
    assert printed[3].count("of 8 right") == 3
    replay, report = (page._repr_html_() for page in pages)
    assert "&lt;!doctype html&gt;" in replay
    assert "MarginThreshold" not in report
    assert "LocalLeap" in report
