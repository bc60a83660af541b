"""Draft trees: which nodes they have, and how a target walks down them."""

import heapq
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm_decode import Draft, NGram, Tree
from dllm_decode.models.targets.trees import ancestors
from dllm_decode.verify.acceptance import accept_matching, accept_tree

VECTORS = Path(__file__).parents[5] / "golden" / "data" / "vectors" / "ddtree_vectors.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]
NO_CONTEXT = torch.zeros(1, 0, dtype=torch.long)
Path_ = tuple[int, ...]


def tree_of(tree: Tree, logits: Tensor, ends: tuple[int, ...] = ()) -> Draft:
    return tree.grow(logits[None], torch.tensor([len(logits)]), NO_CONTEXT, ends)


def paths_of(draft: Draft, row: int = 0) -> list[Path_]:
    """The beginning that each node stands for."""
    assert draft.parents is not None
    paths: list[Path_] = []
    nodes = zip(draft.tokens[row].tolist(), draft.parents[row].tolist(), strict=True)
    for token, parent in list(nodes)[: int(draft.counts[row])]:
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def golden_draft(nodes: list[dict[str, Any]]) -> Draft:
    return Draft(
        torch.tensor([[node["token"] for node in nodes]]),
        torch.tensor([len(nodes)]),
        parents=torch.tensor([[node["parent"] - 1 for node in nodes]]),
    )


@pytest.mark.parametrize("case", [case for case in CASES if case["stable"]], ids=lambda c: c["id"])
def test_a_tree_is_the_authors_node_by_node(case: dict[str, Any]) -> None:
    budget = case["budget"]
    draft = tree_of(Tree(budget, max_candidates=budget), torch.tensor(case["log_probs"]))
    assert int(draft.counts[0]) == len(case["nodes"])
    assert paths_of(draft) == paths_of(golden_draft(case["nodes"]))
    assert draft.parents is not None
    visible = ancestors(draft.parents)[0, -1].nonzero().squeeze(-1) + 1
    assert [0, *visible.tolist()] == case["visible"]


@pytest.mark.parametrize("case", [c for c in CASES if not c["stable"]], ids=lambda c: c["id"])
def test_a_tree_with_near_ties_is_worth_as_much_as_the_authors(case: dict[str, Any]) -> None:
    logits, budget = torch.tensor(case["log_probs"], dtype=torch.double), case["budget"]
    draft, logs = tree_of(Tree(budget, max_candidates=budget), logits), logits.log_softmax(-1)
    own = sum(
        float(sum(logs[depth, token] for depth, token in enumerate(path)).exp())  # type: ignore[union-attr]
        for path in paths_of(draft)
    )
    assert own == pytest.approx(case["sum_prob"], abs=1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_a_walk_accepts_what_the_authors_accept(case: dict[str, Any]) -> None:
    draft = golden_draft(case["nodes"])
    for walk in case["walks"]:
        choices = torch.tensor(walk["target_choice"])
        verdict = accept_tree(draft, lambda places, _, choices=choices: choices[places + 1])
        accepted = int(verdict.accepted[0])
        assert verdict.places is not None
        assert [0, *(verdict.places[0, :accepted] + 1).tolist()] == walk["accepted_nodes"]
        written = verdict.tokens[0, : accepted + 1].tolist()
        assert written == [*walk["accepted_tokens"], walk["next_token"]]


def best_first(logits: Tensor, budget: int, ends: tuple[int, ...]) -> list[Path_]:
    """The authors' way, by a heap; ties as `Tree` breaks them."""
    logs = logits.double().log_softmax(-1).clamp(max=0.0)
    order = [row.sort(descending=True, stable=True) for row in logs]

    def entry(ranks: Path_, above: float) -> tuple[float, int, Path_, float]:
        depth = len(ranks) - 1
        score = above + float(order[depth].values[ranks[-1]])
        return -score, len(ranks), ranks, above

    heap, found = [entry((0,), 0.0)], list[Path_]()
    while heap and len(found) < budget:
        score, _, ranks, above = heapq.heappop(heap)
        if score == float("inf"):
            break
        tokens = tuple(int(order[depth].indices[rank]) for depth, rank in enumerate(ranks))
        found.append(tokens)
        if ranks[-1] + 1 < logits.shape[1]:
            heapq.heappush(heap, entry((*ranks[:-1], ranks[-1] + 1), above))
        if len(ranks) < len(logits) and tokens[-1] not in ends:
            heapq.heappush(heap, entry((*ranks, 0), -score))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_tree_has_the_nodes_of_a_search_by_heap(seed: int) -> None:
    """Also where some tokens are impossible, an EOS has no children, and rows differ in depth."""
    generator = torch.Generator().manual_seed(seed)
    peak = 0.3 * 2.0 ** (seed % 6)
    logits = peak * torch.randn(3, 7, 11, generator=generator, dtype=torch.double)
    logits[:, :, [2, 5]] = -torch.inf
    lengths, ends = torch.tensor([7, 1, 4]), (0, 3)
    for budget in (1, 2, 9, 40):
        draft = Tree(budget, 11).grow(logits, lengths, NO_CONTEXT.expand(3, 0), ends)
        assert int(draft.num_broken()) == 0
        for row in range(3):
            expected = best_first(logits[row, : lengths[row]], budget, ends)
            assert paths_of(draft, row) == expected
    assert draft.counts[1] == 9, "all tokens that are possible"


def test_equal_beginnings_are_ordered_by_length_then_parent_then_id() -> None:
    logits = torch.zeros(3, 2)
    assert paths_of(tree_of(Tree(8), logits)) == [
        (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1),
    ]  # fmt: skip
    certain = torch.tensor([[0.0, -torch.inf]] * 3)
    assert paths_of(tree_of(Tree(8), certain)) == [(0,), (0, 0), (0, 0, 0)]


def test_a_node_is_added_as_long_as_it_raises_the_tokens_per_unit_of_cost() -> None:
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(3), dtype=torch.double) * 3
    logs, sizes = logits.log_softmax(-1), set()
    every = paths_of(tree_of(Tree(64), logits))
    shares = [
        float(sum(logs[depth, token] for depth, token in enumerate(path)).exp())  # type: ignore[union-attr]
        for path in every
    ]
    for cost in (0.0, 0.002, 0.01, 0.03, 0.1, 1.0):
        rates = [(1 + sum(shares[:n])) / (1 + cost * n) for n in range(1, 65)]
        best = 1 + max(range(64), key=rates.__getitem__)
        kept = paths_of(tree_of(Tree(64, column_cost=cost), logits))
        assert kept == every[:best]
        sizes.add(len(kept))
    assert len(sizes) > 3


