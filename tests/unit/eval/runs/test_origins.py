"""Records of a plug-in are not taken for those of the same plug-in after an edit."""

import importlib
import sys
from pathlib import Path

import eval_runs
import pytest

from dllm_decode.cli.main import main
from dllm_decode.settings.plugins import sources_of
from eval.reports.terminal import report_folder
from eval.runs.folder import Folder
from eval.runs.runner import execute
from eval.runs.settings import Run
from samplers import FixedSchedule, parse
from samplers.expression import expression_of

RULE = """
from dataclasses import dataclass
from samplers import Decision, Sampler

@dataclass(frozen=True)
class Mine(Sampler):
    def step(self, view, state):
        return Decision(commit=view.eligible{end}), state
"""

STAGES = """
@dataclass(frozen=True)
class Stages(Mine):
    parts: tuple = ()
    steps: tuple = ()
"""


class Module:
    """A module of the user's own that is edited."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, text: str) -> None:
        self.file.write_text(text)
        sys.modules.pop(self.file.stem, None)
        importlib.invalidate_caches()

    def runs(self, end: str) -> list[Run]:
        """Writes the module, and returns a run with its class inside another sampler."""
        self.write(RULE.format(end=end))
        sampler = parse(f"CreditDecoding({self.file.stem}:Mine())")
        return eval_runs.runs(samplers=(sampler, FixedSchedule(4)))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.syspath_prepend(tmp_path)
    # Python tells compiled files apart by seconds, and these edits are faster.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Module(tmp_path / "edited_rule.py")


def test_an_edited_sampler_is_not_given_its_old_answers(module: Module, tmp_path: Path) -> None:
    """Once they were shown again, without a word: records are found by the sampler's repr."""
    out = tmp_path / "out"
    records = execute(module.runs(""), out).records()
    assert execute(module.runs(""), out).records() == records
    with pytest.raises(ValueError, match=r"^edited_rule must be as it was .*another folder\."):
        execute(module.runs(" & (view.masked.cumsum(-1) == 1)"), out)
    fresh = execute(module.runs(" & (view.masked.cumsum(-1) == 1)"), tmp_path / "fresh").records()
    assert sum(r["nfe"] for r in fresh) > sum(r["nfe"] for r in records)
    # After the edit is undone, the old answers are valid again.
    assert execute(module.runs(""), out).records() == records


def test_a_class_of_ones_own_has_records_of_its_own(module: Module, tmp_path: Path) -> None:
    """Its answers were those of our class, whose records it found by the name."""
    ours = eval_runs.runs(samplers=(FixedSchedule(4),))
    execute(ours, tmp_path / "out")
    module.write(RULE.format(end="").replace("Mine", "FixedSchedule"))
    (mine,) = eval_runs.runs(samplers=(parse("edited_rule:FixedSchedule()"),))
    folder = execute([*ours, mine], tmp_path / "out")
    assert [settings.sampler for settings in folder.results()][1] == "edited_rule:FixedSchedule()"
    assert len(folder.records()) == 20


def test_what_is_written_of_a_sampler_is_read_as_it(module: Module) -> None:
    module.write(RULE.format(end=""))
    sampler = parse("CreditDecoding(edited_rule:Mine(), beta=0.5)")
    assert "base=edited_rule:Mine(), " in expression_of(sampler)
    assert parse(expression_of(sampler)) == sampler


def test_classes_in_a_tuple_of_arguments_are_found(module: Module) -> None:
    """`Stages((ConfidenceThreshold(),))` had one key with this package's class and with others."""
    module.write(RULE.format(end="") + STAGES)
    (module.file.parent / "other_rule.py").write_text(RULE.format(end=""))
    sampler = parse("edited_rule:Stages((other_rule:Mine(),), (2, 3))")
    expression = "edited_rule:Stages(parts=(other_rule:Mine(),), steps=(2, 3))"
    assert expression_of(sampler) == expression
    assert parse(expression) == sampler
    assert list(sources_of([sampler], "")) == ["edited_rule", "other_rule"]


def test_errors_of_a_mended_sampler_are_tried_again(
    module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    execute(module.runs(" & False"), out)
    assert report_folder(Folder(out)) == 1
    message = capsys.readouterr().err
    assert message.startswith("10 examples raised an error, 10 of them: RuntimeError: Credit")
    assert "must commit at least one eligible position" in message
    assert message.endswith("repeat the command that ran them.\n")
    folder = execute(module.runs(""), out)
    assert len(folder.records()) == 20
    assert all(record["error"] is None for record in folder.records())


def test_an_edited_family_is_noted_like_a_sampler(module: Module) -> None:
    module.write("FAMILY = 1")
    importlib.import_module("edited_rule")
    assert sources_of([FixedSchedule(8)], "folder") == {}
    address = "folder?family=edited_rule:FAMILY"
    before = sources_of([], address)
    assert list(before) == ["edited_rule"]
    module.file.write_text("FAMILY = 2")
    assert sources_of([], address) != before


def test_the_command_is_named_as_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("dllm-decode eval report: A results folder must")


TASK = """
from dataclasses import dataclass
from eval.tasks import Example, Task

@dataclass(frozen=True)
class Asks(Task):
    version = {version}
    name = "asks"
    primary = "answer"
    gen_length = 8
    splits = ("test",)
    scores_own_target = False

    def examples(self, split="test", num_examples=None, seed=0):
        return [Example("emma has " + str(n) + " apples .", "") for n in range(3)]

    def score(self, example, text):
        return {{"answer": {score}}}
"""


def test_an_edited_task_is_refused_with_both_remedies(module: Module, tmp_path: Path) -> None:
    """The version of a task, the remedy that the page on tasks gives, was not named."""

    def runs(**changes: object) -> list[Run]:
        module.write(TASK.format(**{"version": 1, "score": 0.0, **changes}))
        return eval_runs.runs(samplers=(FixedSchedule(4),), task=f"{module.file.stem}:Asks")

    out = tmp_path / "out"
    execute(runs(), out)
    remedy = r"Choose another folder, or raise `version` of the task\.$"
    with pytest.raises(ValueError, match=f"^edited_rule must be as it was .*{remedy}"):
        execute(runs(score=1.0), out)
    folder = execute(runs(score=1.0, version=2), out)
    assert [settings.task_version for settings in folder.settings()] == [1, 2]
    assert len(folder.records()) == 6
