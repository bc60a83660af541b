"""A run on two Ray actors, one of which is killed, next to the run in one process."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import ray_environment
from served import wait_until

from eval.runs.folder import Folder

pytest.importorskip("ray", reason="needs the extra ray")
ROOT = Path(__file__).parents[2]
TASK = "word_problems?split=test&limit=48"


def command(out: Path, *words: str) -> list[str]:
    own = ["--batch-size", "4", "--temperature", "0.5", "--no-trace"]
    return [sys.executable, "-m", "eval", "run", TASK, str(out), *own, *words]


def answers_in(folder: Path) -> dict[str, tuple[object, ...]]:
    records = Folder(folder).records()
    return {one["key"]: (one["tokens"], one["scores"], one["nfe"]) for one in records}


def start_on_ray(out: Path, said: Path) -> subprocess.Popen[bytes]:
    """Starts the command, and waits for its first records.

    Ray gives up if it has not started within 30 seconds, which a busy machine may need.
    """
    part = out / "part-0.jsonl"
    for _ in range(4):
        with said.open("w") as file:
            process = subprocess.Popen(
                command(out, "--ray", "--ray-actors", "2"), cwd=ROOT, env=ray_environment(),
                stdout=subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
        wait_until(lambda started=process: part.exists() or started.poll() is not None, 240.0)
        if "timed out during startup" not in said.read_text():
            break
    return process


@pytest.mark.slow
def test_a_killed_actor_loses_nothing(tmp_path: Path) -> None:
    said, part = tmp_path / "said", tmp_path / "ray" / "part-0.jsonl"
    process = start_on_ray(tmp_path / "ray", said)
    try:
        assert process.poll() is None, said.read_text()
        children = psutil.Process(process.pid).children(recursive=True)
        actors = [child for child in children if "ray::Actor" in "".join(child.cmdline()[:1])]
        assert len(actors) == 2, children
        num_before = part.read_bytes().count(b"\n")
        actors[0].kill()
        assert process.wait(240.0) == 0, said.read_text()
    finally:
        process.kill()
    assert num_before < 96
    assert "An actor is lost, its examples go to another" in said.read_text()
    subprocess.run(
        command(tmp_path / "one"), cwd=ROOT, env=ray_environment(), check=True, timeout=240
    )
    assert answers_in(tmp_path / "ray") == answers_in(tmp_path / "one")
    assert len(part.read_bytes().splitlines()) == 96
    (machine,) = {one["machine"] for one in Folder(tmp_path / "ray").records()}
    assert "--ray-actors" in Folder(tmp_path / "ray").machines()[str(machine)]["command"]
