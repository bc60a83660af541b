"""Ray actors that hold the models of some runs, and decode batches for this process."""

import logging
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from dllm_decode.cli.files import digest
from eval.runs.folder import Folder
from eval.runs.provenance import machine_of
from eval.runs.records import Record
from eval.runs.runner import Decoding, PendingBatch, RecordPart, Worker, plan_of
from eval.runs.settings import Run

_LOG = logging.getLogger(__name__)
LOCAL = "local"
"""In place of an address: a Ray of its own on this machine, for the time of the command."""


class Decoded(NamedTuple):
    """The new records of a batch, and what describes the process that decoded them."""

    records: list[Record]
    machine: dict[str, Any]


Opener: TypeAlias = Callable[[], Sequence[Run]]
"""Reads the examples and loads the models of some runs."""

Member = TypeVar("Member")


class Actor:
    """Decodes batches of some runs; Ray gives each one a process of its own."""

    def __init__(self, open_runs: Opener, command: str) -> None:
        """Loads the models; `command` is that of the process that keeps the records."""
        runs = open_runs()
        self._machine = {**machine_of(runs[0].model.device), "command": command}
        name = digest(self._machine)
        # The records are kept by another process.
        part = RecordPart(Path(), name, {})
        workers = [Worker(one, part) for one in plan_of(runs, skip_impossible=True).runs]
        self._workers = {worker.settings_key: worker for worker in workers}

    def decode(self, settings_key: str, batch: PendingBatch) -> Decoded:
        """Decodes a batch of the run with these settings; raises ValueError if there is none."""
        if settings_key not in self._workers:
            raise ValueError(
                "An actor must find the same task files, plug-ins and model as the process that "
                "started it, got others; put them at the same paths on all machines."
            )
        return Decoded(self._workers[settings_key].decode(batch), self._machine)


@contextmanager
def decoding_on_ray(
    options: Namespace, open_runs: Opener, folder: Folder, num_processes: int
) -> Iterator[Decoding]:
    """Starts the actors that options ask for, yields what decodes batches on them, and ends them.

    Each actor calls `open_runs`, and the folder gets a note on its machine. Raises ValueError if
    Ray cannot be combined with the other options, is not installed, or has no room for the actors.
    """
    if options.device not in ("cpu", "cuda") or num_processes > 1:
        raise ValueError(
            "--ray shares a run among actors on 'cpu' or 'cuda', started by one process; got "
            f"--device {options.device} in one of {num_processes} processes."
        )
    try:
        import ray
    except ImportError:
        said = "--ray needs ray, which is not installed: pip install '.[ray]'."
        raise ValueError(said) from None
    num_cpus, num_gpus = options.threads or 1, int(options.device == "cuda")
    _connect(ray, options, num_cpus)
    try:
        count = _num_actors(ray, options, num_cpus, num_gpus)
        kind = ray.remote(num_cpus=num_cpus, num_gpus=num_gpus)(Actor)
        command = " ".join(sys.argv[1:])
        actors = [kind.remote(open_runs, command) for _ in range(count)]

        def start(worker: Worker, actor: Any, batch: PendingBatch) -> Future[Decoded]:
            found = actor.decode.remote(worker.settings_key, batch)
            return cast("Future[Decoded]", found.future())

        def decoded(worker: Worker, batches: Sequence[PendingBatch]) -> Iterator[list[Record]]:
            lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
            try:
                for found in shared(batches, actors, partial(start, worker), lost):
                    folder.note_machine(found.machine)
                    yield found.records
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None

        yield decoded
    finally:
        ray.shutdown()


def _connect(ray: Any, options: Namespace, num_cpus: int) -> None:
    own: dict[str, Any] = {}
    if options.ray == LOCAL:
        room = None if options.ray_actors is None else options.ray_actors * num_cpus
        own = {"include_dashboard": False, "num_cpus": room, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(options.ray, log_to_driver=True, logging_level=logging.WARNING, **own)
    except ConnectionError as error:
        raise ValueError(f"There must be a Ray at {options.ray}: {error}") from None


def _num_actors(ray: Any, options: Namespace, num_cpus: int, num_gpus: int) -> int:
    """Returns how many actors are started: as many as there is room for, unless options say so."""
    has = ray.cluster_resources()
    needs = {"CPU": num_cpus, "GPU": num_gpus}
    room = min(int(has.get(name, 0) // need) for name, need in needs.items() if need)
    count: int = room if options.ray_actors is None else options.ray_actors
    if not 0 < count <= room:
        raise ValueError(
            f"Ray must have room for {max(count, 1)} actors with {num_cpus} processors "
            f"and {num_gpus} GPUs each, got room for {room}."
        )
    return count


def shared(
    batches: Iterable[PendingBatch],
    actors: list[Member],
    start: Callable[[Member, PendingBatch], Future[Decoded]],
    lost: tuple[type[Exception], ...],
) -> Iterator[Decoded]:
    """Yields the records of batches as they come; a batch goes to an actor that is idle.

    Actors that raise one of the errors `lost` are removed, and their batches go to others. `start`
    lets an actor begin with a batch. Raises OSError if all actors are lost.
    """
    waiting, idle = deque(batches), list(actors)
    running: dict[Future[Decoded], tuple[Member, PendingBatch]] = {}
    reason = ""
    while waiting or running:
        while waiting and idle:
            actor, batch = idle.pop(), waiting.popleft()
            running[start(actor, batch)] = actor, batch
        if not running:
            raise ChildProcessError(
                f"All actors are lost; what they finished is kept, and the same command goes on "
                f"from there. {reason}".rstrip()
            )
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            actor, batch = running.pop(future)
            try:
                yield future.result()
            except lost as error:
                reason = str(error)
                _LOG.warning("An actor is lost, its examples go to another: %s", reason)
                actors.remove(actor)
                waiting.appendleft(batch)
            else:
                idle.append(actor)
