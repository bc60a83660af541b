"""The recipe of the long models: what a step is made of."""

import argparse
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from dllm_decode import load_model, load_target
from dllm_decode.models.loading.find import find_model
from dllm_decode.training.examples import lay_out
from eval.tasks import WordProblems
from eval.tasks.grammar import cast
from examples.mini.vocabulary import build_ledger_tokenizer, build_tokenizer

RECIPES = Path(__file__).parents[4] / "examples" / "mini"
HELD_OUT = set().union(*cast("held_out"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RECIPES))
    import long_world

    return long_world


def test_examples_fit_and_held_out_words_come_in_stories_only(world: Any) -> None:
    parser = argparse.ArgumentParser()
    world.arguments(parser)
    tokenizer = build_ledger_tokenizer()
    encode = world.Encoder(tokenizer)
    kinds = world.kinds_of(parser.parse_args([]), encode)
    question = tokenizer.get_vocab()["?"]
    held_out = torch.tensor([tokenizer.get_vocab()[word] for word in HELD_OUT])
    assert sum(kind.name.startswith("stories") for kind in kinds) == 2
    for kind in kinds:
        # Raises where an example is longer than its columns.
        eos_id = int(tokenizer.eos_token_id)
        pairs = replace(kind, num_rows=300).pairs("0", eos_id)
        rows = lay_out(pairs, kind.gen_lengths[0], eos_id).tokens
        is_story = kind.name.startswith("stories")
        assert bool((rows == question).any(-1).all()) is not is_story
        assert bool(torch.isin(rows, held_out).any()) is is_story


def test_words_are_looked_up_as_the_tokenizer_does(world: Any) -> None:
    (example,) = WordProblems().examples("val", 1)
    story = world.draw_story(lambda *texts: texts, (2, 4), random.Random(0))
    for tokenizer, prompt, answer in (
        (build_ledger_tokenizer(), *story),
        (build_tokenizer(), str(example.prompt), example.target),
    ):
        ids, answered = world.Encoder(tokenizer)(prompt, answer)
        turns = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        assert answered == tokenizer.encode(answer, add_special_tokens=False)


def test_the_embedded_models_know_the_words_of_the_world() -> None:
    words = build_ledger_tokenizer().get_vocab()
    model, tokenizer = load_model("mini-long")
    assert tokenizer.get_vocab() == words
    assert model.mask_id == tokenizer.mask_token_id
    assert model.logit_shift == 1
    causal = find_model("mini-long-ar")
    assert AutoTokenizer.from_pretrained(causal).get_vocab() == words
    # Refuses a target of another vocabulary.
    assert load_target(causal, tokenizer).vocab_size == model.vocab_size
