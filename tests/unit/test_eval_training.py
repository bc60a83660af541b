"""What the training commands share: questions, folders, measurements."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import HashModel

from dllm_decode import DecodeConfig, load_model
from eval.cli import main, make_parser
from eval.training.held_out import Measured, compared, measure, score_of
from eval.training.questions import Questions, read_questions
from eval.training.run_folder import claim, claim_training, read_json, write_json
from samplers import FixedSchedule


def jsonl(folder: Path, count: int = 10, name: str = "own.jsonl") -> str:
    file = folder / name
    rows = [{"prompt": f"{name} say {i}", "answer": str(i)} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{file}?match=contains"


def test_every_fifth_prompt_is_held_out(tmp_path: Path) -> None:
    asked, judged = read_questions(jsonl(tmp_path), "", prompts="plain")
    assert [one.target for one in asked.examples] == list("01235678")
    assert [one.target for one in judged.examples] == ["4", "9"]
    assert asked.prompts == judged.prompts == "plain"


def test_the_training_split_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    asked, judged = read_questions("word_problems?limit=10", "word_problems?split=val&limit=5")
    assert asked.selection.split == "train"
    assert asked.address == "word_problems?limit=10&split=train"
    assert (len(asked.examples), len(judged.examples)) == (10, 5)
    asked, _ = read_questions("word_problems?limit=10&split=test", "")
    assert asked.selection.split == "test"


def test_words_that_the_tokenizer_does_not_know_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tokenizer = load_model("mini")
    for address, named in ((jsonl(tmp_path), True), ("word_problems?limit=10", False)):
        asked, _ = read_questions(address, "")
        asked.warn(tokenizer)
        said = capsys.readouterr().err
        assert ("own, jsonl, say" in said and "8 of 8 prompts" in said) is named, said


def test_what_is_trained_on_is_not_judged_by(tmp_path: Path) -> None:
    one, other = jsonl(tmp_path), jsonl(tmp_path, name="other.jsonl")
    read_questions(one, other)
    with pytest.raises(ValueError, match=r"must not be trained on, got 10 of 10 that are prompts"):
        read_questions(one, one)
    with pytest.raises(ValueError, match="There must be at least 5 prompts"):
        read_questions(jsonl(tmp_path, 4), "")
    with pytest.raises(ValueError, match="A task must be one of"):
        read_questions("nothing", "")


@pytest.mark.parametrize("least", [1, 4, 5, 9, 10])
def test_as_many_prompts_as_the_error_asks_for_are_enough(least: int, tmp_path: Path) -> None:
    """train-filter named 5, and after all were decoded twice asked for 10 that are not held out."""
    with pytest.raises(ValueError, match="Raise limit=") as caught:
        read_questions(jsonl(tmp_path, 3), "", least=least)
    needed = int(str(caught.value).partition("at least ")[2].partition(" ")[0])
    with pytest.raises(ValueError, match=f"at least {needed} prompts, of which every 5th is held"):
        read_questions(jsonl(tmp_path, needed - 1), "", least=least)
    asked, judged = read_questions(jsonl(tmp_path, needed), "", least=least)
    assert len(asked.examples) >= least
    assert judged.examples


def test_a_folder_is_gone_on_with_only_by_the_same_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    claim(folder, {"steps": 3, "sizes": (1, 2)})
    claim(folder, {"steps": 3, "sizes": (1, 2)})
    with pytest.raises(ValueError, match=r"got others: steps: 3 -> 4\. Choose another"):
        claim(folder, {"steps": 4, "sizes": (1, 2)})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be new or hold a run of this command"):
        claim(tmp_path / "full", {})
    (folder / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json must be JSON"):
        claim(folder, {})
    write_json(folder / "deep" / "list.json", [1])
    with pytest.raises(ValueError, match="must hold a JSON object"):
        read_json(folder / "deep" / "list.json")


def refused(folder: Path, settings: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="must have the settings of this command") as caught:
        claim(folder, settings)
    return str(caught.value).partition("got others: ")[2].partition(". Choose")[0]


def test_a_setting_that_differs_is_named_alone(tmp_path: Path) -> None:
    """Whole dictionaries were printed twice, with the digests of all examples."""
    asked, _ = read_questions("word_problems?limit=20", "")
    more, _ = read_questions("word_problems?limit=25", "")
    before = {"task": asked.settings(), "steps": 5000, "cache": None, "sizes": (1, 2)}
    claim(tmp_path / "run", before)
    claim(tmp_path / "run", before | {"cache": ""})
    changed = before | {"task": more.settings(), "steps": 100}
    assert refused(tmp_path / "run", changed) == "task limit: 20 -> 25, steps: 5000 -> 100"
    plain, _ = read_questions("word_problems", "")
    found = refused(tmp_path / "run", before | {"task": plain.settings()})
    assert found == "task limit: 20 -> unset"
    other = asked.settings() | {"examples digest": "0"}
    found = refused(tmp_path / "run", before | {"task": other})
    assert found.startswith("task examples digest: ")
    assert found.endswith(" -> 0")


def test_a_training_may_change_until_it_has_begun(tmp_path: Path) -> None:
    """distil named --keep-wrong as the remedy, and refused it in the folder that was there."""
    claim(tmp_path / "run", {"limit": 3})
    claim(tmp_path / "run", {"limit": 3})
    claim_training(tmp_path / "run", {"keep_wrong": True})
    claim_training(tmp_path / "run", {"keep_wrong": True})
    with pytest.raises(ValueError, match="got others: keep_wrong: True -> False"):
        claim_training(tmp_path / "run", {"keep_wrong": False})


class Digits:
    """A tokenizer whose tokens are digits."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(letter) for letter in text if letter.isdigit()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(str(token) for token in token_ids)

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        raise AssertionError


