"""HumanEval and MBPP: reading, prompts, extraction, scores and the permission to run programs."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest
from eval_runs import write_lines

from dllm_decode.cli.main import main
from eval.commands import evaluate
from eval.runs.folder import Folder
from eval.runs.names import parse_task
from eval.runs.runner import execute
from eval.sandbox.code_runner import NO_CODE
from eval.sandbox.sandbox import Sandbox
from eval.tasks.checks import require_target_score
from eval.tasks.code import python_blocks
from eval.tasks.humaneval import HumanEval
from eval.tasks.mbpp import Mbpp

PYTHON = f"{shlex.quote(sys.executable)} -S -"
"""A runner that isolates nothing, because the programs of these tests are our own."""
QUICK = Sandbox(PYTHON, cpu_s=1, wall_s=10.0)
RIGHT = {"passed": 1.0, "loads": 1.0, "compiles": 1.0}
WRONG = {"passed": 0.0, "loads": 1.0, "compiles": 1.0}
BROKEN = {"passed": 0.0, "loads": 0.0, "compiles": 1.0}
NONSENSE = {"passed": 0.0, "loads": 0.0, "compiles": 0.0}

HALVES = {
    "task_id": "Own/0",
    "prompt": "def half(n: int) -> int:\n    return n // 2\n\n\ndef halves(n: int) -> int:\n"
    '    """Count how often half of n can be taken before it is 0.\n    """\n',
    "canonical_solution": "    return 0 if n == 0 else 1 + halves(half(n))\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(0) == 0\n"
    "    assert candidate(8) == 4\n",
    "entry_point": "halves",
}


def chore(number: int, **others: Any) -> dict[str, Any]:
    return {
        "task_id": number,
        "text": f"Write a function to add {number}.",
        "code": f"def add(x):\r\n    return x + {number}",
        "test_list": [f"assert add(0) == {number}", f"assert add(1) == {number + 1}"],
        "test_setup_code": "",
        **others,
    }


@pytest.fixture
def humaneval(tmp_path: Path) -> str:
    return write_lines(tmp_path / "HumanEval.jsonl", HALVES)


@pytest.fixture
def mbpp(tmp_path: Path) -> str:
    numbers = (1, 2, 3, 4, 10, 11, 12, 510, 511, 600, 601, 974)
    return write_lines(tmp_path / "mbpp.jsonl", *map(chore, numbers))


@pytest.mark.parametrize("command", ["train-filter", "distil"])
@pytest.mark.parametrize(
    ("allowed", "sentence"),
    [
        ([], "give --allow-code"),
        (["--allow-code", "--code-runner", PYTHON], "block_length must be"),
    ],
)
def test_training_asks_for_the_permission_that_it_can_be_given(
    command: str, allowed: list[str], sentence: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """train-filter had no --allow-code."""
    problems = (
        HALVES | {"task_id": f"Own/{i}", "prompt": f"# {i}\n{HALVES['prompt']}"} for i in range(12)
    )
    file = write_lines(tmp_path / "HumanEval.jsonl", *problems)
    words = [command, "--task", f"humaneval?path={file}", "--output", str(tmp_path / "run" / "out")]
    # The block length is refused when the model is loaded, which is after the asking.
    assert main([*words, "--block-length", "7000", *allowed]) == 2
    assert sentence in capsys.readouterr().err


def test_splits_of_mbpp_go_by_number(mbpp: str) -> None:
    by_split = {split: [e.id for e in Mbpp(mbpp).examples(split)] for split in Mbpp.splits}
    numbers = {split: [int(i[5:].split("-")[0]) for i in ids] for split, ids in by_split.items()}
    assert numbers == {
        "test": [11, 12, 510], "val": [511, 600], "train": [601, 974], "prompt": [1, 2, 3, 4, 10],
    }  # fmt: skip


def test_plain_prompts_are_continued_by_the_answer(humaneval: str, mbpp: str) -> None:
    assert HumanEval(humaneval).examples()[0].prompt == HALVES["prompt"]
    prompt = Mbpp(mbpp).examples()[0].prompt
    assert isinstance(prompt, str)
    *shown, last, rest = prompt.split("[BEGIN]\n")
    assert rest == ""
    assert last.endswith("add 11. These tests must pass:\n\nassert add(0) == 11\n"
                         "assert add(1) == 12\n")  # fmt: skip
    numbers = [text.partition("to add ")[2].partition(".")[0] for text in (*shown, last)]
    assert numbers == ["2", "3", "4", "11"]
    assert "def add(x):\n    return x + 2\n[DONE]\n\n" in prompt
    assert "\r" not in prompt
    assert Mbpp(mbpp, num_fewshot=0).examples()[0].prompt == last.rpartition("[DONE]\n\n")[2] + (
        "[BEGIN]\n"
    )


def test_instructions_are_turns_that_end_with_the_users(humaneval: str, mbpp: str) -> None:
    (turn,) = HumanEval(humaneval, protocol="instruct").examples()[0].turns()
    assert turn["role"] == "user"
    assert f"```python\n{HALVES['prompt']}```" in turn["content"]
    turns = Mbpp(mbpp, protocol="instruct").examples()[0].turns()
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3 + ["user"]
    assert turns[1]["content"] == "```python\ndef add(x):\n    return x + 2\n```"
    assert "BEGIN" not in str(turns)


def test_a_problem_is_never_its_own_demonstration(mbpp: str) -> None:
    for example in Mbpp(mbpp, num_fewshot=4).examples("prompt"):
        number = int(example.id[5:].split("-")[0])
        assert str(example.prompt).count("[BEGIN]") == 5
        assert str(example.prompt).count(f"Write a function to add {number}.") == 1
    with pytest.raises(ValueError, match=r"num_fewshot must be at most .* 1 to 10, 5, got 6"):
        Mbpp(mbpp, num_fewshot=6).examples()


@pytest.mark.parametrize("protocol", ["lm_eval", "instruct"])
def test_right_answers_pass_and_wrong_ones_do_not(humaneval: str, mbpp: str, protocol: str) -> None:
    for path, kind in ((humaneval, HumanEval), (mbpp, Mbpp)):
        task = kind(path, protocol, sandbox=QUICK)
        example = task.examples()[0]
        require_target_score(task.name, task, example)
        assert task.score(example, example.target) == RIGHT
        wrong = example.target.replace("return ", "return 1 if 0 else None and ")
        assert task.score(example, wrong) == WRONG
        assert task.score(example, "")["passed"] == 0.0


def test_a_plain_answer_ends_where_something_new_begins(humaneval: str, mbpp: str) -> None:
    task = HumanEval(humaneval, sandbox=QUICK)
    example = task.examples()[0]
    for start in ("class Odd:", "def main():", "# Test", "if True:", "print(halves(1))"):
        text = f"{example.target}\n{start}\n   1 / 0 ("
        assert task.program(example, text) == f"{HALVES['prompt']}{example.target}"
    assert task.score(example, example.target + "\n1 / 0") == BROKEN
    assert task.score(example, "    pass\ncheck = lambda candidate: None\n") == WRONG
    of_mbpp = Mbpp(mbpp, sandbox=QUICK)
    example = of_mbpp.examples()[0]
    assert of_mbpp.score(example, example.target + "\nThis is no Python.") == RIGHT
    assert of_mbpp.score(example, "This is no Python.") == NONSENSE


def test_an_answer_in_a_fence_is_found_among_words(humaneval: str, mbpp: str) -> None:
    task = HumanEval(humaneval, "instruct", sandbox=QUICK)
    example = task.examples()[0]
    program = "def halves(n):\n    return n.bit_length()\n"
    uses_helper = "def halves(n):\n    return 0 if n == 0 else 1 + halves(half(n))\n"
    body = "    return n.bit_length()\n"
    for answer in (
        f"First\n```bash\nls\n```\nthen\n```\nhalves(8)\n```\nand\n```py\n{program}```",
        f"``` Python \n{uses_helper}",
        f"```\n{body}```",
        program,
    ):
        assert task.score(example, answer) == RIGHT, answer
    assert python_blocks("```\na\n```\n```js\nb\n```\n") == ["a\n"]
    assert task.score(example, "I cannot do this.") == NONSENSE
    of_mbpp = Mbpp(mbpp, "instruct", sandbox=QUICK)
    example = of_mbpp.examples()[0]
    answer = f"Here:\n{example.target}\nUse it so:\n```python\n1 / 0\n```"
    assert of_mbpp.score(example, answer) == RIGHT
    # In chat, also around the answer to a plain prompt.
    task = HumanEval(humaneval, "fast_dllm", sandbox=QUICK)
    example = task.examples()[0]
    assert task.score(example, example.target) == RIGHT
    assert task.score(example, f"Sure:\n```python\n{program}```") == RIGHT


@pytest.mark.parametrize(
    "answer",
    [
        "{code}```", "{code}```\nThis halves n.", "Here it is: ```python\n{code}```",
        "Here it is: ```\n{code}```\nand more", '```python title="a.py"\n{code}```',
        "````python\n{code}````", "~~~python\n{code}~~~", "<think>\n```python\n{code}```",
        "1. So:\n   ```python\n   {indented}   ```\n2. Done", "1. So:\n   ```python\n{code}```",
        "- ```py\n{code}```", "> ```\n> {quoted}\n> ```", "```\n{code}", "Sure:\n```python\n{code}",
        "      ```python\n      {deep}      ```", "```text\nwords\n```\n```python\n{code}```",
    ],
)  # fmt: skip
def test_fences_of_all_kinds_hold_the_program(answer: str) -> None:
    code = "def halves(n):\n    return n.bit_length()\n"
    indented, deep = code.replace("\n    ", "\n       "), code.replace("\n    ", "\n          ")
    quoted = code.strip().replace("\n", "\n> ")
    text = answer.format(code=code, indented=indented, deep=deep, quoted=quoted)
    assert python_blocks(text)[0] == code


def test_set_up_and_imports_of_mbpp_are_run(tmp_path: Path) -> None:
    rows = [
        chore(11, test_setup_code="start = Box(5)", test_list=["assert start.x == 5"],
              code="class Box:\n    def __init__(self, x):\n        self.x = x"),
        {"task_id": 12, "prompt": "Write a function to halve.", "source_file": "own",
         "code": "def halve(x):\n    return x / 2", "test_imports": ["import math"],
         "test_list": ["assert math.isclose(halve(3), 1.5)"]},
    ]  # fmt: skip
    path = write_lines(tmp_path / "sanitized-mbpp.json", rows)
    task = Mbpp(path, num_fewshot=0, sandbox=QUICK)
    assert [task.score(example, example.target) for example in task.examples()] == [RIGHT] * 2
    assert "Write a function to halve." in str(task.examples()[1].prompt)


def test_addresses_name_the_tasks_but_give_no_permission(humaneval: str) -> None:
    selection = parse_task(f"humaneval?path={humaneval}&protocol=instruct")
    assert selection.task == HumanEval(humaneval, "instruct", sandbox=NO_CODE)
    assert parse_task("mbpp?num_fewshot=0&gen_length=9").task == Mbpp(num_fewshot=0, gen_length=9)
    assert (selection.task.prompts, parse_task("mbpp").task.prompts) == ("chat", "plain")
    assert parse_task("lists/copy", QUICK) == parse_task("lists/copy")
    with pytest.raises(ValueError, match=r"has the options .*, got 'sandbox'"):
        parse_task("humaneval?sandbox=1")


def test_without_permission_nothing_is_decoded(humaneval: str, tmp_path: Path) -> None:
    """The permission changes no key."""
    (run,) = eval_runs.runs(task=f"humaneval?path={humaneval}", samplers=(eval_runs.Fussy(-1),))
    with pytest.raises(ValueError, match=r"humaneval is scored by running .* --allow-code"):
        execute([run], tmp_path / "out")
    assert run.model.num_forwards == 0
    assert not (tmp_path / "out").exists()
    task = HumanEval(humaneval)
    with pytest.raises(ValueError, match="needs your permission, got none"):
        task.score(task.examples()[0], "")
    allowed = parse_task(run.selection.address, QUICK)
    assert allowed.task != run.selection.task
    assert allowed.address == run.selection.address
    settings = run.settings(run.selection.examples())
    assert settings == replace(run, selection=allowed).settings(allowed.examples())


def test_the_command_line_decodes_and_scores_only_if_told_to(
    mbpp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model knows no Python: every answer is wrong, none is an error."""
    out = str(tmp_path / "out")
    command = [
        "run", f"mbpp?path={mbpp}&limit=2", out, "--sampler", "FixedSchedule(4)",
        "--gen-length", "16", "--no-trace",
    ]  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(
            "dllm_decode.settings.models.load_model", lambda *_, **__: pytest.fail("loaded")
        )
        assert evaluate(command) == 2
        assert "mbpp is scored by running programs" in capsys.readouterr().err
        assert evaluate([*command, "--allow-code", "--code-runner", "no-such-one"]) == 2
        message = capsys.readouterr().err
    assert "no-such-one: not installed" in message
    assert "install bubblewrap" in message
    assert not Path(out).exists()
    assert evaluate([*command, "--allow-code", "--code-runner", PYTHON]) == 0
    records = Folder(out).records()
    assert [(record["error"], record["scores"]["passed"]) for record in records] == [
        (None, 0.0)
    ] * 2


@pytest.mark.parametrize(
    ("name", "published"),
    [("fast_dllm", ("chat", 3, 256, 32)), ("llada_base", ("plain", 3, 1024, 1024))],
)
def test_a_name_is_its_setting(mbpp: str, name: str, published: tuple[str, int, int, int]) -> None:
    task = Mbpp(mbpp, name)
    assert (task.prompts, task.num_fewshot, task.gen_length, task.block_length) == published
    assert str(task.examples()[0].prompt).count("These tests must pass") == task.num_fewshot + 1
