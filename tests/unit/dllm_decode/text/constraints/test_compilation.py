"""Compiled constraints against Python's `re`, the full table of tokens, and `jsonschema`."""

import random
import re
import time
from collections.abc import Sequence

import pytest
import torch

from dllm_decode.core.automaton import DEAD_CLASS, EOS_CLASS, Automaton
from dllm_decode.text.constraints import (
    Constraint,
    JsonSchema,
    OneOf,
    Regex,
    Vocabulary,
    build_automaton,
    compile_constraint,
)
from dllm_decode.text.constraints.machines.limits import MAX_STATES

EOS, MASK = 0, 1


def vocabulary_of(texts: Sequence[bytes]) -> Vocabulary:
    """Returns a vocabulary with an EOS and a [MASK] before the texts."""
    token_texts = [None, None, *texts]
    return Vocabulary.of(token_texts, token_texts, (EOS,))


def bytes_and_pairs(num_pairs: int) -> list[bytes]:
    """Returns all bytes, and random longer tokens, some of which end within a character."""
    draw = random.Random(0)
    letters = b'abcdefghij0123456789 "{}[],:._-@yesno\n'
    texts = [bytes([byte]) for byte in range(256)]
    seen = set(texts)
    while len(texts) < 256 + num_pairs:
        text = bytes(draw.choices(letters, k=draw.randint(2, 6)))
        if draw.random() < 0.1:
            text += "é漢😀".encode()[: draw.randint(1, 8)]
        if text not in seen:
            seen.add(text)
            texts.append(text)
    return texts


TEXTS = bytes_and_pairs(700)
VOCABULARY = vocabulary_of(TEXTS)


def accepts(automaton: Automaton, tokens: Sequence[int]) -> bool:
    """Returns whether the automaton accepts the tokens, following its edges one by one."""
    edges = {
        (int(source), int(label)): int(target)
        for source, label, target in zip(
            automaton.sources, automaton.labels, automaton.targets, strict=True
        )
    }
    state = 0
    for token in tokens:
        state = edges.get((state, int(automaton.classes[token])), -1)
    return state >= 0 and int(automaton.distances[state]) == 0


def random_tokens(text: bytes, draw: random.Random) -> list[int]:
    """Splits a text into random tokens of the vocabulary."""
    tokens = []
    while text:
        sizes = [size for size in range(1, 7) if text[:size] in TEXTS and len(text) >= size]
        size = draw.choice(sizes)
        tokens.append(TEXTS.index(text[:size]) + 2)
        text = text[size:]
    return tokens


@pytest.mark.parametrize(
    "expression",
    ["(1|11)-(1|11)", "a*", "(?:yes|no)?", "[a-c]+é?", "^x.{0,3}$", r"\d{2}\.\d", r"[\s\S]*", "漢"],
)
def test_an_automaton_accepts_what_python_matches_however_it_is_split(expression: str) -> None:
    draw, automaton = random.Random(1), compile_constraint(Regex(expression), VOCABULARY)
    fitting = ["1-11", "11-1", "", "yes", "aaaa", "abcé", "x漢é\t", "23.4", "漢", "a\nb"]
    others = ["1-111", "y", "xabcd", "x\n", "é漢", "ab1", "2.34", "a b", "no!"]
    matches = []
    for text in [*fitting, *others]:
        expected = re.fullmatch(expression, text) is not None
        for _ in range(3):
            assert accepts(automaton, random_tokens(text.encode(), draw)) == expected, text
        matches.append(expected)
    assert any(matches)
    assert not all(matches) or expression == r"[\s\S]*"


def test_classes_are_the_equal_columns_of_the_full_table() -> None:
    automaton = compile_constraint(Regex(r'[a-e]{1,3}(?:"x"|-1)*'), VOCABULARY)
    table = torch.full((automaton.num_states, automaton.num_classes), -1)
    table[automaton.sources, automaton.labels] = automaton.targets
    full = table[:, automaton.classes]
    _, expected = full.unique(dim=1, return_inverse=True)
    pairs = set(zip(expected.tolist(), automaton.classes.tolist(), strict=True))
    assert len(pairs) == len(set(expected.tolist())) == automaton.num_classes
    assert automaton.classes[MASK] == DEAD_CLASS
    assert automaton.classes[EOS] == EOS_CLASS
    for label in range(automaton.num_classes):
        members = (automaton.classes == label).nonzero()
        assert automaton.examples[label] == members.min()


