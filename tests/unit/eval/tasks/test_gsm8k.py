"""GSM8K: reading, prompts and answer extraction."""

import json
from pathlib import Path

import pytest

from eval.tasks.gsm8k import Gsm8k, flexible_answer, strict_answer

OFFICIAL = Path(__file__).parents[5] / "shared" / "data" / "gsm8k"


def row(i: int) -> dict[str, str]:
    return {
        "question": f"Ann has {i} pens and finds {i} more. How many pens?",
        "answer": f"Ann has {i}+{i}=<<{i}+{i}={2 * i}>>{2 * i} pens.\n#### {2 * i}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, numbers in (("test", range(1000, 1006)), ("train", range(1, 13))):
        text = "".join(json.dumps(row(i)) + "\n" for i in numbers)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so it is 5\n#### 18", "18", "18"),
        ("#### 1,234", "1234", "1234"),
        ("she pays $1,234.", None, "1234"),
        ("it is -3", None, "-3"),
        ("#### -3 and then 7", "-3", "7"),
        ("#### 18.00", "18.00", "18.00"),
        ("#### 5 #### 6", "5", "6"),
        ("no number", None, None),
        ("3 or 4", None, "4"),
        ("", None, None),
    ],
)
def test_numbers_are_extracted(text: str, strict: str | None, flexible: str | None) -> None:
    assert strict_answer(text) == strict
    assert flexible_answer(text) == flexible


def test_a_folder_and_a_file_give_the_same_examples(folder: Path) -> None:
    by_folder = Gsm8k(str(folder)).examples()
    assert by_folder == Gsm8k(str(folder / "test.jsonl")).examples()
    assert [e.meta["row"] for e in by_folder] == list(range(6))
    # The file has 1000+1000=<<1000+1000=2000>>2000.
    assert by_folder[0].target == "Ann has 1000+1000=2000 pens.\n#### 2000"


def test_the_plain_prompt_has_demonstrations_drawn_anew(folder: Path) -> None:
    first, second = Gsm8k(str(folder)).examples(num_examples=2)
    assert isinstance(first.prompt, str)
    assert first.prompt.count("Question: ") == 6
    assert first.prompt.endswith(
        "Question: Ann has 1000 pens and finds 1000 more. How many pens?\nAnswer:"
    )
    assert str(second.prompt).split("Question: ")[1:-1] != first.prompt.split("Question: ")[1:-1]


def test_a_prompt_does_not_depend_on_the_other_examples(folder: Path) -> None:
    task = Gsm8k(str(folder))
    every = {e.id: e for e in task.examples()}
    chosen = task.examples(num_examples=3, seed=4)
    assert len(chosen) == 3
    assert all(every[e.id] == e for e in chosen)


@pytest.mark.parametrize("protocol", ["lm_eval", "llada"])
def test_a_question_is_never_its_own_demonstration(folder: Path, protocol: str) -> None:
    for example in Gsm8k(str(folder), num_fewshot=4, protocol=protocol).examples("train"):
        question = row(example.meta["row"] + 1)["question"]
        text = "".join(turn["content"] for turn in example.turns())
        assert text.count(question) == 1
        assert text.count("Question: ") == 5


def test_the_answer_is_cut_where_the_next_question_starts(folder: Path) -> None:
    task = Gsm8k(str(folder), num_fewshot=0)
    example = task.examples(num_examples=1)[0]
    text = f"{example.target}\n\nQuestion: and 5?\nAnswer: 5\n#### 5"
    assert task.score(example, text) == {"answer": 1.0, "answer_flexible": 1.0}
    assert task.score(example, "#### 1999") == {"answer": 0.0, "answer_flexible": 0.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", ', r"Line 2 of .* must be a JSON object, got .*; repair or remove"),
        ('{"question": "a"}', r"Line 2 of .* 'question' and 'answer', got \['question'\]"),
        ('{"question": 3, "answer": "#### 1"}', r"Line 2 of .* must have the texts"),
        ("[1]", r"Line 2 of .* must be a JSON object, got \[1\]"),
        ('{"question": "a", "answer": "b"}', r"Line 2 of .* ends with '#### number', got 'b'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        Gsm8k(str(path), num_fewshot=0).examples()


def test_an_empty_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="got no line; download it again"):
        Gsm8k(str(tmp_path), num_fewshot=0).examples()
    with pytest.raises(ValueError, match=r"got no such file; download train\.jsonl"):
        Gsm8k(str(tmp_path)).examples("train")


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    """JSON text may hold U+2028 unescaped; it must not split a row in two."""
    fields = {"question": "one\u2028two", "answer": "#### 1"}
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(fields, ensure_ascii=False) + "\n", encoding="utf-8")
    assert len(Gsm8k(str(path), num_fewshot=0).examples()) == 1


def test_too_many_examples_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"limit must be at most 6, .* got 7"):
        Gsm8k(str(folder)).examples(num_examples=7)
    with pytest.raises(ValueError, match="number of training rows, 12, got 12"):
        Gsm8k(str(folder), num_fewshot=12).examples()


def test_without_a_path_and_offline_the_remedy_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match="got ConnectionError; give path="):
        Gsm8k(num_fewshot=0).examples()


def test_without_the_package_the_remedy_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match="install it or give path="):
        Gsm8k(num_fewshot=0).examples()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="protocol must be one of lm_eval"):
        Gsm8k(protocol="mine")
    with pytest.raises(ValueError, match="num_fewshot must be at least 0, got -1"):
        Gsm8k(num_fewshot=-1)
    with pytest.raises(ValueError, match="gen_length must be at least 1, got 0"):
        Gsm8k(gen_length=0)


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the official files are not here")
def test_every_official_answer_is_extracted_both_ways() -> None:
    task = Gsm8k(str(OFFICIAL), num_fewshot=0)
    examples = task.examples()
    assert len(examples) == 1319
    assert all(set(task.score(e, e.target).values()) == {1.0} for e in examples)
    assert all(e.meta["answer"].lstrip("-").isdigit() for e in examples)
