"""ParallelBench checkouts of both versions, with content of our own."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest
from eval_runs import TOKENIZER, write_lines

from eval.commands import evaluate
from eval.runs.runner import execute
from eval.runs.task_addresses import digest_of_examples, expand_patterns, parse_task
from eval.tasks import ParallelBench
from eval.tasks.parallelbench_scores import SCORERS, official_items, strict_items

yaml = pytest.importorskip("yaml")

QUEUE = ["Ada Lee", "Bo Ruiz", "Cy Abel"]
SHOWN = ["Di Moss", "Ed Nash"]


def demonstrated(**given: Any) -> dict[str, Any]:
    shown = {"input": {**given, "context": json.dumps(SHOWN)}, "answer": json.dumps(SHOWN[::-1])}
    return {**given, "context": json.dumps(QUEUE), "icl_examples": [shown]}


REVERSED = {"input": demonstrated(), "answer": json.dumps(QUEUE[::-1])}
INSERTED = {
    "input": demonstrated(word="Gus Orr"),
    "answer": {"input": QUEUE, "word": "Gus Orr", "example": json.dumps([*QUEUE, "Gus Orr"])},
}
SUDOKU = {"input": {"sudoku": "1234\n3412\n0000\n0000"}, "answer": "1234\n3412\n2143\n4321"}
SENTENCE = {
    "input": {"words": "row, and dock"}, "answer": {"words": ["row", "dock"], "example": None}
}  # fmt: skip
TASKS: Mapping[str, tuple[str, str, list[dict[str, Any]]]] = {
    "waiting_line/reverse": ("Turn round:\\n{context}", "list_match_score", [REVERSED, REVERSED]),
    "waiting_line/insert_random": (
        "Put {word} somewhere: {context}", "list_random_insert_score", [INSERTED],
    ),
    "puzzles/sudoku_n4_12": ("Solve\\n{sudoku}", "sudoku_score", [SUDOKU]),
    "text_writing/words_to_sentence_easy": (
        "A sentence with {words}", "sentence_to_words_score", [SENTENCE],
    ),
}  # fmt: skip


def write_files(folder: Path) -> Path:
    """Writes tasks as both versions write them, with a `task_config.yaml`."""
    for name, (prompt, metric, rows) in TASKS.items():
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_lines(file, *rows)
        config = file.parent / "task_config.yaml"
        tasks = yaml.safe_load(config.read_text()) if config.exists() else {}
        tasks[name] = {"prompt": prompt, "metric": metric, "num_samples": len(rows)}
        config.write_text(yaml.dump(tasks))
    return folder


def write_hub(folder: Path) -> None:
    """Writes tasks as the hub's copy holds them: every field a text."""
    datasets = pytest.importorskip("datasets")
    for name, (prompt, metric, rows) in TASKS.items():
        packed = []
        for row in rows:
            answer = row["answer"]
            label = answer if isinstance(answer, str) else json.dumps(answer)
            packed.append({"input": json.dumps(row["input"]), "answer": label,
                           "output_format": None, "prompt": prompt, "metric": metric})  # fmt: skip
        task_folder = folder / name.replace("/", "-", 1)
        task_folder.mkdir(parents=True)
        table = datasets.Dataset.from_list(packed)
        table.to_parquet(task_folder / "test-00000-of-00001.parquet")


