"""Paths against brute force over all strings of a tiny vocabulary."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from dllm_decode.core.automaton import Automata
from dllm_decode.engine.constraints.paths import Path, Span, best_path, draw_path
from dllm_decode.text.constraints import Regex, Vocabulary, compile_constraint
from samplers.logits import noise, statistics

# Texts overlap: "ab" is also "a" and "b". Token 8 is [MASK], token 6 the EOS.
TEXTS = [b"a", b"b", b"ab", b"1", b"-", b"11", None, b"ba", None]
EOS, V = 6, len(TEXTS)
VOCABULARY = Vocabulary.of(TEXTS, TEXTS, (EOS,))
EXPRESSIONS = ["(ab)*1", "a+b?", "(1|11)-(1|11)", "(a|b){2,3}", "ab(-1)*", "(?:a|b|1|-)*"]


def strings(expression: str, given: list[int]) -> Iterator[tuple[int, ...]]:
    """Yields every string of tokens that agrees with the given ones (-1 is open) and fits."""
    choices = [range(V - 1) if token < 0 else [token] for token in given]
    for tokens in itertools.product(*choices):
        end = tokens.index(EOS) if EOS in tokens else len(tokens)
        if any(token != EOS for token in tokens[end:]):
            continue
        texts = [TEXTS[token] for token in tokens[:end]]
        if None not in texts and re.fullmatch(expression, b"".join(texts).decode()):
            yield tokens


def span_of(given: list[int], num_left: int = 0) -> Span:
    tokens = torch.tensor([given])
    return Span(tokens, tokens >= 0, torch.zeros(1).long(), torch.tensor([num_left]))


def solve(expression: str, logits: torch.Tensor, given: list[int], num_left: int = 0) -> Path:
    automata = Automata.of([compile_constraint(Regex(expression), VOCABULARY)])
    columns = torch.arange(len(logits))[None]
    return best_path(automata, span_of(given, num_left), logits[None], columns)


def random_case(generator: torch.Generator) -> tuple[torch.Tensor, list[int]]:
    length = int(torch.randint(1, 6, (), generator=generator))
    logits = 4 * torch.randn(length, V, generator=generator, dtype=torch.float64)
    is_given = torch.rand(length, generator=generator) < 0.25
    tokens = torch.randint(V - 1, (length,), generator=generator)
    return logits, torch.where(is_given, tokens, -1).tolist()


def score(logits: torch.Tensor, tokens: tuple[int, ...], given: list[int]) -> float:
    pairs = enumerate(zip(tokens, given, strict=True))
    return sum(float(logits[n, token]) for n, (token, given_token) in pairs if given_token < 0)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_path_is_the_best_of_all_strings(expression: str) -> None:
    generator = torch.Generator().manual_seed(EXPRESSIONS.index(expression))
    num_found = num_none = 0
    for _ in range(40):
        logits, given = random_case(generator)
        fitting = list(strings(expression, given))
        path = solve(expression, logits, given)
        assert bool(path.found) == bool(fitting)
        if not fitting:
            num_none += 1
            continue
        num_found += 1
        tokens = tuple(path.tokens[0].tolist())
        assert tokens in fitting
        best = max(score(logits, string, given) for string in fitting)
        assert score(logits, tokens, given) == pytest.approx(best, abs=1e-9)
    assert num_found >= 5
    assert num_none >= 1


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_any_part_of_a_path_can_be_completed_under_other_logits(expression: str) -> None:
    generator = torch.Generator().manual_seed(7)
    num_parts = 0
    for _ in range(40):
        logits, given = random_case(generator)
        path = solve(expression, logits, given)
        if not path.found:
            continue
        is_kept = torch.rand(len(given), generator=generator) < 0.5
        partial = torch.where(is_kept, path.tokens[0], torch.tensor(given)).tolist()
        assert solve(expression, torch.randn(len(given), V, generator=generator), partial).found
        num_parts += 0 < int(is_kept.sum()) < len(given)
    assert num_parts >= 5


def test_columns_without_logits_weigh_nothing_and_can_be_completed() -> None:
    """Columns 0 and 2 have logits; column 1 and two more after the last one have none."""
    generator = torch.Generator().manual_seed(3)
    automata = Automata.of([compile_constraint(Regex("ab(-1)*"), VOCABULARY)])
    for _ in range(30):
        logits = 4 * torch.randn(2, V, generator=generator, dtype=torch.float64)
        path = best_path(automata, span_of([-1] * 3, 2), logits[None], torch.tensor([[0, 2]]))
        best: dict[tuple[int, int], float] = {}
        for tokens in strings("ab(-1)*", [-1] * 5):
            best[tokens[0], tokens[2]] = float(logits[0, tokens[0]] + logits[1, tokens[2]])
        assert path.found
        assert tuple(path.tokens[0].tolist()) == max(best, key=best.__getitem__)


def test_a_path_ends_where_the_answer_ends() -> None:
    logits = torch.zeros(3, V)
    logits[:, 0] = 9.0
    # The model would rather write "a" for ever.
    assert solve("a+b", logits, [-1] * 3).tokens.tolist() == [[0, 0, 1]]
    assert solve("a+b", logits, [-1] * 3, num_left=1).tokens.tolist() == [[0, 0, 0]]
    assert not solve("a{8}", logits, [-1] * 3, num_left=4).found
    assert solve("a{8}", logits, [-1] * 3, num_left=5).found


def test_an_excluded_token_is_taken_only_if_no_other_is_possible() -> None:
    logits = torch.zeros(3, V)
    logits[1, 2] = 5.0
    logits[:, 0] = -torch.inf
    assert solve("[ab]{3}", logits, [-1] * 3).tokens.tolist() == [[1, 2, EOS]]
    # The path "a", "ab", EOS needs the excluded token, and still takes the best of the others.
    assert solve("aab", logits, [-1] * 3).tokens.tolist() == [[0, 2, EOS]]
    # If every token of a class is excluded, the lowest one is taken.
    assert solve("(?:a|-)-1", torch.full((3, V), -torch.inf), [-1] * 3).found


def test_draws_follow_the_law_of_the_strings() -> None:
    logits = torch.tensor([0.3, -0.2, 1.0, 0.5, -1.0, 0.2, 0.7, -0.4, 3.0]).double()
    logits = torch.stack([logits, logits.roll(3), -logits, logits.roll(5)])
    num_draws, temperature = 20_000, 0.7
    for expression, given, num_logits in [
        ("(?:a|b){2,4}", [-1] * 4, 4),
        ("(1|11)-(1|11)", [-1, 4, -1, -1], 4),
        ("(?:ab|1)*-", [-1] * 4, 2),
    ]:
        weights: Counter[tuple[int, ...]] = Counter()
        for tokens in strings(expression, given):
            scored = tokens[:num_logits]
            # Strings that differ only in columns without logits count as one.
            weights[scored] = math.exp(score(logits, scored, given[:num_logits]) / temperature)
        automaton = compile_constraint(Regex(expression), VOCABULARY)
        rows = torch.arange(num_draws)
        span = Span(
            torch.tensor([given]).expand(num_draws, -1),
            torch.tensor([given]).expand(num_draws, -1) >= 0,
            torch.zeros(num_draws).long(),
            torch.zeros(num_draws).long(),
        )
        columns = torch.arange(num_logits).expand(num_draws, -1)
        one_row = Automata.of([automaton])
        automata = Automata(*(part.expand(num_draws, -1) for part in one_row))
        keys = noise.position_keys(noise.row_keys(5, rows), torch.zeros_like(rows), columns)
        path = draw_path(
            automata,
            span,
            logits[:num_logits].expand(num_draws, -1, -1),
            columns,
            temperature=temperature,
            keys=keys,
        )
        assert path.found.all()
        drawn = Counter(map(tuple, path.tokens.tolist()))
        assert drawn.keys() <= weights.keys()
        total = sum(weights.values())
        expected = {scored: num_draws * weight / total for scored, weight in weights.items()}
        assert len(expected) > 3
        common = [scored for scored, number in expected.items() if number >= 5]
        chi = sum((drawn[scored] - expected[scored]) ** 2 / expected[scored] for scored in common)
        # Chi-squared with at most n degrees of freedom: mean n, standard deviation sqrt(2 n).
        assert chi < len(common) + 4 * math.sqrt(2 * len(common))


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-20])
def test_a_draw_at_a_small_temperature_is_the_best_path(temperature: float) -> None:
    """Logits far below the largest were as improbable as excluded ones, and tied."""
    generator = torch.Generator().manual_seed(3)
    for number in range(20):
        expression = EXPRESSIONS[number % len(EXPRESSIONS)]
        automata = Automata.of([compile_constraint(Regex(expression), VOCABULARY)])
        logits = 30 * torch.randn(1, 4, V, generator=generator, dtype=torch.float64)
        logits[..., 0] = -torch.inf
        columns, keys = torch.arange(4)[None], torch.arange(4)[None]
        for span in (span_of([-1] * 4), span_of([-1, -1, -1, EOS])):
            best = best_path(automata, span, logits, columns)
            drawn = draw_path(automata, span, logits, columns, temperature=temperature, keys=keys)
            assert torch.equal(drawn.found, best.found)
            assert not best.found or torch.equal(drawn.tokens, best.tokens)


def test_a_draw_from_one_text_class_is_the_draw_without_a_constraint() -> None:
    """Tokens get the noise of unconstrained draws, so that both agree if every text is allowed."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 4, V, generator=generator, dtype=torch.float64)
    logits[..., [EOS, 8]] = -torch.inf
    automata = Automata.of([compile_constraint(Regex(r"[\s\S]*"), VOCABULARY)])
    columns = torch.arange(4)[None]
    for seed in range(50):
        keys = noise.position_keys(torch.tensor([seed]), torch.zeros(1).long(), columns)
        path = draw_path(automata, span_of([-1] * 4), logits, columns, temperature=0.8, keys=keys)
        assert torch.equal(path.tokens, statistics.draw(logits, 0.8, keys))


