"""Ray actors that hold the models of some runs, and decode batches for this process."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from eval.runs.lines import Record
from eval.runs.provenance import machine_of
from eval.runs.records import Folder, digest
from eval.runs.runner import Decoding, Part, PendingBatch, Worker, plan_of
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
        part = Part(Path(), name, {})
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


class Crew(NamedTuple):
    """How many actors there are, and where; each has so many processors and GPUs.

    `address` is that of a Ray, as `ray.init` takes it, or `LOCAL`. If `num_actors` is None, there
    are as many as the Ray has room for.
    """

    address: str
    num_actors: int | None
    num_cpus: int
    num_gpus: int

    @contextmanager
    def decoding(self, open_runs: Opener, folder: Folder) -> Iterator[Decoding]:
        """Starts the actors, yields what decodes batches on them, and ends them.

        Each actor calls `open_runs`, and the folder gets a note on its machine. Raises ValueError
        if Ray is not installed, or has no room for the actors.
        """
        try:
            import ray
        except ImportError:
            said = "--ray needs ray, which is not installed: pip install '.[ray]'."
            raise ValueError(said) from None
        self._connect(ray)
        try:
            kind = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus)(Actor)
            command = " ".join(sys.argv[1:])
            actors = [kind.remote(open_runs, command) for _ in range(self._count(ray))]

            def decoded(worker: Worker, batches: Sequence[PendingBatch]) -> Iterator[list[Record]]:
                def start(actor: Any, batch: PendingBatch) -> Future[Decoded]:
                    found = actor.decode.remote(worker.settings_key, batch)
                    return cast("Future[Decoded]", found.future())

                lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
                try:
                    for found in shared(batches, actors, start, lost):
                        folder.note_machine(found.machine)
                        yield found.records
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None

            yield decoded
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        own: dict[str, Any] = {}
        if self.address == LOCAL:
            num_cpus = None if self.num_actors is None else self.num_actors * self.num_cpus
            own = {"include_dashboard": False, "num_cpus": num_cpus}
            own["_node_ip_address"] = "127.0.0.1"
        try:
            ray.init(self.address, log_to_driver=True, logging_level=logging.WARNING, **own)
        except ConnectionError as error:
            raise ValueError(f"There must be a Ray at {self.address}: {error}") from None

    def _count(self, ray: Any) -> int:
        """Returns how many actors are started."""
        has = ray.cluster_resources()
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        room = min(int(has.get(name, 0) // need) for name, need in needs.items() if need)
        count = room if self.num_actors is None else self.num_actors
        if not 0 < count <= room:
            raise ValueError(
                f"Ray must have room for {max(count, 1)} actors with {self.num_cpus} processors "
                f"and {self.num_gpus} GPUs each, got room for {room}."
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
