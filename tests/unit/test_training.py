"""Training: schedules, masks, optimisers, losses, and runs that are interrupted."""

import contextlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families_under_test import load_without_tokenizer as load_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_decode import decode
from dllm_decode.models import MaskedTransformer, new_llada, save_model
from dllm_decode.models.base import ForwardInputs
from dllm_decode.training import (
    Batch,
    Causal,
    FreshRows,
    Kind,
    LinearDecay,
    MaskedDiffusion,
    MaskSampler,
    Minutes,
    Muon,
    Pair,
    PooledRows,
    Progress,
    Report,
    Samples,
    Settings,
    make_optimisers,
    train,
)
from dllm_decode.training.causal import IGNORED, align_left
from dllm_decode.training.checkpoints import MAX_SHARD_BYTES, load_checkpoint, save_checkpoint
from dllm_decode.training.examples import make_batch, make_rows
from dllm_decode.training.masking import stratified
from dllm_decode.training.muon import orthogonalise
from samplers import FixedSchedule

EOS, MASK, VOCAB = 0, 1, 24


def reversed_digits(rng: random.Random) -> Pair:
    digits = [rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 4))]
    return [*digits, 2], digits[::-1]


KIND = Kind("reversed", reversed_digits, prompt_length=6, gen_lengths=(8,), num_rows=16)
SOMETIMES = Kind("seldom", reversed_digits, 5, gen_lengths=(6, 9), num_rows=4, period=3)


def tiny_model(seed: int = 0) -> MaskedTransformer:
    return new_llada(
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        mlp_hidden_size=48,
        mask_id=MASK,
        eos_ids=(EOS,),
        seed=seed,
    )


def batch_of(kind: Kind, num_rows: int = 64) -> Batch:
    rows = make_rows(kind, num_rows, EOS, "0").long()
    return make_batch(kind, rows, 0, eos_id=EOS, seed=0)


def session(
    folder: Path, num_samples: int, *, pause_after_step: int = 10**9
) -> tuple[MaskedTransformer, Progress]:
    """Trains a tiny model; `pause_after_step` kills the run where the evaluation has just ended."""
    model = tiny_model()
    settings = Settings(Samples(num_samples), folder, evaluate_every_s=0.0)
    steps = []

    def evaluate() -> dict[str, float]:
        steps.append(1)
        if len(steps) > pause_after_step:
            raise KeyboardInterrupt
        return {"measured": float(len(steps))}

    progress = Progress()
    with contextlib.suppress(KeyboardInterrupt):
        progress = train(
            MaskedDiffusion(model, MaskSampler(block_length=4)),
            make_optimisers(model, matrix_lr=0.02, other_lr=0.003),
            [KIND, SOMETIMES],
            FreshRows(EOS),
            settings,
            evaluate=evaluate,
            observe=lambda report: None,
            resume=True,
        )
    return model, progress


def test_the_learning_rate_rises_then_falls_to_exactly_zero() -> None:
    schedule = LinearDecay(warmup=0.1)
    factors = [schedule.factor(i / 100) for i in range(101)]
    assert factors[0] == 0.0
    assert factors[10] == 1.0
    assert factors[100] == 0.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert schedule.factor(1.01) == 0.0


