"""The model that is distilled, and what the options say of its training."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch.optim import AdamW, Optimizer

from dllm_decode import DecodeConfig
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family
from dllm_decode.models.loading.find import Hub, find_model
from dllm_decode.models.masked_transformer import own_network
from dllm_decode.training import Batch, Objective, make_optimisers
from dllm_decode.training.certainty import (
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
)
from dllm_decode.training.saving import read_family
from eval.runs.command import load
from eval.runs.options import LENGTHS, given_of
from eval.runs.plugins import parse_model, parse_sampler
from eval.runs.sweep import Loaded
from eval.training.questions import Questions, config_of
from samplers import FixedSchedule, Sampler


@dataclass(frozen=True)
class Student:
    """The model that is trained, and what it came from.

    Attributes:
        loaded: The model with its tokenizer.
        model: The model again, as a network of this package.
        source: Folder of its checkpoint.
        family: Of the checkpoint.
        config: How it is decoded.
    """

    loaded: Loaded
    model: MaskedTransformer
    source: Path
    family: Family
    config: DecodeConfig


def load_student(options: argparse.Namespace, asked: Questions) -> Student:
    """Loads the model in the precision in which it is trained.

    Raises:
        OSError: If it is not there.
        ValueError: If it is damaged, or has no tokenizer, or cannot be decoded as asked.
    """
    address = parse_model(options.model)
    if address.adapter or address.quantize:
        raise ValueError(
            "distil trains the weights of a checkpoint as they are stored: adapter and quantize "
            f"must be left out, got {options.model!r}."
        )
    source = find_model(address.source, Hub(options.revision or None))
    dtype = options.dtype or (None if options.lora_rank else "float32")
    loaded = load(options.model, device=options.device, dtype=dtype, revision=options.revision)
    model = own_network(loaded.model)
    config = config_of(asked, loaded, given_of(options, LENGTHS))
    return Student(loaded, model, source, read_family(source, address.family), config)


def accelerator_of(options: argparse.Namespace, model: MaskedTransformer) -> Accelerator:
    """Returns where the run goes: this process' device among those of the launch."""
    # Experts that no token went to have no gradient.
    has_unused = model.transformer.config.moe is not None
    return Accelerator(
        cpu=options.device == "cpu",
        mixed_precision=options.precision,
        log_with=options.log_with or None,
        project_dir=options.output,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=has_unused)],
    )


def teacher_of(options: argparse.Namespace, student: Student) -> Sampler:
    """Returns how the teacher answers: one token a step, unless another sampler is named."""
    assert student.config.block_length is not None
    given = options.teacher_sampler
    return parse_sampler(given) if given else FixedSchedule(student.config.block_length)


def objective_of(student: Student, options: argparse.Namespace) -> Objective[Batch]:
    """Returns the loss of the method."""
    length = student.config.block_length
    assert length is not None
    loss = CertaintyLoss(options.method, options.temperature, options.entropy_weight)
    if options.method == "dparallel":
        return CertaintyForcing(student.model, length, loss=loss)
    # The authors' curriculum, 16 to 32, in proportion to the block length.
    lengths = tuple(max(1, length * quarters // 4) for quarters in (2, 2, 3, 3, 4, 4))
    curriculum = Curriculum(options.greatest_share, lengths)
    return TrajectoryForcing(student.model, curriculum=curriculum, loss=loss)


def optimisers_of(model: MaskedTransformer, options: argparse.Namespace) -> Sequence[Optimizer]:
    """Returns AdamW for all that is trained, or Muon for the matrices of the layers."""
    if options.muon is None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return [AdamW(weights, lr=options.learning_rate, weight_decay=0.0)]
    return make_optimisers(model, matrix_lr=options.muon, other_lr=options.learning_rate)
