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
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def stored_text(cell: dict[str, Any]) -> str:
    """Returns the stored text that the cell printed."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of its last expression, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_the_notebook_is_kept_with_its_outputs_and_its_links_lead_somewhere() -> None:
    """The outputs were not kept, so that a reader of the repository saw programs only."""
    for number, cell in enumerate(cells("code"), start=1):
        assert cell["outputs"]
        assert cell["execution_count"] == number
    texts = "".join("".join(cell["source"]) for cell in cells("markdown"))
    targets = [part.split(")")[0] for part in texts.split("](")[1:]]
    assert targets
    for target in targets:
        assert (NOTEBOOK.parent / target).exists(), target


def test_what_the_notebook_imports_exists() -> None:
    """A function of the report was deleted that no other code called."""
    num_imports = 0
    for cell in cells("code"):
        tree = ast.parse("".join(cell["source"]))
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        num_imports += len(tree.body)
        exec(compile(tree, "cell", "exec"), {})
    assert num_imports


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_something() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    pages, printed = [], []
    for cell in cells("code"):
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            shown = run_cell("".join(cell["source"]), names)
        printed.append(stdout.getvalue())
        assert stdout.getvalue() == stored_text(cell)
        pages += [shown] if shown is not None else []
        assert printed[-1] or shown is not None
    assert "#### 34" in printed[0]
    assert "on 8 problems" in printed[2]
    assert printed[3].count("of 8 right") == 3
    replay, report = (page._repr_html_() for page in pages)
    assert "&lt;!doctype html&gt;" in replay
    assert "MarginThreshold" not in report
    assert "LocalLeap" in report
