r"""Distils a model so that it is sure of several tokens at a time: dParallel, or d3LLM.

    python examples/distil.py --model mini --output runs/mini-parallel --learning-rate 0.0003
    accelerate launch --num_processes 8 examples/distil.py --model GSAI-ML/LLaDA-8B-Instruct \
        --device cuda --lora-rank 128 --task "gsm8k?path=FOLDER&split=train" --gen-length 256

The same as `dllm-decode distil`; docs/training.md says what it does.
"""

import sys
from collections.abc import Sequence

from eval.cli import main as run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    return run(["distil", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
