"""The command `export`."""

import sys
from argparse import Namespace
from pathlib import Path

from dllm_decode.settings.files import require_folder_or_new


def run(options: Namespace) -> int:
    """Writes a model in the official format of its family."""
    require_folder_or_new(Path(options.folder))
    import torch

    from dllm_decode.models import save_model
    from dllm_decode.models.predictors.masked_transformer import require_own_network
    from dllm_decode.settings.models import load

    loaded = load(options.model, revision=options.revision, needs_tokenizer=False)
    dtype = getattr(torch, options.dtype) if options.dtype else None
    save_model(require_own_network(loaded.model), options.folder, dtype=dtype)
    sys.stdout.write(
        f"{options.folder} holds {options.model}, in {options.dtype or loaded.dtype}.\n"
    )
    return 0
