"""Drafts that are drawn, and drafts that the mask predictor looks at more than once."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import DriftingModel, HashModel, greedy, logits_of, tiny_llama, tiny_target

from dllm_decode import (
    ARVerify,
    Canvas,
    CausalTarget,
    DecodeConfig,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    PathSearch,
    Sampled,
    StepEvent,
    Tree,
    decode,
    load_model,
    load_target,
)
from dllm_decode.core.rows import Request, Row
from dllm_decode.core.state import State
from dllm_decode.decoder import Decoder
from dllm_decode.models.base import ForwardInputs
from dllm_decode.verify.ar_verify import target_round
from dllm_decode.verify.ar_verify.acceptance import accept
from dllm_decode.verify.ar_verify.drafting.base import Beginning
from dllm_decode.verify.ar_verify.target_round import read_target
from eval.runs.prompts import encode_prompt
from eval.tasks import WordProblems
from samplers import ConfidenceThreshold, EntropyBound, FixedSchedule, Klass
from samplers.logits.noise import row_keys

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
ARGMAX = PathSearch(width=1, weight=1.0)
TWICE = PathSearch(width=1, weight=1.0, num_forwards=2)
WAYS: tuple[Drafting, ...] = (PathSearch(), PathSearch(num_forwards=3), Sampled())
TREES: tuple[Drafting, ...] = (Tree(8), Tree(12, column_cost=0.01, num_forwards=3))
SHORT = DraftLength(2, 6, growth=2)


def answers_of(target: CausalTarget, prompts: list[list[int]], length: int) -> list[list[int]]:
    return [
        greedy(target.network.model, prompt, gen_length=length, stops=target.eos_ids, banned=(23,))
        for prompt in prompts
    ]


@pytest.mark.parametrize("num_forwards", [2, 8])
def test_the_greedy_answer_is_the_targets_however_often_the_drafter_looks(
    num_forwards: int,
) -> None:
    target = tiny_target(seed=2)
    target.eos_ids = (22, 13)
    expected, more = answers_of(target, PROMPTS, 12), 0
    drafting = PathSearch(width=1, proxy=NGram(24).fit(expected), num_forwards=num_forwards)
    samplers = (FixedSchedule(2, "random"), ConfidenceThreshold(0.2), Klass(0.4, 0.05),
                EntropyBound(0.5))  # fmt: skip
    for sampler in samplers:
        out = decode(
            DriftingModel(), PROMPTS, sampler, verifier=ARVerify(target, SHORT, drafting),
            gen_length=12, block_length=4,
        )  # fmt: skip
        assert out.tokens.tolist() == expected, sampler
        assert (out.target_nfe <= out.nfe).all()
        assert (out.nfe <= num_forwards * out.target_nfe).all()
        more += int((out.nfe > out.target_nfe).all())
    assert more == len(samplers), "the drafter never looked again"


def by_hand(
    model: Any, prompt: list[int], answer: list[int], *, masks: int, wanted: int, threshold: float
) -> tuple[list[int], int]:
    """A draft in three forwards at most: one row, one loop; returns also how many it took."""
    begin = len(prompt) + len(answer)
    canvas = torch.tensor([[*prompt, *answer, *[model.mask_id] * masks]])
    for forward in (1, 2, 3):
        logits = model.logits_of(canvas)[0, begin : begin + wanted]
        logits[:, model.mask_id] = -torch.inf
        confidence, tokens = logits.softmax(-1).max(-1)
        is_open = canvas[0, begin : begin + wanted] == model.mask_id
        confidence[~is_open] = -1.0
        commit = confidence >= threshold
        commit[confidence.argmax()] = True
        if forward == 3:
            commit = is_open
        canvas[0, begin : begin + wanted][commit] = tokens[commit]
        if not (canvas[0, begin : begin + wanted] == model.mask_id).any():
            break
    draft = canvas[0, begin : begin + wanted].tolist()
    ends = [place + 1 for place, token in enumerate(draft) if token in (22, 13)]
    return draft[: min([*ends, wanted])], forward


def test_a_draft_is_what_the_sampler_commits_in_so_many_forwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, model, threshold = tiny_target(seed=2), DriftingModel(drift=0.8), 0.18
    target.eos_ids = (22, 13)
    drafting = PathSearch(width=1, weight=1.0, num_forwards=3)
    found: list[tuple[int, list[int], list[int]]] = []

    def spied(
        decoder: Decoder,
        state: State,
        target: Any,
        past: Any,
        tokens: Any,
        counts: Any,
        **rest: Any,
    ) -> Any:
        for place, (row, end) in enumerate((row.request.index, row.end) for row in state.rows):
            own = state.canvas.tokens[place, :end].tolist()
            answer = [token for token in own[len(PROMPTS[row]) :] if token != 23]
            read = tokens[place, : counts[place]].tolist()
            unread = len(PROMPTS[row]) + len(answer) - int(past.lengths[place])
            found.append((row, answer, read[unread:]))
        return read_target(decoder, state, target, past, tokens, counts, **rest)

    monkeypatch.setattr(target_round, "read_target", spied)
    out = decode(
        model, PROMPTS, ConfidenceThreshold(threshold), gen_length=12, block_length=4,
        verifier=ARVerify(target, DraftLength(6, 6), drafting),
    )  # fmt: skip
    forwards, sizes = Counter[int](), Counter[int]()
    for row, answer, draft in found:
        masks = 12 - len(answer)
        expected, num = by_hand(
            model, PROMPTS[row], answer, masks=masks, wanted=min(6, masks), threshold=threshold
        )
        assert draft == expected
        forwards[row] += num
        sizes[num] += 1
    assert [forwards[row] for row in range(3)] == out.nfe.tolist()
    assert len(sizes) > 1, "all drafts took the same number of forwards"


def test_observers_see_the_rows_as_they_were_before_the_drafts() -> None:
    events: list[StepEvent] = []
    decode(
        DriftingModel(), PROMPTS, FixedSchedule(3), verifier=ARVerify(tiny_target(), SHORT, TWICE),
        gen_length=12, block_length=4, observers=[events.append],
    )  # fmt: skip
    for event in events:
        assert torch.equal(event.view.tokens, event.before.tokens.gather(1, event.columns))


@pytest.mark.parametrize("drafting", [ARGMAX, PathSearch(num_forwards=3), Sampled()], ids=repr)
def test_observers_read_off_what_was_drafted_and_accepted_in_each_round(
    drafting: Drafting,
) -> None:
    target, events = tiny_target(seed=2, scale=2.0), list[StepEvent]()
    out = decode(
        DriftingModel(peak=3.0), PROMPTS, ConfidenceThreshold(0.1), gen_length=12, block_length=4,
        verifier=ARVerify(target, SHORT, drafting), temperature=1.0, observers=[events.append],
    )  # fmt: skip
    before = dict.fromkeys(range(3), (0, 0))
    accepted_ever = Counter[int]()
    for event in events:
        committed = (event.before.masked & ~event.after.masked).sum(-1).tolist()
        so_far = zip(event.drafted.tolist(), event.accepted.tolist(), strict=True)
        for row, num, total in zip(event.requests.tolist(), committed, so_far, strict=True):
            drafted, accepted = total[0] - before[row][0], total[1] - before[row][1]
            assert 1 <= drafted <= 6
            assert 0 <= accepted <= drafted
            is_last = not bool(event.after.masked[event.requests.tolist().index(row)].any())
            assert num == accepted + 1 or is_last
            accepted_ever[accepted] += 1
            before[row] = total
    assert [before[row][0] for row in range(3)] == out.drafted.tolist()
    assert [before[row][1] for row in range(3)] == out.accepted.tolist()
    assert len(accepted_ever) > 1


@pytest.mark.parametrize("drafting", [ARGMAX, TWICE, Sampled(), *TREES], ids=repr)
def test_a_row_is_drafted_and_judged_without_looking_at_its_batch_mates(drafting: Drafting) -> None:
    options: Any = {
        "gen_length": 12, "block_length": 4, "temperature": 1.0, "stop_at_eos": False,
        "verifier": ARVerify(tiny_target(seed=2, scale=2.0), SHORT, drafting),
    }  # fmt: skip
    model = DriftingModel(peak=3.0)
    together = decode(model, PROMPTS, ConfidenceThreshold(0.1), **options)
    assert len(together.nfe.unique()) > 1, "all rows went at the same pace"
    for row in range(3):
        others = [[9, 9], [8], [3, 1, 2, 1]][: row + 1]
        others[row] = PROMPTS[row]
        alone = decode(model, others, ConfidenceThreshold(0.1), **options)
        assert torch.equal(alone.tokens[row], together.tokens[row])
        for name in ("nfe", "target_nfe", "drafted", "accepted"):
            assert getattr(alone, name)[row] == getattr(together, name)[row]


def test_a_seed_repeats_the_draws_and_another_does_not() -> None:
    options: Any = {
        "gen_length": 12, "block_length": 4, "temperature": 1.0,
        "verifier": ARVerify(tiny_target(seed=2, scale=2.0), SHORT, Sampled()),
    }  # fmt: skip
    outs = [decode(HashModel(peak=3.0), PROMPTS, FixedSchedule(), seed=n, **options).tokens
            for n in (5, 5, 6)]  # fmt: skip
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("drafting", WAYS, ids=repr)
def test_after_any_accepted_length_the_target_predicts_as_from_scratch(
    drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, ends = Counter[tuple[int, int]](), 0

    def spied(
        decoder: Decoder, state: State, target: Any, past: Any, tokens: Any, counts: Any, *,
        num_logits: int, first_logits: Any, parents: Any,
    ) -> Any:  # fmt: skip
        state, reading = read_target(
            decoder, state, target, past, tokens, counts,
            num_logits=num_logits, first_logits=first_logits, parents=parents,
        )  # fmt: skip
        assert parents is None
        assert reading.logits.shape[1] == num_logits
        for place, count in enumerate(counts.tolist()):
            own = state.canvas.tokens[place, : past.lengths[place]].tolist()
            fresh = logits_of(tiny_llama(5, 3, 2.0), own + tokens[place, :count].tolist())
            fresh[:, 4] = -torch.inf
            skipped = int(first_logits[place])
            fresh = fresh[len(own) + skipped : len(own) + count]
            torch.testing.assert_close(reading.logits[place, : count - skipped], fresh)
        return state, reading

    monkeypatch.setattr(target_round, "read_target", spied)

    def count(event: StepEvent) -> None:
        nonlocal ends
        committed = event.before.masked & ~event.after.masked
        written = torch.where(committed, event.after.tokens, -1)
        for row in written.tolist():
            new = [token for token in row if token >= 0]
            ends += len(new) > 1 and new[-1] == 3
        lengths.update(committed.sum(-1).tolist())

    target = tiny_target(vocab_size=5, seed=3, scale=2.0)
    target.eos_ids = (3,)
    model = DriftingModel(vocab_size=5, mask_id=4, eos_ids=(3,), peak=2.0)
    for temperature, seed in itertools.product((0.0, 1.0), (0, 1)):
        decode(
            model, [[1, 2], [0], [2, 2, 1], [1], [0, 0, 2, 1, 1]], ConfidenceThreshold(0.4),
            gen_length=12, block_length=4, temperature=temperature, seed=seed, stop_at_eos=False,
            verifier=ARVerify(target, DraftLength(2, 2), drafting), observers=[count],
        )  # fmt: skip
    assert all(lengths[length] for length in (1, 2, 3)), lengths
    assert ends, "no EOS inside a draft was accepted"


def small_target() -> CausalTarget:
    target = CausalTarget(tiny_llama(16, 1), name="small", num_shared_ids=14)
    target.eos_ids = (13,)
    return target


def test_what_the_target_cannot_say_is_not_proposed_to_it() -> None:
    """Guided diffusion used to let it read such tokens: an IndexError, or nonsense."""
    for temperature in (0.0, 2.0):
        out = decode(
            DriftingModel(), PROMPTS, FixedSchedule(2), gen_length=12, block_length=4,
            temperature=temperature, verifier=Guided(small_target(), top_k=9),
        )  # fmt: skip
        assert (out.tokens < 14).all()


@pytest.mark.parametrize("drafting", [TWICE, PathSearch(num_forwards=9), Sampled()], ids=repr)
def test_what_the_target_cannot_say_is_neither_drafted_nor_written(drafting: Drafting) -> None:
    target = small_target()
    expected = [
        greedy(target.network.model, prompt, gen_length=12, stops=(13,), banned=(14, 15))
        for prompt in PROMPTS
    ]
    for temperature in (0.0, 2.0):
        out = decode(
            DriftingModel(), PROMPTS, FixedSchedule(2), gen_length=12, block_length=4,
            temperature=temperature, verifier=ARVerify(target, SHORT, drafting),
        )  # fmt: skip
        assert (out.tokens < 14).all()
        assert temperature or out.tokens.tolist() == expected


def never(inputs: ForwardInputs) -> Any:
    raise AssertionError("a forward was run")


@pytest.mark.parametrize("make", [ARVerify, Guided])
def test_a_prompt_that_the_target_cannot_read_is_refused_before_any_forward(make: Any) -> None:
    """It used to end in an IndexError of the target's embedding, or in nonsense."""
    model = HashModel()
    model.predict = never  # type: ignore[method-assign]
    target = small_target()
    with pytest.raises(ValueError, match="below 14, got 15 in a prompt or template"):
        decode(model, [[1, 2], [15, 1]], FixedSchedule(), verifier=make(target), gen_length=4,
               block_length=4)  # fmt: skip


