"""The commands that start Python in a sandbox: bubblewrap, podman, docker or the user's own."""

import os
import shlex
import site
import sys
from pathlib import Path

IMAGE = "docker.io/library/python:3.12-slim"
REMEDY = (
    "install bubblewrap 0.7 or later, or podman or docker with the image of "
    f"`podman pull {IMAGE}`, or name another runner with --code-runner"
)
WORK = "/solution"
TMP_BYTES = 1 << 26
# One thread: pools of numerical libraries reserve address space for each.
ENVIRONMENT = {
    "HOME": WORK, "TMPDIR": WORK, "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
_SYSTEM_PATHS = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip


def commands_of(runner: str, memory_bytes: int) -> list[list[str]]:
    """Returns the commands that `Sandbox.runner` stands for, the first choice first.

    `memory_bytes` is the memory of a container, without its temporary files. Raises ValueError if
    the text is empty or not quoted as in a shell.
    """
    try:
        # `shlex.split(None)` would read standard input.
        words = shlex.split(runner if isinstance(runner, str) else "")
    except ValueError as error:
        raise ValueError(
            f"The code runner must be quoted as in a shell, got {runner!r} ({error})."
        ) from error
    if not words:
        raise ValueError(
            "The code runner must be auto, bwrap, podman, docker or a command that starts Python, "
            f"got {runner!r}."
        )
    name, _, image = runner.partition(":")
    # The second command is for a root user who needs a user namespace.
    named = {"bwrap": [bubblewrap(), bubblewrap("--unshare-user")]}
    for program in ("podman", "docker"):
        named[program] = [container(program, image or IMAGE, memory_bytes + TMP_BYTES)]
    named["auto"] = [command for commands in named.values() for command in commands]
    return named.get(name if name in ("podman", "docker") else runner, [words])


def bubblewrap(*options: str) -> list[str]:
    """Returns the command that runs this interpreter in a sandbox of bubblewrap.

    The program can read the Python installation and the system's libraries, and write to its
    working folder, which is empty and in memory. There is no /proc.
    """
    installation = [sys.base_prefix, sys.base_exec_prefix, *site.getsitepackages()]
    paths = dict.fromkeys([*_SYSTEM_PATHS, *installation])
    # Folders that bubblewrap makes on the way to a path are closed to users other than root.
    folders = dict.fromkeys(str(f) for path in paths for f in reversed(Path(path).parents))
    binds = [word for folder in folders for word in ("--dir", folder)]
    binds += [word for path in paths for word in ("--ro-bind-try", path, path)]
    variables = [word for item in ENVIRONMENT.items() for word in ("--setenv", *item)]
    # Root without a user namespace becomes another user inside.
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.geteuid() == 0 else []
    return [
        "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", *options, "--die-with-parent", "--new-session", "--as-pid-1",
        "--cap-drop", "ALL", *rights, "--clearenv", *variables, "--dev", "/dev",
        "--perms", "0777", "--size", str(TMP_BYTES), "--tmpfs", WORK, *binds,
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK,
        os.path.realpath(sys.executable), "-S", "-s", "-P", "-B", "-",
    ]  # fmt: skip


def container(program: str, image: str, memory_bytes: int) -> list[str]:
    """Returns the command that runs the Python of an image by podman or docker.

    The image must be there already: nothing is downloaded.
    """
    variables = [word for key, value in ENVIRONMENT.items() for word in ("--env", f"{key}={value}")]
    return [
        program, "run", "--rm", "--interactive", "--pull", "never", "--log-driver", "none",
        "--network", "none", "--read-only", "--tmpfs", f"{WORK}:size={TMP_BYTES},mode=1777",
        "--memory", f"{memory_bytes}b", "--pids-limit", "64", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--user", "65534:65534", "--workdir", WORK,
        *variables, image, "python3", "-",
    ]  # fmt: skip