def test_a_row_is_the_same_alone_and_beside_others() -> None:
    generator = torch.Generator().manual_seed(2)
    automata = [compile_constraint(Regex(text), VOCABULARY) for text in EXPRESSIONS]
    B, T = len(automata), 5
    logits = 3 * torch.randn(B, T, V, generator=generator)
    columns = torch.arange(T).expand(B, -1)
    given = torch.full((B, T), -1)
    given[:, 2] = EOS
    given[3:, 2] = -1
    keys = noise.position_keys(torch.arange(B), torch.zeros(B).long(), columns)
    zeros = torch.zeros(B).long()

    def paths(rows: list[int]) -> list[Path]:
        chosen = Automata.of([automata[row] for row in rows])
        span = Span(given[rows], given[rows] >= 0, zeros[rows], zeros[rows])
        drawn = draw_path(
            chosen, span, logits[rows], columns[rows], temperature=1.1, keys=keys[rows]
        )
        return [best_path(chosen, span, logits[rows], columns[rows]), drawn]

    together = paths(list(range(B)))
    assert not together[0].found.all()
    assert together[0].found.sum() >= 4
    for row in range(B):
        for alone, all_rows in zip(paths([row]), together, strict=True):
            assert alone.found == all_rows.found[row]
            if alone.found:
                assert torch.equal(alone.tokens[0], all_rows.tokens[row])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, V, generator=generator).to(dtype)
    path, wide = (solve("(?:a|b){3,}", values, [-1] * 4) for values in (logits, logits.double()))
    assert torch.equal(path.tokens, wide.tokens)


def test_states_go_on_after_settled_tokens() -> None:
    automata = Automata.of([compile_constraint(Regex("ab(-1)*"), VOCABULARY)])
    state = torch.zeros(1).long()
    for token in (0, 1, 4):
        state = automata.after(state, torch.tensor([token]))
    logits = torch.zeros(1, 2, V)
    span = Span(torch.zeros(1, 2).long(), torch.zeros(1, 2).bool(), state, torch.zeros(1).long())
    assert best_path(automata, span, logits, torch.tensor([[0, 1]])).tokens.tolist() == [[3, EOS]]
    dead = automata.after(state, torch.tensor([0]))
    assert not best_path(automata, span._replace(states=dead), logits, torch.tensor([[0, 1]])).found
    assert automata.after(dead, torch.tensor([0])) == dead
