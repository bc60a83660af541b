"""Lanes of requests, each of which is one batch on the loop, and the one thread that runs them."""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Literal, NamedTuple, TypeAlias

from dllm_decode.core.observers import StepEvent
from dllm_decode.core.output import final_tokens
from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.engine.loop import rounds
from dllm_decode.models.loading.weight_versions import replace_weights, version_of
from dllm_decode.models.predictors.masked_transformer import require_own_network
from dllm_decode.serve.jobs import CanvasShown, Failed, Finished, Grown, Job, JobEvent
from dllm_decode.serve.limits import Limits

_LOG = logging.getLogger(__name__)
# The model counts as broken after this many failed rounds with no answer of any lane between them.
_MAX_FAULTS = 3
_CLOSE_S = 5.0
_FAULT = "The decode failed. The server's log says why."

ENDING = "The server is being stopped."
"""The reason of requests that the end of the server ends."""

Outcome: TypeAlias = Literal["answered", "failed", "nothing"]
"""The result of a round: an answer ended, all that ended had errors, or nothing ended."""


class FullError(Exception):
    """Too many requests wait."""


class WeightsChange(NamedTuple):
    """New weights that wait for the lanes' thread.

    Attributes:
        folder: The weights.
        version: Gets the version of the new weights, or the reason why nothing was changed.
    """

    folder: Path
    version: "Future[str]"


class Lane:
    """The requests of one decoder: those that wait, and those in the rows of its batch.

    Other threads may call `submit` and `cancel`; the effect comes before the next round.

    Attributes:
        decoder: Answers the requests.
        is_closed: True once the lane takes no more requests.
    """

    def __init__(self, decoder: Decoder, limits: Limits, changed: Condition) -> None:
        """Begins without jobs; `changed` is notified when jobs come, and guards shared state."""
        self.decoder = decoder
        self.is_closed = False
        self._limits = limits
        self._changed = changed
        self._waiting: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._running: dict[int, Job] = {}
        self._events: list[tuple[Job, JobEvent]] = []
        self.begin()

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Jobs that have a row."""
        return len(self._running)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Lets jobs wait for a row.

        Raises:
            FullError: If too many wait already, or the lane is closed; then none of the jobs waits.
        """
        with self._changed:
            if self.is_closed or len(self._waiting) + len(jobs) > self._limits.max_waiting:
                raise FullError
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Ends a job without an event; does nothing if it has ended."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            else:
                self._cancelled.append(job)

    def round(self, *, takes_jobs: bool = True) -> Outcome:
        """Runs one round; without jobs, frees the memory of the last batch.

        Args:
            takes_jobs: Let waiting jobs join.
        """
        self._admit(takes_jobs)
        if not self._running:
            self.begin()
            return "nothing"
        try:
            ended = next(self._rounds, ())
        # The server must outlive any fault of a model or plug-in.
        except Exception:
            _LOG.exception(
                "The decode failed; all requests that had a row in its batch get an error."
            )
            self._end_running(Failed(500, _FAULT))
            self.begin()
            return "failed"
        for request in ended:
            self._finish(request)
        if not ended:
            return "nothing"
        return "failed" if all(request.error for request in ended) else "answered"

    def deliver(self) -> None:
        """Sends the jobs the round's events, in one call of `post` for all jobs that share it."""
        events, self._events = self._events, []
        for post in dict.fromkeys(job.post for job, _ in events):
            # An event loop is closed if the server has been told to end.
            with suppress(RuntimeError):
                post(_emit, [pair for pair in events if pair[0].post == post])

    def close(self) -> None:
        """Ends all jobs, and takes no more."""
        with self._changed:
            self.is_closed = True
            self._end_running(Failed(503, ENDING))
            self._events += [(job, Failed(503, ENDING)) for job in self._waiting]
            self._waiting.clear()
        self.deliver()

    def begin(self) -> None:
        """Begins with an empty batch, which takes memory in its first round."""
        self._queue = RequestQueue()
        # A last block may end after the longest answer.
        longest = (
            self._limits.length_for(self.decoder.model.max_length) + self.decoder.block_multiple
        )
        self._rounds = rounds(
            self.decoder, self._queue, self._limits.num_rows, [self._watch], reserved_slots=longest
        )

    def _watch(self, event: StepEvent) -> None:
        """Updates the jobs after a round."""
        jobs = [self._running.get(row.request.index) for row in event.rows]
        for number, job in enumerate(jobs):
            if job is not None:
                job.num_rounds += 1
                if job.watch is not None:
                    job.watch(event, number, job.num_rounds - 1)
        self._events += _updates_of(event, jobs)

    def _finish(self, request: EndedRequest) -> None:
        job = self._running.pop(request.index, None)
        if request.error:
            _LOG.error("One request ended with an error: %s", request.error)
        if job is not None:
            event = Failed(500, _FAULT) if request.error else Finished(request.output)
            self._events.append((job, event))

    def _admit(self, takes_jobs: bool) -> None:
        """Between two rounds: lets cancelled jobs leave and waiting ones join."""
        with self._changed:
            for job in self._cancelled:
                if self._running.pop(job.request.index, None) is not None:
                    self._queue.cancel(job.request.index)
            self._cancelled.clear()
            while takes_jobs and self._waiting and len(self._running) < self._limits.num_rows:
                job = self._next_waiting()
                self._waiting.remove(job)
                self._running[job.request.index] = job
                self._queue.put(job.request)

    def _next_waiting(self) -> Job:
        """Returns the first job of the clients that have the fewest rows."""
        num_rows = Counter(job.client for job in self._running.values())
        return min(self._waiting, key=lambda job: num_rows[job.client])

    def _end_running(self, event: Failed) -> None:
        """Ends the jobs that have a row."""
        self._events += [(job, event) for job in self._running.values()]
        self._running.clear()


