"""What the training commands share: questions, folders, measurements."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from eval_runs import TokenIds, write_lines
from msgspec.structs import astuple
from safetensors.torch import save_file
from toys import HashModel

from dllm_decode import DecodeConfig, StepEvent, decode, load_model
from dllm_decode.cli.main import main
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.settings.files import write_json
from dllm_decode.settings.ranks import ProcessRank
from eval.metrics.statistics import wilson
from eval.runs.settings import Run
from eval.training.filter_command import read_examples
from eval.training.held_out import HeldOutScores, read_scores, score_held_out
from eval.training.questions import Questions, read_questions
from eval.training.run_folder import claim, claim_training, writing
from eval.training.teacher_answers import ask, read_answers
from samplers import FixedSchedule


def jsonl(folder: Path, count: int = 10, name: str = "own.jsonl") -> str:
    rows = [{"prompt": f"{name} say {i}", "answer": str(i)} for i in range(count)]
    return f"jsonl:{write_lines(folder / name, *rows)}?match=contains"


def test_every_fifth_prompt_is_held_out(tmp_path: Path) -> None:
    training, judged = read_questions(jsonl(tmp_path), "", prompts="plain")
    assert [example.target for example in training.examples] == list("01235678")
    assert [example.target for example in judged.examples] == ["4", "9"]
    assert training.prompts == judged.prompts == "plain"


def test_the_training_split_is_taken_unless_another_is_named() -> None:
    training, judged = read_questions("word_problems?limit=10", "word_problems?split=val&limit=5")
    assert training.selection.address == "word_problems?limit=10&split=train"
    assert (len(training.examples), len(judged.examples)) == (10, 5)
    training, _ = read_questions("word_problems?limit=10&split=test", "")
    assert training.selection.split == "test"


def test_unknown_words_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, tokenizer = load_model("mini")
    for address, is_named in ((jsonl(tmp_path), True), ("word_problems?limit=10", False)):
        questions, _ = read_questions(address, "")
        questions.warn(tokenizer)
        message = capsys.readouterr().err
        assert ("own, jsonl, say" in message and "8 of 8 prompts" in message) is is_named, message


def test_what_is_trained_on_is_not_judged_by(tmp_path: Path) -> None:
    first, second = jsonl(tmp_path), jsonl(tmp_path, name="other.jsonl")
    read_questions(first, second)
    with pytest.raises(ValueError, match=r"must not be trained on, got 10 of 10 that are prompts"):
        read_questions(first, first)


def test_too_few_prompts_are_refused_as_they_are_counted_after_the_split(tmp_path: Path) -> None:
    """train-filter named 5, and after all were decoded twice asked for 10 that are not held out."""
    for count, least in ((4, 1), (5, 5)):
        with pytest.raises(ValueError, match=rf"at least {least} .* got 4 of .* Every 5th prompt"):
            read_questions(jsonl(tmp_path, count), "", least=least)
    training, judged = read_questions(jsonl(tmp_path, 6), "", least=5)
    assert (len(training.examples), len(judged.examples)) == (5, 1)


def test_a_setting_that_differs_is_named_alone(tmp_path: Path) -> None:
    """Whole dictionaries were printed twice, later the differences of the first file alone."""
    task, more, plain = (
        read_questions(f"word_problems{limit}", "")[0].settings()
        for limit in ("?limit=20", "?limit=25", "")
    )
    folder = tmp_path / "run"
    before = {"task": task, "model digest": "a", "cache": None, "sizes": (1, 2)}
    claim(folder, before, {"steps": 100})
    # Until the training begins, its settings may change.
    training = {"steps": 5000}
    claim(folder, before | {"cache": ""}, training)
    claim_training(folder, training)
    claim(folder, before, training)
    for changes, steps, message in (
        ({"task": more}, 100, "task limit: 20 -> 25, steps: 5000 -> 100"),
        ({"task": plain}, 5000, "task limit: 20 -> unset"),
        ({"task": task | {"examples digest": "0"}}, 5000, "task examples digest: [^:]* -> 0"),
        ({"model digest": "b"}, 100, "model digest: a -> b, steps: 5000 -> 100"),
    ):
        with pytest.raises(ValueError, match=rf"of this command.*, got others: {message}\. Choose"):
            claim(folder, before | changes, {"steps": steps})
    for name in ("training_settings.json", "settings.json"):
        for text in ("{", "[1]"):
            (folder / name).write_text(text)
            with pytest.raises(ValueError, match=rf"{name} must be .* remove the fold"):
                claim(folder, before, training)


class Digits(TokenIds):
    """A tokenizer whose tokens are digits."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(letter) for letter in text if letter.isdigit()]


