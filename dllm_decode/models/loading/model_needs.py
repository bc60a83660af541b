"""Computes from a configuration alone how many parameters and how much memory a model has."""

from dataclasses import dataclass
from pathlib import Path

import torch

from dllm_decode.models.families import CheckpointFacts, Family, family_of
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.placement import new_on_meta
from dllm_decode.models.loading.stored_formats import AS_TRAINED, StoredFormat, stored_format


@dataclass(frozen=True)
class ModelNeeds:
    """The size of a model that is not loaded.

    Attributes:
        family: Its family.
        facts: What its configuration says.
        num_parameters: Numbers that its weights hold.
        max_length: Columns that it was trained for; `None`: not stated.
        stored: How its weights were quantised before they were stored.
    """

    family: Family
    facts: CheckpointFacts
    num_parameters: int
    max_length: int | None
    stored: StoredFormat = AS_TRAINED

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Returns the memory of the weights."""
        return self.num_parameters * dtype.itemsize

    def kv_bytes(self, dtype: torch.dtype, num_columns: int) -> int:
        """Returns the memory of the keys and values of some columns of one row."""
        shape = self.facts.shape
        per_column = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
        return per_column * num_columns * dtype.itemsize

    def logit_bytes(self, dtype: torch.dtype, num_columns: int) -> int:
        """Returns the memory of the logits of some columns of one row."""
        return self.facts.shape.vocab_size * num_columns * dtype.itemsize


def needs_of(
    folder: Path,
    *,
    family: str | Family | None = None,
    mask_id: int | None = None,
    block_length: int | None = None,
) -> ModelNeeds:
    """Reads config.json and generation_config.json of a folder; options as in `load_model`.

    Raises:
        FileNotFoundError: If there is no config.json.
        ValueError: If the model is of no known family, or of a variant that is not implemented.
    """
    config, file = read_json(folder / "config.json"), repr(str(folder / "config.json"))
    if (kind := config.get("model_type")) in ("diffusion_gemma", "xlnet"):
        raise ValueError(
            f"{file} must be of a network of this package, got {kind}, which transformers "
            "computes. Its model card says what it needs."
        )
    known = family_of(config, family, file=file)
    facts = known.read(
        config, file=file, mask_id=mask_id, block_length=block_length,
        generation=generation_config_of(folder),
    )  # fmt: skip
    parameters = new_on_meta(facts.shape).parameters()
    num_parameters = sum(parameter.numel() for parameter in parameters)
    max_length = max_length_of(ConfigReader(config, file=file))
    return ModelNeeds(known, facts, num_parameters, max_length, stored_format(config, file=file))


def max_length_of(config: ConfigReader) -> int | None:
    """Returns the number of positions that a model was trained for; `None` if not stated."""
    keys = ("max_sequence_length", "max_position_embeddings")
    key = next((key for key in keys if config.has(key)), None)
    return None if key is None else config.positive_int(key)


def generation_config_of(folder: Path) -> ConfigReader | None:
    """Returns the generation_config.json of a folder, if there is one."""
    path = folder / "generation_config.json"
    return ConfigReader(read_json(path), file=repr(str(path))) if path.is_file() else None
