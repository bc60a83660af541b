import pytest

from dllm_decode.cli.main import main
from eval.listing import entries
from eval.runs.task_addresses import TASKS


def test_the_command_lists_each_task_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert set(TASKS) < set(entries())
    for name, line in entries().items():
        assert name in shown
        assert line.split()[0] in shown
        assert line.endswith((".", "`"))
    assert "docs/evaluation.md" in shown
