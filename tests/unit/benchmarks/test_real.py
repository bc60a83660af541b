"""A checkpoint next to published figures, end to end on an embedded model."""

import re
from pathlib import Path

import pytest

from benchmarks import real
from eval.runs.task_addresses import parse_task


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split(" | ")]


def test_a_table_is_measured_written_and_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", "mini-ar", "--questions", "2", "--folder", str(tmp_path)]
    real.main(words)
    shown = capsys.readouterr().out
    text = (tmp_path / "table.md").read_text()
    assert shown == f"{text}\n"
    head, _, *rows = (cells(line) for line in text.splitlines() if line.startswith("|"))
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["line"] for row in table] == [
        "one token a forward", "threshold", "FreeDave", real.ALONE, "DiffuSpec",
    ]  # fmt: skip
    plain, threshold, free_dave, _, diffu_spec = table
    assert free_dave["equal texts"] == "2 of 2 as one token a forward"
    assert diffu_spec["equal texts"] == f"2 of 2 as {real.ALONE}"
    assert plain["published"] == "0.89"
    assert float(plain["forwards"]) > float(free_dave["forwards"]) > float(threshold["forwards"])
    assert float(diffu_spec["of the target"]) < float(table[3]["of the target"])
    assert all(row["n"] == "2" and float(row["tokens/s"]) > 0 for row in table)
    assert "- command: python -m benchmarks real --target mini-ar" in text
    # The answers are there: nothing is decoded, so that the times are the same.
    real.main(words)
    again = (tmp_path / "table.md").read_text()
    assert re.sub("- date: .*", "", again) == re.sub("- date: .*", "", text)


def test_figures_belong_to_names_and_to_settings_that_there_are() -> None:
    assert real.published_for("checkpoints/LLaDA-8B-Instruct") == "llada-8b-instruct"
    assert real.published_for("Dream-org/Dream-v0-Base-7B") == "dream-v0-base"
    assert real.published_for("mini") == "mini"
    with pytest.raises(ValueError, match=r"'LLaDA2\.0-mini' says none of them"):
        real.published_for("LLaDA2.0-mini")
    for lines in real.PUBLISHED.values():
        names = [line.name for line in lines]
        assert len(names) == len(set(names))
        for line in lines:
            parse_task(line.task)
            assert line.same_as in ["", *names]
            assert bool(line.source) == (line.accuracy is not None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "folder"], "--published must be one of"),
        (["--published", "gpt"], "got 'gpt'"),
        (["--published", "llada-8b-instruct", "--gsm8k", "nowhere"], "got no such file"),
    ],
)
def test_wrong_words_are_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        real.main(words)
