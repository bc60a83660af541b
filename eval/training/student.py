"""The model that `distil` trains: how it is loaded, which part is trained, how it is written."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch.optim import AdamW, Optimizer

from dllm_decode.models import save_model
from dllm_decode.models.loading.weights import check_weights, weight_files
from dllm_decode.models.predictors.masked_transformer import require_own_network
from dllm_decode.settings.addresses import parse_model
from dllm_decode.settings.models import load
from dllm_decode.settings.options import LENGTHS, given_options
from dllm_decode.training import Batch, Objective, make_optimisers
from dllm_decode.training.certainty import (
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
)
from dllm_decode.training.lora import LoRA, require_lora
from eval.training.questions import Questions, config_for_model


class Student:
    """The model that answers `questions` and is trained on its answers.

    Attributes:
        loaded: The model with its tokenizer.
        model: The same model as a network of this package.
        config: How it is decoded.
        objective: The loss of the method.
        written: Name of the folder of the trained weights.

    Raises:
        OSError: If the model is not there.
        ValueError: If it is damaged, or has no tokenizer, or an option does not fit it.
    """

    def __init__(self, options: argparse.Namespace, questions: Questions) -> None:
        self._options, self._address = options, parse_model(options.model)
        if self._address.adapter or self._address.quantize:
            raise ValueError(
                "distil trains the weights of a checkpoint as they are stored: adapter and "
                f"quantize must be left out, got {options.model!r}."
            )
        rank = options.lora_rank
        # Weights that LoRA freezes may be in any precision.
        dtype = options.dtype or (None if rank else "float32")
        self.loaded = load(
            options.model, device=options.device, dtype=dtype, revision=options.revision
        )
        self.model = require_own_network(self.loaded.model)
        self.config = config_for_model(questions, self.loaded, given_options(options, LENGTHS))
        self.objective = self._objective()
        self.written = "adapter" if rank else "model"
        self._source = self.loaded.files[0].parent
        self._lora: LoRA | None = None
        if rank:
            require_lora(self.model, rank)

    def optimisers(self) -> Sequence[Optimizer]:
        """Makes the weights trainable, or LoRA's additions to them, and returns the optimisers."""
        options, model = self._options, self.model
        if options.lora_rank:
            self._lora = LoRA(model, rank=options.lora_rank, seed=options.seed)
        else:
            model.requires_grad_(True)
        if options.muon is not None:
            return make_optimisers(model, matrix_lr=options.muon, other_lr=options.learning_rate)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return [AdamW(weights, lr=options.learning_rate, weight_decay=0.0)]

    def write(self, folder: Path) -> None:
        """Writes the model in the format and dtype of its checkpoint, or LoRA's additions to it."""
        if self._lora is not None:
            self._lora.save(folder / self.written, base=self._address.source)
            return
        assert self.model.family is not None
        files = weight_files(self._source)
        stored = check_weights(self.model.transformer, self.model.family, files)
        save_model(self.model, folder / self.written, dtype=stored)

    def _objective(self) -> Objective[Batch]:
        options, length = self._options, self.config.block_length
        assert length is not None
        loss = CertaintyLoss(options.method, entropy_weight=options.entropy_weight)
        # The authors' curriculum, 16 to 32, in proportion to the block length.
        lengths = tuple(max(1, length * quarters // 4) for quarters in (2, 2, 3, 3, 4, 4))
        curriculum = Curriculum(options.greatest_share, lengths)
        if options.method == "dparallel":
            return CertaintyForcing(self.model, length, loss=loss)
        return TrajectoryForcing(self.model, curriculum=curriculum, loss=loss)
