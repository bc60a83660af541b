"""Training: schedules, masks, optimisers, losses, and runs that are interrupted."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tiny_models import load_tiny, load_without_tokenizer, new_tiny
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_decode import StepEvent, decode
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.training import (
    Batch,
    Causal,
    Kind,
    KindRows,
    MaskedDiffusion,
    MaskSampler,
    Pair,
    Progress,
    Settings,
    make_optimisers,
    train,
)
from dllm_decode.training.block_diffusion import BlockDiffusion
from dllm_decode.training.certainty import CertaintyLoss, Curriculum
from dllm_decode.training.examples import lay_out
from dllm_decode.training.learn2pd import FilterSettings
from dllm_decode.training.loop import linear_decay
from dllm_decode.training.lora import LoRA
from dllm_decode.training.masked_diffusion import IGNORED
from dllm_decode.training.teacher import Demonstration, Lessons
from samplers import FixedSchedule
from samplers.learn2pd import new_network

EOS, MASK, VOCAB = 0, 1, 24


def reversed_digits(rng: random.Random) -> Pair:
    digits = [rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 4))]
    return [*digits, 2], digits[::-1]


KIND = Kind("reversed", reversed_digits, prompt_length=6, gen_lengths=(8,), num_rows=16)
SELDOM = Kind("seldom", reversed_digits, 5, gen_lengths=(6,), num_rows=4)


def tiny_model(seed: int = 0, hidden_size: int = 32) -> MaskedTransformer:
    return new_tiny(
        vocab_size=VOCAB, hidden_size=hidden_size, mlp_hidden_size=48, mask_id=MASK,
        eos_ids=(EOS,), seed=seed,
    )  # fmt: skip


def batch_of(kind: Kind, num_rows: int = 64) -> Batch:
    pairs = replace(kind, num_rows=num_rows).pairs("0", EOS)
    return lay_out(pairs, kind.gen_lengths[0], EOS)


def test_the_learning_rate_rises_then_falls_to_exactly_zero() -> None:
    factors = [linear_decay(i / 1000) for i in range(1001)]
    assert factors[0] == 0.0
    assert factors[10] == 1.0
    assert factors[1000] == 0.0
    assert factors[505] == pytest.approx(0.5)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert linear_decay(1.01) == 0.0


def lessons(**options: int) -> Lessons:
    return Lessons([Demonstration((5,), (6,), (0,), 1.0)], 8, EOS, **options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Settings(num_samples=0), "num_samples must be at least 1, got 0"),
        (lambda: Settings(1, evaluate_every=math.nan), "evaluate_every must be at least"),
        (lambda: lessons(num_rows=0), "num_rows must be a whole number, at least 1"),
        (lambda: lessons(num_forwards=0), "num_forwards must be a whole number, at least 1"),
        (lambda: CertaintyLoss("dparallel", 0.0), "temperature must be a number above 0, got 0.0"),
        (lambda: CertaintyLoss("d3llm", 0.5, -1.0), "must be a number of at least 0, got -1"),
        (lambda: Curriculum(greatest_share=0.0), "greatest_share must be in"),
        (lambda: Curriculum(block_lengths=(4, 2)), "that do not fall, got"),
        (lambda: FilterSettings(num_steps=0), "num_steps must be a whole number, at least 1"),
        (lambda: FilterSettings(learning_rate=0.0), "learning_rate must be a number above 0"),
        (lambda: new_network(4, (4,), "swish"), 'must be one of "relu", "tanh", "gelu"'),
        (lambda: LoRA(tiny_model(), rank=0), "rank must be between 1 and 32, the"),
        (lambda: LoRA(tiny_model(), rank=33), "rank must be between 1 and 32, the"),
        (lambda: BlockDiffusion(load_tiny("llada")), "must attend in blocks"),
        (lambda: BlockDiffusion(load_tiny("sdar"), (4, 0)), "block_lengths must be"),
        (lambda: BlockDiffusion(load_tiny("sdar"), confident_share=-0.5), "confident_share must"),
        (lambda: BlockDiffusion(load_tiny("sdar"), ordered_share=1.5), "ordered_share must be"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_mask_counts_are_stratified_and_every_position_is_masked_equally_often() -> None:
    answers = torch.full((4800, 12), 5)
    masks = MaskSampler(block_share=0.0).draw(answers, EOS, torch.Generator().manual_seed(0))
    assert masks.sum(-1).tolist() == [1 + row // 400 for row in range(4800)]
    # k uniform on 1..12 has mean 6.5; four standard errors.
    assert (masks.float().mean(0) - 6.5 / 12).abs().max() < 4 * (0.25 / 4800) ** 0.5


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
    wider = lay_out(pairs, 3, EOS, start=5)
    assert wider.tokens[:, 2:].tolist() == batch.tokens.tolist()
    assert wider.pads.tolist() == [3, 2]
    with pytest.raises(ValueError, match="gen_length must be at least 2, the length of the long"):
        lay_out(pairs, 1, EOS)
    assert KIND.pairs("seed", EOS) == KIND.pairs("seed", EOS) != KIND.pairs("other", EOS)


def test_examples_that_do_not_fit_are_refused() -> None:
    short = Kind("short", reversed_digits, prompt_length=6, gen_lengths=(4, 9), num_rows=50)
    with pytest.raises(ValueError, match="answers of at most 3"):
        short.pairs("0", EOS)
    with pytest.raises(ValueError, match="do not contain the EOS id 5"):
        KIND.pairs("0", 5)


def test_the_loss_sees_the_end_of_sequence_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visible tail would tell the model how long the answer is, which decoding never does."""
    monkeypatch.setattr(MaskSampler, "draw", lambda _, answers, *rest: answers >= 0)
    model = tiny_model()
    model.transformer.lm_head.weight.data.zero_()
    model.transformer.norm.weight.data.fill_(1.0)
    loss = MaskedDiffusion(model, MaskSampler()).loss(batch_of(KIND, 8), torch.Generator())
    assert loss.item() == pytest.approx(torch.tensor(VOCAB).log().item())
    # The tail is part of the loss, so that EOS has the largest gradient.
    loss.backward()
    gradient = model.transformer.lm_head.weight.grad
    assert gradient is not None
    assert gradient[EOS].abs().sum() > gradient[2:].abs().sum(-1).max()


