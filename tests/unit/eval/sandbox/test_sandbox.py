"""The sandbox: verdicts, forged verdicts, the choice of a runner, and the limits of programs."""

import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from eval.sandbox import sandbox
from eval.sandbox.code_runner import Outcome
from eval.sandbox.runners import commands_of
from eval.sandbox.sandbox import Sandbox

SUM = "def total(xs):\n    return sum(xs)\n"
TESTS = "assert total([]) == 0\nassert total([1, 2]) == 3\n"
PYTHON = f"{shlex.quote(sys.executable)} -S -"
"""A runner that isolates nothing, because the programs of these tests are our own."""
QUICK = Sandbox(PYTHON, cpu_s=1, wall_s=10.0)


@pytest.fixture(scope="module")
def isolated() -> Sandbox:
    return working(Sandbox(cpu_s=2, wall_s=10.0))


def working(found: Sandbox) -> Sandbox:
    try:
        found.require_ready("humaneval")
    except ValueError as error:
        pytest.skip(str(error))
    return found


@pytest.mark.parametrize(
    ("candidate", "compiled", "loaded", "reason"),
    [
        (SUM.replace("sum", "len"), True, True, "AssertionError (line 2 of the tests)"),
        ("def total(xs)\n", False, False, "SyntaxError: expected ':'"),
        ("x = '\0'", False, False, "null bytes"),
        ("x = '\ud800'", False, False, "UnicodeEncodeError"),
        ("1 / 0\n" + SUM, True, False, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\n" + SUM, True, False, "SystemExit: 0"),
        ("import os\nos._exit(0)\n" + SUM, True, False, "ended before its tests did, exit status"),
        ("def total(xs):\n    import os\n    os._exit(0)\n", True, True, "ended before its tests"),
        ("def total(xs):\n    raise SystemExit(0)\n", True, True, "SystemExit: 0 (line 1"),
        ("import ctypes\nctypes.string_at(0)\n", True, False, "killed by signal 11"),
        ("import os\nos.kill(os.getppid(), 9)\nwhile True: pass", True, False, "with its sandbox"),
        ("raise ValueError('x' * 9999)", True, False, "ValueError: x"),
    ],
)
def test_a_failure_has_a_reason(candidate: str, compiled: bool, loaded: bool, reason: str) -> None:
    outcome = QUICK.run(candidate, TESTS)
    assert (outcome.passed, outcome.compiled, outcome.loaded) == (False, compiled, loaded)
    assert reason in outcome.reason
    assert len(outcome.reason) <= 300


@pytest.mark.parametrize("said", ["passed", "0 passed", "\n\0 " * 99])
def test_a_made_up_report_does_not_count(said: str) -> None:
    """The forger writes to every open file, and one of them is read for the verdict."""
    forger = (
        "import os\nprint(said)\n"
        "for number in range(64):\n    try:\n        os.write(number, (said + '\\n').encode())\n"
        "    except OSError:\n        pass\nos._exit(0)\n"
    )
    outcome = QUICK.run(f"said = {said!r}\n{forger}", TESTS)
    assert (outcome.passed, outcome.compiled, outcome.loaded) == (False, True, False)
    assert "ended before its tests did" in outcome.reason


READS_BACK = (
    "import os\nfor number in range(64):\n    try:\n"
    "        again = os.open(f'/proc/self/fd/{number}', os.O_RDONLY | os.O_NONBLOCK)\n"
    "        told = os.read(again, 9999)\n        os.write(number, told)\n"
    "    except OSError:\n        continue\n"
    "    if told.count(b'\\n') == 2: raise ValueError('read back')\n"
)
FINDS = (
    "import os\nfor number in range(64):\n    try:\n"
    "        os.lseek(number, 0, 0)\n        assert b'words' not in os.read(number, 99999)\n"
    "    except OSError:\n        pass\n"
)
REPLACES = "import builtins\nbuiltins.exec = lambda *arguments: None\n"


def test_no_word_of_the_report_can_be_found_or_replaced() -> None:
    """Linux opens the reading end of a pipe by the number of its writing end.

    With the one line of REPLACES the tests were not run, and passed.
    """
    outcome = QUICK.run(READS_BACK, TESTS)
    assert not outcome.passed
    assert outcome.reason == "ValueError: read back" or sys.platform != "linux"
    assert QUICK.run(FINDS + SUM, TESTS).passed
    assert QUICK.run(REPLACES, TESTS).reason.startswith("NameError: name 'total' is not defined")
    assert QUICK.run(REPLACES + SUM, TESTS).passed


def test_a_flood_of_reports_is_no_pass() -> None:
    flood = (
        "import os\nfor number in range(3, 64):\n    try:\n"
        "        os.write(number, b'x' * (1 << 20))\n    except OSError:\n        pass\n"
    )
    begun = time.monotonic()
    assert not Sandbox(PYTHON, wall_s=1.0).run(flood + SUM, TESTS).passed
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("loop", "wall_s", "reason"),
    [
        ("while True: pass", 30.0, "more than 1 s of processor time"),
        ("import time\ntime.sleep(60)", 0.5, "more than 0.5 s"),
        pytest.param(
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", 30.0,
            "killed by signal 9", marks=pytest.mark.slow,
        ),
        pytest.param(
            "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(60)",
            2.0, "more than 2 s", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_an_endless_program_is_stopped(loop: str, wall_s: float, reason: str) -> None:
    begun = time.monotonic()
    outcome = Sandbox(PYTHON, cpu_s=1, wall_s=wall_s).run(f"{loop}\n{SUM}", TESTS)
    assert (outcome.passed, outcome.compiled, outcome.loaded) == (False, True, False)
    assert reason in outcome.reason
    assert time.monotonic() - begun < 40


@pytest.mark.skipif(sys.platform != "linux", reason="macOS takes this limit and does not keep it")
def test_a_program_that_wants_too_much_memory_fails() -> None:
    small = Sandbox(PYTHON, memory_bytes=1 << 27)
    at_once = small.run(f"x = bytearray(1 << 28)\n{SUM}", TESTS)
    bit_by_bit = small.run(f"x = []\nwhile True: x.append(bytearray(1 << 20))\n{SUM}", TESTS)
    assert at_once == bit_by_bit == Outcome(True, False, False, "MemoryError")
    assert small.run(SUM, TESTS).passed


def test_a_file_has_a_greatest_size_and_output_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    big = QUICK.run(f"open('a', 'wb').write(bytes(1 << 23))\n{SUM}", TESTS)
    assert big == Outcome(True, False, False, "OSError: [Errno 27] File too large")
    talk = "import sys\nfor _ in range(1000): print('x' * 9999); sys.stderr.write('x' * 9999)\n"
    assert QUICK.run(talk + SUM, TESTS).passed
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


STARTS_FROM_NOTHING = (
    "import os, sys\n"
    "assert 'MY_TOKEN' not in os.environ and 'PYTHONPATH' not in os.environ\n"
    "assert os.listdir('.') == [] and sys.stdin.read() == ''\n"
    "assert 'torch' not in sys.modules and not any('tests' in path for path in sys.path)\n"
    "assert __name__ == 'solution'\n"
    "open('a', 'w').write('1')\n"
    "assert open('a').read() == '1'\n"
)


@pytest.mark.parametrize("is_isolated", [False, True])
def test_a_program_starts_from_nothing(
    is_isolated: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = request.getfixturevalue("isolated") if is_isolated else QUICK
    home = "assert os.environ['HOME'] == os.getcwd() == '/solution'\n" * is_isolated
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert runner.run(STARTS_FROM_NOTHING + home + SUM, TESTS) == Outcome(True, True, True, "")


def test_hashes_are_the_same_in_every_run() -> None:
    first, second = (QUICK.run("raise ValueError(hash('a'))", "") for _ in range(2))
    assert first.reason.startswith("ValueError: ")
    assert first == second


def test_tests_that_are_no_python_are_no_fault_of_the_candidate() -> None:
    with pytest.raises(RuntimeError, match=r"tests must be Python, got exit status 1: .*SyntaxErr"):
        QUICK.run(SUM, "assert total(")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cpu_s": 0}, "cpu_s must be a whole number of seconds, at least 1, got 0"),
        ({"wall_s": float("inf")}, "wall_s must be a number of seconds above 0, got inf"),
        ({"memory_bytes": 1 << 20}, "memory_bytes must be at least"),
        ({"runner": ""}, "must be auto, bwrap, podman, docker or a command .* Python, got ''"),
        ({"runner": 5}, "must be auto, bwrap, podman, docker or a command .* Python, got 5"),
        ({"runner": None}, "must be auto, bwrap, podman, docker or a command .*, got None"),
        ({"runner": "podman 'run"}, "must be quoted as in a shell"),
    ],
)
@pytest.mark.usefixtures("no_checks_of_types")
def test_options_that_no_program_can_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sandbox(**options)


# Scripts that pretend to be a runner: each ignores its options.
WORKS = f"#!/bin/sh\nexec {PYTHON}\n"
BROKEN = "#!/bin/sh\necho 'Cannot connect to the daemon.' >&2\nexit 125\n"
SILENT = f"#!{sys.executable}\nimport time\ntime.sleep(60)\n"
FLOODS = f"#!{sys.executable}\nimport sys\nsys.stderr.write('x' * 9999999)\n"


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The only folder in which programs are found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox._working_command.cache_clear()
    yield tmp_path
    sandbox._working_command.cache_clear()


def pretend(path: Path, **scripts: str) -> None:
    for name, text in scripts.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)


@pytest.mark.parametrize(
    ("scripts", "runner", "chosen"),
    [
        ({"bwrap": WORKS, "podman": WORKS, "docker": WORKS}, "auto", "bwrap"),
        ({"podman": BROKEN, "docker": WORKS}, "auto", "docker"),
        ({"bwrap": WORKS, "docker": WORKS}, "docker", "docker"),
        ({"bwrap": WORKS, "podman": WORKS}, "podman:me/python", "podman"),
        ({"bwrap": WORKS, "own": WORKS}, "own 'my image' -i", "own"),
    ],
)
def test_the_first_runner_that_works_is_taken(
    path: Path, scripts: dict[str, str], runner: str, chosen: str
) -> None:
    pretend(path, **scripts)
    box = Sandbox(runner)
    box.require_ready("humaneval")
    assert sandbox._working_command(box)[0] == chosen
    assert box.run(SUM, TESTS).passed


def test_without_a_runner_both_remedies_are_named(path: Path) -> None:
    pretend(path, podman=BROKEN)
    with pytest.raises(ValueError, match="got none") as refused:
        Sandbox().require_ready("humaneval")
    assert str(refused.value) == (
        "Programs that a model wrote need a sandbox that works on this machine, got none "
        "(bwrap: not installed; podman: The sandbox must start and the tests must be Python, got "
        "exit status 125: Cannot connect to the daemon.; docker: not installed). Either install "
        "bubblewrap 0.7 or later, or podman or docker with the image of "
        "`podman pull docker.io/library/python:3.12-slim`, or name another runner with "
        "--code-runner."
    )
    with pytest.raises(ValueError, match="need a sandbox that works"):
        Sandbox().run(SUM, TESTS)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (SILENT, "got no end within 0.3 s"),
        (FLOODS, "got exit status 0: [^x]*x{300}\\)"),
        ("#!/no/such/shell\n", "must start, got .*No such file"),
        ("#!/bin/sh\necho passed\n", "got exit status 0: \\)"),
        (f"#!{sys.executable}\nimport sys\nexec(sys.stdin.read().replace('6 * 7', '1'))\n",
         "a trial program failed within Sandbox.*: AssertionError"),
    ],
)  # fmt: skip
def test_a_broken_runner_is_refused_with_its_error(path: Path, script: str, said: str) -> None:
    pretend(path, docker=script)
    limits = {"wall_s": 0.1, "start_s": 0.2} if script == SILENT else {}
    with pytest.raises(ValueError, match=f"docker: .*{said}"):
        Sandbox("docker", **limits).require_ready("humaneval")


