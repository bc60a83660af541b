"""Training: schedules, masks, optimisers, losses, and runs that are interrupted."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tiny_models import load_without_tokenizer, new_tiny
from torch.optim import AdamW

from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.models.families import FAMILIES
from dllm_decode.training import (
    Progress,
    Settings,
    make_optimisers,
    train,
)
from dllm_decode.training.certainty import CertaintyForcing, CertaintyLoss, Curriculum
from dllm_decode.training.examples import lay_out
from dllm_decode.training.learn2pd import FilterSettings
from dllm_decode.training.loop import linear_decay
from dllm_decode.training.lora import LoRA
from dllm_decode.training.teacher import Demonstration, Lessons
from samplers.learn2pd import new_network

EOS, MASK, VOCAB = 0, 1, 24


def reversals(count: int = 64) -> list[Demonstration]:
    """Answers that repeat the prompt's digits backwards."""
    rng, found = random.Random(0), []
    for _ in range(count):
        digits = [rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 4))]
        ranks = tuple(range(len(digits) + 1))
        found.append(Demonstration((*digits, 2), (*digits[::-1], EOS), ranks, 1.0))
    return found


def tiny_model(seed: int = 0, hidden_size: int = 32) -> MaskedTransformer:
    return new_tiny(
        vocab_size=VOCAB, hidden_size=hidden_size, mlp_hidden_size=48, mask_id=MASK,
        eos_ids=(EOS,), seed=seed,
    )  # fmt: skip


def test_the_learning_rate_rises_then_falls_to_exactly_zero() -> None:
    factors = [linear_decay(i / 1000) for i in range(1001)]
    assert factors[0] == 0.0
    assert factors[10] == 1.0
    assert factors[1000] == 0.0
    assert factors[505] == pytest.approx(0.5)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert linear_decay(1.01) == 0.0


def test_runs_end_by_samples_or_by_time() -> None:
    progress = Progress(step=1, samples=50, elapsed_s=30.0)
    assert Settings(num_samples=200).spent(progress) == 0.25
    assert Settings(minutes=2.0).spent(progress) == 0.25
    assert Settings(num_samples=100, minutes=2.0).spent(progress) == 0.5
    # The progress line said "133.3 %, ... -0.0 min left".
    assert Settings(num_samples=40).spent(progress) == 1.0
    assert Settings(minutes=0.1).spent(progress) == 1.0


def lessons(**options: int) -> Lessons:
    return Lessons(reversals(), 8, EOS, **{"num_rows": 16, "num_forwards": 1, **options})


