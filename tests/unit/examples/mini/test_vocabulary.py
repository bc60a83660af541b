"""The tokenizer of the embedded models covers whatever the generated tasks emit."""

import random

import pytest

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
