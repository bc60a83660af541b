from pathlib import Path

import pytest
from eval_runs import write_lines

from eval.runs.task_addresses import expand_patterns, parse_task
from eval.tasks import Gsm8k, Ledgers, ListTask
from eval.tasks.jsonl import JsonLines
from eval.tasks.lists import FIXED_LENGTH


def test_addresses_name_tasks_splits_and_options() -> None:
    ledgers = parse_task("ledgers?split=val&limit=7&min_steps=6")
    assert ledgers.task == Ledgers(min_steps=6)
    assert (ledgers.split, ledgers.limit, ledgers.examples_seed) == ("val", 7, 0)
    assert len(ledgers.examples()) == 7
    assert parse_task("lists/shuffle?n=6").task == ListTask("shuffle", 6)
    # It became a space, and the file was not found.
    odd = parse_task("gsm8k?path=/data/a+b c%26d%2541")
    assert odd.task == Gsm8k(path="/data/a+b c&d%41")
    # The address of a record could not be read again.
    assert parse_task(odd.address) == odd
    assert parse_task("gsm8k?path=x").task.prompts == "plain"
    assert parse_task("gsm8k?path=x&protocol=llada").task.prompts == "chat"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("word_problem", "A task must be one of"),
        ("lists/shufle", "keyword must be one of"),
        ("word_problems?limt=3", "has the options .* got 'limt'"),
        ("word_problems?limit", "name=value"),
        ("lists/copy?n=3&n=4", "each option once"),
        ("lists/copy?n=3.5", "n must be a whole number, got '3.5'"),
        ("gsm8k?num_fewshot=-1", "num_fewshot must be a whole number, at least 0, got -1"),
        ("gsm8k?protocol=mine", 'one of "lm_eval", "fast_dllm", .*got .mine'),
        ("gsm8k?split=val", "split must be one of train, test, got 'val'"),
        ("lists/copy?n=11", "n is a length from 2 to 10, got 11"),
        (f"lists/{FIXED_LENGTH[0]}?n=4", "one length only, got n=4; leave n out"),
        *((f"ledgers?min_steps={least}&max_steps={most}", "min_steps and max_steps must be")
          for least, most in ((1, 3), (4, 3), (5, 12))),
        ("word_problems?limit=0", "limit must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_wrong_addresses_are_refused(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_task(address).examples()


@pytest.mark.parametrize(
    "address",
    ["lists/pair_sum?limit=1000", "jsonl:own.jsonl?limit=1000", f"lists/copy?limit={10**9}"],
)
def test_too_many_examples_are_refused_alike(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task returned fewer, one raised, one never came back."""
    write_lines(tmp_path / "own.jsonl", '{"prompt": "a", "answer": "b"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"limit must be at most \d+.*, got 1000"):
        parse_task(address).examples()


def test_a_file_of_ones_own_is_a_task(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1+1?"}]
    path = write_lines(
        tmp_path / "own.jsonl",
        {"id": "a", "prompt": "two?", "answer": "Two", "level": 3},
        "",
        {"question": turns, "answer": 2},
    )
    selection = parse_task(f"jsonl:{path}?match=contains&gen_length=9")
    assert selection.task == JsonLines(path, "contains", 9)
    first, second = selection.examples()
    assert (first.id, first.prompt, first.target, first.meta) == ("a", "two?", "Two", {"level": 3})
    assert second.turns() == turns
    for match, example, text, score in (
        ("number", second, "so it is 3-1 = 2.", 1.0),
        ("number", second, "22", 0.0),
        ("auto", second, "so it is 3 - 1 #### 2", 1.0),
        ("exact", second, "#### 2", 0.0),
        ("auto", first, "  two\n", 1.0),
        ("contains", first, "all TWO of them", 1.0),
    ):
        assert JsonLines(path, match).score(example, text) == {"answer": score}, text
    assert len(JsonLines(path).examples(num_examples=1)) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"prompt": "a", "answer": "b"}', '{"prompt": "a", "ans'], "Line 2 .* must be JSON"),
        (['{"prompt": "a"}'], "Line 1 .* 'answer'"),
        (['{"prompt": ["a"], "answer": "b"}'], "Line 1 .* chat turns"),
        (['{"prompt": "a", "answer": true}'], r"Line 1 .* an 'answer' \(text or a number\)"),
        (["[1]"], "be JSON lines or a JSON list .* got `int`"),
        ([""], "a JSON list of them, got none; repair it"),
        (['{"prompt": "a", "answer": "b"}'] * 2, "distinct ids"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_task("jsonl:" + write_lines(tmp_path / "bad.jsonl", *lines)).examples()
    with pytest.raises(ValueError, match="no such file"):
        JsonLines(str(tmp_path / "none.jsonl")).examples()
    with pytest.raises(ValueError, match="match must be one of"):
        JsonLines("x", "nearly")


def test_a_pattern_names_the_tasks_that_match() -> None:
    assert expand_patterns(["lists/*_any?n=4&limit=3", "gsm8k"]) == (
        "lists/replace_any?n=4&limit=3", "lists/remove_any?n=4&limit=3",
        "lists/insert_any?n=4&limit=3", "gsm8k",
    )  # fmt: skip
    assert expand_patterns(["lists/[cr]o*", "ledgers?limit=2"]) == ("lists/copy", "ledgers?limit=2")
    # A file or a module may have any name.
    names = ("jsonl:[a]*.jsonl", "my_tasks:Own")
    assert expand_patterns(names) == names
    with pytest.raises(ValueError, match=r"'parallelbench/\*' must match a task.*FOLDER#\*'"):
        expand_patterns(["parallelbench/*"])
    with pytest.raises(ValueError, match="must match a task, got none"):
        expand_patterns(["shuffle*"])
