import importlib.resources

import pytest

import dllm_decode
from dllm_decode.cli.listing import entries
from dllm_decode.cli.main import LISTS, main
from dllm_decode.models.families import FAMILIES
from eval.listing import entries as tasks
from eval.runs.task_addresses import TASKS
from samplers import ALL_SAMPLERS


@pytest.mark.parametrize("kind", [*LISTS, "tasks"])
def test_a_command_lists_each_with_a_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names were in the documentation alone."""
    assert main([kind]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert kind != "tasks" or "docs/evaluation.md" in shown
    for name, line in (tasks() if kind == "tasks" else entries(kind)).items():
        assert name in shown
        assert line.split()[0] in shown
        assert line.endswith((".", "`"))


def test_the_lists_are_complete() -> None:
    assert list(entries("samplers")) == [sampler.__name__ for sampler in ALL_SAMPLERS]
    assert {"NoCache", "DualCache", "SuffixWindow"} < set(entries("caches"))
    assert set(entries("verifiers")) == {
        "NoVerifier", "SelfVerify", "ARVerify", "Guided", "S2D2", "AnySubsetVerify",
    }  # fmt: skip
    assert set(entries("schedules")) == {
        "Sequential", "MultiBlock", "AdaptiveBlocks", "SlidingWindow", "SubBlocks",
    }  # fmt: skip
    embedded = importlib.resources.files(dllm_decode) / "assets"
    names = {folder.name for folder in embedded.iterdir() if (folder / "config.json").is_file()}
    assert set(entries("models")) == names | set(FAMILIES)
    assert set(TASKS) < set(tasks())
