"""Starts the command `dllm-decode`, also as `python -m dllm_decode`."""

import sys
from importlib import import_module

from dllm_decode.own_packages import require_own


def main() -> int:
    """Runs the command line and returns the exit status: 2 if something was refused."""
    try:
        require_own("eval")
    except ImportError as error:
        sys.stderr.write(f"dllm-decode: {error}\n")
        return 2
    # By name: the package eval imports this one.
    status: int = import_module("eval.cli").main()
    return status


if __name__ == "__main__":
    sys.exit(main())