def misfit(tokens: Tensor, law: Tensor) -> float:
    """Chi-square of how often each token occurs."""
    expected = len(tokens) * law
    return float(((tokens.bincount(minlength=len(law)) - expected) ** 2 / expected).sum())


def test_drafts_are_drawn_at_the_temperature_and_judged_with_other_noise() -> None:
    num, temperature = 40_000, 0.7
    rows = [Row.of(Request(0, [1], DecodeConfig(gen_length=3)), 1, mask_id=4)] * num
    canvas = Canvas.blank(rows, width=4, mask_id=4, eos_ids=(3,))
    keys = row_keys(0, torch.arange(num))
    beginning = Beginning(canvas, torch.ones(num, dtype=torch.long), keys, temperature)
    q = torch.tensor([[0.8, 0.3, -0.4, 0.0], [0.0, 0.6, 0.1, 0.5]]).double()
    p = torch.tensor([[-0.2, 0.7, 0.4, 0.0], [0.5, 0.0, 0.3, -0.1], [0.9, 0.2, 0.0, 0.4]]).double()
    draft = Sampled().draft(beginning, q.expand(num, 2, 4), torch.full((num,), 2))
    laws = (q / temperature).softmax(-1)
    both = draft.tokens[:, 0] * 4 + draft.tokens[:, 1]
    # At the level 0.0001: 44.3 for 15 degrees of freedom, 21.1 for 3.
    assert misfit(both, (laws[0][:, None] * laws[1]).flatten()) < 44.3
    assert torch.equal(draft.counts, torch.where(draft.tokens[:, 0] == 3, 1, 2))
    verdict = accept(beginning, draft, p.expand(num, 3, 4))
    laws = (p / temperature).softmax(-1)
    for place in range(3):
        reached = verdict.accepted >= place
        assert reached.sum() > num / 5
        assert misfit(verdict.tokens[reached, place], laws[place]) < 21.1


