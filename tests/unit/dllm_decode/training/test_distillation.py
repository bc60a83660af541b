"""Distillation: what is learned, resumed runs, several devices, LoRA, and what is written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from processes import in_two_processes
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny, new_tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor
from torch.optim import AdamW

from dllm_decode import StepEvent, decode
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.models.families import FAMILIES
from dllm_decode.training import Progress, Settings, train
from dllm_decode.training.answer_blocks import BlockMasks, logits_of_both
from dllm_decode.training.certainty import (
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
)
from dllm_decode.training.examples import lay_out
from dllm_decode.training.lora import LoRA
from dllm_decode.training.teacher import Demonstration, Lessons
from samplers import FixedSchedule

EOS, MASK, VOCAB = 0, 1, 24
GEN_LENGTH = 8


def tiny_model() -> MaskedTransformer:
    return new_tiny(
        vocab_size=VOCAB, hidden_size=32, mlp_hidden_size=48, mask_id=MASK, eos_ids=(EOS,)
    )  # fmt: skip


def reversals(count: int = 24) -> list[Demonstration]:
    generator = torch.Generator().manual_seed(0)
    demonstrations = []
    for i in range(count):
        digits = torch.randint(2, VOCAB, (2 + i % 4,), generator=generator).tolist()
        ranks = tuple(reversed(range(len(digits) + 1)))
        demonstrations.append(Demonstration((*digits, 2), (*digits[::-1], EOS), ranks, 1.0))
    return demonstrations


def run(
    model: MaskedTransformer, folder: Path, *, num_samples: int = 64, num_forwards: int = 2,
    method: str = "dparallel", evaluate: Any = lambda progress: {}, optimiser: Any = None,
) -> Progress:  # fmt: skip
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    source = Lessons(
        reversals(), gen_length=GEN_LENGTH, eos_id=EOS, num_rows=4, num_forwards=num_forwards
    )
    return train(
        objective_of(model, method), [optimiser or AdamW(weights, lr=0.01)], source,
        Settings(num_samples=num_samples, folder=folder, evaluate_every=3),
        accelerator=Accelerator(cpu=True), evaluate=evaluate,
    )  # fmt: skip


class Killed(BaseException):
    """Ends a run, but not pytest, which a KeyboardInterrupt would end."""


def interrupt(progress: Progress) -> dict[str, float]:
    """Evaluates after three steps, but not later."""
    if progress.step > 3:
        raise Killed
    return {}


def objective_of(model: MaskedTransformer, method: str) -> Any:
    if method == "dparallel":
        return CertaintyForcing(model, 4, loss=CertaintyLoss("dparallel"))
    curriculum = Curriculum(block_lengths=(2, 4))
    return TrajectoryForcing(model, curriculum=curriculum, loss=CertaintyLoss("d3llm"))


def weights_of(model: MaskedTransformer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    """The other method is in e2e/test_distil.py."""
    uninterrupted, killed, resumed = (tiny_model() for _ in range(3))
    expected = run(uninterrupted, tmp_path / "whole", method="d3llm")
    with pytest.raises(Killed):
        run(killed, tmp_path / "killed", method="d3llm", evaluate=interrupt)
    progress = run(resumed, tmp_path / "killed", method="d3llm")
    assert (progress.step, progress.samples) == (expected.step, expected.samples) == (8, 64)
    assert [past["step"] for past in progress.history] == [3.0, 6.0, 8.0]
    with pytest.raises(AssertionError):
        assert_same(weights_of(killed), weights_of(uninterrupted))
    for _ in range(2):
        assert_same(weights_of(resumed), weights_of(uninterrupted))
        # A finished run is neither trained nor evaluated again.
        run(resumed, tmp_path / "killed", method="d3llm", evaluate=interrupt)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(tolerance or {"rtol": 0, "atol": 0}))


def test_weights_that_are_not_finite_are_neither_judged_nor_kept(tmp_path: Path) -> None:
    """A rate of 1e300 made the last step's weights infinite; they were judged and written."""
    model, calls = tiny_model(), []

    def advance(optimiser: Any, *_: object) -> None:
        optimiser.param_groups[0]["params"][0].data.fill_(torch.inf)

    optimiser = AdamW(model.parameters(), lr=0.01)
    optimiser.register_step_post_hook(advance)
    with pytest.raises(RuntimeError, match="The weights must be finite, got inf at step 1"):
        run(
            model, tmp_path, num_samples=4, num_forwards=1, optimiser=optimiser,
            evaluate=lambda _: calls.append(1) or {},
        )  # fmt: skip
    assert not calls
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_processes_do_what_one_does_with_twice_the_forwards(tmp_path: Path) -> None:
    """Weights differed by 1e-3 after a test in bfloat16, whose precision accelerate had kept."""
    alone = tiny_model()
    run(alone, tmp_path / "alone", num_forwards=2, num_samples=32)
    script = (
        "import sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from test_distillation import run, tiny_model, weights_of\n"
        "model, folder = tiny_model(), Path(sys.argv[1])\n"
        "run(model, folder / 'run', num_forwards=1, num_samples=32)\n"
        "torch.save(weights_of(model), folder / f'{sys.argv[2]}.pt')\n"
    )
    for code, output in in_two_processes("-c", script, str(tmp_path), "{rank}"):
        assert code == 0, output
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert_same(first, second)
    # A mean of two is exact in any order.
    assert_same(first, weights_of(alone))


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_what_is_learned_is_what_a_decode_sees(family: str) -> None:
    """Block-causal families had been refused; a mask or a shift that is wrong shows here."""
    options = {"block_length": 4} if FAMILIES[family].block_length else {}
    model = load_tiny(family, dtype="float64", **options)
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(5, 400, (2, 16), generator=generator).tolist()
    prompts, answers = [first[0][:6], first[1][:9]], [first[0][6:15], first[1][7:16]]
    batch = lay_out(list(zip(prompts, answers, strict=True)), 9, model.eos_ids[0])
    leads = torch.tensor([len(prompt) % max(1, model.causal_block_length) for prompt in prompts])
    positions = torch.arange(9)
    # The second block of four, wherever it begins in each row.
    start = (4 - leads)[:, None]
    block = (positions >= start) & (positions < start + 4)
    masks = BlockMasks(block, torch.zeros_like(block))
    learned, _ = logits_of_both(model, batch, masks, 4)
    for row in range(2):
        template = [
            model.mask_id if masks.first[row, i] or masks.after[row, i] else answers[row][i]
            for i in range(9)
        ]
        events: list[StepEvent] = []
        decode(model, [prompts[row]], FixedSchedule(1), templates=[template], gen_length=9,
               block_length=4, stop_at_eos=False, observers=[events.append])  # fmt: skip
        view = events[0].view
        columns = positions[block[row]] - view.positions[0, 0]
        expected = view.logits[0, columns]
        shown = expected.isfinite()
        trained = learned[row, block[row]].double()
        torch.testing.assert_close(trained[shown], expected[shown], rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_family_is_trained_and_its_new_weights_are_written(
    family: str, tmp_path: Path
) -> None:
    model = load_tiny(family, dtype="float32").train().requires_grad_(True)
    block_length = max(4, model.causal_block_length)
    pairs = [(tuple(range(5, 12)), (20, 21, 22, model.eos_ids[-1]))] * 2
    batch = lay_out(pairs, block_length * 2, model.eos_ids[0])
    objective = CertaintyForcing(model, block_length, loss=CertaintyLoss("dparallel"))
    objective.loss(batch, torch.Generator().manual_seed(0)).backward()
    layers = model.transformer.layers
    assert all(w.grad is not None for n, w in layers.named_parameters() if "attention." in n)
    AdamW(model.parameters(), lr=0.01).step()
    save_model(model, tmp_path / "written", max_shard_bytes=60_000)
    reloaded, _ = load_model(tmp_path / "written", **OPTIONS.get(family, {}))
    expected = model.transformer.parts()
    for name, value in reloaded.transformer.parts().items():
        assert torch.equal(value, expected[name].to(value.dtype)), name


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2_moe"])
def test_lora_trains_little_and_is_read_back_as_an_adapter(family: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model, plain = (load_tiny(family, dtype="float32") for _ in range(2))
    lora = LoRA(model, rank=3)
    torch.rand(1)
    restarted = LoRA(load_tiny(family, dtype="float32"), rank=3)
    for first, second in zip(lora.weights, restarted.weights, strict=True):
        assert torch.equal(first, second), "a run that is started again begins as before"
    trained, everything = (sum(w.numel() for w in ws) for ws in (lora.weights, plain.parameters()))
    assert 0 < trained < 0.5 * everything
    block_length = max(4, model.causal_block_length)
    batch = lay_out([((5, 6, 7), (20, 21, 22, 23))], block_length, model.eos_ids[0])
    objective = CertaintyForcing(model.train(), block_length, loss=CertaintyLoss("dparallel"))
    optimiser = AdamW(lora.weights, lr=0.05)
    for step in range(3):
        optimiser.zero_grad()
        objective.loss(batch, torch.Generator().manual_seed(step)).backward()
        optimiser.step()
    model.eval()
    lora.save(tmp_path / "adapter", base=str(MODELS / family))
    merged = load_tiny(family, dtype="float32", adapter=tmp_path / "adapter")
    masks = BlockMasks(*(torch.ones(1, block_length, dtype=torch.bool),) * 2)
    found, expected, before = (
        logits_of_both(network, batch, masks, block_length)[0] for network in (merged, model, plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert (found - before).abs().max() > 0.1


def test_checkpoints_of_lora_hold_what_is_trained_only(tmp_path: Path) -> None:
    pytest.importorskip("peft")

    def student() -> MaskedTransformer:
        model = tiny_model()
        LoRA(model, rank=2)
        return model

    uninterrupted, resumed = student(), student()
    run(uninterrupted, tmp_path / "whole")
    with pytest.raises(Killed):
        run(student(), tmp_path / "killed", evaluate=interrupt)
    run(resumed, tmp_path / "killed")
    assert_same(weights_of(resumed), weights_of(uninterrupted))
    size = sum(f.stat().st_size for f in (tmp_path / "whole").rglob("*.safetensors"))
    assert size < 0.75 * 4 * sum(w.numel() for w in uninterrupted.parameters())


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    model = tiny_model()
    model.transformer.norm.weight.data.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="The loss must be finite, got nan at step"):
        run(model, tmp_path)
    assert not list(tmp_path.iterdir())
