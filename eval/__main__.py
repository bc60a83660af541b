"""`python -m eval`, which is `dllm-decode eval`."""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import sys

from eval.commands import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