def test_a_proxy_prefers_the_order_that_it_knows() -> None:
    """The mask predictor cannot tell "0 1" and "2 3" from "0 3" and "2 1"."""
    logits = torch.tensor([[1.0, -9.0, 0.9, -9.0, -9.0], [-9.0, 0.9, -9.0, 1.0, -9.0]])
    proxy = NGram(5, length=2).fit([[4, 0, 1], [4, 2, 3]] * 20)
    context = torch.tensor([[4]])

    def pairs(tree: Tree) -> list[Path_]:
        draft = tree.grow(logits[None], torch.tensor([2]), context, ())
        return [path for path in paths_of(draft) if len(path) == 2]

    assert pairs(Tree(4)) == [(0, 3), (0, 1)]
    assert pairs(Tree(4, proxy=proxy, proxy_weight=1.0)) == [(0, 1), (2, 3)]


def test_ancestors_are_those_found_by_climbing() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_nodes in (0, 1, 2, 5, 33):
        parents = torch.tensor(
            [[int(torch.randint(-1, i, (1,), generator=generator)) if i else -1
              for i in range(num_nodes)] for _ in range(3)]
        ).view(3, num_nodes).long()  # fmt: skip
        found = ancestors(parents)
        for row, node in ((row, node) for row in range(3) for node in range(num_nodes)):
            climbed, here = set(), node
            while here >= 0:
                climbed.add(here)
                here = int(parents[row, here])
            assert set(found[row, node].nonzero().squeeze(-1).tolist()) == climbed
    path = ancestors(torch.arange(-1, 5)[None])
    assert torch.equal(path[0], torch.ones(6, 6).bool().tril())
    assert torch.equal(ancestors(torch.full((1, 4), -1))[0], torch.eye(4).bool())


def test_a_path_is_walked_as_matching_accepts_it() -> None:
    generator = torch.Generator().manual_seed(1)
    seen, rows = set(), torch.arange(3)
    for _ in range(40):
        tokens = torch.randint(2, (3, 6), generator=generator)
        written = torch.randint(2, (3, 7), generator=generator)
        counts = torch.tensor([6, 3, 1])
        path = accept_matching(Draft(tokens, counts), written)
        tree = Draft(tokens, counts, parents=torch.arange(-1, 5).expand(3, -1))
        walked = accept_tree(tree, lambda places, _, w=written: w[rows, places + 1])
        assert torch.equal(walked.accepted, path.accepted)
        for row, accepted in enumerate(path.accepted.tolist()):
            assert torch.equal(walked.tokens[row, : accepted + 1], written[row, : accepted + 1])
            seen.add((row, accepted))
    assert len(seen) > 8


def test_a_draft_that_is_no_tree_is_counted() -> None:
    def broken(tokens: list[int], parents: list[int], count: int) -> int:
        draft = Draft(
            torch.tensor([tokens]), torch.tensor([count]), parents=torch.tensor([parents])
        )
        return int(draft.num_broken())

    assert broken([5, 5, 5, 6], [-1, 0, 1, 1], 4) == 0
    assert broken([5, 5, 5, 6], [-1, -1, 1, 1], 4) == 1
    assert broken([5, 5, 5, 6], [-1, -1, 1, 1], 1) == 0
    assert broken([5, 5, 5, 6], [-1, 1, -2, 3], 4) == 3
