"""The answer is the target's, whatever tree it was given; keys and values follow the path."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from toys import DriftingModel, logits_of, tiny_llama, tiny_target, written_alone
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from dllm_decode import (
    ARVerify,
    CausalTarget,
    Draft,
    Drafting,
    DraftLength,
    Tree,
    decode,
    measure_column_cost,
)
from dllm_decode.verify.drafts import Beginning
from samplers import ConfidenceThreshold, FixedSchedule
from samplers.logits.noise import row_keys

MASK = 23
Kind = Literal["random", "no right child", "all right", "chain of right ones"]
KINDS: tuple[Kind, ...] = ("random", "no right child", "all right", "chain of right ones")


def alone(
    target: CausalTarget, prompts: list[list[int]], length: int, temperature: float, seed: int
) -> list[list[int]]:
    """Returns the answers that the target writes by itself."""
    keys = row_keys(seed, torch.arange(len(prompts)))
    return [
        written_alone(
            target.network.model, prompt, gen_length=length, stops=target.eos_ids,
            banned=(MASK,), temperature=temperature,
            key=keys[row : row + 1] if temperature else None,
        )
        for row, prompt in enumerate(prompts)
    ]  # fmt: skip


@dataclass(frozen=True)
class Adversary(Drafting):
    """Drafts trees without asking the mask predictor, knowing what the target will write."""

    kind: Kind
    answers: tuple[tuple[int, ...], ...]
    seed: int
    size: int = 9

    def draft(self, beginning: Beginning, logits: Tensor, lengths: Tensor) -> Draft:
        # The noise key of a row tells which prompt it answers.
        keys = row_keys(self.seed, torch.arange(len(self.answers))).tolist()
        first = beginning.first - beginning.canvas.prompt_lengths
        rows = [
            (keys.index(key), done)
            for key, done in zip(beginning.noise_keys.tolist(), first.tolist(), strict=True)
        ]
        trees = [self.tree(row, self.answers[row][done:]) for row, done in rows]
        counts = torch.tensor([len(tree) for tree in trees])
        # Shorter trees are filled up with anything: here, copies of a sibling.
        filled = [tree + [(0, -1)] * (self.size - len(tree)) for tree in trees]
        tokens, parents = torch.tensor(filled).unbind(-1)
        return Draft(tokens, counts, parents=parents)

    def tree(self, row: int, right: tuple[int, ...]) -> list[tuple[int, int]]:
        """Tokens and parents."""
        chance = random.Random(f"{self.kind} {row} {len(right)}")
        nodes: list[tuple[int, int]] = []
        # How far each node follows the right answer; `None`: not at all.
        agrees: dict[int, int | None] = {-1: 0}
        for _ in range(chance.randint(1, self.size)):
            parent = chance.randint(-1, len(nodes) - 1)
            if self.kind == "chain of right ones":
                parent = len(nodes) - 1
            depth = agrees[parent]
            wanted = None if depth is None or depth == len(right) else right[depth]
            token = chance.randrange(22)
            if self.kind == "no right child":
                token = (token + 1) % 22 if token == wanted else token
            elif self.kind != "random" and wanted is not None and (wanted, parent) not in nodes:
                token = wanted
            if (token, parent) not in nodes:
                agrees[len(nodes)] = depth + 1 if depth is not None and token == wanted else None
                nodes.append((token, parent))
        return nodes


def check_law(num_prompts: int, seeds: range) -> int:
    """Counts decodes, all of which must be the target's."""
    target, num_decodes = tiny_target(seed=2, scale=3.0), 0
    target.eos_ids = (22, 13)
    accepted: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    for seed in seeds:
        chance = random.Random(seed)
        prompts = [
            [chance.randrange(22) for _ in range(chance.randint(1, 7))] for _ in range(num_prompts)
        ]
        for temperature in (0.0, 0.7):
            answers = alone(target, prompts, 10, temperature, seed)
            known = tuple(map(tuple, answers))
            for drafting in (Adversary(kind, known, seed) for kind in KINDS):
                out = decode(
                    DriftingModel(), prompts, ConfidenceThreshold(0.2), gen_length=10,
                    block_length=5, temperature=temperature, seed=seed,
                    verifier=ARVerify(target, DraftLength(2, 6), drafting), stop_at_eos=True,
                )  # fmt: skip
                assert out.tokens.tolist() == answers, (drafting, temperature, seed)
                num_decodes += num_prompts
                accepted[drafting.kind].update(out.accepted.tolist())
    # Each kind of tree does what its name says.
    assert set(accepted["no right child"]) == {0}
    assert 0 < len(accepted["random"]) < len(accepted["all right"])
    assert max(accepted["chain of right ones"]) > 6
    return num_decodes


