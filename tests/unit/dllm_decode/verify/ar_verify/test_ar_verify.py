import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import HashModel, Knowing, answers_of, logits_of, misfit, tiny_llama, tiny_target

from dllm_decode import ARVerify, Drafting, DraftLength, NGram, PathSearch, Sampled, Tree, decode
from samplers import FixedSchedule

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLER = FixedSchedule(4)
Law = dict[tuple[int, ...], float]
ARGMAX = PathSearch(width=1, weight=1.0)


def test_the_target_reads_every_token_once() -> None:
    target, read = tiny_target(seed=2), []
    answers = answers_of(target, PROMPTS, 12)
    original = target.read

    def spied(past: Any, tokens: Tensor, counts: Tensor, **wanted: Any) -> Any:
        read.append((past.lengths.tolist(), counts.tolist()))
        return original(past, tokens, counts, **wanted)

    target.read = spied  # type: ignore[method-assign]
    model = Knowing(answers=dict(zip(map(tuple, PROMPTS), answers, strict=True)), wrong_every=3)
    decode(
        model, PROMPTS, SAMPLER, verifier=ARVerify(target, DraftLength(4, 4), ARGMAX),
        gen_length=12, block_length=4,
    )  # fmt: skip
    assert read[0] == ([0, 0, 0], [3 + 4, 1 + 4, 6 + 4])
    for _, counts in read[1:]:
        assert max(counts) <= 1 + 4, "something was read again"


def law_of(model: Any, prompt: list[int], temperature: float, length: int) -> Law:
    """The target's own distribution over answers, by enumeration; id 4 is [MASK]."""
    law = {(): 1.0}
    for _ in range(length):
        longer = {}
        for answer, share in law.items():
            logits = logits_of(model, [*prompt, *answer])[-1].clone()
            logits[4] = -torch.inf
            for token, p in enumerate((logits / temperature).softmax(-1).tolist()[:4]):
                longer[(*answer, token)] = share * p
        law = longer
    return law


def ended(law: Law, eos: int) -> Law:
    """Computes the law of answers in which all tokens after an EOS are EOS."""
    ends = Counter[tuple[int, ...]]()
    for answer, share in law.items():
        length = answer.index(eos) if eos in answer else len(answer)
        ends[answer[:length] + (eos,) * (len(answer) - length)] += share  # type: ignore[assignment]
    return ends


@pytest.mark.parametrize("stop_at_eos", [True, False])
def test_answers_with_drawn_drafts_follow_the_targets_law(stop_at_eos: bool) -> None:
    """Other drafts leave the target's own sample as it is: property/test_verified_rows.py."""
    target = tiny_target(vocab_size=5, seed=3, scale=2.0)
    target.eos_ids = (3,)
    model = HashModel(vocab_size=5, mask_id=4, eos_ids=(3,), peak=2.0)
    prompts = [[1, 2], [0], [2, 2, 1]]
    out = decode(
        model, prompts * 1200, SAMPLER, gen_length=3, block_length=3, temperature=0.7,
        verifier=ARVerify(target, DraftLength(2, 2), Sampled()), stop_at_eos=stop_at_eos,
    )  # fmt: skip
    assert min(out.accepted.bincount(minlength=3).tolist()) > 30
    # An answer as a number: its three tokens are digits in base 4.
    drawn = out.tokens @ torch.tensor([16, 4, 1])
    for row, prompt in enumerate(prompts):
        law = law_of(tiny_llama(5, 3, 2.0), prompt, 0.7, 3)
        law = ended(law, 3) if stop_at_eos else law
        shares = torch.tensor([law[answer] for answer in itertools.product(range(4), repeat=3)])
        # At most 63 degrees of freedom: 112 at the level 0.0001.
        assert misfit(drawn[row::3], shares) < 112.0


def test_the_papers_draft_length_collapses_and_ours_does_not() -> None:
    def lengths(start: Any, accepted: int) -> list[int]:
        policy = DraftLength(start=start)
        state, found = policy.first(torch.zeros(1, dtype=torch.long)), []
        for _ in range(4):
            found.append(int(state.length))
            state = policy.after(state, state.length, torch.tensor([accepted]))
        return found

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
    context = torch.tensor([[0, 1], [2, 3], [4, 4]])
    draft = search.search(logits, torch.tensor([3, 3, 3]), context, (9,))
    for row in range(3):
        expected = brute_force(search, logits[row].log_softmax(-1), context[row].tolist())
        assert draft.tokens[row].tolist() == expected
    argmax = logits.argmax(-1)
    assert not torch.equal(draft.tokens, argmax), "the proxy had no say"
    plain = ARGMAX.search(logits, torch.tensor([3, 2, 1]), context, (9,))
    assert plain.counts.tolist() == [3, 2, 1]
    assert torch.equal(plain.tokens[0], argmax[0])


def test_candidates_stop_at_the_mass_and_a_path_at_its_eos() -> None:
    rows = [[0.5, 0.31, 0.1, 0.09], [0.3, 0.1, 0.1, 0.5], [0.7, 0.1, 0.1, 0.1]]
    logits, nothing = torch.tensor([rows]).log(), torch.zeros(1, 0).long()
    draft = PathSearch(4, 0.8, 15, 1.0).search(logits, torch.tensor([3]), nothing, (3,))
    assert draft.counts.tolist() == [2]
    assert draft.tokens[0, :2].tolist() == [0, 3]
    never = PathSearch(1, 0.4, 15, 1.0).search(logits, torch.tensor([3]), nothing, (2,))
    assert never.counts.tolist() == [3]
    sums = PathSearch(9, 0.4, 15, 1.0, eos="always", length_power=0.0)
    early = sums.search(logits.flip(1), torch.tensor([3]), nothing, (3,))
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


def test_given_tokens_must_begin_the_answer() -> None:
    """Tokens that were given after open positions were overwritten; now they are refused."""
    for drafting in (PathSearch(), PathSearch(num_forwards=2)):
        verifier = ARVerify(tiny_target(), drafting=drafting)
        with pytest.raises(ValueError, match="A template must give the beginning of an answer"):
            decode(
                HashModel(), [[5]], SAMPLER, verifier=verifier, gen_length=4, templates=[[23, 7]]
            )


@pytest.mark.parametrize("drafting", [ARGMAX, PathSearch(), Sampled(), Tree(5)], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_reported(drafting: Drafting, temperature: float) -> None:
    """They were written as some token; the mask predictor's are in test_loop.py."""
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