def test_budgets_are_spent_by_samples_or_by_time() -> None:
    progress = Progress(step=1, samples=50, elapsed_s=30.0)
    assert Samples(200).spent(progress) == 0.25
    assert Minutes(2.0).spent(progress) == 0.25
    with pytest.raises(ValueError, match="above 0, got inf"):
        Minutes(math.inf)
    with pytest.raises(ValueError, match="above 0, got 0"):
        Minutes(0.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Samples(0)


def test_mask_counts_are_stratified() -> None:
    answers = torch.full((96, 96), 5)
    masks = MaskSampler(block_share=0.0).draw(answers, EOS, torch.Generator().manual_seed(0))
    assert masks.sum(-1).tolist() == list(range(1, 97))
    quantiles = stratified(torch.rand(7))
    assert (quantiles * 7).long().tolist() == list(range(7))


def test_masks_of_block_states_are_those_of_block_decoding() -> None:
    generator = torch.Generator().manual_seed(0)
    answers = torch.full((512, 24), 5)
    answers[256:, 10:] = EOS  # ends in the second of three blocks
    masks = MaskSampler(8, block_share=1.0, ordered_share=0.0).draw(answers, EOS, generator)
    per_block = masks.unflatten(1, (3, 8)).sum(-1)
    current = (per_block > 0).long().argmax(-1)
    for row, block in enumerate(current.tolist()):
        assert per_block[row, :block].sum() == 0
        assert (per_block[row, block + 1 :] == 8).all()
    assert set(current[:256].tolist()) == {0, 1, 2}
    assert set(current[256:].tolist()) == {0, 1}
    opened = per_block.gather(1, current[:, None])
    assert set(opened.flatten().tolist()) == set(range(1, 9))


def test_ordered_block_states_hide_the_end_of_the_block() -> None:
    answers = torch.full((256, 24), 5)
    masks = MaskSampler(8, 1.0, 1.0).draw(answers, EOS, torch.Generator().manual_seed(0))
    assert (masks.long().diff(dim=-1) >= 0).all()
    assert masks.any(-1).all()
    assert set(masks.sum(-1).tolist()) == set(range(1, 25))


def test_every_position_is_masked_equally_often_without_blocks() -> None:
    answers = torch.full((4000, 12), 5)
    masks = MaskSampler(block_share=0.0).draw(answers, EOS, torch.Generator().manual_seed(0))
    # k uniform on 1..12 has mean 6.5; four standard errors.
    assert (masks.float().mean(0) - 6.5 / 12).abs().max() < 4 * (0.25 / 4000) ** 0.5


def test_a_row_without_eos_can_be_masked_in_its_last_block() -> None:
    answers = torch.full((64, 10), 5)
    masks = MaskSampler(4, block_share=1.0).draw(answers, EOS, torch.Generator().manual_seed(1))
    assert masks.any(-1).all()
    assert (~masks[:, :8].any(-1)).any()


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 48, 16), (2, 16, 48)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrices = left @ torch.diag(torch.linspace(0.2, 3.0, min(shape[1:]))) @ right
    found = orthogonalise(matrices)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    # The directions stay, only the lengths change.
    kept = (left.mT @ found @ right.mT).diagonal(0, 1, 2)
    assert torch.allclose(kept.sort().values, values.sort().values, atol=1e-4)


def test_muon_orthogonalises_each_part_of_a_fused_projection() -> None:
    torch.manual_seed(0)
    weight = torch.zeros(36, 12, requires_grad=True)
    weight.grad = (
        torch.randn(36, 12) * torch.tensor([1.0, 50.0, 0.02]).repeat_interleave(12)[:, None]
    )
    Muon([{"params": [weight], "num_parts": 3}], lr=0.1).step()
    for part in weight.detach().chunk(3):
        values = torch.linalg.svdvals(part) / 0.1
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_muon_gets_the_matrices_of_the_layers_and_nothing_else() -> None:
    model = tiny_model()
    muon, adam = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    names = {id(weight): name for name, weight in model.named_parameters()}
    matrices = {names[id(w)] for group in muon.param_groups for w in group["params"]}
    others = {names[id(w)] for group in adam.param_groups for w in group["params"]}
    assert {name.split(".", 3)[-1] for name in matrices} == {
        "attention.qkv.weight",
        "attention.output.weight",
        "mlp.gate_up.weight",
        "mlp.down.weight",
    }
    assert matrices | others == set(names.values())
    assert "transformer.lm_head.weight" in others
    assert {group["num_parts"] for group in muon.param_groups} == {1, 2, 3}


def test_rows_are_prompts_padded_left_and_answers_padded_with_eos() -> None:
    rows = make_rows(KIND, 50, EOS, "seed")
    batch = batch_of(KIND, 50)
    for row in rows.tolist():
        prompt = [token for token in row[:6] if token != EOS]
        answer = [token for token in row[6:] if token != EOS]
        assert row == [EOS] * (6 - len(prompt)) + prompt + answer + [EOS] * (8 - len(answer))
        assert answer == prompt[-2::-1]
    assert batch.start == 5  # the longest prompt has five tokens; the sixth column is cut off
    assert batch.pads.tolist() == [row[:5].count(EOS) for row in batch.tokens.tolist()]
    assert torch.equal(batch.tokens, make_rows(KIND, 50, EOS, "0")[:, 1:].long())
    assert torch.equal(rows, make_rows(KIND, 50, EOS, "seed"))
    assert not torch.equal(rows, make_rows(KIND, 50, EOS, "other"))


