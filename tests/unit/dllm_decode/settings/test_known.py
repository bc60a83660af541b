"""Wrong options are refused before torch is loaded."""

import inspect
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import samplers
from dllm_decode import CachePolicy, Verifier, blocks, caches, verify
from dllm_decode.settings.argument_checks import argument_check_of, exported_names
from dllm_decode.settings.known import plugin_names, require_known_plugins
from samplers import ALL_SAMPLERS
from samplers.facts import PlugIn

ROOT = Path(__file__).parents[4]
REFUSED = {
    "generate q --sampler LocalLep()": "did you mean 'LocalLeap'?",
    "generate q --sampler CreditDecoding(LocalLep())": "did you mean 'LocalLeap'?",
    "chat --cache DulaCache": "did you mean 'DualCache'?",
    "serve --verifier SelfVerfy(3)": "did you mean 'SelfVerify'?",
    "generate q --blocks MultiBlok(8)": "did you mean 'MultiBlock'?",
    "generate q --sampler @no_card.json": "must name a card that is there",
    "read [a|b] --model mni": "Did you mean 'mini'?",
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


QUICK = {
    "generate q --gen-length 0": "gen_length must be between 1 and 1048576, got 0.",
    "generate q --sampler ConfidenceThreshold(9)": "threshold must be a probability in [0, 1]",
    "generate q --sampler 'FixedSchedule(\"a\")'": "at least 1, got 'a'.",
    "generate q --sampler CreditDecoding(LocalLeap(radius=-1))": "radius must be a whole number",
    "generate q --sampler 'ConfidenceThreshold 0.9'": "Expected an expression such as LocalLeap(",
    "generate q --cache 'DualCache(refresh=8)'": "DualCache has no option 'refresh'",
    "generate q --top-p 0": "top_p must be in (0, 1], got 0.0.",
    "generate q --sampler 'FixedSchedule(8, \"margn\")'": 'must be one of "confidence", "random"',
    "generate q --verifier 'Guided(CausalTarget(\"mini-ar\"), top_k=0)'": "top_k must be",
    "generate q --regex [": "got an end where a part must follow in '['.",
    "generate q --temperature nan": "temperature must be a finite number, got nan.",
    "generate --template [MASK:0]": "A blank must have between 1 and",
    "read 'no slot'": "A read must have a choice, such as [yes|no], got 'no slot'.",
    "serve --num-rows 0": "num_rows must be at least 1, got 0.",
    "serve --deadline-s 0": "deadline_s must be a number of seconds above 0, got 0.0.",
    "serve --allow-sampler x": "--allow-sampler must be NAME=EXPR",
    "serve --port PORT": "The server cannot listen at 127.0.0.1:PORT: Address already in use.",
    "eval run word_problms out": "A task must be one of word_problems",
    "eval run lists/copy out --top-p 0.5 --top-p 0": "top_p must be in (0, 1], got 0.0.",
    "eval report nofolder": "A results folder must hold settings.json",
    "eval sweep nofile.toml out": "A sweep must be a TOML file, got nofile.toml",
    "generate --input FOLDER/lines --output x": "Line 2 of FOLDER/lines: top_k must be",
    "generate --input FOLDER/half --output x": r"got: \ud83d, half of a surrogate pair",
    "generate --input FOLDER/lines --output /proc/x": "--output must be a file in a folder",
    "generate --input FOLDER/lines --output /dev/stdout": "--output must be a file in a folder",
    "export FOLDER/lines": "FOLDER/lines must be a folder, or be new, got the file FOLDER/lines.",
}
MOST_S = 1.5
MEASURED = """
import resource, sys
from dllm_decode.cli.main import main
assert main(sys.argv[1:]) == 2
assert "torch" not in sys.modules
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


@pytest.mark.exhaustive(10)
@pytest.mark.parametrize("line", QUICK)
def test_what_needs_no_torch_is_refused_within_a_second(line: str, tmp_path: Path) -> None:
    """The limit is of processor time; a number out of its range took 4 to 35 seconds."""
    (tmp_path / "lines").write_text('{"text": "a"}\n{"text": "a", "top_k": -1}\n')
    (tmp_path / "half").write_text('{"text": "\\ud83d"}')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        def filled(text: str) -> str:
            return text.replace("FOLDER", str(tmp_path)).replace("PORT", port)

        command = [sys.executable, "-c", MEASURED, *shlex.split(filled(line))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert filled(QUICK[line]) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert float(done.stdout) < MOST_S


def test_arguments_are_read_from_the_source_as_python_reads_them() -> None:
    num_seen = 0
    for package in (samplers, caches, verify, blocks):
        names, files = exported_names(package.__name__.replace(".", "/"))
        for name in names:
            kind = getattr(package, name)
            if isinstance(kind, type) and issubclass(kind, PlugIn):
                ours, own = (
                    {parameter.name: parameter.default is parameter.empty
                     for parameter in inspect.signature(one).parameters.values()}
                    for one in (argument_check_of(name, files), kind)
                )  # fmt: skip
                assert ours == own, name
                num_seen += 1
    assert num_seen > 50


def test_plug_ins_of_ones_own_and_targets_are_left_to_their_classes() -> None:
    require_known_plugins("sampler", "CreditDecoding(no_such_module2:Rule(9))")
    require_known_plugins("verifier", "ARVerify(CausalTarget('mini-ar'))")


@pytest.mark.parametrize(
    ("part", "known"),
    [
        ("sampler", [sampler.__name__ for sampler in ALL_SAMPLERS]),
        ("blocks", ["AdaptiveBlocks", "MultiBlock", "Sequential", "SlidingWindow", "SubBlocks"]),
        ("cache", [n for n in caches.__all__ if issubclass(getattr(caches, n), CachePolicy)]),
        ("verifier", ["CausalTarget", *verify.__all__]),
    ],
)
def test_no_name_of_ours_is_refused(part: str, known: list[str]) -> None:
    assert CachePolicy.__name__ in plugin_names("cache")
    assert Verifier.__name__ in plugin_names("verifier")
    assert set(known) <= set(plugin_names(part))
