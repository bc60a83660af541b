"""A schedule and a verifier as a newcomer wrote them with the documentation alone."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tiny_models import tiny

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    Decoder,
    DelayedCache,
    DualCache,
    FreeCache,
    Look,
    NoCache,
    Opening,
    Pass,
    PipelineCache,
    Row,
    SelfVerify,
    SettledCache,
    State,
    SuffixWindow,
    Verifier,
    Window,
    block_of,
    decode,
    generate,
    load_model,
    stream,
)
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.passes import Branches
from dllm_decode.engine.decide import decide
from dllm_decode.engine.forward import forward
from dllm_decode.engine.look import look
from dllm_decode.engine.views import view_of
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler
from samplers.facts import Fact
from samplers.logits.statistics import highest_one

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]


@dataclass(frozen=True)
class GrowingBlocks(BlockSchedule):
    """Opens blocks of 2, 4 and 8 tokens and so on, one after another."""

    block_length: int | None = None

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.WHOLE_BLOCKS})

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        start, length = row.blocks_start, min(2, block_length)
        while start + length <= row.first_unsettled:
            start, length = start + length, min(2 * length, block_length)
        return Opening.of_block(start, min(start + length, row.end))


@dataclass(frozen=True)
class TwoLooks(Verifier):
    """Keeps the commits whose token is still the likeliest when all of them are in place."""

    both: bool = False

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.FINAL_TOKENS})

    @property
    def num_branches(self) -> int:
        return 2

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        state, seen = look(decoder, state)
        state, seen, decision = decide(decoder, state, seen)
        view, window, rows = seen.view, seen.window, tuple(range(len(state.rows)))
        tokens = window.put(state.canvas.tokens, view.eligible, view.most_likely)
        branch_numbers = (1,) * len(rows)
        if self.both:
            tokens = torch.cat([state.canvas.tokens, tokens])
            rows, branch_numbers = rows * 2, (0,) * len(rows) + branch_numbers
        branches = Branches(tokens, rows, branch_numbers)
        state, logits = forward(decoder, state, Pass(window, branches=branches))
        unchanged = logits[-len(state.rows) :].argmax(-1) == view.most_likely
        some = torch.where(decision.commit.any(-1, keepdim=True), decision.commit, view.eligible)
        commit = (decision.commit & unchanged) | highest_one(view.confidence, some)
        return state, seen._replace(decision=Decision(commit, tokens=decision.tokens))


def answer(prompts: list[list[int]], **options: Any) -> torch.Tensor:
    options = {"gen_length": 16, "block_length": 8, "stop_at_eos": False, **options}
    sampler = options.pop("sampler", FixedSchedule(2))
    return decode(tiny("llada"), prompts, sampler, **options).tokens


@pytest.mark.parametrize("cache", [NoCache(), DualCache()], ids=repr)
def test_blocks_of_several_lengths_are_whole_blocks(cache: CachePolicy) -> None:
    """Once the whole window was open, so that two blocks were silently decoded as one."""
    seen: list[int] = []

    def watch(event: StepEvent) -> None:
        is_new = event.before.unsettled & ~event.after.unsettled
        for number, row in enumerate(event.rows):
            start, stop = row.opening.bounds
            where = is_new[number].nonzero().flatten().tolist()
            assert all(start <= column < stop for column in where)
            seen.append(start - row.blocks_start)

    together = answer(PROMPTS, cache=cache, blocks=GrowingBlocks(), observers=[watch])
    assert set(seen) == {0, 2, 6, 14}
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(answer([prompt], cache=cache, blocks=GrowingBlocks())[0], together[row])


@pytest.mark.parametrize("cache", [NoCache(), DualCache()], ids=repr)
def test_drafts_of_blocks_of_several_lengths_change_no_token(cache: CachePolicy) -> None:
    """The error named a cache of the open block alone, for columns after the block."""
    verified = answer(PROMPTS, cache=cache, blocks=GrowingBlocks(), verifier=SelfVerify(2))
    assert torch.equal(verified, answer(PROMPTS, cache=cache, blocks=GrowingBlocks()))


def test_delimiters_are_token_ids_of_the_model() -> None:
    most = tiny("llada").vocab_size - 1
    assert len(answer(PROMPTS, blocks=AdaptiveBlocks((most,)), sampler=ConfidenceThreshold())) == 3
    with pytest.raises(ValueError, match=rf"delimiters must be token ids .* got {most + 1}\.$"):
        answer(PROMPTS, blocks=AdaptiveBlocks((3, most + 1)), sampler=ConfidenceThreshold())


def test_texts_that_end_a_block_become_tokens_of_the_tokenizer() -> None:
    model, tokenizer = load_model("mini")
    assert AdaptiveBlocks().with_tokenizer(tokenizer).delimiters == (4,)
    assert AdaptiveBlocks((5, ".", 4)).with_tokenizer(tokenizer).delimiters == (5, 4)
    options: Any = {"cache": FreeCache(), "gen_length": 64}
    question = "emma has 7 coins. emma finds 5 more coins. how many coins does emma have now?"
    by_text, by_id = (
        generate(model, tokenizer, question, blocks=blocks, **options)
        for blocks in (AdaptiveBlocks(), AdaptiveBlocks((4,)))
    )
    assert by_text.texts == by_id.texts
    assert "".join(stream(model, tokenizer, question, blocks=AdaptiveBlocks(), **options))
    with pytest.raises(ValueError, match=r"one token of the tokenizer, got"):
        generate(model, tokenizer, question, blocks=AdaptiveBlocks(("zz", "\n")), **options)
    with pytest.raises(ValueError, match=r"no tokenizer, got the text '\.'\. Use generate"):
        decode(model, [[5]], ConfidenceThreshold(), blocks=AdaptiveBlocks(), gen_length=8)


@dataclass(frozen=True)
class CutBlocks(BlockSchedule):
    """Opens one column at a time, and takes two columns for the open block."""

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.ONE_STEP_A_FORWARD})

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        start, (first, stop) = row.first_unsettled, block_of(row, block_length)
        bounds = (start, min(start + 2, stop))
        return Opening(start, start + 1, bounds, phase=(first, stop), cache_period=(first,))


def test_an_opening_whose_block_cuts_a_block_of_the_model_is_refused() -> None:
    """The model saw two columns of its block alone, and no error said so."""
    options: Any = {"blocks": CutBlocks(), "gen_length": 8, "block_length": 4}
    assert (decode(tiny("llada"), [[5]], ConfidenceThreshold(), **options).tokens != 508).all()
    with pytest.raises(RuntimeError, match=r"^block of the opening of CutBlocks.* multiple of 4"):
        decode(tiny("sdar"), [[5]], ConfidenceThreshold(), **options)


@dataclass(frozen=True)
class LooksAhead(Verifier):
    """Commits the first proposal, and reads the logits of a longer window than the open block."""

    in_branches: bool = False
    width: int = 6

    @property
    def asks_sampler(self) -> bool:
        return False

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        window = Window.of([row.first_unsettled for row in state.rows], self.width, state.canvas)
        branches = Branches.of_rows(state.canvas) if self.in_branches else None
        state, logits = forward(decoder, state, Pass(window, branches=branches))
        view = view_of(decoder, state, window, logits)
        first = view.eligible & (torch.arange(self.width) == 0)
        return state, Look(view, window, decision=Decision(first))


@pytest.mark.parametrize("in_branches", [False, True])
def test_a_verifier_is_told_that_it_reads_columns_that_no_forward_computes(
    in_branches: bool,
) -> None:
    """Logits after the open block of a block-causal model differed with the batch, in silence."""
    options: Any = {"verifier": LooksAhead(in_branches), "gen_length": 8}
    with pytest.raises(RuntimeError, match=r"LooksAhead.* must pass policy_rows whose open block"):
        decode(tiny("sdar"), PROMPTS, ConfidenceThreshold(), **options)
    assert len(decode(tiny("llada"), PROMPTS, ConfidenceThreshold(), **options).tokens) == 3


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    "cache",
    [NoCache(), DualCache(), SettledCache(1), DelayedCache(3, 1), PipelineCache(4),
     SuffixWindow(NoCache(), 2), SuffixWindow(DualCache(), 0)],
    ids=repr,
)  # fmt: skip
def test_a_draft_without_the_canvas_leaves_no_trace(cache: CachePolicy) -> None:
    """Once history caches failed, and slots of a draft alone were taken for the row's."""
    options: Any = {"cache": cache, "gen_length": 8, "block_length": 4}
    together = answer(PROMPTS, verifier=TwoLooks(), **options)
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(answer([prompt], verifier=TwoLooks(), **options)[0], together[row])
    if isinstance(cache, NoCache | DualCache | SuffixWindow):
        # With the canvas next to the draft, the row's slots are written again with the same tokens.
        assert torch.equal(answer(PROMPTS, verifier=TwoLooks(both=True), **options), together)