def test_examples_that_do_not_fit_are_refused() -> None:
    short = Kind("short", reversed_digits, prompt_length=6, gen_lengths=(4, 9), num_rows=4)
    with pytest.raises(ValueError, match="answers of at most 3"):
        make_rows(short, 50, EOS, "0")
    with pytest.raises(ValueError, match="do not contain the EOS id 5"):
        make_rows(KIND, 50, 5, "0")


def test_the_loss_sees_the_end_of_sequence_tail() -> None:
    """A visible tail would tell the model how long the answer is, which decoding never does."""
    model = tiny_model()
    objective = MaskedDiffusion(model, MaskSampler(block_share=0.0))
    batch = batch_of(KIND, 8)
    seen = []

    class Spy(MaskSampler):
        def draw(self, answers, eos_id, generator):  # type: ignore[no-untyped-def]  # a probe
            seen.append(torch.ones_like(answers, dtype=torch.bool))
            return seen[-1]

    model.transformer.lm_head.weight.data.zero_()
    model.transformer.norm.weight.data.fill_(1.0)
    objective = MaskedDiffusion(model, Spy())
    loss = objective.loss(batch, torch.Generator())
    assert seen[0].shape == (8, 8)
    assert loss.item() == pytest.approx(torch.tensor(VOCAB).log().item())
    # Only a head that says EOS everywhere: the loss is that of the tail's share.
    loss.backward()
    gradient = model.transformer.lm_head.weight.grad
    assert gradient is not None
    assert gradient[EOS].abs().sum() > gradient[2:].abs().sum(-1).max()


def test_the_objective_predicts_what_decoding_is_shown() -> None:
    """Padding, positions and attention are those of `decode`, so the logits are the same."""
    model = tiny_model()
    for part in model.transformer.parts().values():
        part.mul_(3.0)
    batch = batch_of(KIND, 8)
    assert len(set(batch.pads.tolist())) > 1
    answers = batch.tokens[:, batch.start :]
    open_answers = torch.full_like(answers, MASK)
    trained = MaskedDiffusion(model, MaskSampler()).logits(batch, open_answers)

    shown = []
    predict = model.predict

    def record(inputs: ForwardInputs) -> torch.Tensor:
        logits = predict(inputs)
        shown.append(logits.clone())
        return logits

    model.predict = record  # type: ignore[method-assign]  # a probe
    prompts = [
        row[pads : batch.start]
        for row, pads in zip(batch.tokens.tolist(), batch.pads.tolist(), strict=True)
    ]
    decode(model, prompts, FixedSchedule(steps_per_block=1), gen_length=8, block_length=8)
    assert torch.allclose(shown[0], trained, atol=1e-5)


def test_the_causal_loss_covers_the_answer_and_one_eos() -> None:
    batch = batch_of(KIND, 16)
    tokens, labels = align_left(batch, EOS)
    for row, pads, left, learned in zip(
        batch.tokens.tolist(), batch.pads.tolist(), tokens.tolist(), labels.tolist(), strict=True
    ):
        prompt = row[pads : batch.start]
        answer = [token for token in row[batch.start :] if token != EOS]
        assert left[: len(prompt) + len(answer)] == prompt + answer
        first = len(prompt) - 1
        assert learned[first : first + len(answer) + 1] == [*answer, EOS]
        assert set(learned[:first] + learned[first + len(answer) + 1 :]) == {IGNORED}


def test_the_causal_loss_is_that_of_transformers() -> None:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    batch = batch_of(KIND, 8)
    tokens, labels = align_left(batch, EOS)
    shifted = torch.cat((torch.full((8, 1), IGNORED), labels[:, :-1]), 1)
    expected = model(input_ids=tokens, labels=shifted).loss
    found = Causal(model, EOS).loss(batch, torch.Generator())
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, progress = session(tmp_path / "whole", 400)
    killed, _ = session(tmp_path / "parts", 400, pause_after_step=7)
    assert len(list((tmp_path / "parts").glob("step-*"))) == 1
    resumed, resumed_progress = session(tmp_path / "parts", 400)
    assert progress.samples == resumed_progress.samples >= 400
    assert resumed_progress.step == progress.step > 10
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert not torch.equal(
        killed.transformer.embedding.weight, resumed.transformer.embedding.weight
    )


