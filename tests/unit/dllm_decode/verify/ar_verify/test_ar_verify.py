import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import jaxtyping
import pytest
import torch
from torch import Tensor
from toys import HashModel, greedy, logits_of, tiny_llama, tiny_target

from dllm_decode import (
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    PathSearch,
    Sampled,
    StepEvent,
    Tree,
    decode,
)
from dllm_decode.models.base import ForwardInputs
from dllm_decode.verify.ar_verify.drafting.base import Beginning
from samplers import FixedSchedule
from samplers.logits.noise import mix, uniform

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLER = FixedSchedule(4)
Law = dict[tuple[int, ...], float]
ARGMAX = PathSearch(width=1, weight=1.0)


@dataclass
class Informed(HashModel):
    """Drafts a given answer to each prompt; at one position in `wrong_every` something else."""

    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    wrong_every: int = 4

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = super().predict(inputs)
        for row, tokens in enumerate(inputs.tokens.tolist()):
            for prompt, answer in self.answers.items():
                start = self.start_of(tokens, inputs.positions[row].tolist(), prompt)
                if start is not None:
                    wanted = (inputs.wanted[row] - start).tolist()
                    for place, position in enumerate(wanted):
                        seed = torch.tensor(position * 97 + sum(prompt))
                        if 0 <= position < len(answer) and self.is_right(seed):
                            logits[row, place, answer[position]] += 20.0
        return logits

    def is_right(self, seed: Tensor) -> bool:
        return float(uniform(mix(seed))) > 1 / self.wrong_every

    @staticmethod
    def start_of(tokens: list[int], positions: list[int], prompt: tuple[int, ...]) -> int | None:
        begin = max(i for i, position in enumerate(positions) if position == 0)
        end = begin + len(prompt)
        return end if tuple(tokens[begin:end]) == prompt else None


def by_prompt(answers: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(prompt): answer for prompt, answer in zip(PROMPTS, answers, strict=True)}