def test_no_edge_leads_to_a_state_without_an_end() -> None:
    automaton = compile_constraint(Regex("(?:ab)*c|a[^b]"), VOCABULARY)
    assert (automaton.distances < 5).all()
    reached = {0, *automaton.targets.tolist()}
    assert reached == set(range(automaton.num_states))


def test_distances_and_least_lengths_count_tokens() -> None:
    automaton = compile_constraint(
        Regex("(?:abc)+-"), vocabulary_of([b"a", b"b", b"c", b"bc", b"-"])
    )
    a, b, c, bc, end = range(2, 7)
    assert automaton.distances[0] == automaton.least_length() == 3
    assert automaton.least_length([a, b], MASK) == 4
    assert automaton.least_length([MASK, MASK, MASK, a], MASK) == 6
    assert automaton.least_length([MASK, c], MASK) is None
    assert automaton.least_length([a, bc, end, EOS], MASK) == 4
    assert automaton.least_length([a, bc, EOS], MASK) is None


def test_the_first_token_of_an_answer_may_have_another_text() -> None:
    """As in tokenizers of words with spaces between them, which the embedded models have."""
    first = [None, None, b"a", b"b"]
    later = [None, None, b" a", b" b"]
    automaton = compile_constraint(Regex("a( b)*"), Vocabulary.of(first, later, (EOS,)))
    assert accepts(automaton, [2])
    assert accepts(automaton, [2, 3, 3])
    assert not accepts(automaton, [3])
    assert not accepts(automaton, [2, 2])


def test_a_compiled_constraint_is_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    turned = {"type": "object", "properties": dict(reversed(schema["properties"].items()))}
    assert schema == turned
    first = compile_constraint(JsonSchema(schema), VOCABULARY)
    assert compile_constraint(JsonSchema(schema), vocabulary_of(TEXTS)) is first
    assert compile_constraint(JsonSchema(turned), VOCABULARY) is not first
    assert JsonSchema(schema).digest != JsonSchema(turned).digest
    assert compile_constraint(JsonSchema(schema), vocabulary_of(TEXTS[:300])) is not first


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Regex("a^b"), "Regex must match a text, got one that matches none"),
        (Regex("(a|b)*a(a|b){30}"), f"Regex must have at most {MAX_STATES} states"),
        (Regex("a{9000}"), "must have at most"),
        (
            JsonSchema({"type": "integer", "minimum": 3, "maximum": 2}),
            "# of a JSON schema must allow",
        ),
    ],
)
def test_a_constraint_that_cannot_be_compiled_is_refused(
    constraint: Constraint, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build_automaton(constraint, VOCABULARY)


def test_compiling_ends_at_a_limit_of_processor_time() -> None:
    words = {"enum": [f"name {number:05d} {number * 7919 % 100_000}" for number in range(3000)]}
    began_s = time.thread_time()
    with pytest.raises(ValueError, match=r"at most 0\.05 processor seconds, got more processor"):
        build_automaton(JsonSchema({"items": words}), VOCABULARY, limit_s=0.05)
    assert time.thread_time() - began_s < 5.0


def test_a_text_that_the_tokenizer_cannot_write_is_refused() -> None:
    vocabulary = vocabulary_of([b"yes", b"n", b"a"])
    assert compile_constraint(OneOf(["yes", "na"]), vocabulary).least_length() == 1
    with pytest.raises(ValueError, match="got 'no', whose character 1, 'o', it cannot write"):
        compile_constraint(OneOf(["yes", "no"]), vocabulary)
    with pytest.raises(ValueError, match="got 'né', whose character 1, 'é'"):
        compile_constraint(Regex("né+"), vocabulary)
    # A text that cannot be written is left out if another text can be written.
    assert compile_constraint(Regex("no?"), vocabulary).least_length() == 1
