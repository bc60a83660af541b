"""`dllm-decode generate --input --output`, `--template` and `dllm-decode read`."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from served import wait_until

from dllm_decode import generate, load_model
from dllm_decode.cli.main import main

ROOT = Path(__file__).parents[2]
QUESTION = (
    "emma has 12 apples. emma finds 5 more apples and then gives 2 apples to ben. "
    "how many apples does emma have now?"
)
TEMPLATE = "emma now has [MASK:5] . after giving some away emma has [MASK:5] . #### [MASK]"
LINES: list[dict[str, Any]] = [
    {"text": QUESTION, "id": "a", "gen_length": 64},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
    {"text": QUESTION, "template": TEMPLATE},
    {"template": "emma has [MASK:3] apples .", "id": 7},
    {"text": QUESTION, "stop_strings": ["after"], "temperature": 0.5, "seed": 2},
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    source = tmp_path / "prompts.jsonl"
    source.write_text("\n\n".join(json.dumps(line) for line in LINES))
    return ["generate", "--input", str(source), "--output", str(tmp_path / "answers.jsonl")]


def answers(files: list[str]) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in Path(files[-1]).read_text().splitlines()]
    assert len({answer["line"] for answer in records}) == len(records)
    return {answer["line"]: answer for answer in records}


def test_a_file_of_prompts_is_answered_as_in_python(files: list[str]) -> None:
    assert main([*files[:1], "--num-rows", "2", *files[1:]]) == 0
    records = answers(files)
    assert sorted(records) == [1, 3, 5, 7, 9]
    assert [records[number]["id"] for number in (1, 7)] == ["a", 7]
    model, tokenizer = load_model("mini")
    texts = generate(model, tokenizer, QUESTION, gen_length=64).texts
    assert texts[0].endswith("#### 15")
    assert [records[1]["text"], records[3]["text"]] == texts * 2
    filled = generate(model, tokenizer, QUESTION, templates=TEMPLATE).texts
    assert [records[5]["text"]] == filled == texts
    assert "after" not in records[9]["text"]


def test_a_stopped_command_goes_on_where_it_stopped_with_the_same_settings(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(files) == 0
    complete, written = answers(files), Path(files[-1]).read_bytes()
    lines = written.splitlines(keepends=True)
    Path(files[-1]).write_bytes(b"".join(lines[:2]) + lines[2][:20])
    assert main(files) == 0
    assert answers(files) == complete
    assert "3 answers written to " in capsys.readouterr().err
    assert main(files) == 0
    assert "0 answers written" in capsys.readouterr().err
    written = Path(files[-1]).read_bytes()
    # A whole answer without a line end was cut, and decoded again.
    Path(files[-1]).write_bytes(written.rstrip(b"\n"))
    assert main(files) == 0
    assert "0 answers written" in capsys.readouterr().err
    assert Path(files[-1]).read_bytes() == written
    # Answers in bfloat16 were once taken for those in float32.
    for options in (["--sampler", "FixedSchedule(4)"], ["--dtype", "float32"]):
        assert main([*files, *options]) == 2
        assert "prompt or settings differ; choose another --output" in capsys.readouterr().err
        assert Path(files[-1]).read_bytes() == written
    # Nor was an answer of other settings kept if it had no line end.
    Path(files[-1]).write_bytes(written.rstrip(b"\n"))
    assert main([*files, "--seed", "7"]) == 2
    assert Path(files[-1]).read_bytes() == written.rstrip(b"\n")


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        ("my notes", "must be new, or hold lines that begin with"),
        ('{"text": "a question without a line end"}', "must have .* choose another --output"),
        ('{"line": 1, "important": true}', "must have .* choose another --output"),
    ],
)
def test_a_file_that_holds_something_else_is_never_cut(
    files: list[str], content: str, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single line without an end was taken for a torn answer, and the file was emptied."""
    target, source = Path(files[-1]), Path(files[2])
    target.write_text(content)
    assert main(files) == 2
    assert re.search(refusal, capsys.readouterr().err)
    assert target.read_text() == content
    source.write_text(content)
    assert main([*files[:-1], str(source)]) == 2
    assert "--output must be another file than --input" in capsys.readouterr().err
    assert source.read_text() == content


def test_a_byte_order_mark_is_no_part_of_a_file(files: list[str]) -> None:
    source = Path(files[2])
    source.write_text(json.dumps({"text": QUESTION, "gen_length": 8}), encoding="utf-8-sig")
    assert main(files) == 0
    assert sorted(answers(files)) == [1]


