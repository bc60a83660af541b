"""The command `dllm-decode serve`: its extra, and its bounds."""

from typing import Any

import pytest

from dllm_decode.cli import serving as command
from dllm_decode.cli.main import main
from dllm_decode.serve.limits import Limits


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert main(["serve", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "fastapi" in error
    assert "pip install '.[serve]'" in error


def test_a_deadline_in_the_past_is_refused() -> None:
    with pytest.raises(ValueError, match="deadline_s must be at least 0"):
        Limits(deadline_s=-1.0)


VERIFIER = "ARVerify(CausalTarget('mini-ar'))"


def test_samplers_that_the_verifier_never_asks_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server started, and ignored the field `sampler` of its requests."""
    pytest.importorskip("fastapi", reason="needs the extra serve")
    words = ["--verifier", VERIFIER, "--allow-sampler", "fixed=FixedSchedule(8)", "--port", "0"]
    assert main(["serve", "--model", "mini", *words]) == 2
    error = capsys.readouterr().err
    assert "--allow-sampler must be left out with a verifier that never asks a sampler" in error
    assert f"got fixed and {VERIFIER}" in error


# The command shows warnings itself.
@pytest.mark.filterwarnings("always")
def test_the_server_says_what_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The banner named a sampler that was never asked, but neither verifier nor cache."""
    server = pytest.importorskip("dllm_decode.serve.server", reason="needs the extra serve")
    shown = []

    def end_at_once(service: Any, *place: Any, **more: Any) -> None:
        shown.append(
            {name: type(plugin).__name__ for name, plugin in service.chosen_plugins.items()}
        )
        service.runner.close()

    monkeypatch.setattr(server, "serve", end_at_once)
    words = ["--verifier", VERIFIER, "--cache", "DualCache()", "--sampler", "LocalLeap()"]
    assert main(["serve", "--model", "mini", "--port", "0", *words]) == 0
    *warnings, banner = capsys.readouterr().err.splitlines()
    for warning, idle in zip(warnings, ("LocalLeap(", "DualCache("), strict=True):
        assert warning.startswith(f"Warning: {idle}")
        assert "has no effect: ARVerify(" in warning
    assert banner.startswith("mini with ARVerify(")
    assert ", DualCache(" in banner
    decides = {"verifier": "ARVerify", "cache": "DualCache"}
    assert shown == [decides]