def run_of(questions: Questions, batch_size: int = 3) -> Run:
    return Run(
        HashModel(peak=12.0), Digits(), questions.selection, FixedSchedule(2),
        config=DecodeConfig(gen_length=6, block_length=3), batch_size=batch_size,
        prompts="plain", trace=False,
    )  # fmt: skip


def test_a_measurement_is_the_same_however_many_processes_share_it(tmp_path: Path) -> None:
    _, judged = read_questions(jsonl(tmp_path, 40), "", prompts="plain")
    run = run_of(judged)
    alone = score_held_out(run, judged.examples)
    assert len(alone.scores) == len(alone.forwards) == 8
    assert set(alone.forwards) <= set(range(1, 5))
    rank_1: list[Any] = []
    score_held_out(
        run, judged.examples, process=ProcessRank(1, 2),
        gather=lambda mine: rank_1.extend(mine) or mine,
    )  # fmt: skip
    shared = score_held_out(
        run, judged.examples, process=ProcessRank(0, 2), gather=lambda mine: mine + rank_1
    )
    assert shared == alone
    alone.save(tmp_path / "scores.json")
    assert read_scores(tmp_path / "scores.json", judged) == alone


def test_an_undefined_score_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, judged = read_questions(jsonl(tmp_path), "")
    task = type(judged.selection.task)
    monkeypatch.setattr(task, "score", lambda self, example, text: {"answer": None})
    with pytest.raises(ValueError, match="must have a score 'answer', got one without"):
        score_held_out(run_of(judged), judged.examples)


def test_the_teacher_answers_hold_the_order_of_commits(tmp_path: Path) -> None:
    questions, _ = read_questions(jsonl(tmp_path), "", prompts="plain")
    run = run_of(questions, 8)
    prompts = questions.encoded(run.tokenizer)
    events: list[StepEvent] = []
    output = decode(run.model, prompts, run.sampler, config=run.config, observers=[events.append])
    answers = ask(run, questions.examples, prompts)
    for row, answer in enumerate(answers):
        assert answer.prompt == tuple(prompts[row])
        assert list(answer.answer) == output.tokens[row, : len(answer.answer)].tolist()
        order: list[int] = []
        for event in events:
            if row in event.request_indices.tolist():
                at = event.request_indices.tolist().index(row)
                written = event.before.masked[at] & ~event.after.masked[at]
                order += written[len(prompts[row]) :].nonzero().flatten().tolist()
        order = [position for position in order if position < len(answer.answer)]
        assert [order.index(p) for p in range(len(answer.answer))] == list(answer.ranks)
    assert any(sorted(answer.ranks) != list(answer.ranks) for answer in answers)


def test_a_point_has_accuracy_with_its_interval_and_forwards() -> None:
    point = HeldOutScores([1.0] * 48 + [0.0] * 52, [4] * 50 + [6] * 50).point
    assert (point["accuracy"], point["forwards"]) == pytest.approx((0.48, 5.0))
    assert (point["low"], point["high"]) == wilson(48, 100)
    assert HeldOutScores([0.5, 0.25], [1, 1]).point["accuracy"] == pytest.approx(0.375)
    # Equal scores had an interval without a width.
    equal = HeldOutScores([0.5] * 10, [1] * 10).point
    assert (equal["low"], equal["high"]) == wilson(5, 10)


