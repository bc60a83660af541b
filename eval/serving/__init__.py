"""The command `dllm-decode serve`."""
