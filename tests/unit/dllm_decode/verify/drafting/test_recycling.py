"""Token recycling: the memory after each round, and the tree that is drafted from it."""

from itertools import product

import torch
from toys import HashModel, answers_of, draft_start_of, paths_of, tiny_target

from dllm_decode import ARVerify, Draft, Recycling, as_causal_target, decode, generate, load_model
from dllm_decode.verify.acceptance import Verdict
from dllm_decode.verify.drafts import DraftStart
from samplers import FixedSchedule

# For each token the three likeliest next ones; nobody has read 0, 4 and 5.
MEMORY = [[-1] * 3, [2, 3, 4], [3, 1, 0], [1, 2, 5], [-1] * 3, [-1] * 3]


def remembering(last: int) -> DraftStart:
    return draft_start_of([[0, last]], memory=torch.tensor([MEMORY]))


def expected_paths(last: int, memory: list[list[int]], most: int) -> list[list[int]]:
    """Returns all paths of ranks with a sum of at most k, in the order of depth and ranks."""
    k, found = len(memory[0]), []
    for length in range(1, min(k, most) + 1):
        for ranks in product(range(1, k + 1), repeat=length):
            path, token = [], last
            for rank in ranks:
                token = memory[token][rank - 1] if token >= 0 else -1
                path.append(token)
            if sum(ranks) <= k and -1 not in path:
                found.append(path)
    return found


def test_the_ranks_of_a_path_add_up_to_at_most_k() -> None:
    for last, most in product(range(6), (1, 2, 3, 7)):
        draft = Recycling(3).draft(remembering(last), torch.zeros(1, 7, 0), torch.tensor([most]))
        assert paths_of(draft) == expected_paths(last, MEMORY, most)
        assert int(draft.num_broken()) == 0
    assert len(expected_paths(1, MEMORY, 7)) == 7
    assert len(expected_paths(0, MEMORY, 7)) == 0


def test_an_accepted_token_is_remembered_rather_than_a_rejected_one() -> None:
    start = remembering(5)
    # 5 is followed by 1 (rejected) and by 2 and again 1 (accepted); the last node does not count.
    draft = Draft(
        torch.tensor([[1, 2, 1, 3, 4]]), torch.tensor([4]),
        parents=torch.tensor([[-1, -1, 1, 1, 0]]),
    )  # fmt: skip
    # Column n makes tokens n, n + 1 and n + 2 likeliest, in this order.
    logits = torch.zeros(1, 6, 8)
    for column in range(6):
        logits[0, column, column : column + 3] = torch.tensor([3.0, 2.0, 1.0])
    verdict = Verdict(torch.tensor([[2, 1, 7]]), torch.tensor([2]), torch.tensor([[1, 2, 2]]))
    memory = Recycling(3).memory_after(start, draft, logits, verdict)
    assert memory[0].tolist() == [
        [-1, -1, -1], [3, 4, 5], [2, 3, 4], [4, 5, 6], [-1, -1, -1], [0, 1, 2],
    ]  # fmt: skip
    assert start.memory is not None
    assert start.memory[0].tolist() == MEMORY


def test_a_repeated_token_is_remembered_alike_alone_and_beside_a_longer_path() -> None:
    start = remembering(5)
    assert start.memory is not None
    draft = Draft(torch.tensor([[5, 1]]), torch.tensor([2]), parents=torch.tensor([[-1, 0]]))
    logits = torch.eye(3, 8)[None]
    memories = [
        Recycling(1).memory_after(
            start._replace(memory=start.memory[..., :1]), draft, logits,
            Verdict(torch.tensor([[5, 1]]), torch.tensor([1]), torch.tensor([places])),
        )
        for places in ([0], [0, 1], [0, 0, 0])
    ]  # fmt: skip
    # The text's last 5, in column 0, was read before the accepted 5 in column 1.
    assert [memory[0, 5].tolist() for memory in memories] == [[0]] * 3


def test_more_tokens_than_the_vocabulary_has_are_not_remembered() -> None:
    target = tiny_target(seed=2)
    out = decode(
        HashModel(), [[1, 2]], FixedSchedule(4), gen_length=6, block_length=6,
        verifier=ARVerify(target, drafting=Recycling(10)),
    )  # fmt: skip
    assert out.tokens.tolist() == answers_of(target, [[1, 2]], 6)
    memory = Recycling(10).first_memory(remembering(1), 4)
    assert memory.shape == (1, 4, 4)


def test_a_ledger_takes_less_than_six_forwards_for_ten_tokens() -> None:
    model, tokenizer = load_model("mini-long-ar", family="causal", device="cpu")
    text = (
        "anna has 32 coins , in january anna spends 3 , in february anna wins 7 . "
        "how many coins do they have ?"
    )
    out = generate(
        model, tokenizer, text, verifier=ARVerify(as_causal_target(model), drafting=Recycling()),
        gen_length=128,
    )  # fmt: skip
    assert out.texts[0].endswith("#### 36")
    assert 10 * int(out.decoded.target_nfe) < 6 * int(out.decoded.lengths())