@pytest.mark.usefixtures("without_forwards")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train-filter", "--task", "nothing"], "A task must be one of"),
        (["train-filter", "--task", "word_problems?limit=11"], "at least 10 prompts to train on"),
        (["train-filter", "--task", "word_problems?limit=9", "--held-out", "word_problems?limit=2"
          "&split=val"], "to train on and 1 to judge by, got 9 of word_problems?limit=9&split"),
        (["train-filter", "--threshold", "1.5"], "--threshold: must be at most 1, got 1.5"),
        (["distil", "--muon", "0.1", "--lora-rank", "2"], "--muon must be left out beside"),
        (["distil", "--learning-rate", "-1"], "--learning-rate: must be above 0, got -1"),
        (["distil", "--model", "nothing"], "an embedded name"),
        (["distil", "--model", "mini?quantize=int8"], "must be left out, got 'mini?quantize=int8'"),
        (["distil", "--block-length", "7000"], "block_length must be between 1 and gen_length"),
        (["distil", "--sampler", "Learn2PD()", "--block-length", "16"], "block_length must be 32"),
        (["train-filter", "--seed", "9" * 30], "seed must be between"),
        (["train-filter", "--cache", "DelayedCache()"], "Learn2PD(filter="),
        (["train-filter", "--prompts", "chat", "--model", "plain"], "a chat template"),
        (["distil", "--greatest-share", "nan"], "greatest_share must be in (0, 1], got nan"),
        (["distil", "--lora-rank", "1000000"], "rank must be between 1 and "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_decoded(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    without_template: str,
) -> None:  # fmt: skip
    """Several of these were refused only after hours of decoding, or by a traceback."""
    words = [without_template if word == "plain" else word for word in words]
    try:
        status: object = main([*words, "--output", str(tmp_path / "run" / "out")])
    except SystemExit as refused:
        # The command line itself is wrong.
        status = refused.code
    assert status == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def without_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be run."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("A forward was run.")

    monkeypatch.setattr(MaskedTransformer, "_forward", refuse)


@pytest.fixture(scope="module")
def without_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    shutil.copytree(find_model("mini"), folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return f"{folder}?family=llada"


@pytest.mark.usefixtures("without_forwards")
@pytest.mark.parametrize(
    ("command", "output", "sentence"),
    [
        ("train-filter", "file.txt/out", "in a folder that can be written, .*choose another"),
        ("train-filter", "folder", "choose another"),
        ("train-filter", "file.txt", "choose another"),
        ("distil", "file.txt/out", "in a folder that can be written, .*choose another"),
        ("distil", "folder", "choose another"),
        # The report of filter.json was written over the filter.
        ("train-filter", "filter.json", "name a file"),
        ("train-filter", ".", "name a file"),
        ("train-filter", "config.safetensors", "name a new filter"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_decoded(
    command: str, output: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """train-filter ended with a traceback after all its work, or wrote over another file."""
    (tmp_path / "folder").mkdir()
    for file in ("folder/thesis.txt", "file.txt", "config.json"):
        (tmp_path / file).write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main([command, "--output", output]) == 2
    assert re.search(f"--output must .*{sentence}", capsys.readouterr().err)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file.txt").read_text() == "mine"


def test_a_missing_package_is_said_before_anything_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was missed when the model was trained."""
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["distil", "--lora-rank", "2", "--output", str(tmp_path / "out")]) == 2
    assert 'pip install ".[lora]" in the clone' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_forwards")
@pytest.mark.parametrize("command", ["train-filter", "distil"])
def test_a_second_process_is_refused_while_one_writes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes removed each other's checkpoints."""
    output = tmp_path / "run"
    work = output if command == "distil" else Path(f"{output}.run")
    with writing(work):
        assert main([command, "--output", str(output)]) == 2
    assert f"must have one writer, got {work} while another process" in capsys.readouterr().err
    # The lock ends with its owner.
    with writing(work):
        pass


DAMAGED = ("null", "{", "{}", '{"answers": [{"prompt": []}]}')
DAMAGED_SCORES = (
    '{"scores": [1.0], "forwards": "3"}',
    '{"scores": [2.0], "forwards": [3]}',
    '{"scores": [1.0], "forwards": [0]}',
    '{"scores": [1.0, 1.0], "forwards": [3]}',
    '{"scores": [], "forwards": []}',
    '{"scores": [1.0], "forwards": [3], "spent": 1}',
)


@pytest.mark.parametrize("text", [*DAMAGED, *DAMAGED_SCORES])
def test_a_damaged_measurement_is_named_with_the_remedy(text: str, tmp_path: Path) -> None:
    """It ended in a traceback, or in a division by zero after the training."""
    file = tmp_path / "before.json"
    file.write_text(text)
    _, judged = read_questions(jsonl(tmp_path, 5), "")
    with pytest.raises(ValueError, match=r"before\.json must .*; remove the file, and the same"):
        read_scores(file, judged)


def test_damaged_answers_are_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "000000.json"
    answer = {"prompt": [1, 2], "answer": [3], "ranks": [0], "score": 1.0}
    write_json(file, {"answers": [answer]})
    (found,), num_right = read_answers(tmp_path, 1, 8, keep_wrong=False)
    assert (astuple(found), num_right) == (((1, 2), (3,), (0,), 1.0), 1)
    parts = ({"ranks": [0.5]}, {"score": "1"}, {"answer": None})
    for text in (*DAMAGED, *(json.dumps({"answers": [answer | part]}) for part in parts)):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"000000\.json must .* remove the file, and"):
            read_answers(tmp_path, 1, 8, keep_wrong=False)


def test_damaged_examples_are_named_with_the_remedy(tmp_path: Path) -> None:
    """A torn file ended in a traceback."""
    file = tmp_path / "000000.safetensors"
    parts = {
        "confidences": torch.rand(3, 4), "final": torch.ones(3, 4, dtype=torch.bool),
        "prompts": torch.tensor([0, 0, 1]),
    }  # fmt: skip
    save_file(parts, file)
    assert len(read_examples(file)) == 3
    save_file({**parts, "more": torch.ones(1)}, file)
    with pytest.raises(ValueError, match=r"must hold examples of a filter, got .*; remove the"):
        read_examples(file)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"must hold examples of a filter, got .*; remove the"):
        read_examples(file)