@pytest.mark.parametrize("program", ["podman", "docker"])
def test_a_container_has_limits_and_no_network(program: str) -> None:
    (command,) = commands_of(f"{program}:me/python:3", 1 << 30)
    shown = " ".join(command)
    for option in ("run --rm --interactive", "--pull never", "--network none", "--read-only",
                   f"--memory {(1 << 30) + (1 << 26)}b", "--pids-limit 64", "--cap-drop ALL",
                   "--security-opt no-new-privileges", "--user 65534:65534"):  # fmt: skip
        assert option in shown
    assert shown.startswith(program)
    assert shown.endswith("me/python:3 python3 -")
    assert commands_of(program, 1 << 30)[0][-3].startswith("docker.io/library/python:")
    assert commands_of(f"{program} run -i me python", 1) == [[program, "run", "-i", "me", "python"]]


def test_bubblewrap_shares_nothing_but_the_installation() -> None:
    command = commands_of("bwrap", 1 << 30)[0]
    for option in ("--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent",
                   "--new-session", "--clearenv", "--as-pid-1", "--remount-ro"):  # fmt: skip
        assert option in command
    bound = {command[i + 1] for i, word in enumerate(command) if word == "--ro-bind-try"}
    assert sys.base_prefix in bound
    assert bound.isdisjoint({"/", "/proc", "/etc", "/tmp", "/home", str(Path.home())})
    assert "--bind" not in command


