"""Verification by a causal target; drafts that are drawn, searched, or looked at more than once."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch import Tensor
from toys import (
    DriftingModel,
    HashModel,
    Knowing,
    answers_of,
    draft_start_of,
    logits_of,
    misfit,
    never,
    tiny_llama,
    tiny_target,
)

from dllm_decode import (
    ARVerify,
    Canvas,
    CausalTarget,
    DecodeConfig,
    Draft,
    Drafting,
    DraftLength,
    DualCache,
    Guided,
    NGram,
    NoCache,
    PathSearch,
    Sampled,
    StepEvent,
    SubBlockCache,
    Tree,
    decode,
    new_decoder,
)
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import Row
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.verify import ar_verify
from dllm_decode.verify.acceptance import accept
from dllm_decode.verify.drafts import DraftStart
from dllm_decode.verify.target_verifier import ask_target
from samplers import ConfidenceThreshold, FixedSchedule
from samplers.logits.noise import row_keys

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLER = FixedSchedule(4)
ARGMAX = PathSearch(width=1, weight=1.0)
TWICE = PathSearch(width=1, weight=1.0, num_forwards=2)
SHORT = DraftLength(2, 6, growth=2)


def test_the_target_reads_every_token_once() -> None:
    target, reads = tiny_target(seed=2), []
    answers = answers_of(target, PROMPTS, 12)
    original = target.read

    def spied(past: Any, tokens: Tensor, counts: Tensor, **options: Any) -> Any:
        reads.append((past.lengths.tolist(), counts.tolist()))
        return original(past, tokens, counts, **options)

    target.read = spied  # type: ignore[method-assign]
    model = Knowing(answers=dict(zip(map(tuple, PROMPTS), answers, strict=True)), wrong_every=3)
    decode(
        model, PROMPTS, SAMPLER, verifier=ARVerify(target, DraftLength(4, 4), ARGMAX),
        gen_length=12, block_length=4,
    )  # fmt: skip
    assert reads[0] == ([0, 0, 0], [3 + 4, 1 + 4, 6 + 4])
    for _, counts in reads[1:]:
        assert max(counts) <= 1 + 4, "something was read again"


def distribution_of(
    model: Any, prompt: list[int], temperature: float, length: int, *, eos: int
) -> dict[tuple[int, ...], float]:
    """Returns the target's distribution over answers, by enumeration; id 4 is [MASK]."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for answer, share in distribution.items():
            if eos in answer:
                longer[(*answer, eos)] = share
                continue
            logits = logits_of(model, [*prompt, *answer])[-1].clone()
            logits[4] = -torch.inf
            for token, p in enumerate((logits / temperature).softmax(-1).tolist()[:4]):
                longer[(*answer, token)] = share * p
        distribution = longer
    return distribution


def test_answers_with_drawn_drafts_follow_the_targets_distribution() -> None:
    """Other drafts leave the target's own sample as it is: property/test_fuzz_engine.py."""
    target = tiny_target(vocab_size=5, seed=3, scale=2.0)
    target.eos_ids = (3,)
    model = HashModel(vocab_size=5, mask_id=4, eos_ids=(3,), peak=2.0)
    prompts = [[1, 2], [0], [2, 2, 1]]
    out = decode(
        model, prompts * 600, SAMPLER, gen_length=3, block_length=3, temperature=0.8,
        verifier=ARVerify(target, DraftLength(2, 2), Sampled()),
    )  # fmt: skip
    accepted, drafted = int(out.accepted.sum()), int(out.drafted.sum())
    assert min(accepted, drafted - accepted) > 150
    # An answer as a number: its three tokens are digits in base 4.
    drawn = out.tokens @ torch.tensor([16, 4, 1])
    for row, prompt in enumerate(prompts):
        distribution = distribution_of(tiny_llama(5, 3, 2.0), prompt, 0.8, 3, eos=3)
        shares = torch.tensor(
            [distribution.get(answer, 0.0) for answer in itertools.product(range(4), repeat=3)]
        )
        # At most 63 degrees of freedom: 112 at the level 0.0001.
        assert misfit(drawn[row::3], shares) < 112.0


def test_the_papers_draft_length_collapses_and_ours_does_not() -> None:
    def lengths(start: Any, accepted: int) -> list[int]:
        policy = DraftLength(start=start)
        state, draft_lengths = policy.first(torch.zeros(1, dtype=torch.long)), []
        for _ in range(4):
            draft_lengths.append(int(state.length))
            state = policy.after(state, state.length, torch.tensor([accepted]))
        return draft_lengths

    assert lengths("zero", 7) == [30, 20, 20, 20]
    assert lengths("longest", 7) == [30, 30, 30, 30]
    policy = DraftLength(4, 12, growth=3, momentum=1.0)
    state = policy.first(torch.zeros(3, dtype=torch.long))
    state = policy.after(state, torch.tensor([6, 6, 1]), torch.tensor([6, 2, 0]))
    assert state.length.tolist() == [9, 6, 4]


