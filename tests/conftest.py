"""What every test runs under.

Import nothing of `samplers`, `dllm_decode` or `eval` at the top of this file: it is read before the
import hook that checks tensor shapes is in place, and what is imported by then stays unchecked.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Toy tensors are too small to share out: with one thread the suite is many times faster.
torch.set_num_threads(1)

# Shared machines stall, and a test that fails must fail again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parent / "golden" / "data"