def expected(target: Any, gen_length: int, stops: tuple[int, ...]) -> list[list[int]]:
    return [
        greedy(target.network.model, prompt, gen_length=gen_length, stops=stops, banned=(23,))
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("wrong_every", [1, 3, 1000])
def test_the_answer_is_the_targets_greedy_answer(seed: int, wrong_every: int) -> None:
    target = tiny_target(seed=seed)
    target.eos_ids = (22, 13)
    answers = expected(target, 12, target.eos_ids)
    model = Informed(answers=by_prompt(answers), wrong_every=wrong_every)  # fmt: skip
    committed = Counter[int]()

    def count(event: StepEvent) -> None:
        committed.update((event.before.masked.sum(-1) - event.after.masked.sum(-1)).tolist())

    for length in (1, 3, 20):
        out = decode(
            model, PROMPTS, SAMPLER, verifier=ARVerify(target, DraftLength(length, length), ARGMAX),
            gen_length=12, block_length=4, observers=[count],
        )  # fmt: skip
        assert out.tokens.tolist() == answers
        assert out.eos_ids == (22, 13)
        assert (out.target_nfe <= out.lengths()).all()
        assert torch.equal(out.target_nfe, out.nfe)
        assert out.target_forwards == out.forwards
    if wrong_every == 1:
        assert (out.target_nfe >= out.lengths() - 2).all(), "wrong drafts are right by luck"
    if wrong_every == 3:
        assert len(committed) > 2, "drafts were never accepted in part"
    if wrong_every == 1000:
        assert (out.target_nfe <= 2).all()


def test_an_eos_or_the_end_of_the_budget_inside_a_draft_ends_the_answer() -> None:
    target = tiny_target(seed=1)
    target.eos_ids = (15,)
    for gen_length in (1, 5, 12):
        answers = expected(target, gen_length, target.eos_ids)
        longer = expected(target, 40, (-1,))
        model = Informed(answers=by_prompt(longer), wrong_every=1000)
        out = decode(
            model, PROMPTS, SAMPLER, verifier=ARVerify(target, DraftLength(20, 20), ARGMAX),
            gen_length=gen_length, block_length=gen_length,
        )  # fmt: skip
        assert out.tokens.tolist() == answers
    assert any(15 in answer[:-1] for answer in answers), "no answer ended before the budget"
    assert any(15 not in answer for answer in answers), "no answer met the end of the budget"


def test_the_target_reads_every_token_once() -> None:
    target, read = tiny_target(seed=2), []
    answers = expected(target, 12, target.eos_ids)
    original = target.read

    def spied(past: Any, tokens: Tensor, counts: Tensor, **wanted: Any) -> Any:
        read.append((past.lengths.tolist(), counts.tolist()))
        return original(past, tokens, counts, **wanted)

    target.read = spied  # type: ignore[method-assign]
    model = Informed(answers=by_prompt(answers), wrong_every=3)
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


def chi_square(seen: Counter[tuple[int, ...]], law: Law) -> float:
    num = sum(seen.values())
    return sum((seen[key] - num * p) ** 2 / (num * p) for key, p in law.items() if num * p > 1)


@dataclass(frozen=True)
class Biased(Drafting):
    """Searches, and says that it drew: the paper's rule.

    Attributes:
        says: The whole law that it claims, or the probability of the draft alone.
    """

    says: Literal["law", "value"]

    @property
    def is_drawn(self) -> bool:
        return True

    def draft(self, beginning: Beginning, logits: Tensor, lengths: Tensor) -> Draft:
        draft = ARGMAX.draft(beginning, logits, lengths)
        logs = logits.double().log_softmax(-1)
        if self.says == "value":
            drafted = torch.nn.functional.one_hot(draft.tokens, logs.shape[-1]).bool()
            logs = logs.masked_fill(~drafted, -torch.inf)
        return draft._replace(logs=logs)


def ended(law: Law, eos: int) -> Law:
    """The law of answers in which all behind an EOS is EOS."""
    ends: Law = Counter()
    for answer, share in law.items():
        length = answer.index(eos) if eos in answer else len(answer)
        ends[answer[:length] + (eos,) * (len(answer) - length)] += share
    return ends


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("drafting", "is_biased", "stop_at_eos"),
    [(ARGMAX, False, True), (PathSearch(1, weight=1.0, num_forwards=2), False, True),
     (Sampled(), False, True), (Sampled(), False, False), (Tree(5), False, True),
     (Biased("law"), True, True), (Biased("value"), True, True)],
    ids=repr,
)  # fmt: skip
def test_answers_follow_the_targets_law_and_those_of_the_papers_rule_do_not(
    drafting: Drafting, is_biased: bool, stop_at_eos: bool
) -> None:
    target = tiny_target(vocab_size=5, seed=3, scale=2.0)
    target.eos_ids = (3,)
    model = HashModel(vocab_size=5, mask_id=4, eos_ids=(3,), peak=2.0)
    prompts, lengths = [[1, 2], [0], [2, 2, 1]], DraftLength(2, 2)
    seen: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]
    accepted = Counter[int]()
    for seed in range(3):
        out = decode(
            model, prompts * 600, SAMPLER, gen_length=3, block_length=3, temperature=1.0, seed=seed,
            verifier=ARVerify(target, lengths, drafting), stop_at_eos=stop_at_eos,
        )  # fmt: skip
        for row, answer in enumerate(out.tokens.tolist()):
            seen[row % 3][tuple(answer)] += 1
        accepted.update(out.accepted.tolist())
    assert min(accepted[length] for length in (0, 1, 2)) > 50
    failed = 0
    for prompt, found in zip(prompts, seen, strict=True):
        law = law_of(tiny_llama(5, 3, 2.0), prompt, 1.0, 3)
        law = ended(law, 3) if stop_at_eos else law
        # At most 63 degrees of freedom: 112 at the level 0.0001.
        failed += chi_square(found, law) > 112.0
    assert failed == (3 if is_biased else 0)


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


def never(inputs: ForwardInputs) -> Tensor:
    raise AssertionError("a forward was run")


def test_a_target_with_other_ids_is_refused_before_any_forward() -> None:
    model = HashModel()
    model.predict = never  # type: ignore[method-assign]
    verifier = ARVerify(tiny_target(30))
    with pytest.raises(
        ValueError, match="the ids of hash model, 24 of them, got tiny llama with 30"
    ):
        decode(model, [[1]], SAMPLER, verifier=verifier, gen_length=4, block_length=4)