def test_ordinary_programs_are_not_in_the_way(isolated: Sandbox) -> None:
    program = (
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\n"
        "import asyncio\nasyncio.run(asyncio.sleep(0))\n"
        "import tempfile, os\nwith tempfile.TemporaryFile() as f: f.write(os.urandom(3))\n"
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 3\nA()\n"
        "import hashlib, sqlite3, decimal, re, heapq, datetime\nhashlib.sha256(b'')\n"
        "if __name__ == '__main__': raise SystemExit\n"
    )
    assert isolated.run(program + SUM, TESTS) == Outcome(True, True, True, "")


def test_bubblewrap_lends_the_packages_of_this_interpreter() -> None:
    box = working(Sandbox("bwrap"))
    assert box.run(f"import numpy\nassert numpy.ones(3).sum() == 3\n{SUM}", TESTS).passed


@pytest.mark.parametrize(
    "deed",
    [
        "open({mine!r}).read()",
        "open({mine!r}, 'w')",
        "os.unlink({mine!r})",
        "os.listdir(os.path.dirname({mine!r}))",
        "open('/mine', 'w')",
        "open('/dev/mine', 'w')",
        "open('/usr/lib/mine', 'w')",
        "os.setuid(0 if os.getuid() else 1)",
        "import socket; socket.create_connection(('127.0.0.1', {port}), 5)",
        "import socket; socket.create_connection(('1.1.1.1', 53), 5)",
        "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect({name!r})",
        "os.kill({pid}, 9)",
        "while True: os.fork()",
        "for i in range(99): open(str(i), 'wb').write(bytes(1 << 21))",
    ],
)
def test_the_machine_is_out_of_reach(isolated: Sandbox, deed: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    name = f"\0{tmp_path}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        other.bind(name)
        deed = deed.format(mine=str(mine), name=name, pid=os.getpid(), port=server.getsockname()[1])
        outcome = isolated.run(f"import os\n{deed}\n{SUM}", TESTS)
    assert not outcome.passed
    assert "Error: [Errno" in outcome.reason
    assert mine.read_text() == "kept"


def descendants(pid: int) -> set[int]:
    """Returns the running processes that a process and its children have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    pids = {pid}
    while more := {child for child, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids - {pid}


def require_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.01)


@pytest.mark.parametrize("ending", ["time.sleep(60)", "os._exit(0)"])
def test_grandchildren_do_not_outlive_the_program(isolated: Sandbox, ending: str) -> None:
    program = (
        "import os, time\n"
        "for _ in range(2):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(60)\n        time.sleep(60)\n"
        f"time.sleep(0.2)\n{ending}\n"
    )
    before = descendants(os.getpid())
    outcome = Sandbox(sandbox._working_command(isolated)[0], wall_s=1.0).run(program, TESTS)
    assert ("more than 1 s" in outcome.reason) == ("sleep" in ending)
    require_gone(descendants(os.getpid()) - before)


def test_a_program_ends_with_the_evaluation(tmp_path: Path) -> None:
    """The program's own clock is of no use: it runs on until its time is up."""
    if not shutil.which("bwrap"):
        pytest.skip("a container ends by its own clock")
    evaluation = Popen(
        [sys.executable, "-c", "from eval.sandbox.sandbox import Sandbox\n"
         "Sandbox('bwrap', wall_s=50.0).run('import time; time.sleep(60)', '')"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        # Bubblewrap, the first process of the sandbox, and the program.
        while len(pids := descendants(evaluation.pid)) < 3:
            if evaluation.poll() is not None:
                pytest.skip("bubblewrap does not work here")
            assert time.monotonic() < deadline, "the program did not start"
            time.sleep(0.01)
    finally:
        evaluation.kill()
        evaluation.wait()
    require_gone(pids)
