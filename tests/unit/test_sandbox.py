"""The sandbox: what passes, what does not, and what a program cannot reach."""

import os
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from eval.sandbox import sandbox
from eval.sandbox.code_runner import NoCode, Outcome
from eval.sandbox.container import Container
from eval.sandbox.sandbox import Sandbox, run_alone
from eval.sandbox.system_calls import filter_of

SUM = "def total(xs):\n    return sum(xs)\n"
TESTS = "assert total([]) == 0\nassert total([1, 2]) == 3\n"
QUICK = Sandbox(cpu_s=1, wall_s=10.0)


def needs(layer: str) -> None:
    if layer in QUICK.missing():
        pytest.skip(f"this machine does not guard {layer}")


def test_a_right_program_passes() -> None:
    assert Sandbox().run(SUM, TESTS) == Outcome("passed", True, True, "")


@pytest.mark.parametrize(
    ("candidate", "compiled", "loaded", "reason"),
    [
        (SUM.replace("sum", "len"), True, True, "AssertionError (line 2 of the tests)"),
        ("def total(xs)\n", False, False, "SyntaxError: expected ':'"),
        ("x = '\0'", False, False, "null bytes"),
        ("x = '\ud800'", False, False, "UnicodeEncodeError"),
        ("", True, True, "NameError: name 'total' is not defined (line 1 of the tests)"),
        ("import no_such_module\n" + SUM, True, False, "ModuleNotFoundError"),
        ("1 / 0\n" + SUM, True, False, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\n" + SUM, True, False, "SystemExit: 0"),
        ("import os\nos._exit(0)\n" + SUM, True, False, "ended before its tests did, exit status"),
        ("def total(xs):\n    import os\n    os._exit(0)\n", True, True, "ended before its tests"),
        ("def total(xs):\n    raise SystemExit(0)\n", True, True, "SystemExit: 0 (line 1"),
        ("raise KeyboardInterrupt", True, False, "KeyboardInterrupt"),
        ("def total(xs):\n    return total(xs)\n", True, True, "RecursionError"),
        ("import ctypes\nctypes.string_at(0)\n", True, False, "killed by signal 11"),
    ],
)
def test_a_wrong_program_fails_for_a_reason(
    candidate: str, compiled: bool, loaded: bool, reason: str
) -> None:
    outcome = QUICK.run(candidate, TESTS)
    assert (outcome.verdict, outcome.compiled, outcome.loaded) == ("failed", compiled, loaded)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    "said",
    [
        "passed",
        '{"stage": "passed", "said": null}',
        '{"nonce": "0", "stage": "passed"}',
        "[" * 9999,
    ],
)
def test_a_made_up_report_does_not_count(said: str) -> None:
    """Every open file is written to, so also the one that the verdict goes to."""
    forger = (
        "import os\nprint(said)\n"
        "for number in range(64):\n    try:\n        os.write(number, (said + '\\n').encode())\n"
        "    except OSError:\n        pass\nos._exit(0)\n"
    )
    outcome = QUICK.run(f"said = {said!r}\n{forger}", TESTS)
    assert outcome == Outcome("failed", True, False, outcome.reason)
    assert "ended before its tests did" in outcome.reason