def test_a_partial_checkpoint_is_ignored(tmp_path: Path) -> None:
    model = tiny_model()
    optimisers = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    save_checkpoint(tmp_path, model, optimisers, Progress(step=3, samples=30))
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "progress.json").write_text("{")
    found = load_checkpoint(tmp_path, tiny_model(seed=1), optimisers)
    assert found is not None
    assert (found.step, found.samples) == (3, 30)
    assert load_checkpoint(tmp_path / "nothing", model, optimisers) is None


def test_checkpoints_of_other_sizes_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    save_checkpoint(tmp_path, model, (), Progress())
    other = new_llada(
        vocab_size=VOCAB,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        mlp_hidden_size=48,
        mask_id=MASK,
        eos_ids=(EOS,),
    )
    with pytest.raises(ValueError, match="Pass the sizes it was made with"):
        load_checkpoint(tmp_path, other, ())


def rewrite(checkpoint: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    for file in checkpoint.glob("*.safetensors"):
        save_file(change(load_file(file)), file)


def without(*parts: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {
        name: tensor for name, tensor in tensors.items() if not any(part in name for part in parts)
    }


def trained_checkpoint(folder: Path) -> tuple[Path, Any]:
    """A checkpoint after a step, and what it is loaded into."""
    model = tiny_model()
    optimisers = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    MaskedDiffusion(model, MaskSampler()).loss(
        batch_of(KIND, 4), torch.Generator().manual_seed(0)
    ).backward()
    for optimiser in optimisers:
        optimiser.step()
    saved = save_checkpoint(folder, model, optimisers, Progress(1, 4, 2.0, [{"loss": 1.0}]))
    fresh = tiny_model(seed=1)
    return saved, (folder, fresh, make_optimisers(fresh, matrix_lr=0.02, other_lr=0.003))


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (("optimiser.",), "optimiser.0.0.momentum"),
        (("optimiser.1.0.",), "optimiser.1.0.step"),
        (("exp_avg_sq",), "exp_avg_sq"),
        (("norm",), "norm"),
    ],
)
def test_a_checkpoint_that_lacks_a_part_is_refused_by_name(
    parts: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """Without moments a run went on, ended with other weights, and said nothing."""
    saved, arguments = trained_checkpoint(tmp_path)
    found = load_checkpoint(*arguments)
    assert found == Progress(1, 4, 2.0, [{"loss": 1.0}])
    rewrite(saved, without(*parts))
    with pytest.raises(
        ValueError, match=rf"step-00000001 must hold '.*{named}.*got nothing"
    ) as told:
        load_checkpoint(*arguments)
    assert f"or remove {saved} to begin the training anew" in str(told.value)


def test_a_checkpoint_of_other_optimisers_is_refused(tmp_path: Path) -> None:
    """Moments of one optimiser were given to another, or to none."""
    _, (folder, model, optimisers) = trained_checkpoint(tmp_path)
    for others in ((), optimisers[:1], (AdamW(model.parameters()),)):
        with pytest.raises(ValueError, match=r"optimisers must be those of the .*'Muon of \d+ w"):
            load_checkpoint(folder, model, others)
    save_checkpoint(folder, model, (), Progress(step=2))
    with pytest.raises(ValueError, match=r"of the checkpoint .*, \[\], got \['Muon"):
        load_checkpoint(folder, model, optimisers)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must be JSON, got Expecting value"),
        ("[" * 100_000, "must be JSON, got"),
        ("null", "must be in format 2, .* got None"),
        ('{"step": 1, "samples": 4}', "must be in format 2, .* Go on with the version that wrote"),
        ({"format": 3}, "must be in format 2"),
        ({"step": "1"}, "must have 'step' as this version writes it, got 1"),
        ({"step": 5}, "must have 'step' as this version writes it, got 5"),
        ({"samples": True}, "must have 'samples'"),
        ({"elapsed_s": math.nan}, "must have 'elapsed_s'"),
        ({"history": [3]}, "must have 'history'"),
        ({"history": [{"loss": "low"}]}, "must have 'history'"),
        ({"tensors": None}, "must have 'tensors'"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_its_file(
    text: str | dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """It ended in a traceback, or began at step 0 with trained weights."""
    saved, arguments = trained_checkpoint(tmp_path)
    file = saved / "progress.json"
    written = text if isinstance(text, str) else json.dumps(json.loads(file.read_text()) | text)
    file.write_text(written)
    with pytest.raises(ValueError, match=rf"step-00000001/progress\.json {sentence}") as told:
        load_checkpoint(*arguments)
    assert f"emove {saved} to begin" in str(told.value)


def test_a_checkpoint_with_a_torn_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    saved, arguments = trained_checkpoint(tmp_path)
    file = saved / "000.safetensors"
    whole = file.read_bytes()
    for torn in (whole[: len(whole) // 2], b"", b"\xff" * 99):
        file.write_bytes(torn)
        with pytest.raises(ValueError, match=r"000\.safetensors must be a whole safetensors file"):
            load_checkpoint(*arguments)
    file.unlink()
    with pytest.raises(ValueError, match=r"must hold 'model.* got nothing; "):
        load_checkpoint(*arguments)
    file.write_bytes(whole)
    (saved / "progress.json").unlink()
    with pytest.raises(ValueError, match=r"progress\.json must be JSON, got .*No such file"):
        load_checkpoint(*arguments)


def test_checkpoint_files_stay_small(tmp_path: Path) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(1000, 1000) for _ in range(9))
    folder = save_checkpoint(tmp_path, layers, (), Progress())
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert len(sizes) == 3
    assert max(sizes) < MAX_SHARD_BYTES + 10_000
    restored = torch.nn.ModuleList(torch.nn.Linear(1000, 1000) for _ in range(9))
    load_checkpoint(tmp_path, restored, ())
    assert all(
        torch.equal(a, b) for a, b in zip(layers.parameters(), restored.parameters(), strict=True)
    )


def test_training_learns_and_the_written_model_decodes_alike(tmp_path: Path) -> None:
    model = tiny_model()
    objective = MaskedDiffusion(model, MaskSampler(block_length=4))
    batch = batch_of(KIND, 64)
    before = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    reports: list[Report] = []
    train(
        objective,
        make_optimisers(model, matrix_lr=0.02, other_lr=0.003),
        [KIND],
        FreshRows(EOS),
        Settings(Samples(16 * 60), tmp_path / "checkpoints"),
        evaluate=dict,
        observe=reports.append,
    )
    after = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    assert after < 0.6 * before
    model.eval()
    save_model(model, tmp_path / "written", dtype=torch.bfloat16)
    written, _ = load_model(tmp_path / "written")
    assert written.dtype == torch.bfloat16
    same, _ = load_model(tmp_path / "written", dtype=torch.float32)
    with torch.no_grad():
        answers = batch.tokens[:, batch.start :]
        found = MaskedDiffusion(same, MaskSampler()).logits(batch, answers)
        expected = MaskedDiffusion(model.bfloat16().float(), MaskSampler()).logits(batch, answers)
    assert torch.equal(found, expected)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    model = tiny_model()
    model.transformer.norm.weight.data.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="lower the learning rates"):
        train(
            MaskedDiffusion(model, MaskSampler()),
            (),
            [KIND],
            FreshRows(EOS),
            Settings(Samples(10**9), tmp_path),
            evaluate=dict,
            observe=lambda report: None,
        )


def test_pooled_rows_come_from_the_workers() -> None:
    rows = PooledRows([KIND, SOMETIMES], eos_id=EOS, num_workers=1, capacity=3000, ready=256)
    try:
        drawn = [rows.draw(KIND, step, torch.device("cpu")) for step in range(6)]
        assert all(part.shape == (16, 14) and part.dtype == torch.long for part in drawn)
        assert rows.num_made >= 256
        batch = make_batch(KIND, drawn[0], 0, eos_id=EOS, seed=0)
        for row in batch.tokens.tolist():
            prompt = [token for token in row[: batch.start] if token != EOS]
            assert [token for token in row[batch.start :] if token != EOS] == prompt[-2::-1]
        assert rows.draw(SOMETIMES, 0, torch.device("cpu")).shape == (4, 14)
    finally:
        rows.close()