def brute_force(search: PathSearch, logs: Tensor, context: list[int]) -> list[int]:
    best, score = [], -torch.inf
    for path in itertools.product(range(logs.shape[1]), repeat=len(logs)):
        total = 0.0
        for place, token in enumerate(path):
            before = torch.tensor([[*context, *path][place : place + len(context)]])
            causal = search.proxy.log_probability(before, torch.tensor([[token]]))
            total += search.weight * float(logs[place, token]) + (1 - search.weight) * float(causal)
        if total > score:
            best, score = list(path), total
    return best


def test_a_wide_search_finds_the_best_of_all_paths() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 3, 5, dtype=torch.double) * 2
    sequences = torch.randint(5, (6, 30)).tolist()
    search = PathSearch(125, 1.0, 5, 0.4, NGram(5).fit(sequences), length_power=0.0)
    context = [[0, 1], [2, 3], [4, 4]]
    draft = search.draft(draft_start_of(context), logits, torch.tensor([3, 3, 3]))
    for row in range(3):
        expected = brute_force(search, logits[row].log_softmax(-1), context[row])
        assert draft.tokens[row].tolist() == expected
    argmax = logits.argmax(-1)
    assert not torch.equal(draft.tokens, argmax), "the proxy had no say"
    plain = ARGMAX.draft(draft_start_of(context), logits, torch.tensor([3, 2, 1]))
    assert plain.counts.tolist() == [3, 2, 1]
    assert torch.equal(plain.tokens[0], argmax[0])


def test_candidates_stop_at_the_mass_and_a_path_at_its_eos() -> None:
    rows = [[0.5, 0.31, 0.1, 0.09], [0.3, 0.1, 0.1, 0.5], [0.7, 0.1, 0.1, 0.1]]
    logits = torch.tensor([rows]).log()

    def drafted(search: PathSearch, logits: Tensor, end: int) -> Draft:
        return search.draft(draft_start_of([[0]], eos_ids=(end,)), logits, torch.tensor([3]))

    draft = drafted(PathSearch(4, 0.8, 15, 1.0), logits, 3)
    assert draft.counts.tolist() == [2]
    assert draft.tokens[0, :2].tolist() == [0, 3]
    assert drafted(PathSearch(1, 0.4, 15, 1.0), logits, 2).counts.tolist() == [3]
    sums = PathSearch(9, 0.4, 15, 1.0, eos="always", length_power=0.0)
    early = drafted(sums, logits.flip(1), 3)
    assert early.counts.tolist() in ([1], [2]), "sums did not favour an early end"


def test_the_counts_of_the_proxy_are_probabilities() -> None:
    proxy = NGram(6, length=3, strength=0.5).fit([[0, 1, 2, 0, 1, 2, 0, 1, 3], [4]])
    everything = torch.arange(6)[None]
    for context in ([0, 1], [1, 2], [5, 5]):
        probability = proxy.log_probability(torch.tensor([context]), everything).exp()
        assert float(probability.sum()) == pytest.approx(1.0)
    after = proxy.log_probability(torch.tensor([[0, 1]]), everything).exp()[0]
    # By hand: unigrams 3,3,2,1,1 of 10; bigrams after 1: 2 twice, 3 once; trigrams alike.
    unigram = (2 + 0.5 / 6) / 10.5
    bigram = (2 + 0.5 * unigram) / 3.5
    assert float(after[2]) == pytest.approx((2 + 0.5 * bigram) / 3.5)


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize("sequence", [[1, 12], [-1], [1.5], [True], [10**30], ["a"], "a", 5])
def test_the_proxy_counts_ids_of_the_vocabulary_alone(sequence: Any) -> None:
    """With 10 tokens, (1, 12) was counted as (2, 2)."""
    with pytest.raises(ValueError, match="must hold token ids from 0 to 9, got"):
        NGram(10, 2).fit([[3, 4], sequence])
    assert NGram(10, 2).fit([[], torch.tensor([3, 4])]).tables[1].codes.tolist() == [34]


def test_given_tokens_must_begin_the_answer() -> None:
    """Tokens that were given after open positions were overwritten; now they are refused."""
    for drafting in (PathSearch(), PathSearch(num_forwards=2)):
        verifier = ARVerify(tiny_target(), drafting=drafting)
        with pytest.raises(ValueError, match="A template must give the beginning of an answer"):
            decode(
                HashModel(), [[5]], SAMPLER, verifier=verifier, gen_length=4, templates=[[23, 7]]
            )


def test_a_cache_of_sub_blocks_sees_the_columns_of_a_draft_as_open() -> None:
    """A second look computed the schedule's block, of which the model sees the draft alone."""
    target = tiny_target(vocab_size=tiny("sdar").vocab_size)
    verifier = ARVerify(target, SHORT, PathSearch(num_forwards=2))
    cached, plain = (
        decode(tiny("sdar"), PROMPTS, SAMPLER, verifier=verifier, cache=cache, gen_length=16,
               block_length=8)
        for cache in (SubBlockCache(), NoCache())
    )  # fmt: skip
    assert cached.tokens.tolist() == plain.tokens.tolist()


