"""Laws of any-subset speculative decoding: its exact law by enumeration, and its costs."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import load_xlnet
from torch import Tensor
from toys import misfit

from dllm_decode import DecodeConfig, DecodeOutput, decode, decode_many, new_decoder
from dllm_decode.core.requests import Request
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.join import join, new_canvas
from dllm_decode.engine.round import open_blocks
from dllm_decode.engine.state import State
from dllm_decode.models.predictors.xlnet import XLNet
from dllm_decode.verify import AnySubsetVerify, any_subset
from samplers import ConfidenceThreshold
from samplers.logits import statistics

MASK = 5
CANVAS = (0, MASK, MASK, 3, MASK, MASK, 2)
OPEN = [column for column, token in enumerate(CANVAS) if token == MASK]
Canvas = tuple[int, ...]
Law = dict[Canvas, float]


@pytest.fixture(params=[0.0, 6.0], ids=["mask as trained", "likely mask"])
def model(request: pytest.FixtureRequest) -> XLNet:
    load_xlnet.cache_clear()
    xlnet = load_xlnet("law_xlnet", mask_id=MASK)
    xlnet.network.lm_loss.bias.data[MASK] += request.param
    load_xlnet.cache_clear()
    return xlnet


def conditional(model: XLNet, canvas: Canvas, column: int, temperature: float) -> list[float]:
    """Returns the law of an open column given the given tokens and the open columns before it.

    The network is called as transformers documents it.
    """
    hidden = torch.ones(1, len(canvas), len(canvas)).double()
    for row, key in itertools.permutations(range(len(canvas)), 2):
        if key not in OPEN or (row in OPEN and key < row):
            hidden[0, row, key] = 0.0
    target = torch.zeros(1, 1, len(canvas)).double()
    target[0, 0, column] = 1.0
    # The tokens of open columns from this one on are not read.
    tokens = torch.tensor([[t if n not in OPEN or n < column else 1 for n, t in enumerate(canvas)]])
    with torch.no_grad():
        logits = model.network(
            tokens, perm_mask=hidden, target_mapping=target, use_mems=False
        ).logits[0, 0]
    logits[MASK] = -torch.inf
    return (logits / temperature).softmax(-1).tolist()


def law_of_one_token_a_forward(model: XLNet, temperature: float) -> Law:
    law: Law = {CANVAS: 1.0}
    for column in OPEN:
        longer: Law = {}
        for canvas, weight in law.items():
            probabilities = conditional(model, canvas, column, temperature)
            for token in range(MASK):
                after = (*canvas[:column], token, *canvas[column + 1 :])
                longer[after] = weight * probabilities[token]
        law = longer
    return law


class Enumerated:
    """The law of whole decodes with a verifier, from the laws of drafts and verdicts of its rounds.

    A round is run with every possible draft, each in a row of its own.
    """

    def __init__(self, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self.drafts: list[tuple[int, ...]] = []
        self.seen: tuple[Any, Tensor]
        self.known: dict[Canvas, tuple[Law, float]] = {}
        original = any_subset.accept_by_ratio_without_bonus

        def accept(draft: Any, log_probs: Tensor, keys: Tensor) -> Any:
            self.seen = draft, log_probs
            return original(draft, log_probs, keys)

        monkeypatch.setattr(any_subset, "accept_by_ratio_without_bonus", accept)
        monkeypatch.setattr(statistics, "draw", lambda *_: torch.tensor(self.drafts))

    def rounds_from(self, canvas: Canvas) -> tuple[Law, int]:
        """Returns the law of the canvas after a round, and the forwards of the round."""
        masks = [n for n in OPEN if canvas[n] == MASK]
        verifier: Any = self.decoder.verifier
        window = masks[: verifier.draft_tokens]
        self.drafts = list(itertools.product(range(MASK), repeat=len(window)))
        state = self.state_of(canvas, len(self.drafts))
        state, _ = verifier.look(self.decoder, state)
        draft, log_probs = self.seen
        assert draft.tokens.tolist() == [list(tokens) for tokens in self.drafts]
        outcomes: Law = {}

        def add(tokens: Sequence[int], weight: float) -> None:
            after = list(canvas)
            for column, token in zip(window, tokens, strict=False):
                after[column] = token
            outcomes[tuple(after)] = outcomes.get(tuple(after), 0.0) + weight

        for tokens, q, p in zip(self.drafts, draft.logits.exp(), log_probs.exp(), strict=True):
            # Probability of the whole draft; the loop multiplies it by those of the verdicts.
            reach = math.prod(float(q[n, token]) for n, token in enumerate(tokens))
            for place, token in enumerate(tokens):
                accepted = min(1.0, float(p[place, token] / q[place, token]))
                assert place > 0 or accepted == 1.0
                residual = (p[place] - q[place]).clamp(min=0.0)
                if accepted < 1.0:
                    for replacement in residual.nonzero().flatten().tolist():
                        share = float(residual[replacement] / residual.sum())
                        add([*tokens[:place], replacement], reach * (1.0 - accepted) * share)
                reach *= accepted
            add(tokens, reach)
        return outcomes, state.rows[0].nfe

    def state_of(self, canvas: Canvas, num_rows: int) -> State:
        # A settled open column is not given: it is written into the canvas, not the template.
        requests = [
            Request(index=n, prompt=(CANVAS[0],), config=self.config, template=CANVAS[1:])
            for n in range(num_rows)
        ]
        state = State.empty(num_rows, new_canvas(self.decoder, ()))
        state = join(self.decoder, state, requests)
        # Columns after the row's end hold an EOS, as in every canvas.
        after = (state.canvas.eos_ids[0],) * (state.canvas.width - len(canvas))
        tokens = torch.tensor([(*canvas, *after)]).expand(num_rows, -1)
        written = replace(state.canvas, tokens=tokens.clone(), unsettled=tokens == MASK)
        first = next(n for n in OPEN if canvas[n] == MASK)
        rows = tuple(row._replace(first_unsettled=first) for row in state.rows)
        return open_blocks(self.decoder, state._replace(canvas=written, rows=rows))

    def law(self, canvas: Canvas = CANVAS) -> tuple[Law, float]:
        """Returns the law of the answer, and the forwards on average."""
        if MASK not in canvas:
            return {canvas: 1.0}, 0.0
        if canvas not in self.known:
            after, num_forwards = self.rounds_from(canvas)
            law, mean = dict[Canvas, float](), float(num_forwards)
            for step, weight in after.items():
                answers, more = self.law(step)
                mean += weight * more
                for answer, share in answers.items():
                    law[answer] = law.get(answer, 0.0) + weight * share
            self.known[canvas] = law, mean
        return self.known[canvas]


def distance(one: Law, other: Law) -> float:
    """Returns the total variation of two laws."""
    return 0.5 * sum(abs(one.get(a, 0.0) - other.get(a, 0.0)) for a in {*one, *other})


@pytest.mark.parametrize(("draft_tokens", "temperature"), [(1, 1.0), (2, 1.0), (3, 0.7), (4, 1.0)])
def test_the_law_is_that_of_one_token_a_forward(
    model: XLNet, draft_tokens: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DecodeConfig(gen_length=len(CANVAS) - 1, temperature=temperature, stop_at_eos=False)
    decoder = new_decoder(
        model, ConfidenceThreshold(0.9), verifier=AnySubsetVerify(draft_tokens), config=config
    )
    law, num_forwards = Enumerated(decoder, monkeypatch).law()
    expected = law_of_one_token_a_forward(model, temperature)
    assert len(expected) == 5**4
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(law, expected) < 1e-12
    saves = draft_tokens > 2
    assert num_forwards < 4.0 if saves else num_forwards == pytest.approx(4.0, abs=1e-12)


def test_draws_follow_the_law() -> None:
    model = load_xlnet("law_xlnet", mask_id=MASK)
    law = law_of_one_token_a_forward(model, 1.0)
    for draft_tokens in (3, 4):
        out = decode(
            model, [[CANVAS[0]]] * 4000, ConfidenceThreshold(0.9), temperature=1.0,
            verifier=AnySubsetVerify(draft_tokens), templates=[CANVAS[1:]] * 4000, gen_length=6,
            stop_at_eos=False,
        )  # fmt: skip
        assert out.accepted.sum() < out.drafted.sum()
        for first, second in itertools.combinations(OPEN, 2):
            pairs = torch.zeros(MASK * MASK, dtype=torch.float64)
            for answer, weight in law.items():
                pairs[answer[first] * MASK + answer[second]] += weight
            drawn = out.tokens[:, first - 1] * MASK + out.tokens[:, second - 1]
            # 24 degrees of freedom: 52 is exceeded once in 1,000 times.
            assert misfit(drawn, pairs) < 52.0


TINY_MASK = 6
PROMPTS = [[1, 3], [4], [5, 8, 9], [7], [0, 3, 9]]
TEMPLATES = [[6, 6, 3, 6, 6, 6, 6, 4], [6] * 8, [6, 6, 6, 6, 6, 6, 6, 7], [], [1, 2, 3, 4, 5, 7, 8]]
NUM_OPEN = torch.tensor([6, 8, 7, 8, 1])


def tiny() -> XLNet:
    return load_xlnet("tiny_xlnet", mask_id=TINY_MASK)


def decoded(draft_tokens: int, rows: slice = slice(None), **options: Any) -> DecodeOutput:
    return decode(
        tiny(), PROMPTS[rows], ConfidenceThreshold(0.9), verifier=AnySubsetVerify(draft_tokens),
        templates=TEMPLATES[rows], **{"gen_length": 8, "stop_at_eos": False} | options,
    )  # fmt: skip


@pytest.mark.parametrize("stop_at_eos", [False, True])
@pytest.mark.parametrize("draft_tokens", [2, 3, 5, 10])
def test_greedy_answers_are_those_of_one_token_a_forward(
    draft_tokens: int, stop_at_eos: bool
) -> None:
    alone = decoded(1, stop_at_eos=stop_at_eos)
    out = decoded(draft_tokens, stop_at_eos=stop_at_eos)
    assert out.answers() == alone.answers()
    if stop_at_eos:
        assert alone.nfe.sum() < NUM_OPEN.sum(), "no answer ended early"
        # The last round may have a second forward, and write the EOS first.
        assert (out.nfe <= alone.nfe + 1).all()
        if draft_tokens == 2:
            assert torch.equal(out.nfe, torch.minimum(alone.nfe + alone.nfe % 2, NUM_OPEN))
    else:
        assert torch.equal(out.tokens, alone.tokens)
        assert torch.equal(alone.nfe, NUM_OPEN)
        assert torch.equal(out.nfe, NUM_OPEN) if draft_tokens == 2 else out.nfe.sum() < 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_rounds_never_cost_more_forwards_than_they_write_tokens(
    temperature: float, dtype: torch.dtype
) -> None:
    model, saved = tiny(), 0
    load_xlnet.cache_clear()
    model.network.to(dtype)
    for draft_tokens in (1, 2, 3, 5):
        gains = list[tuple[int, ...]]()

        def note(event: Any, gains: list[tuple[int, ...]] = gains) -> None:
            written = (event.before.masked & ~event.after.masked).sum(-1)
            forwards = torch.tensor([row.nfe for row in event.rows])
            gains.extend(zip(event.request_indices.tolist(), written.tolist(), forwards.tolist(),
                             event.accepted.tolist(), strict=True))  # fmt: skip

        out = decode(
            model, PROMPTS * 6, ConfidenceThreshold(0.9), temperature=temperature, gen_length=8,
            verifier=AnySubsetVerify(draft_tokens), templates=TEMPLATES * 6, stop_at_eos=False,
            observers=[note],
        )  # fmt: skip
        before: dict[int, tuple[int, int]] = {}
        for request, written, forwards, accepted in gains:
            last_forwards, last_accepted = before.get(request, (0, 0))
            assert written >= forwards - last_forwards
            # The first draft of a round is always accepted.
            assert accepted > last_accepted
            before[request] = forwards, accepted
        assert (out.nfe <= NUM_OPEN.repeat(6)).all()
        assert (out.tokens != TINY_MASK).all()
        saved += int((NUM_OPEN.repeat(6) - out.nfe).sum())
    assert saved > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_alone_is_the_row_in_a_batch(temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "return_logprobs": True}
    together = decoded(4, **options)
    assert len({int(nfe) for nfe in together.nfe}) > 1
    later = list(
        decode_many(
            tiny(), PROMPTS, ConfidenceThreshold(0.9), num_rows=2, templates=TEMPLATES,
            verifier=AnySubsetVerify(4), gen_length=8, block_length=3, stop_at_eos=False, **options,
        )
    )  # fmt: skip
    for n, output in enumerate(later):
        assert output.tokens.tolist() == together.tokens[n : n + 1].tolist()
        for name in ("nfe", "drafted", "accepted"):
            assert getattr(output, name).tolist() == getattr(together, name)[n : n + 1].tolist()
        for ours, theirs in zip(output.commits[1:], together.commits[1:], strict=True):
            torch.testing.assert_close(ours, theirs[n : n + 1], equal_nan=True)


def test_log_probabilities_are_those_of_one_token_a_forward() -> None:
    with_one, with_five = (decoded(n, return_logprobs=True).commits for n in (1, 5))
    for ours, theirs in zip(with_five[1:], with_one[1:], strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
