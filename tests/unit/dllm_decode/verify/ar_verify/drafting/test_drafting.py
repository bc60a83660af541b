"""Drafts that are drawn, and drafts that the mask predictor looks at more than once."""

from collections import Counter
from typing import Any

import pytest
import torch
from toys import DriftingModel, HashModel, answers_of, misfit, tiny_llama, tiny_target  # fmt: skip

from dllm_decode import (
    ARVerify,
    Canvas,
    CausalTarget,
    DecodeConfig,
    Drafting,
    DraftLength,
    Guided,
    PathSearch,
    Sampled,
    StepEvent,
    Tree,
    decode,
    new_decoder,
)
from dllm_decode.core.rows import Request, Row
from dllm_decode.core.state import State
from dllm_decode.decoder import Decoder
from dllm_decode.models.base import ForwardInputs
from dllm_decode.verify import target_round
from dllm_decode.verify.acceptance import accept
from dllm_decode.verify.drafts import Beginning
from dllm_decode.verify.target_round import read_target
from samplers import ConfidenceThreshold, FixedSchedule
from samplers.logits.noise import row_keys

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
TWICE = PathSearch(width=1, weight=1.0, num_forwards=2)
SHORT = DraftLength(2, 6, growth=2)


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

    def spied(decoder: Decoder, state: State, *given: Any, **rest: Any) -> Any:
        _, past, tokens, counts = given
        for place, (row, end) in enumerate((row.request.index, row.end) for row in state.rows):
            own = state.canvas.tokens[place, :end].tolist()
            answer = [token for token in own[len(PROMPTS[row]) :] if token != 23]
            read = tokens[place, : counts[place]].tolist()
            unread = len(PROMPTS[row]) + len(answer) - int(past.lengths[place])
            found.append((row, answer, read[unread:]))
        return read_target(decoder, state, *given, **rest)

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


def small_target() -> CausalTarget:
    target = CausalTarget(tiny_llama(16, 1), name="small", num_shared_ids=14)
    target.eos_ids = (13,)
    return target


LOOKS = PathSearch(num_forwards=9)


@pytest.mark.parametrize("drafting", [None, TWICE, LOOKS, Sampled()], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_what_the_target_cannot_say_is_neither_drafted_nor_written(
    temperature: float, drafting: Drafting | None
) -> None:
    """Guided diffusion used to let it read such tokens: an IndexError, or nonsense."""
    target = small_target()
    guided = Guided(target, top_k=9)
    out = decode(
        DriftingModel(), PROMPTS, FixedSchedule(2), gen_length=12, block_length=4,
        temperature=temperature,
        verifier=guided if drafting is None else ARVerify(target, SHORT, drafting),
    )  # fmt: skip
    assert (out.tokens < 14).all()
    is_decided = drafting is None or temperature
    assert is_decided or out.tokens.tolist() == answers_of(target, PROMPTS, 12, banned=(14, 15))


def never(inputs: ForwardInputs) -> Any:
    raise AssertionError("a forward was run")


@pytest.mark.parametrize("make", [ARVerify, Guided])
def test_a_target_of_other_ids_and_a_prompt_that_it_cannot_read_are_refused_before_any_forward(
    make: Any,
) -> None:
    """Such a prompt used to end in an IndexError of the target's embedding, or in nonsense."""
    model = HashModel()
    model.predict = never  # type: ignore[method-assign]
    prompts = [[1, 2], [15, 1]]
    for target, sentence in (
        (small_target(), "below 14, got 15 in a prompt or template"),
        (tiny_target(30), "the ids of hash model, 24 of them, got tiny llama with 30"),
    ):
        with pytest.raises(ValueError, match=sentence):
            decode(model, prompts, FixedSchedule(), verifier=make(target), gen_length=4)


def test_rows_under_a_target_may_differ_in_temperature_unless_drafts_are_drawn() -> None:
    config = DecodeConfig(gen_length=12, block_length=4)
    for drafting in (PathSearch(), Tree(8), Sampled()):
        verifier = ARVerify(tiny_target(), drafting=drafting)
        decoder = new_decoder(DriftingModel(), FixedSchedule(), verifier=verifier, config=config)
        if isinstance(drafting, Sampled):
            with pytest.raises(ValueError, match="must have the decode's temperature"):
                decoder.request([1, 2], 0, temperature=0.7)
            continue
        assert decoder.request([1, 2], 0, temperature=0.7).config.temperature == 0.7
        with pytest.raises(ValueError, match="top_p and top_k of a request must be left out"):
            decoder.request([1, 2], 0, top_p=0.5)


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
