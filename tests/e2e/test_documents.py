"""README and docs are right: programs run, commands parse, and the targets of links exist.

A block of `python` runs here; one of `py` needs weights or files that are not here.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from dllm_decode import CachePolicy, DecodeConfig
from dllm_decode.blocks import BlockSchedule
from dllm_decode.cli.main import make_parser as make_command_parser
from dllm_decode.core.other_names import HINTS
from dllm_decode.settings.options import given_options
from dllm_decode.settings.plugins import canonical_plugin, parse
from dllm_decode.text.generate_options import GenerateOptions
from eval.commands import make_eval_parser as make_parser
from samplers import Sampler

ROOT = Path(__file__).parents[2]
# The recipes are sets of files, which their own test writes and runs.
RECIPES = sorted((ROOT / "docs" / "extending").glob("*.md"))
PROGRAMS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PROGRAMS, *RECIPES]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    document: Path
    language: str
    text: str
    output: str | None


def snippets(document: Path) -> Iterator[Snippet]:
    """Yields fenced blocks; a block without a language right after another is its output."""
    blocks = list(FENCE.finditer(document.read_text(encoding="utf-8")))
    for block, following in zip_longest(blocks, blocks[1:]):
        output = None
        if following is not None and not following[1]:
            between = block.string[block.end() : following.start()]
            output = following[2] if not between.strip() else None
        yield Snippet(document, block[1], block[2], output)


def commands(document: Path) -> Iterator[str]:
    """Yields the lines of shell blocks, with continued lines joined."""
    for snippet in snippets(document):
        if snippet.language == "bash":
            joined = snippet.text.replace("\\\n", " ")
            yield from (line.split("  #")[0].strip() for line in joined.splitlines())


@pytest.mark.parametrize("document", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_of_a_document_run_and_print_what_it_says(
    document: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for snippet in snippets(document):
        if snippet.language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.text, str(document), "exec"), names)
        if snippet.output is not None:
            assert printed.getvalue().split() == snippet.output.split()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_are_understood(document: Path) -> None:
    for command in commands(document):
        words = shlex.split(command)
        if words[:1] == ["accelerate"] and "eval" in words:
            make_parser().parse_args(words[words.index("eval") + 1 :])
        elif words[:1] == ["dllm-decode"]:
            understand(words[1:])
        elif words[:1] == ["python"] and words[1].startswith("examples/"):
            assert (ROOT / words[1]).is_file(), command


def understand(words: list[str]) -> None:
    """Reads the words of `dllm-decode`, and the expressions of `generate` and `chat`."""
    if words[0] == "eval":
        make_parser().parse_args(words[1:])
        return
    options = make_command_parser().parse_args(words)
    if words[0] in ("generate", "chat"):
        if options.sampler is not None:
            parse(options.sampler, Sampler)
        parse(options.cache, CachePolicy)
        parse(options.blocks, BlockSchedule)
        canonical_plugin(options.verifier, "verifier")
        DecodeConfig(**given_options(options))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), target


def test_every_target_that_is_named_has_a_rule() -> None:
    """A target that a page named had no rule, and make said that there was nothing to be done."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) <= rules
    texts = [*DOCUMENTS, ROOT / "benchmarks" / "README.md", ROOT / "CHANGELOG.md"]
    for document in texts:
        named = re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(encoding="utf-8"), re.M)
        assert set(named) <= rules, document


def test_a_name_of_other_libraries_is_an_option_or_its_refusal_says_what_to_use() -> None:
    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8").partition("## Servers")[0]
    # Arguments of a scheduler, functions, and arguments of `generate` by their own names.
    others = {"entropy_bound", "t_min", "t_max", "generate", "generate_with_prefix_cache",
              "generate_with_dual_cache", "attention_mask", "inputs",
              "num_return_sequences"}  # fmt: skip
    theirs = "".join(re.findall(r"^\| (.*?) \| ", page, re.MULTILINE))
    names = set(re.findall(r"`([a-z_]\w*)(?:=[^`]*)?`", theirs)) - others
    assert len(names) > 30
    assert names <= {*HINTS, *GenerateOptions.__annotations__}
