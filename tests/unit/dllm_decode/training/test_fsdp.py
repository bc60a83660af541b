"""Weights that FSDP2 splits over processes, and launches that no training follows."""

from pathlib import Path

import pytest
from processes import ROOT, in_two_processes

from dllm_decode.training.fsdp import require_launch


@pytest.mark.slow
@pytest.mark.parametrize("act", ["compare", "refuse"])
def test_split_weights_are_trained_as_whole_models_are(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that decoded nothing waited for ever in the backward after the evaluation."""
    # FSDP would take a GPU that it sees.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = str(ROOT / "tests" / "programs" / "split_weights.py")
    for code, output in in_two_processes(program, act, str(tmp_path), timeout_s=300):
        assert code == 0, output


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "--use_deepspeed must be left out, got"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "--use_megatron_lm must be left out, got"),
        ({"ACCELERATE_USE_FSDP": "true"}, "--fsdp_version 1 must be left out beside --use_fsdp"),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"},
            "--fsdp_offload_params must be left out beside --use_fsdp",
        ),
    ],
)
def test_a_launch_that_no_training_follows_is_refused_by_its_option(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=named) as caught:
        require_launch(device="cuda", uses_muon=False)
    assert "launch with --use_fsdp --fsdp_version 2" in str(caught.value)


def test_a_launch_with_fsdp_needs_a_gpu_and_no_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU accelerate trained whole models, and Muon's steps would see parts of matrices."""
    require_launch(device="cpu", uses_muon=True)
    for variable, value in {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_ACTIVATION_CHECKPOINTING": "false", "ACCELERATE_DYNAMO_BACKEND": "NO",
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    require_launch(device="cuda", uses_muon=False)
    with pytest.raises(ValueError, match="--device cpu, --muon must be left out beside --use_fsdp"):
        require_launch(device="cpu", uses_muon=True)
