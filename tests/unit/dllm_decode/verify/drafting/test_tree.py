"""Draft trees: which nodes they have, and how a target walks down them."""

import heapq
import json
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import DriftingModel, draft_start_of, logits_of, paths_of, tiny_llama, tiny_target
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from dllm_decode import ARVerify, CausalTarget, Draft, Drafting, DraftLength, Tree, decode
from dllm_decode.models.targets.causal import Reading
from dllm_decode.models.targets.trees import ancestors
from dllm_decode.verify.acceptance import accept_tree
from dllm_decode.verify.drafts import DraftStart
from samplers import ConfidenceThreshold, FixedSchedule

VECTORS = Path(__file__).parents[4] / "golden" / "data" / "vectors" / "ddtree_vectors.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]


def tree_of(tree: Tree, logits: Tensor, ends: tuple[int, ...] = (98,)) -> Draft:
    start = draft_start_of([[0]], eos_ids=ends)
    return tree.draft(start, logits[None], torch.tensor([len(logits)]))


def golden_draft(nodes: list[dict[str, Any]]) -> Draft:
    # Nodes that are not counted are arbitrary: here, a child of the root for any token.
    tokens = [*(node["token"] for node in nodes), *range(64)]
    parents = [*(node["parent"] - 1 for node in nodes), *[-1] * 64]
    counts = torch.tensor([len(nodes)])
    return Draft(torch.tensor([tokens]), counts, parents=torch.tensor([parents]))


@pytest.mark.parametrize("case", [case for case in CASES if case["stable"]], ids=lambda c: c["id"])
def test_a_tree_is_the_authors_node_by_node(case: dict[str, Any]) -> None:
    budget = case["budget"]
    draft = tree_of(Tree(budget, max_candidates=budget), torch.tensor(case["log_probs"]))
    assert int(draft.counts[0]) == len(case["nodes"])
    assert paths_of(draft) == paths_of(golden_draft(case["nodes"]))
    visible = ancestors(draft.parents)[0, -1].nonzero().squeeze(-1) + 1
    assert [0, *visible.tolist()] == case["visible"]


def share(logs: Tensor, path: list[int]) -> float:
    """Returns the probability of a path."""
    return float(logs[range(len(path)), path].sum().exp())


@pytest.mark.parametrize("case", [c for c in CASES if not c["stable"]], ids=lambda c: c["id"])
def test_a_tree_with_near_ties_is_worth_as_much_as_the_authors(case: dict[str, Any]) -> None:
    logits, budget = torch.tensor(case["log_probs"], dtype=torch.double), case["budget"]
    draft, logs = tree_of(Tree(budget, max_candidates=budget), logits), logits.log_softmax(-1)
    total = sum(share(logs, path) for path in paths_of(draft))
    assert total == pytest.approx(case["sum_prob"], abs=1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_a_walk_accepts_what_the_authors_accept(case: dict[str, Any]) -> None:
    draft = golden_draft(case["nodes"])
    for walk in case["walks"]:
        choices = torch.tensor(walk["target_choice"])
        verdict = accept_tree(draft, lambda places, _, choices=choices: choices[places + 1])
        accepted = int(verdict.accepted[0])
        assert [0, *(verdict.places[0, :accepted] + 1).tolist()] == walk["accepted_nodes"]
        written = verdict.tokens[0, : accepted + 1].tolist()
        assert written == [*walk["accepted_tokens"], walk["next_token"]]


def best_first(logits: Tensor, budget: int, ends: tuple[int, ...]) -> list[list[int]]:
    """Returns the nodes of the authors' search by heap, with ties broken as in `Tree`."""
    logs = logits.double().log_softmax(-1).clamp(max=0.0)
    order = [row.sort(descending=True, stable=True) for row in logs]
    heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
    paths: list[list[int]] = []
    while heap and len(paths) <= budget:
        cost, depth, ranks = heapq.heappop(heap)
        tokens = [int(order[at].indices[rank]) for at, rank in enumerate(ranks)]
        paths.append(tokens)
        if depth < len(logits) and tokens[-1:] not in [[end] for end in ends]:
            for rank, log in enumerate(order[depth].values.tolist()):
                if log > -torch.inf:
                    heapq.heappush(heap, (cost - log, depth + 1, (*ranks, rank)))
    # The first one is the root.
    return paths[1:]


@pytest.mark.parametrize("seed", range(12))
def test_a_tree_has_the_nodes_of_a_search_by_heap(seed: int) -> None:
    """Also where some tokens are impossible, an EOS has no children, and rows differ in depth."""
    generator = torch.Generator().manual_seed(seed)
    peak = 0.3 * 2.0 ** (seed % 6)
    logits = peak * torch.randn(3, 7, 11, generator=generator, dtype=torch.double)
    logits[:, :, [2, 5]] = -torch.inf
    lengths, ends = torch.tensor([7, 1, 4]), (0, 3)
    for budget in (1, 2, 9, 40):
        draft = Tree(budget, 11).draft(draft_start_of([[0]] * 3, eos_ids=ends), logits, lengths)
        assert int(draft.num_broken()) == 0
        for row in range(3):
            expected = best_first(logits[row, : lengths[row]], budget, ends)
            assert paths_of(draft, row) == expected
    assert draft.counts[1] == 9, "all tokens that are possible"


def test_equal_beginnings_are_ordered_by_length_then_parent_then_id() -> None:
    logits = torch.zeros(3, 2)
    assert paths_of(tree_of(Tree(8), logits)) == [
        [0], [1], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 0], [0, 0, 1],
    ]  # fmt: skip
    certain = torch.tensor([[0.0, -torch.inf]] * 3)
    assert paths_of(tree_of(Tree(8), certain)) == [[0], [0, 0], [0, 0, 0]]


