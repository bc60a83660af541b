"""Misspelt names and files that are not there are refused before torch is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from dllm_decode import CachePolicy, Verifier, blocks, caches, verify
from dllm_decode.settings.known import plugin_names
from samplers import ALL_SAMPLERS

ROOT = Path(__file__).parents[4]
REFUSED = {
    "generate q --sampler LocalLep()": "did you mean 'LocalLeap'?",
    "generate q --sampler CreditDecoding(LocalLep())": "did you mean 'LocalLeap'?",
    "chat --cache DulaCache": "did you mean 'DualCache'?",
    "serve --verifier SelfVerfy(3)": "did you mean 'SelfVerify'?",
    "generate q --blocks MultiBlok(8)": "did you mean 'MultiBlock'?",
    "generate q --sampler @no_card.json": "must name a card that is there",
    "read [a|b] --model mni": "Did you mean 'mini'?",
    "generate q --model mni?mask_id=5": "Did you mean 'mini'?",
    "generate --input no_file --output x": "--input must be a file of JSON lines",
    "generate q --json-schema no_file": "--json-schema must be a file of JSON",
    "generate": "A question must be given",
    "eval run lists/copy out --sampler FixedSchedule() --sampler LocalLep": "LocalLeap",
}
PROGRAM = """
import sys
from dllm_decode.cli.main import main
for line in sys.argv[1:]:
    assert main(line.split()) == 2, line
    assert "torch" not in sys.modules, line
"""


def test_what_is_not_there_is_refused_before_torch_is_loaded() -> None:
    """A misspelt sampler took 16 seconds to be refused."""
    command = [sys.executable, "-c", PROGRAM, *REFUSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(REFUSED)
    for line, message in zip(lines, REFUSED.values(), strict=True):
        assert message in line


@pytest.mark.parametrize(
    ("part", "known"),
    [
        ("sampler", [sampler.__name__ for sampler in ALL_SAMPLERS]),
        ("blocks", [schedule.__name__ for schedule in blocks.ALL_SCHEDULES]),
        ("cache", [n for n in caches.__all__ if issubclass(getattr(caches, n), CachePolicy)]),
        ("verifier", ["CausalTarget", *verify.__all__]),
    ],
)
def test_no_name_of_ours_is_refused(part: str, known: list[str]) -> None:
    assert CachePolicy.__name__ in plugin_names("cache")
    assert Verifier.__name__ in plugin_names("verifier")
    assert set(known) <= set(plugin_names(part))