@pytest.fixture(params=["v1", "v2 generated", "v2 of the hub"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same tasks in each layout."""
    if request.param == "v1":
        write_files(tmp_path / "dataset/parallel_bench/data/output/test")
    elif request.param == "v2 generated":
        write_files(tmp_path / "test")
    else:
        write_hub(tmp_path)
    return tmp_path


def test_every_layout_gives_the_same_prompts_and_labels(checkout: Path) -> None:
    task = parse_task(f"parallelbench:{checkout}#waiting_line/reverse?limit=1").task
    first, second = task.examples()
    assert first.prompt == [
        {"role": "user", "content": 'Turn round:\n["Di Moss", "Ed Nash"]'},
        {"role": "assistant", "content": '["Ed Nash", "Di Moss"]'},
        {"role": "user", "content": 'Turn round:\n["Ada Lee", "Bo Ruiz", "Cy Abel"]'},
    ]
    assert first.target == '["Cy Abel", "Bo Ruiz", "Ada Lee"]'
    assert first.id != second.id
    assert first.meta["label"] == first.target
    assert (task.gen_length, task.name) == (32, "parallelbench/waiting_line/reverse")
    inserted = ParallelBench(str(checkout), "waiting_line/insert_random").examples()[0]
    assert inserted.turns()[-1]["content"] == f"Put Gus Orr somewhere: {json.dumps(QUEUE)}"
    assert inserted.meta["label"]["input"] == QUEUE
    assert inserted.target == json.dumps([*QUEUE, "Gus Orr"])
    for name in TASKS:
        task = ParallelBench(str(checkout), name)
        example = task.examples()[0]
        # The reference of words is the words, and grammar is a matter of an optional package.
        shown = "included" if "words" in name else "answer"
        assert task.score(example, example.target)[shown] == 1.0
        assert task.score(example, "")[shown] == 0.0


def test_answers_to_v2_end_at_a_blank_line_and_those_to_v1_do_not(tmp_path: Path) -> None:
    write_files(tmp_path / "old/dataset/parallel_bench/data/output/test")
    write_files(tmp_path / "new/test")
    answer = f"{json.dumps(QUEUE[::-1])}\n\nOr else [no]."
    for version, score in (("old", 0.0), ("new", 1.0)):
        task = ParallelBench(str(tmp_path / version), "waiting_line/reverse")
        assert task.score(task.examples()[0], answer)["answer"] == score


def test_a_wrong_folder_or_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"from a folder, got .*nowhere.*give a checkout"):
        ParallelBench(str(tmp_path / "nowhere"), "waiting_line/copy").examples()
    with pytest.raises(ValueError, match=r"holds no task .*hub's furiosa-ai/ParallelBench"):
        ParallelBench(str(tmp_path), "waiting_line/copy").examples()
    write_files(tmp_path / "test")
    with pytest.raises(ValueError, match=r"has the tasks puzzles/sudoku_n4_12, .*, got 'copy'"):
        ParallelBench(str(tmp_path), "copy").examples()
    with pytest.raises(ValueError, match="parallelbench:<folder>#<task>, such as"):
        parse_task("parallelbench:waiting_line/copy")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"input": {}}', r"must have an 'input' and an 'answer', got \['input'\]"),
        ('{"input": "x", "answer": "y"}', "must be in its official form: expected object"),
        ('{"input": "{x", "answer": "y"}', "must be JSON, got"),
        ('{"input": {}, "answer": "y"}', r"has what its prompt names, got \[\]"),
        ('{"input": {"icl_examples": [{}]}, "answer": "y"}', "a field 'input' in 'icl_examples"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    write_files(tmp_path / "test")
    write_lines(tmp_path / "test/waiting_line/reverse.jsonl", REVERSED, line)
    with pytest.raises(ValueError, match=f"Line 2 of .*{message}"):
        ParallelBench(str(tmp_path), "waiting_line/reverse").examples()


def test_a_label_without_its_fields_and_a_broken_config_are_named(tmp_path: Path) -> None:
    write_files(tmp_path / "test")
    label = {"word": "Gus Orr"}
    write_lines(tmp_path / "test/waiting_line/insert_random.jsonl", {**INSERTED, "answer": label})
    with pytest.raises(ValueError, match=r"Line 1 of .* with the fields input, word, got"):
        ParallelBench(str(tmp_path), "waiting_line/insert_random").examples()
    config = tmp_path / "test/waiting_line/task_config.yaml"
    for text, message in (
        ("waiting_line/reverse: {metric: none}", "yaml must have a field .prompt., got none"),
        ("a: [", r"task_config\.yaml is not valid YAML"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=message):
            ParallelBench(str(tmp_path), "waiting_line/reverse").examples()


@pytest.mark.parametrize(
    ("text", "official", "strict"),
    [
        ('Sure: ["A B", "C"] .', ["A B", "C"], ["A B", "C"]),
        ("[A B,C]", ["A B", "C"], None),
        ('["A B","C"]', ["A B", "C"], None),
        ("A, B", ["A", "B"], None),
        ('["A"] or ["B"]', ["B"], ["B"]),
        ('["A", "B"', ["A", "B"], None),
        ('["A" "B"]', ['A" "B'], None),
        ("[]", [], None),
        ("['A', 'B']", ["'A'", "'B'"], None),
        ('["A",\t"B",\n"C"]', ["A", '\t"B', '\n"C'], None),
        ('["A", "", "B"]', ["A", "", "B"], ["A", "", "B"]),
        ('["A, B"]', ["A", "B"], None),
    ],
)
def test_lists_are_read_as_upstream_and_strictly(
    text: str, official: list[str], strict: list[str] | None
) -> None:
    """Single quotes, tabs and line breaks were stripped, so that wrong answers scored 1."""
    assert official_items(text) == official
    assert strict_items(text) == strict


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [
        ("list_match_score", ["abc"], ["bac", "ab"]),
        ("list_shuffle_score", ["bac"], ["abc", "ab", "aac"]),
        ("list_random_insert_score", ["wabc", "abcw"], ["abc", "wbac", "wabcw"]),
        ("list_random_remove_score", ["ab", "bc"], ["ba", "a", "ad"]),
        ("list_random_replace_score", ["wbc", "abw"], ["abc", "wwc", "abcw"]),
    ],
)
def test_list_scorers_follow_the_rule(metric: str, right: list[str], wrong: list[str]) -> None:
    """A letter is an item."""
    label: Any = {"input": ["a", "b", "c"], "word": "w"}
    label = '["a", "b", "c"]' if metric == "list_match_score" else label
    score = SCORERS[metric].score
    for items in right:
        assert score(json.dumps([*items]), {}, label) == {"answer": 1.0, "answer_strict": 1.0}
        assert score(f"[{','.join(items)}]", {}, label) == {"answer": 1.0, "answer_strict": 0.0}
    for items in wrong:
        assert score(json.dumps([*items]), {}, label) == {"answer": 0.0, "answer_strict": 0.0}


@pytest.mark.parametrize(
    ("metric", "label", "items", "wanted"),
    [
        # The first occurrence of the new word is taken out, and of each missing name.
        ("insert", {"input": ["w", "a"], "word": "w"}, ["w", "a", "w"], 0.0),
        ("insert", {"input": ["a", "w"], "word": "w"}, ["w", "a", "w"], 1.0),
        ("insert", {"input": ["a", "b"], "word": ["v", "w"]}, ["w", "a", "v", "b"], 1.0),
        ("insert", {"input": ["a", "b"], "word": ["v", "w"]}, ["w", "a", "b"], 0.0),
        ("insert", {"input": ["a", "b"], "word": None, "n_words": 2}, ["a", "c", "b", "d"], 1.0),
        ("remove", {"input": ["a", "b", "a"]}, ["b", "a"], 0.0),
        ("remove", {"input": ["a", "b", "a"]}, ["a", "a"], 1.0),
        ("remove", {"input": ["a", "b", "c"], "n_words": 2}, ["b"], 1.0),
        ("remove", {"input": ["a", "b", "c"], "n_words": 2}, ["b", "c"], 0.0),
        # The word replaces the item at the place where the answer has it first.
        ("replace", {"input": ["w", "b", "c"], "word": "w"}, ["w", "b", "w"], 0.0),
        ("replace", {"input": ["a", "b", "w"], "word": "w"}, ["w", "b", "w"], 1.0),
        ("replace", {"input": ["a", "b", "c"], "word": None, "n_words": 2}, ["a", "x", "y"], 1.0),
        ("replace", {"input": ["a", "b", "c"], "word": None}, ["a", "x", "y"], 0.0),
    ],
)
def test_repeated_names_and_several_changes_are_scored_as_upstream(
    metric: str, label: dict[str, Any], items: list[str], wanted: float
) -> None:
    """Any place was tried, so that answers scored 1 where upstream's functions say 0."""
    scores = SCORERS[f"list_random_{metric}_score"].score(json.dumps(items), {}, label)
    assert scores == {"answer": wanted, "answer_strict": wanted}


SQUARE = "A,B,C\nB,C,A\nC,A,B"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (SQUARE, 1.0),
        (f"Here:\n{SQUARE.replace(',', ', ')}\n\nDone", 1.0),
        # Upstream compares sets of cells, and columns end with the shortest row.
        ("A,B,C,A\nB,C,A\nC,A,B", 1.0),
        ("A,A,B,C\nB,C,A\nC,A,B", 0.0),
        ("A,B,C\nB,C,A\nA,B,C", 0.0),
        ("A,B,C\nB,C,A", 0.0),
        ("", 0.0),
    ],
)
def test_latin_squares_are_scored_as_upstream(text: str, answer: float) -> None:
    scores = SCORERS["latin_square_score"].score(text, {}, {"symbols": ["C", "A", "B"]})
    assert scores == {"answer": answer}


