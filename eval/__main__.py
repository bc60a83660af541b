"""`python -m eval`, which is `dllm-decode eval`."""

import sys

from eval.commands import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
