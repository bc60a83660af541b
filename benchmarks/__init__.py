"""Speed and memory of decoding, side by side with a plain reference loop."""

import dllm_decode.launch  # noqa: F401 - before a benchmark loads torch