def test_a_latin_square_begins_with_the_first_row_of_the_label() -> None:
    score = SCORERS["latin_square_score"].score
    label = {"symbols": ["A", "B", "C"], "first_row": ["A", "B", "C"]}
    assert score(SQUARE, {}, label) == {"answer": 1.0}
    assert score("B,C,A\nA,B,C\nC,A,B", {}, label) == {"answer": 0.0}
    # A text equals no list of cells, there as here.
    assert score(SQUARE, {}, {**label, "first_row": "A,B,C"}) == {"answer": 0.0}


STORED = "1234\n3412\n2143\n4321"


@pytest.mark.parametrize("given", [{"sudoku": "1234\n3412\n0000\n0000"},
                                   {"puzzle": "1234\n3412\n____\n____"}])  # fmt: skip
def test_the_stored_solution_of_a_sudoku_is_right_as_upstream(given: dict[str, str]) -> None:
    """`answer` took any solution, so that a figure was not upstream's."""
    score = SCORERS["sudoku_score"].score
    for text, scores in (
        (STORED, (1.0, 1.0, 1.0)),
        ("Solved:\n1 2 3 4\n3,4,1,2\n2 1 4 3\n4 3 2 1", (1.0, 0.0, 1.0)),
        # Another solution of the same puzzle.
        ("1234\n3412\n4321\n2143", (0.0, 0.0, 1.0)),
        # Wrong columns or rows, a solved grid of another puzzle, and no grid.
        *((text, (0.0, 0.0, 0.0)) for text in (
            "1234\n3412\n2143\n4312", "1234\n3412\n2143\n2143", "4321\n2143\n3412\n1234",
            "1234\n3412\n2143", f"{STORED}\n1234", "")),
    ):  # fmt: skip
        scored = score(text, given, STORED)
        assert tuple(scored) == ("answer", "answer_strict", "any_solution")
        assert tuple(scored.values()) == scores, text
    # Rows and columns are right, boxes are not.
    square = "1234\n2341\n3412\n4123"
    assert score(square, {"sudoku": "1000\n0000\n0000\n0000"}, STORED)["any_solution"] == 0.0
    assert set(score(STORED, {"size": 9}, "").values()) == {None}


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges without packages: no mistake but in "teh", BERTScore 0.5, ROUGE-L 0.75, BLEU 0.2."""
    rouges = {"rouge1": 1.0, "rouge2": 0.5, "rougeL": 0.75}
    for name, judge in {
        "grammar": lambda text: float(bool(text.strip()) and "teh" not in text),
        "bert_score": lambda text, reference: 0.5,
        "rouge": lambda text, reference: rouges, "bleu": lambda text, reference: 0.2,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"eval.tasks.parallelbench_scores.{name}", judge)


@pytest.mark.usefixtures("judges")
def test_writing_is_scored_as_upstream_by_products_with_grammar() -> None:
    sentence = SCORERS["sentence_to_words_score"].score
    label: dict[str, Any] = {"words": ["row", "dock"]}
    for text, answer, included in (
        ("She rows past the dock.", 1.0, 1.0),
        # Upstream looks for the word as it is written.
        ("Row past the dock.", 0.0, 0.0),
        ("She rows past teh dock.", 0.0, 1.0),
    ):
        scores = sentence(text, {}, label)
        assert (scores["answer"], scores["included"]) == (answer, included)
    summary = SCORERS["summary_score"].score("Ann rows.", {}, {"summary": "Ann rows home."})
    assert summary == {
        "answer": 0.75, "grammar": 1.0, "rouge1": 1.0, "rouge2": 0.5, "rougeL": 0.75,
    }  # fmt: skip
    paraphrase = SCORERS["paraphrase_score"].score
    assert paraphrase("We row.", {}, {"text": "All row."}) == {
        "answer": 0.4, "grammar": 1.0, "inverse_bleu": 0.8, "bertscore": 0.5,
    }  # fmt: skip
    empty = paraphrase(" ", {}, {"text": "All row."})
    assert (empty["answer"], empty["inverse_bleu"], empty["bertscore"]) == (0.0, 0.0, 0.0)


@pytest.mark.usefixtures("judges")
def test_the_newest_version_scores_writing_by_grammar_alone(tmp_path: Path) -> None:
    for layout, score in (
        ("dataset/parallel_bench/data/output/test", 0.0),
        ("parallelbench/dataset/data/output/test", 0.0),
        ("parallelbench/datasets/data/output/test", 1.0),
        ("test", 1.0),
    ):
        write_files(tmp_path / layout.replace("/", "-") / layout)
        root = str(tmp_path / layout.replace("/", "-"))
        task = ParallelBench(root, "text_writing/words_to_sentence_easy")
        scores = task.score(task.examples()[0], "She dives.")
        assert (scores["answer"], scores["grammar"]) == (score, 1.0)


def test_a_group_of_tasks_is_run_by_one_command(tmp_path: Path) -> None:
    """The tasks of a folder match a pattern, and the report has PB over all of them."""
    root = write_files(tmp_path / "test").parent
    for name in ("puzzles", "text_writing"):
        shutil.rmtree(root / "test" / name)
    bench = f"parallelbench:{root}#"
    tasks = ("waiting_line/insert_random", "waiting_line/reverse")
    assert expand_patterns([f"{bench}waiting_*"]) == tuple(f"{bench}{task}" for task in tasks)
    first_of_each = tuple(f"{bench}{task}?limit=1" for task in tasks)
    assert expand_patterns([f"{bench}*?limit=1"]) == first_of_each
    command = ["run", f"{bench}*?limit=1", str(tmp_path / "out"), "--sampler"]
    assert evaluate([*command, "FixedSchedule(1)"]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert tuple(row["settings"]["task"] for row in summary["rows"]) == first_of_each
    (scored,) = summary["parallel_bench"]
    assert (scored["num_tasks"], scored["num_settings"]) == (2, 1)
    # A whole answer is one block, and one step fills it.
    assert {row["settings"]["block_length"] for row in summary["rows"]} == {32}
    assert {row["speed"]["nfe"] for row in summary["rows"]} == {1.0}
    assert set(scored["scores"]) == {"PB90", "PB80", "PB70", "PB60"}


def test_an_unknown_scorer_leaves_the_score_undefined(tmp_path: Path) -> None:
    write_files(tmp_path / "test")
    config = tmp_path / "test/waiting_line/task_config.yaml"
    config.write_text(config.read_text().replace("list_match_score", "domino_score"))
    task = ParallelBench(str(tmp_path), "waiting_line/reverse")
    assert task.score(task.examples()[0], "x") == {"answer": None}


def test_infilled_answers_have_the_form_of_the_row(tmp_path: Path) -> None:
    """Every [MASK] is one token of the answer, the rest is given, EOS follows."""
    write_files(tmp_path / "test")
    masked = {**INSERTED, "output_format": '["[MASK]", "[MASK]"]'}
    write_lines(tmp_path / "test/waiting_line/insert_random.jsonl", masked)
    address = f"parallelbench:{tmp_path}#waiting_line/insert_random"
    free = parse_task(address).examples()
    infilled = parse_task(f"{address}?form=infill").examples()
    assert (free[0].template, infilled[0].template) == ("", '["[MASK]", "[MASK]"]')
    assert digest_of_examples(free) != digest_of_examples(infilled)
    with pytest.raises(ValueError, match=r"Line 1 of .* must have an 'output_format'.*form=free"):
        parse_task(f"parallelbench:{tmp_path}#waiting_line/reverse?form=infill").examples()
    with pytest.raises(ValueError, match=r"form must be one of .*'blank'"):
        parse_task(f"{address}?form=blank")


def test_a_run_keeps_the_given_part_of_infilled_answers(tmp_path: Path) -> None:
    write_files(tmp_path / "test")
    masked = {**INSERTED, "output_format": "emma [MASK] apples [MASK]"}
    write_lines(tmp_path / "test/waiting_line/insert_random.jsonl", masked, INSERTED | masked)
    address = f"parallelbench:{tmp_path}#waiting_line/insert_random?form=infill"
    run, *_ = eval_runs.runs(task=address)
    records = execute([run], tmp_path / "results").records()
    emma, apples = TOKENIZER.encode("emma apples", add_special_tokens=False)
    assert len(records) == 2
    for record in records:
        assert (record["error"], len(record["tokens"])) == (None, 8)
        tokens = record["tokens"]
        assert (tokens[0], tokens[2], tokens[4:]) == (emma, apples, [run.model.eos_ids[0]] * 4)
        assert run.model.mask_id not in tokens
        assert record["nfe"] == 2
    short = replace(run, config=replace(run.config, gen_length=3, block_length=3))
    with pytest.raises(ValueError, match="gen_length must be at least 4, the length of the temp"):
        execute([short], tmp_path / "short")
