"""A plug-in that breaks its contract is named, at the first step that shows it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from plugins_under_test import plugin
from served import Streamer
from tiny_models import FAMILIES, LAW_OPTIONS, load_tiny, tiny
from toys import HashModel

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DecodeOutput,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    RequestQueue,
    SelfVerify,
    Verifier,
    decode,
    decode_many,
    new_decoder,
)
from dllm_decode import run as run_all
from dllm_decode.core.columns import columns
from dllm_decode.core.rows import Opening
from dllm_decode.models import MaskedTransformer
from dllm_decode.options import DecodeConfig
from dllm_decode.streaming import draft_observer
from dllm_decode.views import look
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact

PROMPTS = [[1, 2, 3], [4]]
NO_FACT: frozenset[Fact] = frozenset()
COMMITTED = frozenset({Fact.LOGITS_OF_COMMITTED})
THRESHOLD = ConfidenceThreshold(0.9)


@pytest.fixture(autouse=True)
def no_checks_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches off the checks of types, which users do not have and which would be first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def run(sampler: Sampler = THRESHOLD, model: Any = None, **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 4, "stop_at_eos": False, **options}
    return decode(model or HashModel(), PROMPTS, sampler, **options)


def rule(decide: Callable[[View], Any], **members: Any) -> Any:
    """Returns a sampler without a state."""
    return plugin(Sampler, step=lambda self, view, state: (decide(view), state), **members)


def everything(view: View, token: int) -> Decision:
    return Decision(torch.ones_like(view.eligible), tokens=torch.full_like(view.tokens, token))


def first_of(view: View) -> torch.Tensor:
    return view.eligible & (view.eligible.cumsum(-1) == 1)


REVISES: Any = {"gives": NO_FACT, "needs": COMMITTED}
STEP, A_BOOL = r"^step of Own\(\) must return ", r"^step of Own\(\) must return commit of kind bool"
SAMPLERS: list[tuple[Any, str]] = [
    (rule(lambda v: Decision(torch.zeros_like(v.eligible))),
     r"Own\(\) must commit at least one eligible position .* in round 1"),
    (rule(lambda v: everything(v, 7)), r"Own\(\) must commit eligible positions"),
    (rule(lambda v: everything(v, 23)), r"Own\(\) must commit .* in round 1"),
    (rule(lambda v: Decision(v.eligible, remask=torch.ones_like(v.masked)), **REVISES),
     r"Own\(\) must re-mask positions only that"),
    (rule(lambda v: Decision(v.eligible, remask=~v.masked), **REVISES),
     r"Own\(\) must re-mask positions only that"),
]  # fmt: skip
LATER: list[tuple[Any, str]] = [
    # Once these were errors of torch and Python from inside the engine.
    (rule(lambda v: Decision(v.confidence)), A_BOOL + r" and shape .*, got torch.float64"),
    (rule(lambda v: Decision(v.eligible[:, :3])),
     A_BOOL + r" and shape \(2, 4\), got torch.bool \(2, 3\)"),
    (rule(lambda v: Decision(commit=None)), A_BOOL + r" and shape \(2, 4\), got None"),
    (rule(lambda v: Decision(v.eligible, remask=v.eligible[0]), **REVISES),
     STEP + r"remask of kind bool .* got torch.bool \(4,\)"),
    (rule(lambda v: Decision(v.eligible, tokens=v.tokens.double())),
     STEP + r"tokens of kind integer .* got torch.float64 \(2, 4\)"),
    (plugin(Sampler, step=lambda self, view, state: Decision(view.eligible)),
     STEP + r"the pair \(Decision, state\), got a Decision"),
    (rule(lambda v: v.eligible), r"^step of Own.*, got a Tensor in place of the Decision"),
    (rule(lambda v: Decision(first_of(v) & (v.masked.sum(-1, keepdim=True) > 2))),
     r"Own\(\) must commit .* in round 3"),
    (rule(lambda v: Decision(first_of(v), settle=v.eligible), **REVISES),
     "settle positions only that hold a token"),
    (rule(lambda v: Decision(v.eligible & v.masked, settle=v.eligible & False,
                             remask=v.eligible & ~v.masked), **REVISES),
     "promises to finish a block within 4 steps"),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "sentence"), SAMPLERS)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(2)], ids=repr)
def test_a_sampler_that_commits_what_it_must_not_is_named(
    sampler: Any, sentence: str, verifier: Verifier
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        run(sampler, templates=[[23, 3]] * 2, verifier=verifier)


def policy(recompute: Any, **members: Any) -> Any:
    return plugin(CachePolicy, recompute=lambda self, query: recompute(query), **members)


def whole(query: Any) -> Any:
    return columns((0, query.end))


def hiding(found: Any) -> Any:
    return policy(whole, hidden=lambda self, query: found)


RANGES = r"(?s)^recompute of Own.* ranges of columns .*, got "
ONE_RANGE = r"^hidden of Own.* must return one range of columns"
CACHES: list[tuple[Any, str]] = [
    (policy(lambda query: [1, 2]), RANGES + r"\[1, 2\] \(list\)\.$"),
    (policy(lambda query: slice(1, 2)), RANGES + r"slice\(1, 2, None\) \(slice\)\.$"),
    (policy(lambda query: torch.tensor([1, 2])), RANGES + r"tensor\(\[1, 2\]\) \(Tensor\)\.$"),
    (policy(lambda query: ()), RANGES + r"\(\) \(tuple\)\.$"),
    (policy(lambda query: (range(4, 6), range(1, 3))),
     RANGES + r"\(range\(4, 6\), range\(1, 3\)\) \(tuple\)\.$"),
    (policy(lambda query: columns((0, query.end + 1))), r"ranges .*all within \[0, "),
    (policy(lambda q: columns((q.needed, q.needed + 1)) if q.row.turn_forwards else whole(q)),
     r"Own\(\) must compute every column that predicts .* in round 2"),
    (policy(lambda q: columns((q.needed, q.end)), gives=frozenset({Fact.EVERY_COLUMN})),
     r"Own\(\) must not give EVERY_COLUMN"),
    (policy(whole, numbers=lambda self, canvas, history, shift: torch.ones(len(canvas), 1)),
     r"numbers of Own\(\) must return Int\[B, N\] .*got torch.float32 \(2, 1\)"),
    # Once errors of Python, or an answer of zeros.
    (hiding((range(1, 2), range(3, 4))), ONE_RANGE),
    (hiding([range(1, 2)]), ONE_RANGE),
    (hiding(None), ONE_RANGE),
    (policy(whole, hidden=lambda self, query: (range(query.end),)), ONE_RANGE),
]  # fmt: skip


@pytest.mark.parametrize(("cache", "sentence"), CACHES)
def test_a_policy_that_breaks_its_contract_is_named(cache: CachePolicy, sentence: str) -> None:
    for family in FAMILIES:
        with pytest.raises(RuntimeError, match=sentence):
            run(FixedSchedule(4), tiny(family), cache=cache)


def test_columns_that_were_never_computed_are_added() -> None:
    """Once the answer was decoded from slots that hold nothing."""
    block = policy(lambda query: (range(query.needed, query.block[1]),))
    options: Any = {"model": tiny("llada"), "block_length": 8}
    alone, dual = (run(THRESHOLD, cache=cache, **options) for cache in (block, DualCache()))
    # One block, so that both compute everything once.
    assert torch.equal(alone.tokens, dual.tokens)
    assert torch.equal(alone.query_positions, dual.query_positions)


def schedule(opening: Any = None, **members: Any) -> Any:
    """Returns a schedule that opens all of the answer at once, unless it is said otherwise."""
    opens = opening or (lambda row: Opening.of_block(row.first, row.end))
    return plugin(
        BlockSchedule, window_length=lambda self, block_length, answer_length: answer_length,
        opening=lambda self, row, block_length, shift: opens(row), **members,
    )  # fmt: skip


def numbers(found: Any) -> Any:
    return schedule(numbers=lambda self, canvas, block_length, state: found(canvas))


SCHEDULES: list[tuple[Any, str]] = [
    # Once the sampler was blamed, a torch error raised, or None taken for everything.
    (schedule(lambda row: Opening.of_block(row.first, row.first)),
     r"opening of Own\(.*\) must open at least one unsettled position"),
    (schedule(lambda row: Opening.of_block(row.first, row.end + 1)),
     r"opening of Own\(.*\) must open .* columns of \[3, 11\) that end after 3"),
    (schedule(lambda row: Opening.of_block(row.first, row.first + 4)),
     r"opening of Own\(.*\) must open .* that end after [78], got"),
    (schedule(narrowed=lambda self, view, openings, state: (
        replace(view, eligible=view.eligible & False), state)),
     r"^Own\(.*\) must leave at least one unsettled position"),
    (schedule(lambda row: None), r"opening of Own\(.*\) must return an Opening .*, got None"),
    (schedule(lambda row: (0, 4)), r"must return an Opening .*, got \(0, 4\) \(tuple\)"),
    (numbers(lambda canvas: canvas.masked.sum(-1)),
     r"numbers of Own\(.*\) must return Int\[B, N\] .* \(2,\) for 2 rows"),
    (numbers(lambda canvas: canvas.masked.sum(-1, keepdim=True) / 16),
     r"must return .* torch\.float32 \(2, 1\) for 2 rows"),
    (numbers(lambda canvas: canvas.masked.long()[:1]), r"must return .* \(1, \d+\) for 2 rows"),
    (numbers(lambda canvas: [[3], [4]]), r"must return .*, got \[\[3\], \[4\]\] \(list\)"),
]  # fmt: skip


def test_a_schedule_may_open_everything_at_once() -> None:
    assert run(blocks=schedule()).forwards > 1


@pytest.mark.parametrize(
    ("kind", "plug_in", "sentence"),
    [*(("sampler", *case) for case in LATER), *(("blocks", *case) for case in SCHEDULES)],
)
def test_a_plug_in_that_breaks_its_contract_is_named(
    kind: str, plug_in: Any, sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        run(**{kind: plug_in})


# A rule that is broken in one row ends that row with an error, and no other.


POISON = 9
POISONED = [[3, 4, 5], [POISON, 6], [7], [1, POISON, 2, 3, 4, 5, 6, 7], [8] * 7, [2, 5]]
SOUND = [n for n, prompt in enumerate(POISONED) if POISON not in prompt]
OPTIONS: Any = {"gen_length": 10, "block_length": 4, "stop_at_eos": False}


def poisoned(family: str) -> MaskedTransformer:
    """Returns a model whose logits are NaN in every row that holds one token."""
    model = load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family])
    with torch.inference_mode():
        model.transformer.embedding.weight[POISON] = torch.nan
    return model


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_one_row_ends_that_request_alone(family: str, cache: Any, verifier: Any) -> None:
    model = poisoned(family)
    # NaN is never proposed, so that sound rows stay sound.
    options = {**OPTIONS, "banned_ids": (POISON,), "cache": cache, "verifier": verifier}
    sampler = FixedSchedule(2)
    config = DecodeConfig(**OPTIONS, banned_ids=(POISON,))
    decoder = new_decoder(model, sampler, cache=cache, verifier=verifier, config=config)
    requests = [decoder.request(prompt, n) for n, prompt in enumerate(POISONED)]
    found = {answer.request: answer for answer in run_all(decoder, RequestQueue(requests), 2)}
    assert sorted(found) == list(range(len(POISONED)))
    for n, answer in found.items():
        if n not in SOUND:
            assert "must give logits without NaN or infinity" in answer.error
            continue
        assert not answer.error
        prompts = [POISONED[n] if i == n else [1] for i in range(n + 1)]
        alone = decode(model, prompts, sampler, **options)
        assert torch.equal(answer.output.tokens[0], alone.tokens[n])
    with pytest.raises(RuntimeError, match="must give logits without NaN or infinity"):
        decode(model, POISONED, sampler, **options)
    answers = decode_many(model, POISONED, sampler, num_rows=1, **options)
    assert torch.equal(next(answers).tokens[0], found[0].output.tokens[0])
    with pytest.raises(RuntimeError, match="must give logits without NaN or infinity"):
        next(answers)


# Both treat rows as they should, unless the first token is 5: one commits nothing there, the other
# settles nothing.
IDLE = plugin(
    Sampler,
    step=lambda self, view, state: (Decision(view.eligible & (view.tokens[:, :1] != 5)), state),
)
ENDLESS = plugin(
    Sampler, gives=frozenset(), needs=frozenset({Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED}),
    max_steps=lambda self, num_masks: 4,
    step=lambda self, view, state: (
        Decision(view.eligible, settle=view.eligible & (view.tokens[:, :1] != 5)), state
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (IDLE, "must commit at least one eligible position"),
        (ENDLESS, "promises to finish a block within 4 steps"),
    ],
)
def test_a_sampler_that_breaks_its_contract_in_one_row_ends_that_row(
    sampler: Any, sentence: str
) -> None:
    decoder = new_decoder(tiny("llada"), sampler, config=DecodeConfig(**OPTIONS))
    templates = [[7], [5], [7, 8], [5, 6]]
    requests = [decoder.request([3], n, template=given) for n, given in enumerate(templates)]
    found = {answer.request: answer.error for answer in run_all(decoder, RequestQueue(requests), 4)}
    for n, given in enumerate(templates):
        assert (sentence in found[n]) == (given[0] == 5), found[n]


def test_a_cancel_that_comes_too_late_ends_no_later_request_of_the_same_index() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    queue = RequestQueue([decoder.request([3], 0)])
    first = [answer.output.tokens.tolist() for answer in run_all(decoder, queue, 1)]
    queue.cancel(0)
    queue.put(decoder.request([3], 0))
    assert [answer.output.tokens.tolist() for answer in run_all(decoder, queue, 1)] == first
    queue.put(decoder.request([3], 0))
    queue.cancel(0)
    assert not list(run_all(decoder, queue, 1))
    for index in range(5):
        queue.cancel(index)
    assert not list(run_all(decoder, queue, 1))
    assert not queue.take_cancelled(range(5))


def test_a_verifier_that_decides_is_named_for_what_it_decides() -> None:
    def silent(self: Any, decoder: Any, state: Any) -> Any:
        state, seen = look(decoder, state)
        return state, seen._replace(decision=Decision(torch.zeros_like(seen.view.eligible)))

    verifier = plugin(Verifier, look=silent)
    with pytest.raises(RuntimeError, match=r"Own.* must commit at least one eligible position"):
        decode(tiny("llada"), [[3]], FixedSchedule(2), verifier=verifier, **OPTIONS)


def test_requests_with_what_is_no_token_or_no_option_of_a_request_are_refused() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    with pytest.raises(ValueError, match=r"Token ids must be in \[0, 512\)"):
        decoder.request([3], 0, template=[99999])
    wrong: Any = {"block_length": 2}
    with pytest.raises(ValueError, match="An option of a request must be one of gen_length,"):
        decoder.request([3], 0, **wrong)
    with pytest.raises(ValueError, match="num_rows must be at least 1, got 0"):
        next(run_all(decoder, RequestQueue(), 0))


def test_prompts_are_made_outside_of_inference_mode() -> None:
    def prompts() -> Any:
        for token in (3, 4):
            assert not torch.is_inference_mode_enabled()
            yield [token]

    assert len(list(decode_many(tiny("llada"), prompts(), FixedSchedule(2), **OPTIONS))) == 2


def test_a_stream_ends_once_where_a_block_goes_on_after_the_answer() -> None:
    """Its end was told after each round in which the columns after the answer were decoded."""
    model, streamer = HashModel(causal_block_length=8, banned_ids=(22,)), Streamer()
    decode(
        model, [[1, 2, 3]], FixedSchedule(8), gen_length=7, stop_at_eos=False,
        observers=[draft_observer(streamer)],
    )  # fmt: skip
    assert streamer.ended == len(streamer.texts) == 1
