"""The tokenizer of the embedded models covers whatever the generated tasks emit."""

import io
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from eval.tasks import GeneratedTask, ListTask, WordProblems
from eval.tasks.lists import OUTPUTS
from examples.mini.vocabulary import build_tokenizer

GENERATED: list[GeneratedTask] = [
    WordProblems(),
    *(ListTask(keyword) for keyword in OUTPUTS),
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_the_vocabulary_is_small_and_padded_without_repeats(tokenizer) -> None:
    words = tokenizer.get_vocab()
    assert sorted(words.values()) == list(range(len(words)))
    assert len(words) <= 640
    assert len(words) % 8 == 0
    assert words["<|endoftext|>"] == 0
    assert words["<|mdm_mask|>"] == 1


@pytest.mark.parametrize("task", GENERATED, ids=repr)
def test_prompts_and_answers_have_no_unknown_words(task: GeneratedTask, tokenizer) -> None:
    rng = random.Random(11)
    for split in task.splits:
        for _ in range(4):
            example = task.draw(rng, split)
            for text in (example.prompt, example.target):
                ids = tokenizer.encode(text)
                assert tokenizer.unk_token_id not in ids
                assert len(ids) == len(text.split())
                assert tokenizer.decode(ids) == text


def test_a_question_ends_with_the_marker_and_a_demonstration_with_end_of_text(tokenizer) -> None:
    turns = [
        {"role": "user", "content": "copy : [ leo ]"},
        {"role": "assistant", "content": "[ leo ]"},
        {"role": "user", "content": "copy : [ olga ]"},
    ]
    for is_prompt in (False, True):
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=is_prompt)
        assert text == "copy : [ leo ] answer : [ leo ] <|endoftext|> copy : [ olga ] answer :"


def test_a_saved_tokenizer_loads_without_questions(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading must not ask on standard input whether to trust remote code."""
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    example = WordProblems().examples("test", 1)[0]
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.eos_token_id == loaded.pad_token_id == 0
    assert loaded.mask_token == tokenizer.mask_token == "<|mdm_mask|>"
    assert len(tokenizer) == tokenizer.vocab_size
    ids = loaded.encode(example.target)
    assert ids == tokenizer.encode(example.target)
    assert loaded.decode([*ids, 0, 0], skip_special_tokens=True) == example.target
    assert loaded.apply_chat_template(example.turns(), tokenize=False).endswith(" answer :")