def test_answers_of_an_edited_plug_in_are_kept(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The old answers were taken for those of the edited code."""
    monkeypatch.syspath_prepend(tmp_path)
    rule = "from samplers import FixedSchedule\nclass Mine(FixedSchedule): pass\n"
    (tmp_path / "rule_of_files.py").write_text(rule)
    command = [*files, "--sampler", "rule_of_files:Mine(4)"]
    Path(files[2]).write_text(json.dumps(LINES[3]))
    assert main(command) == 0
    assert main(command) == 0
    (tmp_path / "rule_of_files.py").write_text(f"{rule}# edited\n")
    assert main(command) == 2
    assert "settings differ" in capsys.readouterr().err


def test_answers_of_another_chat_template_are_kept(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models were told apart by their weights alone."""
    model, _ = load_model("mini")
    folder = shutil.copytree(model.files[0].parent, tmp_path / "copied")
    Path(files[2]).write_text(json.dumps(LINES[0]))
    command = [*files, "--model", str(folder)]
    assert main(command) == main(command) == 0
    template = folder / "chat_template.jinja"
    template.write_text(f"{template.read_text()}.")
    assert main(command) == 2
    assert "settings differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"tex": "a"}', "must have the fields text, messages, template, constraint, id, st"),
        ('{"text": 5}', "must have 'text' in its official form: expected str | null, got int"),
        ('{"text": "a"', "must be JSON"),
        ('{"text": " "}', "must have a 'text' that is not blank; mend or remove the line"),
        ('{"text": "a", "messages": []}', "must have either 'text' or 'messages'"),
        ('{"id": 3}', "must have either 'text' or 'messages', or a 'template'"),
        ('{"text": "a", "temperature": -1}', "temperature must be at least 0, got -1.0."),
        ('{"template": "emma"}', "must have a blank"),
        ('{"template": "emma [MASK]", "gen_length": 2}', "must be left out with a template"),
    ],
)
def test_a_line_that_cannot_be_answered_is_named_before_anything_is_decoded(
    line: str, sentence: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(files[2])
    source.write_text('{"text": "emma has 5 apples ."}\n' + line)
    assert main(files) == 2
    error = capsys.readouterr().err
    assert f"Line 2 of {source}" in error
    assert sentence in error
    assert not Path(files[-1]).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--input", "a"], "--input and --output must be given together"),
        (["a", "--input", "a", "--output", "b"], "must be given without a text, --template"),
        (["--template", "[MASK]", "--gen-length", "8"], "must be left out with --template"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_template_is_filled_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", QUESTION, "--template", TEMPLATE]) == 0
    assert capsys.readouterr().out.strip().endswith("emma has 17 - 2 = 15 . #### 15")
    assert main(["generate", "--template", "emma has [MASK] apples ."]) == 0
    assert capsys.readouterr().out.endswith("apples .\n")


def test_choices_are_read_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = "emma now has 12 + 5 = [16|17] . after giving some away emma has 17 - 2 = [15|9] ."
    assert main(["read", text, "--question", QUESTION]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["17", "15"]
    assert lines[2].split()[0] == "17"
    assert float(lines[2].split()[2]) > 0.9


def test_a_stopped_command_says_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **options: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("dllm_decode.cli.prompt_files.answer_file", stop)
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"text": "hi"}\n')
    assert main(["generate", "--input", str(source), "--output", str(tmp_path / "answers")]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err


# Several processes divide a file.

NUM_PROMPTS = 120
DRAWN = ["--temperature", "0.8", "--gen-length", "16", "--num-rows", "16"]


@pytest.fixture
def divided(files: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that runs one rank, and gives its exit status."""
    asked: list[dict[str, Any]] = [
        {"text": QUESTION.replace("12", str(n % 90 + 1)), "id": n} for n in range(NUM_PROMPTS)
    ]
    for line in asked[::2]:
        line["temperature"] = 2.0
    Path(files[2]).write_text("\n".join(json.dumps(line) for line in asked))

    def run(rank: int, size: int, name: str = "answers.jsonl", *words: str) -> int:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        return main([*files[:-1], str(Path(files[-1]).with_name(name)), *(words or DRAWN)])

    return run


def joined(folder: Path, name: str = "answers") -> list[str]:
    """Returns the lines of all files of an output, as `cat` joins them, in order."""
    contents = "".join(file.read_text() for file in sorted(folder.glob(f"{name}.*jsonl")))
    lines = contents.splitlines()
    assert all(lines)
    return sorted(lines, key=lambda line: int(json.loads(line)["line"]))


def test_ranks_give_the_answers_of_one_process_and_another_number_of_ranks_goes_on(
    divided: Any, tmp_path: Path
) -> None:
    assert divided(0, 1, "alone.jsonl") == 0
    alone = joined(tmp_path, "alone")
    texts = [json.loads(line)["text"] for line in alone]
    assert len(texts) == NUM_PROMPTS
    # The noise is of the line: equal questions are answered differently.
    assert any(text != same for text, same in zip(texts, texts[90:], strict=False))
    assert [divided(rank, 2) for rank in range(2)] == [0, 0]
    parts = [tmp_path / f"answers.{rank}-of-2.jsonl" for rank in range(2)]
    written = [part.read_bytes().splitlines(keepends=True) for part in parts]
    assert [*map(len, written)] == [NUM_PROMPTS / 2] * 2
    assert joined(tmp_path) == alone
    # Rank 1 was killed while it wrote its eleventh answer.
    parts[1].write_bytes(b"".join(written[1][:10]) + written[1][10][:30])
    assert [divided(rank, 3) for rank in (2, 0, 1)] == [0, 0, 0]
    assert joined(tmp_path) == alone
    later = [(tmp_path / f"answers.{rank}-of-3.jsonl").read_text() for rank in range(3)]
    assert sum(text.count("\n") for text in later) == NUM_PROMPTS / 2 - 10
    assert min(map(len, later)) > 0
    # A process alone finds nothing to do.
    assert divided(0, 1) == 0
    assert not (tmp_path / "answers.jsonl").exists()


def test_ranks_of_another_run_are_refused_while_a_run_writes(
    divided: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = [(0, 2), (1, 3), (1, 2, "answers.jsonl", "--seed", "7"), (1, 2), (0, 2, "b.jsonl")]
    codes = []

    def meanwhile(*_: object, **options: object) -> None:
        if not codes:
            codes.append(0)
            codes.extend(divided(*other) for other in others)

    monkeypatch.setattr("dllm_decode.cli.prompt_files._decode", meanwhile)
    assert divided(0, 2) == 0
    assert codes == [0, 2, 2, 2, 0, 0]
    said = capsys.readouterr().err.splitlines()
    refusals = [line for line in said if "answers written" not in line]
    assert f"Another process writes {tmp_path / 'answers.0-of-2.jsonl'}; wait" in refusals[0]
    for refusal in refusals[1:]:
        assert "must have the same prompts, settings and number of ranks, got one with" in refusal
        assert "which holds .answers.jsonl.0-of-2." in refusal
    # Files of refused runs disturb nobody.
    assert divided(0, 1, "answers.jsonl", "--seed", "7") == 0


def test_answers_of_other_settings_are_found_in_the_files_of_other_ranks(
    divided: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"line": 1, "id": 0, "text": "", "token_ids": [], "finish_reason": "stop"}
    line = json.dumps({**answer, "forwards": 1, "key": "a"})
    (tmp_path / "answers.1-of-5.jsonl").write_text(f"{line}\n")
    assert divided(0, 2) == divided(0, 1) == 2
    assert capsys.readouterr().err.count("settings differ; choose another --output") == 2
    assert not [*tmp_path.glob("answers.0*")]


@pytest.mark.slow
def test_a_rank_that_is_killed_loses_and_doubles_nothing(
    files: list[str], divided: Any, tmp_path: Path
) -> None:
    assert divided(0, 1, "alone.jsonl") == 0
    part = tmp_path / "answers.1-of-2.jsonl"
    command = [sys.executable, "-m", "dllm_decode", *files, *DRAWN[:-1], "1"]
    environment = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=ROOT) as child:
        wait_until(lambda: part.exists() and part.read_bytes().count(b"\n") > 5, 300.0)
        child.kill()
    num_written = part.read_bytes().count(b"\n")
    assert 5 < num_written < NUM_PROMPTS / 2
    assert divided(0, 2) == divided(0, 3) == divided(1, 3) == divided(2, 3) == 0
    assert joined(tmp_path) == joined(tmp_path, "alone")
    assert part.read_bytes().count(b"\n") == num_written
