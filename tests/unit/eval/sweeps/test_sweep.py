from pathlib import Path

import pytest
from eval_runs import write_lines

from eval.sweeps.sweep import read_sweep

ROOT = Path(__file__).parents[4]


def test_every_sweep_of_the_repository_can_be_read(tmp_path: Path) -> None:
    sweeps = [read_sweep(path) for path in (ROOT / "eval" / "sweeps").glob("*.toml")]
    assert sweeps
    assert all(sweep.tasks and sweep.samplers for sweep in sweeps)
    with pytest.raises(ValueError, match="does not exist"):
        read_sweep(tmp_path / "none.toml")


SWEEP = 'model = "mini"\ntasks = ["lists/copy"]\nsamplers = ["Factor()"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "mini"', "lacks 'tasks'"),
        ('model = "mini"\ntasks = "lists/copy"\nsamplers = []', "tasks .* must be a list"),
        (SWEEP.replace('"Factor()"', ""), "samplers must have at least one"),
        ('model = "mini"\ntask = ["lists/copy"]', "did you mean 'tasks'"),
        (SWEEP.replace("lists/copy", "copy"), "A task must be one of"),
        (SWEEP.replace("Factor", "Fctor"), "did you mean 'Factor'"),
        ('model = "mini', "must be valid TOML"),
        ('model = "mini"\ntemperature = true', "temperature"),
        ('model = "mini"\nseed = [1, "a"]', "seed .* or a list of them"),
        (f"{SWEEP}seed = [1, 1]", "seed must be distinct, got 1 twice"),
        (f"{SWEEP}top_p = 0.0", "top_p must be in"),
        (f'{SWEEP}blocks = ["SubBlocks(8)", "SubBlocks(block_length=8)"]', "must be distinct"),
    ],
)
def test_wrong_sweeps_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_sweep(write_lines(tmp_path / "sweep.toml", text))
