"""The engine: lanes of requests, each of which is one batch on the loop."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Condition, Thread
from types import TracebackType

from dllm_decode.core.observers import StepEvent, final_tokens
from dllm_decode.core.requests import RequestQueue
from dllm_decode.decoder import Decoder
from dllm_decode.join import Answered
from dllm_decode.loop import run
from dllm_decode.serve.jobs import Drafted, Failed, Finished, Grown, Job
from dllm_decode.serve.limits import Limits

_LOG = logging.getLogger(__name__)
# A model that fails this many times without one answer in between is taken for broken.
_MAX_FAULTS = 3
_FAULT = "The model failed while it decoded this request. The server's log says why."
_ENDING = "The server is being stopped."


class FullError(Exception):
    """Too many requests wait."""


class Turns:
    """A lock that goes to those who wait for it in the order in which they came."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._given = 0
        self._now = 0

    def __enter__(self) -> None:
        with self._condition:
            ticket = self._given
            self._given += 1
            self._condition.wait_for(lambda: self._now == ticket)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._condition:
            self._now += 1
            self._condition.notify_all()

    def pass_on(self) -> None:
        """Lets the others who wait go first, if there are any."""
        if self._given > self._now + 1:
            self.__exit__(None, None, None)
            self.__enter__()


class Lane:
    """The requests of one decoder: those that wait, and those in the rows of its batch.

    One thread owns the batch. Other threads may call `submit`, `cancel` and `close`; the effect
    comes before the next round.
    """

    def __init__(self, decoder: Decoder, limits: Limits, turns: Turns) -> None:
        """Starts the thread.

        Args:
            decoder: As `new_decoder` returns it.
            limits: Rows, columns and waiting requests.
            turns: Shared by all lanes, which run one round each in turn.
        """
        self.decoder = decoder
        self._limits = limits
        self._turns = turns
        self._changed = Condition()
        self._waiting: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._running: dict[int, Job] = {}
        self._queue = RequestQueue()
        self._is_closed = False
        self._num_faults = 0
        self._round_began_s: float | None = None
        self._thread = Thread(target=self._work, name="dllm-decode lane", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Jobs that have a row."""
        return len(self._running)

    @property
    def is_broken(self) -> bool:
        """True if its thread has ended, or the model failed several times in a row."""
        return not self._thread.is_alive() or self._num_faults >= _MAX_FAULTS

    def round_s(self) -> float:
        """Returns for how long the present round has been running; 0 if none is."""
        began = self._round_began_s
        return 0.0 if began is None else time.monotonic() - began

    def submit(self, jobs: Sequence[Job]) -> None:
        """Lets jobs wait for a row.

        Raises:
            FullError: If too many wait already, or the lane is closed; then none of the jobs waits.
        """
        with self._changed:
            if self._is_closed or len(self._waiting) + len(jobs) > self._limits.max_waiting:
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

    def close(self, timeout_s: float) -> None:
        """Ends all jobs at the next round, and the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while self._has_work():
            with self._turns:
                self._round_began_s = time.monotonic()
                try:
                    self._decode()
                # The server must outlive any fault of a model or plug-in.
                except Exception:
                    _LOG.exception("The model failed; requests that were running are answered.")
                    self._num_faults += 1
                    self._end_running(Failed(500, _FAULT))
                self._round_began_s = None
        self._end_running(Failed(503, _ENDING))
        for job in self._waiting:
            job.emit(Failed(503, _ENDING))

    def _has_work(self) -> bool:
        """Waits for a job; returns False once the lane is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return not self._is_closed

    def _decode(self) -> None:
        """Answers jobs until there are none."""
        self._exchange()
        for answer in run(self.decoder, self._queue, self._limits.num_rows, [self._watch]):
            self._finish(answer)
            self._exchange()

    def _watch(self, event: StepEvent) -> None:
        """Is called after each round."""
        jobs = [self._running.get(row.request.index) for row in event.rows]
        for number, job in enumerate(jobs):
            if job is not None:
                job.num_rounds += 1
                if job.watch is not None:
                    job.watch(event, number)
        _show(event, jobs)
        self._exchange()
        self._turns.pass_on()
        self._round_began_s = time.monotonic()

    def _finish(self, answer: Answered) -> None:
        self._num_faults = 0
        job = self._running.pop(answer.request, None)
        if answer.error:
            _LOG.error("One request ended with an error: %s", answer.error)
        if job is not None:
            job.emit(Failed(500, _FAULT) if answer.error else Finished(answer.output))

    def _exchange(self) -> None:
        """Between two rounds: lets cancelled jobs leave and waiting ones join."""
        with self._changed:
            leaving, self._cancelled = self._cancelled, []
            for job in leaving:
                if self._running.pop(job.request.index, None) is not None:
                    self._queue.cancel(job.request.index)
            if self._is_closed:
                for index, job in self._running.items():
                    self._queue.cancel(index)
                    job.emit(Failed(503, _ENDING))
                self._running.clear()
                return
            while self._waiting and self._has_room(self._waiting[0]):
                job = self._waiting.popleft()
                self._running[job.request.index] = job
                self._queue.put(job.request)

    def _has_room(self, job: Job) -> bool:
        limits, jobs = self._limits, self._running.values()
        num_columns = job.num_columns + sum(other.num_columns for other in jobs)
        return len(jobs) < limits.num_rows and (not jobs or num_columns <= limits.max_columns)

    def _end_running(self, event: Failed) -> None:
        """Ends the jobs that have a row, and begins with an empty batch."""
        for job in self._running.values():
            job.emit(event)
        self._running.clear()
        self._queue = RequestQueue()


class Engine:
    """Lanes by name, the first of which serves requests that name none."""

    def __init__(self, decoders: Mapping[str, Decoder], limits: Limits) -> None:
        """Starts the lanes."""
        turns = Turns()
        self.limits = limits
        self.lanes = {name: Lane(decoder, limits, turns) for name, decoder in decoders.items()}

    @property
    def is_broken(self) -> bool:
        """True if a lane cannot answer."""
        return any(lane.is_broken for lane in self.lanes.values())

    def round_s(self) -> float:
        """Returns for how long the longest present round has been running."""
        return max(lane.round_s() for lane in self.lanes.values())

    def close(self) -> None:
        """Ends all jobs and threads; waits for a few seconds at most."""
        for lane in self.lanes.values():
            lane.close(timeout_s=5.0)


def _show(event: StepEvent, jobs: Sequence[Job | None]) -> None:
    """Tells the jobs that asked for it how far they have come."""
    shown = [(n, job) for n, job in enumerate(jobs) if job is not None and job.shown != "nothing"]
    # The host waits for the tokens, so only if someone wants them.
    if not shown:
        return
    prefixes = final_tokens(event.rows, event.after, is_final=event.is_final)
    answers, ended = event.after.answers().tolist(), event.ended.tolist()
    for number, job in shown:
        prefix = prefixes[number]
        if job.shown == "canvas":
            tokens = answers[number][: job.request.gen_length]
            drafted = [None if token == event.after.mask_id else token for token in tokens]
            job.emit(Drafted(drafted, job.num_rounds))
        # The rest of an answer that has ended comes with its last event.
        elif len(prefix) > job.num_shown and not ended[number]:
            job.num_shown = len(prefix)
            job.emit(Grown(prefix))
