r"""Trains a Learn2PD filter for a model: one command, minutes on a CPU for `mini`.

    python examples/train_filter.py --model mini --output learn2pd.safetensors
    python examples/train_filter.py --model GSAI-ML/LLaDA-8B-Instruct --device cuda \
        --task "gsm8k?path=FOLDER&split=train&limit=1000" --gen-length 256

The same as `dllm-decode train-filter`; docs/training.md says what it does. Use the filter as
`Learn2PD("learn2pd.safetensors")`.
"""

import sys
from collections.abc import Sequence

from eval.cli import main as run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    return run(["train-filter", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