def test_a_node_is_added_as_long_as_it_raises_the_tokens_per_unit_of_cost() -> None:
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(3), dtype=torch.double) * 3
    logs, sizes = logits.log_softmax(-1), set()
    every = paths_of(tree_of(Tree(64), logits))
    shares = [share(logs, path) for path in every]
    for cost in (0.0, 0.002, 0.01, 0.03, 0.1, 1.0):
        rates = [(1 + sum(shares[:n])) / (1 + cost * n) for n in range(1, 65)]
        best = 1 + max(range(64), key=rates.__getitem__)
        paths = paths_of(tree_of(Tree(64, column_cost=cost), logits))
        assert paths == every[:best]
        sizes.add(len(paths))
    assert len(sizes) > 3


@dataclass(frozen=True)
class Given(Drafting):
    """Drafts one tree, and ignores the mask predictor."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def draft(self, start: DraftStart, logits: Tensor, lengths: Tensor) -> Draft:
        tokens, parents = torch.tensor([self.tokens]), torch.tensor([self.parents])
        counts = torch.full_like(lengths, len(self.tokens))
        return Draft(tokens.expand(len(counts), -1), counts, parents=parents)


@pytest.mark.parametrize(
    ("drafting", "num_broken"),
    [(Given((5, 5, 5, 6), (-1, -1, 1, 1)), 1), (Given((5, 5, 5, 6), (-1, 1, -2, 3)), 3)],
    ids=repr,
)
def test_a_draft_that_is_no_tree_is_refused(drafting: Drafting, num_broken: int) -> None:
    """A node comes after its parent, and differs from its siblings."""
    with pytest.raises(RuntimeError, match=f"from its siblings, got {num_broken} that do not"):
        decode(
            DriftingModel(), [[1, 2]], FixedSchedule(), gen_length=8, block_length=4,
            verifier=ARVerify(tiny_target(), drafting=drafting), stop_at_eos=False,
        )  # fmt: skip


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8], [1, 4, 1, 4, 2, 1]]).repeat(1, 2)
# Row 0: three children of the root, one of them with descendants. Row 1: a path. Row 2: a node.
PARENTS = torch.tensor([[-1, -1, 0, 2, 0, -1], [-1, 0, 1, 2, -1, -1], [-1, -1, -1, -1, -1, -1]])
COUNTS = torch.tensor([6, 4, 1])


def climb(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*climb(parents, parents[node]), node]


def read_trees(target: CausalTarget, past: Any, unread: list[int]) -> Reading:
    """Reads some text and a tree after it, in each of three rows."""
    lengths = torch.tensor(unread)
    return target.read(
        past, TOKENS, lengths + COUNTS, num_logits=7, first_logits=lengths - 1, parents=PARENTS
    )


def check_nodes(
    target: CausalTarget, read: list[list[int]], past: Any, unread: list[int]
) -> Reading:
    """Reads trees after text; each node's logits must be those of its path alone."""
    reading = read_trees(target, past, unread)
    for row in range(3):
        text = read[row] + TOKENS[row, : unread[row]].tolist()
        nodes = TOKENS[row, unread[row] :].tolist()
        for node in range(-1, int(COUNTS[row])):
            path = [nodes[place] for place in climb(PARENTS[row].tolist(), node)]
            fresh = logits_of(target.network.model, text + path)[-1]
            torch.testing.assert_close(reading.logits[row, node + 1], fresh)
    return reading


