"""A killed process or a full disk loses nothing: earlier files are whole, and work goes on."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dllm_decode import load_model
from dllm_decode.core.files import finish_files
from dllm_decode.models import save_model
from eval.runs.folder import Folder

ROOT = Path(__file__).parents[2]
# The second model has other files: its weights are spread over several.
MODELS = {"mini": 10**9, "mini-lists": 10**6}
SAVING = f"""
import itertools, sys
from dllm_decode import load_model
from dllm_decode.models import save_model
models = [(load_model(name)[0], size) for name, size in {MODELS}.items()]
for model, size in itertools.cycle(models):
    save_model(model, sys.argv[1], max_shard_bytes=size)
    print("saved", flush=True)
"""
COMMANDS: dict[str, list[str]] = {
    "export": ["export", "out"],
    "generate": ["generate", "--input", "prompts", "--output", "out.jsonl", "--gen-length", "24",
                 "--num-rows", "2"],
    "eval": ["eval", "run", "word_problems?limit=10", "out", "--sampler", "FixedSchedule(24)",
             "--sampler", "Factor()", "--gen-length", "24", "--batch-size", "2"],
    "sweep": ["eval", "sweep", "plan.toml", "out"],
    "train-filter": ["train-filter", "--task", "word_problems?split=train&limit=12", "--output",
                     "out.safetensors", "--gen-length", "24", "--block-length", "12",
                     "--steps", "20", "--threshold", "0.6", "--batch-size", "3"],
}  # fmt: skip
PLAN = """
model = "mini"
tasks = ["word_problems?limit=10"]
samplers = ["FixedSchedule(24)", "Factor()"]
gen_length = 24
batch_size = 2
"""
# A size of files that is less than each command's greatest file.
LIMITS = {"export": 10**6, "generate": 700, "eval": 10**4, "sweep": 10**4, "train-filter": 3000}


def results(name: str, folder: Path) -> object:
    """Returns all that a command has to write, and that two runs have in common."""
    out = folder / "out"
    match name:
        case "export":
            return {path.name: path.read_bytes() for path in out.iterdir()}
        case "generate":
            return sorted(out.with_suffix(".jsonl").read_text().splitlines())
        case "eval" | "sweep":
            lines = (out / "part-0.jsonl").read_text().splitlines()
            assert len({json.loads(line)["key"] for line in lines}) == len(lines) == 20
            runs = Folder(out).results().items()
            return {str(run.key("")): [(r["example"], r["text"]) for r in records]
                    for run, records in runs}  # fmt: skip
    return {name: w.tolist() for name, w in load_file(out.with_suffix(".safetensors")).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_or_has_no_room_goes_on_and_has_the_same_results(
    name: str, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    commands = []
    for folder in (whole, killed):
        folder.mkdir()
        questions = [f"emma has {n} apples . how many apples does emma have ?" for n in range(12)]
        lines = [json.dumps({"text": question}) for question in questions]
        (folder / "prompts").write_text("\n".join(lines))
        (folder / "plan.toml").write_text(PLAN)
        files = ("out", "prompts", "plan")
        words = [str(folder / w) if w.startswith(files) else w for w in COMMANDS[name]]
        commands.append(json.dumps(words))
    program = ROOT / "tests" / "programs" / "killed.py"
    ran = subprocess.run(
        [sys.executable, program, *commands, str(LIMITS[name])],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = ran.stderr.partition("no room\n")[2].partition("room\n")[0]
    assert "Traceback" not in said
    refusal = said.splitlines()[-1]
    assert "must be a place that can be written, with room for the new contents, got" in refusal
    assert results(name, killed) == results(name, whole)


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_save_leaves_one_of_two_models(tmp_path: Path) -> None:
    whole = []
    for name, size in MODELS.items():
        save_model(load_model(name)[0], tmp_path / name, max_shard_bytes=size)
        whole.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    chance, folder, seen = random.Random(0), tmp_path / "out", set()
    for number in range(6):
        words = [sys.executable, "-c", SAVING, str(folder)]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(1 + number % 2):
                assert child.stdout.readline() == "saved\n"
            time.sleep(chance.uniform(0.0, 0.2))
            child.kill()
        finish_files(folder)
        left = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        assert left in whole
        seen.add(whole.index(left))
    assert seen == {0, 1}