def objective_of(model: MaskedTransformer) -> CertaintyForcing:
    return CertaintyForcing(model, 4, loss=CertaintyLoss("dparallel"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Settings(minutes=0.0), "minutes must be above 0, got 0.0"),
        (lambda: Settings(minutes=math.inf), "num_samples or minutes must be finite"),
        (lambda: Settings(num_samples=0), "num_samples must be at least 1, got 0"),
        (lambda: Settings(minutes=1.0, evaluate_every=math.nan), "evaluate_every must be at least"),
        (lambda: lessons(num_rows=0), "num_rows must be a whole number, at least 1"),
        (lambda: lessons(num_forwards=0), "num_forwards must be a whole number, at least 1"),
        (lambda: CertaintyLoss("dparallel", 0.0), "temperature must be a number above 0, got 0.0"),
        (lambda: CertaintyLoss("d3llm", 0.5, -1.0), "must be a number of at least 0, got -1"),
        (lambda: Curriculum(greatest_share=0.0), "greatest_share must be in"),
        (lambda: Curriculum(block_lengths=(4, 2)), "that do not fall, got"),
        (lambda: FilterSettings(num_steps=0), "num_steps must be a whole number, at least 1"),
        (lambda: FilterSettings(learning_rate=0.0), "learning_rate must be a number above 0"),
        (lambda: new_network(4, (4,), "swish"), 'must be one of "relu", "tanh", "gelu"'),
        (
            lambda: LoRA(tiny_model(), FAMILIES["llada"], rank=0),
            "rank must be between 1 and 32, the",
        ),
        (
            lambda: LoRA(tiny_model(), FAMILIES["llada"], rank=33),
            "rank must be between 1 and 32, the",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_muon_gets_the_matrices_of_the_layers_and_nothing_else() -> None:
    model = tiny_model()
    muon, adam = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    names = {id(weight): name for name, weight in model.named_parameters()}
    matrices = {names[id(w)] for group in muon.param_groups for w in group["params"]}
    others = {names[id(w)] for group in adam.param_groups for w in group["params"]}
    assert {name.split(".", 3)[-1] for name in matrices} == {
        "attention.qkv.weight", "attention.output.weight", "mlp.gate_up.weight", "mlp.down.weight",
    }  # fmt: skip
    assert matrices | others == set(names.values())
    assert "transformer.lm_head.weight" in others
    assert {type(muon), type(adam)} == {torch.optim.Muon, torch.optim.AdamW}


def test_rows_are_prompts_padded_left_and_answers_padded_with_eos() -> None:
    pairs = [([5, 6], [7, EOS]), ([8, 9, 10], [11, 12])]
    batch = lay_out(pairs, 3, EOS)
    assert batch.tokens.tolist() == [[EOS, 5, 6, 7, EOS, EOS], [8, 9, 10, 11, 12, EOS]]
    assert batch.pads.tolist() == [1, 0]
    with pytest.raises(ValueError, match="gen_length must be at least 2, the length of the long"):
        lay_out(pairs, 1, EOS)


def short_run(
    folder: Path | None, *, num_samples: int = 16, others: Any = None, **sizes: int
) -> tuple[MaskedTransformer, Progress]:  # fmt: skip
    """Trains a tiny model for one step, or goes on with it."""
    model = tiny_model(**sizes)
    optimisers = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    progress = train(
        objective_of(model), others(model) if others else optimisers, lessons(),
        Settings(num_samples=num_samples, folder=folder),
        accelerator=Accelerator(cpu=True), evaluate=lambda _: {"loss": 1.0},
    )  # fmt: skip
    return model, progress


@pytest.mark.parametrize("num_samples", [16, 12, 1])
def test_a_run_of_one_step_trains(num_samples: int) -> None:
    """The rate was 0, as at the very start of a run."""
    model, progress = short_run(None, num_samples=num_samples)
    assert progress.step == 1
    for weight, initial in zip(model.parameters(), tiny_model().parameters(), strict=True):
        assert not torch.equal(weight, initial)


def test_a_partial_checkpoint_is_ignored(tmp_path: Path) -> None:
    model, progress = short_run(tmp_path)
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "progress.json").write_text("{")
    resumed, found = short_run(tmp_path)
    assert (found.step, found.samples) == (progress.step, progress.samples) == (1, 16)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("others", "sizes", "named"),
    [
        (None, {"hidden_size": 16}, r"model\.transformer\.embedding\.weight float32 \[24, 16\]"),
        (
            lambda model: make_optimisers(model, matrix_lr=1.0, other_lr=1.0)[:1],
            {},
            "AdamW of 7 weights",
        ),
        (lambda model: [AdamW(model.parameters())], {}, r"AdamW of 15 weights, AdamW of 7"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    others: Any, sizes: Any, named: str, tmp_path: Path
) -> None:
    """Moments of one optimiser were given to another, or to none."""
    short_run(tmp_path)
    with pytest.raises(ValueError, match=rf"step-00000001 must be of the model .*{named}"):
        short_run(tmp_path, others=others, **sizes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (b"", "Input data was truncated"),
        (b'{"\xff": 1}', "'utf-8' codec can't decode byte 0xff"),
        ({"format": 2}, "Invalid enum value 2 - at `$.format`"),
        ({"step": "1"}, "Expected `int`, got `str` - at `$.step`"),
        ({"more": 1}, "Object contains unknown field `more`"),
    ],
)
def test_a_damaged_record_is_refused_with_file_and_field(
    change: bytes | dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """A run ended in a traceback, or began at 0 with trained weights."""
    short_run(tmp_path)
    file = tmp_path / "step-00000001" / "progress.json"
    if not isinstance(change, bytes):
        change = json.dumps(json.loads(file.read_text()) | change).encode()
    file.write_bytes(change)
    with pytest.raises(
        ValueError, match=r"progress\.json must be as this version writes"
    ) as caught:
        short_run(tmp_path)
    assert sentence in str(caught.value)
    assert f"remove {file.parent} to begin the training anew" in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin", "optimizer_1.bin"])
def test_a_checkpoint_with_a_changed_or_a_missing_file_is_refused(
    name: str, tmp_path: Path
) -> None:
    """Without moments a run went on, ended with other weights, and said nothing."""
    short_run(tmp_path)
    file = tmp_path / "step-00000001" / name
    # The file is as long as before.
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=f"{name} must be as it was written, got another"):
        short_run(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=f"{name} must be as it was written, got nothing"):
        short_run(tmp_path)


def test_training_learns_and_the_weights_are_written_in_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(CertaintyForcing, "advance", lambda _, spent: shares.append(spent))
    model = tiny_model()
    objective = objective_of(model)
    batch = lessons(num_rows=64).parts(0, 0, 1)[0].batch
    before = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    train(
        objective, make_optimisers(model, matrix_lr=0.02, other_lr=0.003),
        lessons(), Settings(num_samples=16 * 60),
        accelerator=Accelerator(cpu=True), evaluate=lambda _: {},
    )  # fmt: skip
    after = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    assert after < 0.6 * before
    assert shares == [step / 60 for step in range(60)]
    save_model(model, tmp_path, dtype=torch.bfloat16)
    written, _ = load_without_tokenizer(tmp_path)
    for found, expected in zip(written.parameters(), model.bfloat16().parameters(), strict=True):
        assert torch.equal(found, expected)