def test_a_measurement_is_the_same_however_many_processes_share_it(tmp_path: Path) -> None:
    from eval.runs.settings import Place

    _, judged = read_questions(jsonl(tmp_path, 40), "", prompts="plain")
    model, config = HashModel(peak=12.0), DecodeConfig(gen_length=6, block_length=3)

    def share(place: Place, gather: Any = lambda mine: mine) -> Measured:
        return measure(model, Digits(), judged, FixedSchedule(2), config, batch_size=3,
                       place=place, gather=gather)  # fmt: skip

    whole = share(Place())
    assert len(whole.scores) == len(whole.forwards) == 8
    assert set(whole.forwards) <= set(range(1, 5))
    kept: list[Any] = []
    share(Place(1, 2), gather=lambda mine: kept.extend(mine) or mine)
    assert share(Place(0, 2), gather=lambda mine: mine + kept) == whole
    whole.save(tmp_path / "measured.json")
    assert Measured.load(tmp_path / "measured.json") == whole


def test_an_undefined_score_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, judged = read_questions(jsonl(tmp_path), "")
    monkeypatch.setattr(type(judged.task), "score", lambda self, example, text: {"answer": None})
    with pytest.raises(ValueError, match="must have a score 'answer', got one without"):
        score_of(judged, 0, "")
    assert isinstance(judged, Questions)


def test_comparisons_are_paired() -> None:
    before = Measured([1.0] * 50 + [0.0] * 50, [10] * 100, [20] * 100)
    after = Measured([1.0] * 48 + [0.0] * 52, [4] * 50 + [6] * 50, [20] * 100)
    found = compared(before, after)
    assert found["accuracy_difference"]["value"] == pytest.approx(-0.02)
    assert found["accuracy_difference"]["low"] > -0.08
    assert found["forwards_ratio"]["value"] == pytest.approx(0.5)
    assert 0.4 < found["forwards_ratio"]["low"] < 0.5 < found["forwards_ratio"]["high"] < 0.6
    assert found["tokens_per_forward"] == pytest.approx(4.0)
    assert after.accuracy["low"] < 0.48 < after.accuracy["high"]
    assert Measured([0.5, 0.25], [1, 1], [1, 1]).accuracy["value"] == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train-filter", "--task", "nothing"], "A task must be one of"),
        (["train-filter", "--threshold", "1.5"], "--threshold must be a probability"),
        (["train-filter", "--against", "Nothing()"], "Nothing"),
        (["distil", "--epochs", "0"], "--epochs must be above 0, got 0.0"),
        (["distil", "--muon", "0.1", "--lora-rank", "2"], "--muon must be left out beside"),
        (["distil", "--learning-rate", "-1"], "--learning-rate must be above 0, got -1.0"),
        (["distil", "--model", "nothing"], "an embedded name"),
        (["distil", "--sampler", "Nothing()"], "Nothing"),
        (["distil", "--temperature", "0"], "temperature must be above 0"),
        (["distil", "--block-length", "7000"], "block_length must be between 1 and gen_length"),
        (["distil", "--sampler", "Learn2PD()", "--block-length", "16"], "block_length must be 32"),
        (["train-filter", "--against", "Learn2PD()", "--block-length", "16"], "must be 32"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_decoded(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--output", str(tmp_path / "run" / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_option_of_both_commands_says_what_it_is() -> None:
    help_of = {
        name: part.format_help()
        for action in make_parser()._actions
        if action.choices
        for name, part in dict(action.choices).items()  # type: ignore[call-overload]
    }
    assert "--truncate-at-eos" in help_of["train-filter"]
    assert "--lora-rank" in help_of["distil"]


def test_lora_without_its_package_is_said_before_anything_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["distil", "--lora-rank", "2", "--output", str(tmp_path / "out")]) == 2
    assert "LoRA needs the package peft" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
