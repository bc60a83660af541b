"""A busy process during a measurement: threads that wait for each other then wait for it too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Ends with the process that started it, however that ends.
_SPIN = """\
import os, sys
parent = os.getppid()
if sys.argv[1]:
    os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", flush=True)
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy_neighbour() -> Iterator[subprocess.Popen[str]]:
    """Keeps a core busy that this process may use, until the block ends.

    The busy process is pinned to the first such core, if the system can pin.
    """
    # Not every system can say, or choose, which processors a process may run on.
    core = str(min(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""
    command = [sys.executable, "-c", _SPIN, core]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
