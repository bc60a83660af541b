import json
from pathlib import Path

import pytest

from examples import llada_gsm8k as example


def test_without_a_sampler_it_compares_one_token_a_step_with_the_threshold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example.main(["--task", "word_problems?limit=6", "--num-rows", "4"])
    shown = capsys.readouterr().out
    assert "FixedSchedule" in shown
    assert "ConfidenceThreshold" in shown
    assert shown.count("Answer (") == 3
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    forwards = [float(cells[4]) for cells in rows if cells[4].strip()]
    assert len(forwards) == 2
    assert forwards[1] < forwards[0] / 2


def test_gsm8k_rows_of_a_local_folder_go_through_prompt_decode_and_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "ben has 3 shells . how many ?", "answer": "he has 3 .\n#### 3"}
    for split in ("train", "test"):
        lines = [json.dumps({**row, "question": f"{row['question']} {i}"}) for i in range(6)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    example.main(
        ["--task", f"gsm8k?protocol=llada&path={tmp_path}&num_fewshot=1&gen_length=32&limit=2",
         "--sampler", "LocalLeap()"]
    )  # fmt: skip
    assert "LocalLeap" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sampler", "Nope()"], "'Nope' is not known here"),
        (["--task", "gsm8k?path=nowhere"], "got no such file"),
        (["--device", "toaster"], "got 'toaster'"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        example.main(arguments)
    assert sentence in str(stopped.value)