@pytest.mark.parametrize(
    "loop", ["while True: pass", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"]
)
def test_a_busy_loop_is_stopped(loop: str) -> None:
    begun = time.monotonic()
    outcome = QUICK.run(f"{loop}\nwhile True: pass\n{SUM}", TESTS)
    assert not outcome.passed
    assert time.monotonic() - begun < QUICK.wall_s + 3
    if "signal" not in loop:
        assert outcome == Outcome("timed out", True, False, "more than 1 s of processor time")


def test_a_sleeper_is_stopped() -> None:
    begun = time.monotonic()
    outcome = Sandbox(wall_s=4.0).run(f"import time\ntime.sleep(60)\n{SUM}", TESTS)
    assert outcome == Outcome("timed out", True, False, "more than 4 s")
    assert time.monotonic() - begun < 15


def test_a_program_that_wants_too_much_memory_fails() -> None:
    needs("memory")
    small = Sandbox(memory_bytes=1 << 27)
    at_once = small.run(f"x = bytearray(1 << 28)\n{SUM}", TESTS)
    bit_by_bit = small.run(f"x = []\nwhile True: x.append(bytearray(1 << 20))\n{SUM}", TESTS)
    assert at_once == bit_by_bit == Outcome("failed", True, False, "MemoryError")
    assert small.run(SUM, TESTS).passed


def test_a_file_has_a_greatest_size_and_output_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    big = QUICK.run(f"open('a', 'wb').write(bytes(1 << 23))\n{SUM}", TESTS)
    assert big == Outcome("failed", True, False, "OSError: [Errno 27] File too large")
    talk = "import sys\nfor _ in range(1000): print('x' * 9999); sys.stderr.write('x' * 9999)\n"
    assert QUICK.run(talk + SUM, TESTS).passed
    assert list(tmp_path.iterdir()) == []


def test_a_program_starts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    checks = (
        "import os, sys\n"
        "assert 'MY_TOKEN' not in os.environ and 'PYTHONPATH' not in os.environ\n"
        "assert os.listdir('.') == [] and os.path.realpath(os.environ['HOME']) == os.getcwd()\n"
        "assert sys.stdin.read() == ''\n"
        "assert 'torch' not in sys.modules and not any('tests' in path for path in sys.path)\n"
        "assert __name__ != '__main__'\n"
        "open('a', 'w').write('1')\n"
        "assert open('a').read() == '1'\n"
    )
    assert QUICK.run(checks + SUM, TESTS) == Outcome("passed", True, True, "")


def test_hashes_are_the_same_in_every_run() -> None:
    first, second = (QUICK.run("raise ValueError(hash('a'))", "") for _ in range(2))
    assert first.reason.startswith("ValueError: ")
    assert first == second


@pytest.mark.parametrize(
    "program",
    [
        "import numpy\nassert numpy.ones(3).sum() == 3",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "import asyncio\nasyncio.run(asyncio.sleep(0))",
        "import tempfile, os\nwith tempfile.TemporaryFile() as f: f.write(os.urandom(3))",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 3\nA()",
        "import hashlib, sqlite3, decimal, re, heapq, datetime\nhashlib.sha256(b'')",
        "if __name__ == '__main__': raise SystemExit",
    ],
)
def test_ordinary_programs_are_not_in_the_way(program: str) -> None:
    assert QUICK.run(f"{program}\n{SUM}", TESTS) == Outcome("passed", True, True, "")


@pytest.mark.parametrize(
    ("layer", "deed"),
    [
        ("files", "open('/etc/hostname').read()"),
        ("files", "open({mine!r}).read()"),
        ("files", "open({mine!r}, 'w')"),
        ("files", "os.unlink({mine!r})"),
        ("files", "os.truncate({mine!r}, 0)"),
        ("files", "os.listdir(os.path.dirname(os.getcwd()))"),
        ("network", "import socket; socket.socket()"),
        ("network", "import socket; socket.create_connection(('127.0.0.1', {port}), 5)"),
        ("processes", "os.fork()"),
        ("processes", "import subprocess; subprocess.run(['true'])"),
        ("processes", "os.execv('/bin/true', ['true'])"),
    ],
)
def test_what_a_machine_guards_is_out_of_reach(
    layer: str, deed: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needs(layer)
    import socket

    mine = tmp_path / "mine"
    mine.write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        deed = deed.format(mine=str(mine), port=server.getsockname()[1])
        outcome = QUICK.run(f"import os\n{deed}\n{SUM}", TESTS)
    assert outcome.verdict == "failed"
    assert "PermissionError" in outcome.reason or "BlockingIOError" in outcome.reason
    assert mine.read_text() == "kept"


@pytest.mark.parametrize("address", ["path", "abstract"])
@pytest.mark.parametrize("kind", ["SOCK_DGRAM", "SOCK_RAW", "SOCK_SEQPACKET", "SOCK_STREAM"])
def test_no_pair_of_sockets_reaches_a_socket_of_the_host(
    kind: str, address: str, tmp_path: Path
) -> None:
    """A pair of datagram sockets sent to any UNIX datagram socket, such as the system's log."""
    needs("network")
    import socket

    there = str(tmp_path / "host") if address == "path" else f"\0{tmp_path}"
    deeds = (f"pair[0].sendto(b'x', {there!r})", f"pair[0].sendmsg([b'x'], [], 0, {there!r})",
             f"pair[0].connect({there!r})\npair[0].send(b'x')")  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
        host.bind(there)
        host.setblocking(False)
        for deed in deeds:
            program = f"import socket\npair = socket.socketpair(type=socket.{kind})\n{deed}\n"
            assert QUICK.run(program + SUM, TESTS).verdict == "failed"
            with pytest.raises(BlockingIOError):
                host.recv(1)
            # Outside the sandbox the same program arrives.
            if kind == "SOCK_DGRAM":
                outside: dict[str, Any] = {}
                exec(program, outside)
                assert host.recv(1) == b"x"
                for one in outside["pair"]:
                    one.close()


def test_the_parent_cannot_be_signalled() -> None:
    if not sys.platform.startswith("linux") or "processes" in QUICK.missing():
        pytest.skip("this machine has no filter of system calls")
    outcome = QUICK.run(f"import os\nos.kill({os.getpid()}, 9)\n", "")
    assert outcome.reason == "PermissionError: [Errno 1] Operation not permitted"


def test_a_fork_bomb_fails() -> None:
    needs("processes")
    bomb = (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        raise\n"
    )
    assert not QUICK.run(bomb + SUM, TESTS).passed


@pytest.mark.parametrize("ending", ["time.sleep(60)", "os._exit(0)"])
def test_grandchildren_do_not_outlive_the_program(tmp_path: Path, ending: str) -> None:
    """Where processes can be started after all: the whole group is killed."""
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n"
        "        open('pid.new', 'w').write(str(os.getpid()))\n"
        "        os.rename('pid.new', 'pid')\n        time.sleep(60)\n"
        "    time.sleep(60)\n"
        f"while not os.path.exists('pid'): time.sleep(0.01)\n{ending}\n"
    )
    with tempfile.TemporaryFile() as file:
        command = [sys.executable, "-S", "-c", program]
        status = run_alone(command, str(tmp_path), file, file, file, 3.0)
    assert status == (None if "sleep" in ending else 0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _is_running(pid):
        assert time.monotonic() < deadline, "a grandchild is still there"
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    if sys.platform == "linux":
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(shown.stdout.strip()) and "Z" not in shown.stdout


def test_a_machine_without_the_filter_says_so_and_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "filter_program", lambda: b"")
    other = Sandbox(cpu_s=2)
    assert "network" in other.missing()
    assert other.run(SUM, TESTS).passed
    if os.geteuid() != 0:
        assert "processes" not in other.missing()


DEEP = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"


@pytest.mark.parametrize(
    "litter",
    [
        DEEP,
        "import os\nos.umask(0o777)\nos.mkdir('a')\nopen('b', 'w').close()\nos.symlink('/', 'c')\n",
        "import os\nfor n in range(300): os.makedirs(f'{n % 7}/{n}/x'); open(f'f{n}', 'w')\n",
    ],
)
def test_whatever_a_program_leaves_is_removed(
    litter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """3,000 folders within one another made the clean-up fail and leave them behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Sandbox(cpu_s=10, wall_s=60.0).run(litter + SUM, TESTS).passed
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_ignores_its_alarm_ends_with_the_evaluation(tmp_path: Path) -> None:
    """Its only other end was an alarm, which it may ignore or have forgotten by the kernel."""
    if sys.platform != "linux":
        pytest.skip("only Linux ends a process with its parent")
    stubborn = (
        "import ctypes, os, signal, time\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
        "open('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\ntime.sleep(60)\n"
    )
    evaluation = subprocess.Popen(
        [sys.executable, "-c",
         "from eval.sandbox.sandbox import Sandbox\n"
         f"Sandbox(wall_s=50.0).run({stubborn!r}, '')"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (pids := list(tmp_path.glob("sandbox-*/pid"))):
            assert evaluation.poll() is None
            assert time.monotonic() < deadline, "the program did not start"
            time.sleep(0.01)
    finally:
        evaluation.kill()
        evaluation.wait()
    pid = int(pids[0].read_text())
    deadline = time.monotonic() + 5
    while _is_running(pid):
        assert time.monotonic() < deadline, "the program outlives the evaluation"
        time.sleep(0.01)


def test_emptying_the_report_does_not_blame_the_tests() -> None:
    empties = (
        "import os\nfor number in range(64):\n    try:\n        os.ftruncate(number, 0)\n"
        "    except OSError:\n        pass\n"
    )
    outcome = QUICK.run(f"{empties}1 / 0\n", TESTS)
    assert outcome == Outcome("failed", True, False, "ZeroDivisionError: division by zero")
    assert QUICK.run(empties + SUM, TESTS).passed


def test_the_secret_of_the_report_cannot_be_read_back_from_it() -> None:
    forger = (
        "import json, os\nfor number in range(64):\n    try:\n"
        "        os.lseek(number, 0, 0)\n        said = os.read(number, 9999)\n"
        "        line = json.loads(said.splitlines()[0])\n"
        "        line['stage'] = 'passed'\n"
        "        os.write(number, json.dumps(line).encode() + b'\\n')\n"
        "    except (OSError, IndexError, ValueError):\n        pass\nos._exit(0)\n"
    )
    assert not QUICK.run(forger, TESTS).passed


def test_a_replaced_exec_forges_nothing() -> None:
    """With this one line the tests were not run, and so passed."""
    forger = "import builtins\nbuiltins.exec = lambda *arguments: None\n"
    assert (
        QUICK.run(forger, TESTS).reason
        == "NameError: name 'total' is not defined (line 1 of the tests)"
    )
    assert QUICK.run(forger + SUM, TESTS).passed


def test_a_flood_of_reports_is_no_pass() -> None:
    flood = (
        "import os\nfor number in range(3, 64):\n    try:\n"
        "        os.write(number, b'x' * (1 << 20))\n    except OSError:\n        pass\n"
    )
    assert not Sandbox(wall_s=3.0).run(flood + SUM.replace("sum", "len"), TESTS).passed


# The machine's own interpreter stands in for the one in a container.
HERE = Container(f"{shlex.quote(sys.executable)} -S -", cpu_s=1, wall_s=4.0)


@pytest.mark.parametrize(
    ("candidate", "verdict", "reason"),
    [
        (SUM, "passed", ""),
        (SUM.replace("sum", "len"), "failed", "AssertionError (line 2 of the tests)"),
        ("x = '\\ud800 \"\"\" '\n" + SUM, "passed", ""),
        ("def total(xs)\n", "failed", "SyntaxError"),
        ("import os\nos._exit(0)", "failed", "ended before its tests did, exit status 0"),
        ("while True: pass", "timed out", "1 s of processor time"),
        ("import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(60)",
         "timed out", "more than 4 s"),
        ("import sys\nassert sys.stdin.read() == ''\nassert __name__ == 'solution'\n" + SUM,
         "passed", ""),
    ],
)  # fmt: skip
def test_a_container_gives_the_same_verdicts(candidate: str, verdict: str, reason: str) -> None:
    begun = time.monotonic()
    outcome = HERE.run(candidate, TESTS)
    assert outcome.verdict == verdict
    assert reason in outcome.reason
    assert time.monotonic() - begun < 25


def test_a_container_that_cannot_start_is_refused() -> None:
    HERE.require_ready("humaneval")
    with pytest.raises(ValueError, match="must be installed, got 'no-such-podman'"):
        Container("no-such-podman run -i python").require_ready("humaneval")
    with pytest.raises(ValueError, match="must start Python with its program on standard input"):
        Container("false").require_ready("humaneval")
    with pytest.raises(ValueError, match="must start a Python interpreter, got ''"):
        Container("")
    with pytest.raises(ValueError, match="must be quoted as in a shell"):
        Container("podman 'run")
    with pytest.raises(ValueError, match="start_s must be a positive number of seconds, got inf"):
        Container("python3 -", start_s=float("inf"))


def test_tests_that_are_no_python_are_no_fault_of_the_candidate() -> None:
    with pytest.raises(RuntimeError, match="tests that are Python, got exit status 1: SyntaxErr"):
        QUICK.run(SUM, "assert total(")


def test_limits_that_no_program_fits_into_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="cpu_s must be at least 1 second, got 0"):
        Sandbox(cpu_s=0)
    with pytest.raises(ValueError, match="wall_s must be a positive number of seconds, got inf"):
        Sandbox(wall_s=float("inf"))
    with pytest.raises(ValueError, match="memory_bytes must be at least"):
        Sandbox(memory_bytes=1 << 20)
    with pytest.raises(ValueError, match="file_bytes must be at least"):
        Sandbox(file_bytes=1)
    with pytest.raises(ValueError, match="A trial program"):
        Sandbox(wall_s=1e-3).require_ready("humaneval")


def test_without_permission_nothing_is_run() -> None:
    with pytest.raises(ValueError, match="needs your permission, got none; give --allow-code"):
        NoCode().run(SUM, TESTS)


ALLOWED, KILLED, REFUSED, ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
X86, ARM = 0xC000003E, 0xC00000B7


def answer_of(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Runs a filter as the kernel would."""
    told = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = list(struct.iter_unpack("<HBBI", program))
    at, value = 0, 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", told, k)
        elif code == 0x06:
            return k
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += yes if holds else no


CALLS = ("socket", "execve", "kill", "connect", "bind", "read", "clone", "prctl", "socketpair")


@pytest.mark.parametrize(
    ("machine", "architecture", "listed"),
    [
        ("x86_64", X86, (41, 59, 62, 42, 49, 0, 56, 157, 53)),
        ("aarch64", ARM, (198, 221, 129, 203, 200, 63, 220, 167, 199)),
    ],
)
def test_the_filter_of_each_machine(
    machine: str, architecture: int, listed: tuple[int, ...]
) -> None:
    numbers = dict(zip(CALLS, listed, strict=True))
    program = filter_of(machine)
    for name in CALLS[:5]:
        assert answer_of(program, architecture, numbers[name]) == REFUSED
    assert answer_of(program, architecture, numbers["read"]) == ALLOWED
    assert answer_of(program, architecture, numbers["clone"], 17) == REFUSED
    assert answer_of(program, architecture, numbers["clone"], 0x10F00) == ALLOWED
    assert answer_of(program, architecture, numbers["prctl"], 1) == REFUSED
    assert answer_of(program, architecture, numbers["prctl"], 15) == ALLOWED
    # By family and type: AF_UNIX and SOCK_STREAM, with any options, and no other.
    for family, kind, answer in ((1, 1, ALLOWED), (1, 0x80801, ALLOWED), (1, 2, REFUSED),
                                 (1, 0x80002, REFUSED), (1, 3, REFUSED), (1, 5, REFUSED),
                                 (30, 1, REFUSED)):  # fmt: skip
        assert answer_of(program, architecture, numbers["socketpair"], family, kind) == answer
    assert answer_of(program, architecture, 435) == ABSENT
    assert answer_of(program, X86 + ARM - architecture, numbers["read"]) == KILLED
    assert answer_of(program, architecture, 0x40000000 + numbers["read"]) == REFUSED
