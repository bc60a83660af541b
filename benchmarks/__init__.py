"""Speed and memory of decoding, compared with a plain reference loop."""

import dllm_decode.launch  # noqa: F401 - before a benchmark loads torch