def test_the_objective_predicts_what_decoding_is_shown() -> None:
    """Padding, positions and attention are those of `decode`, so the logits are the same."""
    model, batch = tiny_model(), batch_of(KIND, 8)
    for part in model.transformer.parts().values():
        part.mul_(3.0)
    assert len(set(batch.pads.tolist())) > 1
    trained = MaskedDiffusion(model, MaskSampler()).logits(
        batch, torch.full_like(batch.answers, MASK)
    )
    events: list[StepEvent] = []
    decode(
        model, prompts_of(batch), FixedSchedule(1), gen_length=8, block_length=8,
        observers=[events.append],
    )  # fmt: skip
    shown = events[0].view.logits
    # A decode never proposes [MASK].
    finite = shown.isfinite()
    torch.testing.assert_close(trained[finite], shown[finite])


def prompts_of(batch: Batch) -> list[list[int]]:
    rows = zip(batch.tokens.tolist(), batch.pads.tolist(), strict=True)
    return [row[pads : batch.start] for row, pads in rows]


def test_the_causal_loss_is_that_of_transformers_over_the_answer_and_one_eos() -> None:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model, batch = LlamaForCausalLM(config).eval(), batch_of(KIND, 16)
    tokens = torch.full_like(batch.tokens, EOS)
    labels = torch.full_like(tokens, IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts_of(batch), batch.answers, strict=True)):
        learned = torch.cat([answer[answer != EOS], torch.tensor([EOS])])
        end = len(prompt) + len(learned)
        tokens[row, :end] = torch.cat([torch.tensor(prompt), learned])
        labels[row, len(prompt) : end] = learned
    expected = model(input_ids=tokens, labels=labels).loss
    loss = Causal(model, EOS).loss(batch, torch.Generator())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def short_run(
    folder: Path | None, *, num_samples: int = 16, others: Any = None, **sizes: int
) -> tuple[MaskedTransformer, Progress]:  # fmt: skip
    """Trains a tiny model for one step, or goes on with it."""
    model = tiny_model(**sizes)
    optimisers = make_optimisers(model, matrix_lr=0.02, other_lr=0.003)
    progress = train(
        MaskedDiffusion(model, MaskSampler()), others(model) if others else optimisers,
        KindRows([KIND], eos_id=EOS), Settings(num_samples=num_samples, folder=folder),
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
        (b'{"format": 3}', "Invalid enum value 3 - at `$.format`"),
    ],
)
def test_a_damaged_record_is_refused_with_file_and_field(
    change: bytes, sentence: str, tmp_path: Path
) -> None:
    """A run ended in a traceback, or began at 0 with trained weights."""
    short_run(tmp_path)
    file = tmp_path / "step-00000001" / "progress.json"
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
    monkeypatch.setattr(MaskedDiffusion, "advance", lambda _, spent: shares.append(spent))
    model = tiny_model()
    objective = MaskedDiffusion(model, MaskSampler(block_length=4))
    batch = batch_of(KIND, 64)
    before = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    train(
        objective, make_optimisers(model, matrix_lr=0.02, other_lr=0.003),
        KindRows([KIND], eos_id=EOS),
        Settings(num_samples=16 * 60),
        accelerator=Accelerator(cpu=True), evaluate=lambda _: {},
    )  # fmt: skip
    after = objective.loss(batch, torch.Generator().manual_seed(0)).item()
    assert after < 0.6 * before
    assert shares == [step / 60 for step in range(60)]
    save_model(model, tmp_path, dtype=torch.bfloat16)
    written, _ = load_without_tokenizer(tmp_path)
    for found, expected in zip(written.parameters(), model.bfloat16().parameters(), strict=True):
        assert torch.equal(found, expected)


def test_rows_depend_on_the_step_and_the_process_alone() -> None:
    source = KindRows([KIND, SELDOM], eos_id=EOS)
    first, again, other = (source.parts(*place) for place in ((5, 0, 2), (5, 0, 2), (2, 1, 2)))
    # Steps of one process are numbered like those of several.
    (alone, _), (shared, _) = source.parts(5, 0, 1), other
    assert torch.equal(alone.batch.tokens, shared.batch.tokens)
    assert [(part.num_rows, part.weight) for part in first] == [(16, 0.8), (4, 0.2)]
    for part, same, different in zip(first, again, other, strict=True):
        assert torch.equal(part.batch.tokens, same.batch.tokens)
        assert part.key == same.key != different.key
        assert not torch.equal(part.batch.tokens, different.batch.tokens)