def test_an_answer_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="must give the beginning of an answer"):
        decode(
            HashModel(), [[1]], SAMPLER, verifier=ARVerify(tiny_target()), gen_length=4,
            block_length=4, templates=[[23, 5]],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: DraftLength(0, 3), "shortest must be a whole number of tokens, at least 1, got 0"),
        (lambda: DraftLength(4, 3), "shortest must be between 1 and longest=3 tokens, got 4"),
        (lambda: DraftLength(2.5, 3), "shortest must be a whole number of tokens, .* got 2.5"),
        (lambda: DraftLength(longest="a"), "longest must be a whole number of tokens, .* got 'a'"),
        (lambda: DraftLength(growth=-1), "growth must be a whole number .* at least 0, got -1"),
        (lambda: DraftLength(momentum=None), "momentum must be a number, got None"),
        (lambda: DraftLength(momentum=0.0), r"momentum must be a weight in \(0, 1\], got 0.0"),
        (lambda: DraftLength(start="one"), 'start must be one of "longest", "zero", got \'one\''),
        (lambda: PathSearch(0), "width must be a whole number, at least 1, got 0"),
        (lambda: PathSearch(mass=0.0), r"mass must be a probability in \(0, 1\], got 0.0"),
        (lambda: PathSearch(weight=2.0), r"weight must be a share in \[0, 1\], got 2.0"),
        (lambda: PathSearch(eos="no"), 'eos must be one of "within_mass", "always", got \'no\''),
        (lambda: PathSearch(length_power=-1.0), "length_power must be .* at least 0, got -1.0"),
        (lambda: PathSearch(num_forwards=0), "num_forwards must be a .* at least 1, got 0"),
        (lambda: PathSearch(proxy="a"), "proxy must be a Proxy such as NGram.*, got 'a'"),
        (lambda: NGram(10, 0), "length must be a whole number of tokens, at least 1, got 0"),
        (lambda: NGram(10, 10**400), "length must be a whole number of tokens, at most"),
        (lambda: NGram("a"), "vocab_size must be a whole number of tokens, .* got 'a'"),
        (lambda: ARVerify("mini-ar"), r"target of ARVerify must be loaded, .* got 'mini-ar'"),
        (lambda: Guided(None), r"target of Guided must be loaded, .* got None"),
        (lambda: ARVerify(tiny_target(), 8), "draft_length must be a DraftLength such as"),
        (lambda: ARVerify(tiny_target(), drafting=Tree), "must be a Drafting .* the class Tree"),
        (lambda: NGram(10, strength=0.0), "strength must be above 0 tokens, got 0.0"),
        (lambda: NGram(2**30), "do not fit 64 bits"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(
    make: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of types would refuse some of these first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("stop_at_eos", [True, False])
def test_an_answer_that_is_cut_at_its_end_is_filled_behind_it(stop_at_eos: bool) -> None:
    """Without `stop_at_eos`, `truncate_at_eos` did nothing under a target."""
    target = tiny_target(seed=1)
    target.eos_ids = (15,)
    answers = expected(target, 12, target.eos_ids)
    assert any(15 in answer[:-1] for answer in answers)
    out = decode(
        HashModel(), PROMPTS, SAMPLER, verifier=ARVerify(target), gen_length=12, block_length=4,
        stop_at_eos=stop_at_eos, truncate_at_eos=True,
    )  # fmt: skip
    assert out.tokens.tolist() == answers


@dataclass
class Broken(HashModel):
    """Has no numbers from its third forward on."""

    num_forwards: int = 0

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.num_forwards += 1
        logits = super().predict(inputs)
        return logits * torch.nan if self.num_forwards > 2 else logits


@pytest.mark.parametrize("drafting", [ARGMAX, PathSearch(), Sampled(), Tree(5)], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_reported(drafting: Drafting, temperature: float) -> None:
    """A target's were written as some token, and a tree of a drafter's ended in a stack trace."""
    target = tiny_target(seed=1)
    verifier = ARVerify(target, DraftLength(1, 2), drafting)
    options: Any = {
        "gen_length": 12, "block_length": 4, "temperature": temperature, "stop_at_eos": False,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=r"hash model must give logits without NaN .* round 3"):
        decode(Broken(), PROMPTS, SAMPLER, verifier=verifier, **options)
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
