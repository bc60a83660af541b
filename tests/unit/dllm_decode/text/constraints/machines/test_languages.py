"""The algebra of sets of texts, against all short texts."""

import re
from itertools import product

import pytest

from dllm_decode.text.constraints.machines.ecma import full_match, search
from dllm_decode.text.constraints.machines.languages import lengths, words
from dllm_decode.text.constraints.machines.limits import TooLargeError, processor_limit

TEXTS = ["".join(letters) for size in range(5) for letters in product("abé", repeat=size)]
EXPRESSIONS = ["(ab)*", "a*b?", "[^a]+", "é|ab|", ".{2,3}", "(a|b)*a"]
PATTERNS = [
    "^ab$", "ab", "^a|b$", "^(a|b)+$", "a{2,3}", "^[a-c]{1,3}$|^é", "[^ab]", "^$", "", "(^a|b)a",
    "b*(a|^b)$", r"^[\w-]+$", "a$b", "^.*(?:a)\\u0062$", r"\x61\cA?b",
    r"[\d-é]", "^[^]b$", r"(?:)",
]  # fmt: skip


def test_operations_are_those_of_sets() -> None:
    for one, two in product(EXPRESSIONS, EXPRESSIONS):
        first, second = full_match(one), full_match(two)
        both, either, rest = first & second, first | second, first - second
        for text in TEXTS:
            in_first, in_second = (re.fullmatch(part, text) is not None for part in (one, two))
            assert both.has(text) == (in_first and in_second), (one, two, text)
            assert either.has(text) == (in_first or in_second), (one, two, text)
            assert rest.has(text) == (in_first and not in_second), (one, two, text)
        assert rest | both == first


def test_words_and_lengths() -> None:
    assert [text for text in TEXTS if words(["ab", "", "aé"]).has(text)] == ["", "ab", "aé"]
    assert [len(text) for text in TEXTS if lengths(1, 1).has(text)] == [1] * 3
    assert lengths(2, None).has("abab")
    assert not lengths(2, None).has("a")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    # In these the two syntaxes differ.
    python = {
        "^[^]b$": r"^[\s\S]b$",
        r"\x61\cA?b": "a\x01?b",
        r"[\d-é]": r"[\d\-é]",
    }
    expression = re.compile(python.get(pattern, pattern), re.ASCII)
    language = search(pattern)
    for text in [*TEXTS, "a\x01b", "-", "1", "éb"]:
        assert language.has(text) == (expression.search(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (r"^\d$", "7", "\u0663"), (r"^\w$", "_", "é"), (r"^\W$", "é", "a"),
        (r"^\s$", "\ufeff", "\x85"),
        (r"^\S$", "\x85", "\ufeff"), (r"^.$", "é", "\u2028"), (r"^.$", "\x85", "\r"),
        (r"^[[a]]$", "[]", "a"), (r"^[^a&&b]$", "c", "a"), (r"^[^a~~b]$", "c", "~"),
        (r"^\u{1F600}\u00e9$", "😀é", "a"),
        (r"^(?<x>a)(?P<y>b)$", "ab", "ba"), (r"^[\b]$", "\b", "b"),
    ],
)  # fmt: skip
def test_where_ecma_differs_from_python_and_rust_it_is_ecma(
    pattern: str, valid: str, invalid: str
) -> None:
    assert search(pattern).has(valid)
    assert not search(pattern).has(invalid)


def test_two_halves_of_a_surrogate_pair_are_one_character() -> None:
    smile = full_match(r"\ud83d\ude00|[\uD83D\uDE01-\u{1F603}]")
    assert [smile.has(text) for text in "\U0001f600\U0001f602\U0001f604a"] == [1, 1, 0, 0]


def test_work_ends_at_its_bounds() -> None:
    with pytest.raises(TooLargeError, match="more than 6000 states"):
        full_match("(a|b)*a(a|b){30}")
    with pytest.raises(TooLargeError, match="20000 parts"):
        full_match("a{20001}")
    with processor_limit(0.0), pytest.raises(TooLargeError, match="processor time"):
        full_match("(a|b)*a(a|b){9}")
