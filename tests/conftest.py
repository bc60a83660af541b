"""Settings that every test runs under.

Import nothing of `samplers`, `dllm_decode` or `eval` at the top of this file: it is read before the
import hook that checks tensor shapes is in place, and modules imported earlier stay unchecked.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NEEDED = (
    "accelerate", "beartype", "einops", "huggingface_hub", "hypothesis", "jaxtyping", "msgspec",
    "numpy", "rich", "safetensors", "torch", "transformers",
)  # fmt: skip
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
if _MISSING:
    pytest.exit(
        f"The tests need {', '.join(_MISSING)}, which this Python does not have. Install what is "
        "missing, or let make set up an environment: leave out VENV=none.",
        returncode=pytest.ExitCode.USAGE_ERROR,
    )
settings = importlib.import_module("hypothesis").settings
torch = importlib.import_module("torch")

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Toy tensors are too small for several threads: one thread makes the suite many times faster.
torch.set_num_threads(1)

# No deadline, because shared machines stall; no chance, so that a failing test fails again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-requests", type=int, default=600, help="requests of tests/e2e/test_serve_soak.py"
    )
    parser.addoption(
        "--fuzz-seeds", default="", help="FIRST:END, cases of tests/property/test_fuzz_*.py"
    )
    parser.addoption(
        "--graphs", action="store_true", help="record and replay the forwards of models on the CPU"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Models go to a GPU by default; tests that are not about a GPU need models on the CPU.
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.option.graphs:
        config.addinivalue_line("filterwarnings", "ignore:A kind of forward cannot be recorded")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _thin_out(items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _thin_out(items: list[pytest.Item]) -> None:
    """Marks all but a few cases of each exhaustive test as slow, before -m selects."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("exhaustive"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        (keep,) = group[0].get_closest_marker("exhaustive").args
        kept = {round(number * (len(group) - 1) / max(1, keep - 1)) for number in range(keep)}
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # A machine that runs the GPU tests need not have the packages that other tests import.
    if config.option.markexpr != "gpu" or collection_path.suffix != ".py":
        return None
    return "pytest.mark.gpu" not in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    """Resets the precision after a test, because Accelerate keeps it for the whole process."""
    yield
    if "accelerate.state" in sys.modules:
        state = sys.modules["accelerate.state"].AcceleratorState
        state._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True, scope="session")
def recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --graphs, every loaded model records each kind of forward when it first occurs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.option.graphs:
            from dllm_decode.models import MaskedTransformer
            from dllm_decode.models.graphs import forward_graphs

            patch.setattr(forward_graphs, "_OCCURRENCES", 1)
            # `load_model` calls `eval` last.
            patch.setattr(MaskedTransformer, "eval", _recording)
        yield


def _recording(model: Any) -> Any:
    model.graphs = True
    return model.train(False)


@pytest.fixture
def no_checks_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches off the checks of types, which users do not have and which would raise first."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parent / "golden" / "data"
