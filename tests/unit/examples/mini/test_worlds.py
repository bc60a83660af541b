"""The worlds of the embedded models: what a training step is made of."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from dllm_decode import load_model, load_target
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.training.examples import lay_out
from eval.tasks import WordProblems
from eval.tasks.grammar import cast
from examples.mini.vocabulary import build_ledger_tokenizer, build_tokenizer, encode

RECIPES = Path(__file__).parents[4] / "examples" / "mini"
HELD_OUT = set().union(*cast("held_out"))


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RECIPES))
    import worlds

    return worlds


def test_examples_fit_and_held_out_words_come_in_stories_only(worlds: Any) -> None:
    tokenizer = build_ledger_tokenizer()
    kinds = worlds.kinds_of(tokenizer, {"ledgers": 64, "stories": 16}, ())
    question = tokenizer.get_vocab()["?"]
    held_out = torch.tensor([tokenizer.get_vocab()[word] for word in HELD_OUT])
    assert [kind.num_rows for kind in kinds] == [16, 22, 13, 13, 8, 8]
    assert sum(kind.name.startswith("stories") for kind in kinds) == 2
    for kind in kinds:
        # Raises where an example is longer than its columns.
        eos_id = int(tokenizer.eos_token_id)
        pairs = replace(kind, num_rows=300).pairs("0", eos_id)
        rows = lay_out(pairs, kind.gen_lengths[0], eos_id).tokens
        is_story = kind.name.startswith("stories")
        assert bool((rows == question).any(-1).all()) is not is_story
        assert bool(torch.isin(rows, held_out).any()) is is_story


def test_examples_in_the_words_of_mini_fit_too(worlds: Any) -> None:
    rows = {"word_problems": 9, "equations": 4, "lists": 200}
    kinds = worlds.kinds_of(build_tokenizer(), rows, (48, 64))
    assert [kind.num_rows for kind in kinds] == list(rows.values())
    for kind in kinds:
        assert len(kind.pairs("0", 0)) == kind.num_rows


def test_words_are_looked_up_as_the_tokenizer_does(worlds: Any) -> None:
    (example,) = WordProblems().examples("val", 1)
    ledgers = build_ledger_tokenizer()
    ids, lines = worlds.draw_story((2, 4), ledgers.get_vocab(), random.Random(0))
    story = ledgers.decode(ids).removesuffix(" answer :")
    for tokenizer, prompt, answer in (
        (ledgers, story, ledgers.decode(lines)),
        (build_tokenizer(), str(example.prompt), example.target),
    ):
        ids, answered = encode(tokenizer.get_vocab(), prompt, answer)
        turns = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        assert answered == tokenizer.encode(answer, add_special_tokens=False)


def test_the_embedded_models_know_the_words_of_their_worlds() -> None:
    for name, tokenizer in (("mini", build_tokenizer()), ("mini-lists", build_tokenizer())):
        assert AutoTokenizer.from_pretrained(find_model(name)).get_vocab() == tokenizer.get_vocab()
    words = build_ledger_tokenizer().get_vocab()
    model, tokenizer = load_model("mini-long")
    assert tokenizer.get_vocab() == words
    assert model.mask_id == tokenizer.mask_token_id
    assert model.logit_shift == 1
    causal = find_model("mini-long-ar")
    assert AutoTokenizer.from_pretrained(causal).get_vocab() == words
    # Refuses a target of another vocabulary.
    assert load_target(causal, tokenizer).vocab_size == model.vocab_size
