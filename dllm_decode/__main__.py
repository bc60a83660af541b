"""Starts the command `dllm-decode`, also as `python -m dllm_decode`."""

import sys

from dllm_decode.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