@pytest.mark.parametrize("drafting", [ARGMAX, PathSearch(), Sampled(), Tree(5)], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_reported(drafting: Drafting, temperature: float) -> None:
    """Such logits were written as some token; for the mask predictor see test_loop.py."""
    target = tiny_target(seed=1)
    verifier = ARVerify(target, DraftLength(1, 2), drafting)
    options: Any = {
        "gen_length": 12, "block_length": 4, "temperature": temperature, "stop_at_eos": False,
    }  # fmt: skip
    read = type(target).read

    def broken(*args: Any, **kwargs: Any) -> Any:
        reading = read(*args, **kwargs)
        logits = reading.logits.clone()
        logits[..., 0] = torch.nan
        return reading._replace(logits=logits)

    decode(HashModel(), PROMPTS, SAMPLER, verifier=verifier, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(target), "read", broken)
        with pytest.raises(RuntimeError, match=r"tiny llama must give logits .* round 1"):
            decode(HashModel(), PROMPTS, SAMPLER, verifier=verifier, **options)


def by_hand(
    model: Any, prompt: list[int], answer: list[int], *, masks: int, wanted: int, threshold: float
) -> tuple[list[int], int]:
    """Returns a draft of at most three forwards, for one row, and how many forwards it took."""
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
    drafts: list[tuple[int, list[int], list[int]]] = []

    def spied(decoder: Decoder, state: State, *arguments: Any) -> Any:
        _, start, draft, _ = arguments
        for place, row in enumerate(state.rows):
            first = int(start.first_unsettled[place])
            answer = state.canvas.tokens[place, row.prompt_length : first].tolist()
            tokens = draft.tokens[place, : draft.counts[place]].tolist()
            drafts.append((row.request.index, answer, tokens))
        return ask_target(decoder, state, *arguments)

    monkeypatch.setattr(ar_verify, "ask_target", spied)
    out = decode(
        model, PROMPTS, ConfidenceThreshold(threshold), gen_length=12, block_length=4,
        verifier=ARVerify(target, DraftLength(6, 6), drafting),
    )  # fmt: skip
    forwards, sizes = Counter[int](), Counter[int]()
    for row, answer, draft in drafts:
        masks = 12 - len(answer)
        expected, num = by_hand(
            model, PROMPTS[row], answer, masks=masks, wanted=min(6, masks), threshold=threshold
        )
        assert draft == expected
        forwards[row] += num
        sizes[num] += 1
    assert [forwards[row] for row in range(3)] == out.nfe.tolist()
    assert len(sizes) > 1, "all drafts took the same number of forwards"


def test_later_looks_at_a_draft_compute_the_draft_alone() -> None:
    """Every look counted as the first of a block, so that a `DualCache` saved nothing."""
    model, costs = tiny("llada"), []
    target = tiny_target(model.vocab_size, seed=2)
    for cache in (NoCache(), DualCache()):
        out = decode(
            model, [[1, 2, 3]], FixedSchedule(4), cache=cache, gen_length=61,
            verifier=ARVerify(target, DraftLength(4, 4), TWICE), stop_at_eos=False,
        )  # fmt: skip
        assert out.answers() == answers_of(target, [[1, 2, 3]], 61)
        costs.append((int(out.target_nfe), int(out.nfe), int(out.query_positions)))
    (_, nfe, columns), (rounds, dual_nfe, dual_columns) = costs
    assert columns == 64 * nfe
    assert dual_nfe > rounds, "no draft was looked at twice"
    # Drafts of four tokens and the target's own, in widths of 16.
    assert 64 * rounds < dual_columns <= 64 * rounds + 16 * (dual_nfe - rounds)


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
    """Guided diffusion let the target read such tokens, which gave an IndexError or nonsense."""
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
    num, temperature = 10_000, 0.7
    rows = [Row.of(Request(0, [1], DecodeConfig(gen_length=3)), 1, mask_id=4)] * num
    canvas = Canvas.of(rows, width=4, mask_id=4, eos_ids=(3,))
    keys = row_keys(0, torch.arange(num))
    start = DraftStart(canvas, torch.ones(num, dtype=torch.long), keys, temperature)
    q = torch.tensor([[0.8, 0.3, -0.4, 0.0], [0.0, 0.6, 0.1, 0.5]]).double()
    p = torch.tensor([[-0.2, 0.7, 0.4, 0.0], [0.5, 0.0, 0.3, -0.1], [0.9, 0.2, 0.0, 0.4]]).double()
    draft = Sampled().draft(start, q.expand(num, 2, 4), torch.full((num,), 2))
    distributions = (q / temperature).softmax(-1)
    both = draft.tokens[:, 0] * 4 + draft.tokens[:, 1]
    # At the level 0.0001: 44.3 for 15 degrees of freedom, 21.1 for 3.
    assert misfit(both, (distributions[0][:, None] * distributions[1]).flatten()) < 44.3
    assert torch.equal(draft.counts, torch.where(draft.tokens[:, 0] == 3, 1, 2))
    verdict = accept(start, draft, p.expand(num, 3, 4))
    distributions = (p / temperature).softmax(-1)
    for place in range(3):
        reached = verdict.accepted >= place
        assert reached.sum() > num / 5
        assert misfit(verdict.tokens[reached, place], distributions[place]) < 21.1