def test_drawn_drafts_are_the_likeliest_tokens_at_temperature_0() -> None:
    outs = [
        decode(
            DriftingModel(), PROMPTS, FixedSchedule(), gen_length=12, block_length=4,
            verifier=ARVerify(tiny_target(seed=2), SHORT, drafting),
        )
        for drafting in (Sampled(), ARGMAX)
    ]  # fmt: skip
    assert torch.equal(outs[0].tokens, outs[1].tokens)
    assert torch.equal(outs[0].accepted, outs[1].accepted)


def test_mini_drafts_better_when_it_looks_more_than_once() -> None:
    model, tokenizer = load_model("mini", dtype=torch.float32)
    assert tokenizer is not None
    target = load_target("mini-ar", tokenizer, dtype=torch.float32)
    prompts = [
        encode_prompt(tokenizer, example, chat=True)
        for example in WordProblems().examples(num_examples=16)
    ]
    once, more = (
        decode(
            model, prompts, ConfidenceThreshold(0.9), gen_length=48, block_length=16,
            verifier=ARVerify(target, DraftLength(8, 32), drafting),
        )
        for drafting in (ARGMAX, PathSearch(width=1, weight=1.0, num_forwards=4))
    )  # fmt: skip
    assert torch.equal(once.tokens, more.tokens)
    assert more.target_nfe.sum() < 0.8 * once.target_nfe.sum()
    assert more.nfe.sum() < 1.6 * once.nfe.sum()