def tiny_gpt2() -> PreTrainedModel:
    """Returns a model with learned positions and another kind of attention."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=24, n_embd=16, n_layer=2, n_head=2, eos_token_id=22)
    model = GPT2LMHeadModel(config).double().eval().requires_grad_(False)
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8.0)
    return model


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2], ids=["llama", "gpt2, eager"])
def test_a_node_is_predicted_as_its_path_alone_and_only_the_accepted_path_is_kept(
    make: Any,
) -> None:
    """Checked at the start and after a past, with ragged rows and paths of different lengths."""
    target = CausalTarget(make(), name="tiny")
    read: list[list[int]] = [[], [], []]
    past, unread = target.start(3), [5, 2, 6]
    paths = [[0, 2, 3], [0, 1], []]
    for _ in range(2):
        reading = check_nodes(target, read, past, unread)
        kept = [list(range(count)) + [count + node for node in path]
                for count, path in zip(unread, paths, strict=True)]  # fmt: skip
        read = [text + TOKENS[row, columns].tolist()
                for row, (text, columns) in enumerate(zip(read, kept, strict=True))]  # fmt: skip
        columns = torch.tensor([row + [0] * (9 - len(row)) for row in kept])
        past = reading.keep(torch.tensor([len(row) for row in kept]), columns)
        assert past.lengths.tolist() == [len(text) for text in read]
        assert past.num_slots == max(map(len, read))
        unread = [1, 3, 1]


def test_a_target_that_counts_columns_is_refused() -> None:
    config = BloomConfig(
        vocab_size=24, hidden_size=16, n_layer=1, n_head=2, eos_token_id=22, bos_token_id=1
    )
    target = CausalTarget(BloomForCausalLM(config).eval(), name="bloom")
    with pytest.raises(ValueError, match="must take position_ids to read a draft tree, got bloom"):
        read_trees(target, target.start(3), [5, 2, 6])


def test_a_target_that_ignores_its_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(seed=5)
    forward = model.forward

    @wraps(forward)
    def deaf(**options: Any) -> Any:
        return forward(**options | {"attention_mask": None})

    monkeypatch.setattr(model, "forward", deaf)
    target = CausalTarget(model, name="deaf")
    with pytest.raises(ValueError, match="must heed a mask and positions"):
        read_trees(target, target.start(3), [5, 2, 6])


def test_a_tree_keeps_alternatives_to_what_the_sampler_committed() -> None:
    """Everything is committed after the first look, so the tree must be that of one look."""
    options: Any = {"gen_length": 12, "block_length": 12, "stop_at_eos": False}
    outs, sampler = [], ConfidenceThreshold(0.0)
    for looks in (1, 3):
        verifier = ARVerify(tiny_target(seed=2), DraftLength(4, 4), Tree(9, num_forwards=looks))
        outs.append(decode(DriftingModel(), [[1, 2], [5]], sampler, verifier=verifier, **options))
    for name in ("tokens", "nfe", "target_nfe", "drafted", "accepted"):
        assert torch.equal(getattr(outs[0], name), getattr(outs[1], name))
    # Nine nodes, but for the last round or two, where few masks are left.
    assert (outs[0].drafted > 4 * outs[0].target_nfe).all(), "there were no alternatives"
