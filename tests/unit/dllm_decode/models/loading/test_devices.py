"""Free memory of devices, and warnings of weights that do not suit a device."""

import logging
from pathlib import Path

import pytest
import torch
from tiny_models import load_tiny

from dllm_decode.models.loading import devices
from dllm_decode.models.loading.devices import free_bytes, warn_if_too_large


def test_weights_beyond_the_memory_are_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_bytes", lambda device: 10)
    with caplog.at_level(logging.WARNING, "dllm_decode"):
        load_tiny("llada")
    assert "The weights of 'llada' take" in caplog.text
    caplog.clear()
    warn_if_too_large("a", 10, torch.device("cpu"))
    assert not caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_cpu_without_instructions_for_the_weights_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, dtype: str, capability: str
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(devices, "has_bfloat16", lambda: False)
    monkeypatch.setattr(devices, "_MIN_SLOW_BYTES", 1)
    with caplog.at_level(logging.WARNING, "dllm_decode"):
        load_tiny("llada", dtype=dtype)
    is_slow = capability == "AVX2" and dtype == "bfloat16"
    assert ("'llada' are in bfloat16, for which this CPU has no" in caplog.text) is is_slow


def test_the_free_memory_is_what_a_container_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   5000 kB\n")
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(devices, "_CGROUP", tmp_path)
    assert free_bytes(torch.device("cpu")) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert free_bytes(torch.device("cpu")) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(torch.device("cpu")) == 5000 * 1024
    assert free_bytes(torch.device("meta")) is None
