"""A round of a verifier never allocates a second copy of the draft's logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pretended import Operations
from torch import Tensor
from torch.utils._pytree import tree_leaves
from toys import DriftingModel, tiny_llama

from dllm_decode import ARVerify, CausalTarget, DraftLength, Guided, PathSearch, Sampled, decode
from samplers import FixedSchedule
from samplers.logits import statistics

# V is so large that lists of candidates are small in comparison.
V, DRAFTED = 8_192, 8
LENGTH = DraftLength(DRAFTED, DRAFTED)


class Largest:
    """Notes the largest allocation of a single operation."""

    def __init__(self) -> None:
        self.num_bytes, self.place = 0, ""

    def __call__(self, func: Any, given: Any, made: Any) -> None:
        input_storages = {tensor.untyped_storage().data_ptr() for tensor in tensors(given)}
        for tensor in tensors(made):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in input_storages and storage.nbytes() > self.num_bytes:
                self.num_bytes, self.place = storage.nbytes(), f"{func}{tuple(tensor.shape)}"


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


CASES: dict[str, tuple[Callable[[CausalTarget], Any], float, list[list[int]]]] = {
    "guided, ragged": (lambda target: Guided(target, DRAFTED), 0.0, [[1, 2, 3], [4] * 40]),
    "guided, all rules": (
        lambda target: Guided(target, DRAFTED, ratio=0.1, threshold=1e-9), 0.0, [[1]],
    ),
    "searched, with every EOS": (
        lambda target: ARVerify(target, LENGTH, PathSearch(eos="always")), 0.0, [[1, 2, 3]],
    ),
    "searched, judged by draws": (lambda target: ARVerify(target, LENGTH), 1.5, [[1, 2, 3]]),
    "drawn": (lambda target: ARVerify(target, LENGTH, Sampled()), 1.5, [[1, 2, 3]]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_round_makes_no_copy_of_the_logits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits were copied, widened, up to five times: at V = 126,464 a row's draft was 60 MB."""
    make, temperature, prompts = CASES[case]
    # Chunks of one position.
    monkeypatch.setitem(statistics._CHUNK_BYTES, "cpu", 8 * V)
    target = CausalTarget(tiny_llama(V), name="wide")
    model = DriftingModel(vocab_size=V, mask_id=V - 1, eos_ids=(V - 2,))
    largest = Largest()
    operations = Operations(largest)
    monkeypatch.setattr(target, "read", operations.left_out(target.read))
    monkeypatch.setattr(model, "predict", operations.left_out(model.predict), raising=False)
    with operations:
        out = decode(
            model, prompts, FixedSchedule(2), verifier=make(target), gen_length=DRAFTED + 2,
            block_length=5, temperature=temperature, stop_at_eos=False,
        )  # fmt: skip
    assert out.target_forwards > 1
    one_draft = DRAFTED * V * torch.float64.itemsize
    assert 0 < largest.num_bytes <= one_draft // 3, largest.place


def test_a_long_prompt_beside_a_short_one_costs_no_logits() -> None:
    """A target made logits of every column from the end of the shortest prompt on."""
    target = CausalTarget(tiny_llama(V), name="wide")
    model = DriftingModel(vocab_size=V, mask_id=V - 1, eos_ids=(V - 2,))
    made, head = [], target.network.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, __, out: made.append(out.shape[1]))
    decode(
        model, [[1], [2] * 60], FixedSchedule(2), verifier=ARVerify(target, LENGTH), gen_length=4,
        block_length=2,
    )  # fmt: skip
    hook.remove()
    assert made
    assert max(made) <= 16