def test_the_answer_is_the_targets_with_any_tree_greedy_and_drawn() -> None:
    assert check_law(4, range(1)) == 32


@pytest.mark.slow
def test_two_thousand_decodes_with_trees_are_the_targets() -> None:
    assert check_law(24, range(11)) >= 2000


def test_a_draft_that_repeats_a_sibling_is_refused() -> None:
    @dataclass(frozen=True)
    class Twins(Drafting):
        def draft(self, beginning: Beginning, logits: Tensor, lengths: Tensor) -> Draft:
            tokens = torch.tensor([[5, 6, 5]]).expand(len(lengths), -1)
            return Draft(tokens, lengths.clamp(min=3), parents=torch.tensor([[-1, 0, -1]]))

    with pytest.raises(RuntimeError, match="differ from its siblings, got 1 that do not"):
        decode(
            DriftingModel(), [[1, 2]], FixedSchedule(), verifier=ARVerify(tiny_target(),
            drafting=Twins()), gen_length=8, block_length=4,
        )  # fmt: skip


TOKENS = torch.tensor([
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5],
    [1, 4, 1, 4, 2, 1, 3, 5, 6, 2, 3, 7],
])  # fmt: skip
# Three nodes that follow the root, one of them with a path below it; a path; one node.
PARENTS = torch.tensor([[-1, -1, 0, 2, 0, -1], [-1, 0, 1, 2, -1, -1], [-1, -1, -1, -1, -1, -1]])
COUNTS = torch.tensor([6, 4, 1])


def climb(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*climb(parents, parents[node]), node]


def check_nodes(target: CausalTarget, read: list[list[int]], past: Any, unread: list[int]) -> Any:
    """Reads a tree behind some text; each node's logits must be those of its path alone."""
    first = torch.tensor(unread) - 1
    fed = torch.stack([torch.cat([TOKENS[row, :6]] * 2) for row in range(3)])
    counts = torch.tensor(unread) + COUNTS
    reading = target.read(
        past, fed, counts, num_logits=7, first_logits=first, parents=PARENTS
    )  # fmt: skip
    for row in range(3):
        text = read[row] + fed[row, : unread[row]].tolist()
        nodes = fed[row, unread[row] :].tolist()
        for node in range(-1, int(COUNTS[row])):
            path = [nodes[place] for place in climb(PARENTS[row].tolist(), node)]
            fresh = logits_of(target.network.model, text + path)[-1]
            torch.testing.assert_close(reading.logits[row, node + 1], fresh)
    return reading, fed


def tiny_gpt2() -> PreTrainedModel:
    """Learned positions, and attention of another kind."""
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
    """At the start and behind a past, rows ragged, accepted paths of different lengths."""
    target = CausalTarget(make(), name="tiny")
    read: list[list[int]] = [[], [], []]
    past, unread = target.start(3), [5, 2, 6]
    paths = [[0, 2, 3], [0, 1], []]
    for _ in range(2):
        reading, fed = check_nodes(target, read, past, unread)
        kept = [list(range(count)) + [count + node for node in path]
                for count, path in zip(unread, paths, strict=True)]  # fmt: skip
        read = [text + fed[row, columns].tolist()
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
        check_nodes(target, [[], [], []], target.start(3), [5, 2, 6])


def test_a_target_that_ignores_its_mask_is_refused() -> None:
    model = tiny_llama(seed=5)
    target = CausalTarget(model, name="deaf")
    forward = model.forward

    def deaf(**given: Any) -> Any:
        return forward(**given | {"attention_mask": None})

    deaf.__signature__ = __import__("inspect").signature(forward)  # type: ignore[attr-defined]
    try:
        model.forward = deaf  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="must heed a mask and positions"):
            check_nodes(target, [[], [], []], target.start(3), [5, 2, 6])
    finally:
        model.forward = forward  # type: ignore[method-assign]


def test_what_a_column_costs_is_a_share_of_a_round() -> None:
    model = DriftingModel()
    for num_forwards in (1, 4):
        cost = measure_column_cost(
            model, tiny_target(), [1, 2, 3], gen_length=8, num_forwards=num_forwards, num_runs=3
        )
        assert 0.0 <= cost < 1.0
        assert Tree(column_cost=cost).column_cost == cost


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
