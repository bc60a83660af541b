"""Runs a command without room on the disk, then in children that are killed, then to its end.

    python killed.py '["export", "WHOLE"]' '["export", "KILLED"]' LIMIT

The imports are done once, so that most kills come while the command works. LIMIT, a size of files
in bytes, takes the place of a full disk.
"""

import json
import os
import random
import resource
import sys
import time
import traceback

import eval.reports.terminal
import eval.sweeps.sweep
import eval.training.filter_command  # noqa: F401 - before the forks
from dllm_decode.cli.main import main

NUM_KILLS = 6


def started(words: list[str], limit: int = resource.RLIM_INFINITY) -> int:
    pid = os.fork()
    if pid:
        return pid
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        status = main(words)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    whole, killed, limit = map(json.loads, sys.argv[1:])
    begun_s = time.monotonic()
    assert status_of(started(whole)) == 0
    took_s, chance = time.monotonic() - begun_s, random.Random(" ".join(killed[:1]))
    # First, because a command that was killed may be done: then it needs no room.
    sys.stderr.write("no room\n")
    assert status_of(started(killed, limit)) == 2
    sys.stderr.write("room\n")
    for _ in range(NUM_KILLS):
        child = started(killed)
        time.sleep(chance.uniform(0.0, took_s))
        os.kill(child, 9)
        status_of(child)
    assert status_of(started(killed)) == 0
