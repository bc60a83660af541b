import ast
import re
import runpy
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import dllm_decode
import samplers
from dllm_decode import blocks, caches, verify
from eval.commands import make_eval_parser
from eval.runs.task_addresses import parse_task
from eval.sweeps.sweep import DEFAULT_SAMPLERS
from eval.tasks.gsm8k import PROTOCOLS
from samplers import ALL_SAMPLERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SAMPLERS = (DOCS / "samplers.md").read_text(encoding="utf-8")
REFERENCE = "".join(
    page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md"))
)
SHOWN = {line.rpartition(".")[2] for line in REFERENCE.splitlines() if line.startswith("::: ")}


def test_lists_of_plug_ins_are_those_that_the_script_writes() -> None:
    """Re-made by: make lists."""
    script = runpy.run_path(str(DOCS / "make_lists.py"))
    old = [str(path) for path, text in script["lists"]().items() if script["read"](path) != text]
    assert old == []
    assert set(script["plugins"](script["KINDS"][0])) == set(ALL_SAMPLERS)
    assert {type(plugin).__name__ for plugin in script["examples"]()} >= {
        "Hierarchy", "NoCache", "Sequential", "SelfVerify"
    }  # fmt: skip


def test_every_sampler_is_in_the_table_of_samplers() -> None:
    names = [sampler.__name__ for sampler in ALL_SAMPLERS]
    assert not [name for name in names if f"`{name}" not in SAMPLERS]


def test_every_plug_in_of_the_literature_exists_and_every_cache_is_on_the_page() -> None:
    page = (DOCS / "literature.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`([A-Z]\w+)", page)}
    exported = {*samplers.__all__, *caches.__all__, *verify.__all__, *blocks.__all__}
    assert named - exported == set()
    kinds = [vars(caches)[name] for name in caches.__all__ if name not in ("CacheQuery", "History")]
    assert {kind.__name__ for kind in kinds} - named <= {"CachePolicy", "NoCache", "SettledCache"}


def test_the_page_on_evaluation_says_what_a_run_does_without_options() -> None:
    """Which samplers, split, number of examples and seed was nowhere to be read."""
    _, _, page = (DOCS / "evaluation.md").read_text(encoding="utf-8").partition("Without options")
    paragraph = page.partition("\n\n")[0]
    options = make_eval_parser().parse_args(["run", "lists/shuffle", "out"])
    selection = parse_task(options.task)
    assert selection.limit is None
    words = [*DEFAULT_SAMPLERS, options.model, selection.split]
    assert [word for word in words if f"`{word}`" not in paragraph] == []
    assert f"{options.batch_size} rows" in paragraph
    assert f"{len(selection.examples())} examples" in paragraph
    assert f"`examples_seed`, {selection.examples_seed} without one" in " ".join(paragraph.split())


def test_every_public_name_is_in_the_reference() -> None:
    """Fifteen names were on no page, observers and streams among them."""
    classes = {member.__name__ for member in vars(blocks).values() if isinstance(member, type)}
    names = {*dllm_decode.__all__, *samplers.__all__, *caches.__all__, *verify.__all__}
    assert not (names | classes & {*blocks.__all__}) - SHOWN


@pytest.mark.parametrize(
    "page", sorted((DOCS / "extending").glob("*.md")), ids=lambda one: one.stem
)
def test_every_name_that_a_recipe_uses_is_in_the_reference(page: Path) -> None:
    """`highest_one`, which most rules call, was on no page."""
    text, ours = page.read_text(encoding="utf-8"), "(?:samplers|dllm_decode|eval)"
    code = "".join(re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    imports = [node for node in ast.parse(code).body if isinstance(node, ast.ImportFrom)]
    used = {
        alias.name for node in imports if re.match(ours, node.module or "") for alias in node.names
    }
    assert used - SHOWN == set()
    named = re.findall(rf"`({ours}\.[\w.]+)", text)
    assert [name for name in named if f"::: {name}" not in REFERENCE] == []


def test_every_option_of_every_command_is_in_the_reference() -> None:
    """Re-made by: COLUMNS=100 python docs/make_command_line.py."""
    page = (DOCS / "reference" / "command_line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*?)\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    helps = dict(runpy.run_path(str(DOCS / "make_command_line.py"))["helps"]())
    assert list(sections) == list(helps)
    for name, text in helps.items():
        option = re.compile(r"^  (?:-\w, |-\w [^-]*, )?(--[\w-]+)", re.MULTILINE)
        assert set(option.findall(text)) == set(option.findall(sections[name])), name


@pytest.mark.parametrize(
    "page", sorted((DOCS / "reference").glob("*.md")), ids=lambda one: one.stem
)
def test_every_name_of_the_reference_exists(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("::: "):
            module, _, name = line.removeprefix("::: ").rpartition(".")
            assert hasattr(import_module(module), name), line


def test_functions_that_the_picture_of_a_round_names_are_there() -> None:
    text = (DOCS / "img" / "round.svg").read_text(encoding="utf-8")
    for module, name in [
        ("engine.round", "open_blocks"), ("engine.decide", "decide"), ("engine.settle", "settle"),
        ("engine.round", "advance"), ("engine.layout", "Layout.of"), ("engine.forward", "forward"),
        ("core.requests", "RequestQueue"),
    ]:  # fmt: skip
        assert name in text, f"{name} is not in the picture any more"
        attrgetter(name)(import_module(f"dllm_decode.{module}"))


def test_the_protocols_of_gsm8k_are_those_of_the_code() -> None:
    lines = (DOCS / "evaluation.md").read_text(encoding="utf-8").splitlines()
    for name, protocol in PROTOCOLS.items():
        (row,) = (line for line in lines if line.startswith(f"| `{name}` |"))
        assert f"| {protocol.gen_length} / {protocol.block_length} |" in row


def test_the_architecture_begins_with_the_plain_loop() -> None:
    page = (DOCS / "architecture.md").read_text()
    loop = (ROOT / "benchmarks/plain_loop.py").read_text()
    code = re.search(r"```py\n(.*?)```", page, re.DOTALL)
    assert code
    shown = [re.sub(r"  # \d+$", "", line).strip() for line in code[1].splitlines()]
    body = [line.strip() for line in loop[loop.index("canvas =") :].splitlines()]
    assert shown == body[: len(shown)]
    functions = re.findall(r"`(\w+)`(?: in|, called by `\w+` in) `(engine/\w+\.py)`", page)
    assert len(functions) >= 7
    for name, file in functions:
        assert f"def {name}(" in (ROOT / "dllm_decode" / file).read_text(), (name, file)