class LaneRunner:
    """Lanes by name, the first of which serves requests that name none.

    One thread runs a round of each lane in turn. A lane without jobs keeps its memory until another
    lane has jobs, because allocating it anew would take longer than many an answer.
    """

    def __init__(self, decoders: Mapping[str, Decoder], limits: Limits) -> None:
        """Starts the thread."""
        self.limits = limits
        self._changed = Condition()
        self.lanes = {
            name: Lane(decoder, limits, self._changed) for name, decoder in decoders.items()
        }
        self._is_closed = False
        self._change: WeightsChange | None = None
        self._num_faults = 0
        self._round_began_s: float | None = None
        self._thread = Thread(target=self._work, name="dllm-decode lanes", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """True if the thread has ended, or rounds failed several times without an answer."""
        return self._num_faults >= _MAX_FAULTS or not self._thread.is_alive()

    @property
    def num_running(self) -> int:
        """Answers that have a row."""
        return sum(lane.num_running for lane in self.lanes.values())

    @property
    def num_waiting(self) -> int:
        """Answers that wait for a row."""
        return sum(lane.num_waiting for lane in self.lanes.values())

    def round_s(self) -> float:
        """Returns for how long the present round has been running; 0 if none is."""
        began_s = self._round_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def load_weights(self, folder: Path) -> "Future[str]":
        """Lets the thread replace the model's weights by those of a folder.

        Rows that run are finished on the old weights, and no waiting job joins before. Then no
        round is run until the new weights are read, and keys and values are dropped.

        Returns:
            A future of the new version, see `version_of`; or the exception of `replace_weights`.

        Raises:
            FullError: If other weights wait, or the runner is closed.
        """
        with self._changed:
            if self._is_closed or self._change is not None:
                raise FullError
            self._change = change = WeightsChange(folder, Future())
            self._changed.notify()
        return change.version

    def close(self) -> None:
        """Ends all jobs after the present round, and the thread; waits a few seconds at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        while self._has_work():
            self._replace_weights()
            for lane in self.lanes.values():
                self._round_began_s = time.monotonic()
                outcome = lane.round(takes_jobs=self._change is None)
                # Counted before the jobs are told, because their owners may ask at once.
                if outcome != "nothing":
                    self._num_faults = self._num_faults + 1 if outcome == "failed" else 0
                lane.deliver()
            self._round_began_s = None
        for lane in self.lanes.values():
            lane.close()
        if self._change is not None and self._change.version.set_running_or_notify_cancel():
            self._change.version.set_exception(FullError())

    def _replace_weights(self) -> None:
        """Replaces the weights if new ones wait and no row runs."""
        change = self._change
        if change is None or self.num_running:
            return
        if change.version.set_running_or_notify_cancel():
            try:
                model = require_own_network(next(iter(self.lanes.values())).decoder.model)
                replace_weights(model, change.folder)
                version = version_of(model)
            # The server must outlive any fault, such as no memory for a second model.
            except Exception as error:
                change.version.set_exception(error)
            else:
                for lane in self.lanes.values():
                    lane.begin()
                change.version.set_result(version)
        with self._changed:
            self._change = None

    def _has_work(self) -> bool:
        """Waits for a job; returns False once the runner is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_closed
                    or self._change is not None
                    or self.num_waiting + self.num_running > 0
                )
            )
            return not self._is_closed


def _emit(events: Sequence[tuple[Job, JobEvent]]) -> None:
    for job, event in events:
        job.emit(event)


def _updates_of(event: StepEvent, jobs: Sequence[Job | None]) -> Iterator[tuple[Job, JobEvent]]:
    """Yields updates for the jobs that asked to be shown their progress."""
    shown = [(n, job) for n, job in enumerate(jobs) if job is not None and job.shown != "nothing"]
    # Reading the tokens makes the host wait, so read them only if a job wants them.
    if not shown:
        return
    prefixes = final_tokens(event.rows, event.after, is_final=event.is_final)
    ended = event.ended.tolist()
    for number, job in shown:
        prefix = prefixes[number]
        if job.shown == "canvas":
            yield job, _canvas_shown(event, number, job)
        # The rest of an answer that has ended comes with its last event.
        elif len(prefix) > job.num_shown and not ended[number]:
            job.num_shown = len(prefix)
            yield job, Grown(prefix)


def _canvas_shown(event: StepEvent, number: int, job: Job) -> CanvasShown:
    """Returns the answer of a row after a round."""
    row = event.rows[number]
    tokens = event.after.tokens[number, row.prompt_length : row.answer_end].tolist()
    shown = [None if token == event.after.mask_id else token for token in tokens]
    return CanvasShown(shown, job.num_rounds)
