"""Counters in the format of Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dllm_decode.core.output import DecodeOutput
from dllm_decode.serve.engine import Engine

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        """Begins at 0."""
        self._registry = CollectorRegistry()
        self._registry.register(_Lanes(engine))
        registry = self._registry
        self._responses = Counter(
            "dllm_responses", "HTTP responses", ["path", "status"], registry=registry
        )
        self._prompt_tokens = Counter("dllm_prompt_tokens", "Tokens of prompts", registry=registry)
        self._tokens = Counter("dllm_answer_tokens", "Tokens of answers", registry=registry)
        self._forwards = Counter(
            "dllm_row_forwards", "Forwards, counted for each row", registry=registry
        )
        self._cancelled = Counter(
            "dllm_hang_ups", "Requests whose client went away", registry=registry
        )
        self._first_chunk_s = Histogram(
            "dllm_first_chunk_seconds", "From a request to its first chunk",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._request_s = Histogram(
            "dllm_request_seconds", "From a request to the end of its answer",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def text(self) -> bytes:
        """Returns all counters."""
        return generate_latest(self._registry)

    def responded(self, path: str, status: int) -> None:
        """Counts a response."""
        self._responses.labels(path, str(status)).inc()

    def answered(self, num_prompt_tokens: int, num_tokens: int, output: DecodeOutput) -> None:
        """Counts an answer."""
        self._prompt_tokens.inc(num_prompt_tokens)
        self._tokens.inc(num_tokens)
        self._forwards.inc(int(output.nfe.sum()))

    def hung_up(self) -> None:
        """Counts a client that went away."""
        self._cancelled.inc()

    def first_chunk(self, seconds: float) -> None:
        """Notes how long a stream took to begin."""
        self._first_chunk_s.observe(seconds)

    def ended(self, seconds: float) -> None:
        """Notes how long an answered request took."""
        self._request_s.observe(seconds)


class _Lanes(Collector):
    """The jobs of an engine's lanes at the time of asking."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        running = GaugeMetricFamily("dllm_running", "Answers that have a row", labels=["sampler"])
        waiting = GaugeMetricFamily("dllm_waiting", "Answers that wait", labels=["sampler"])
        for name, lane in self._engine.lanes.items():
            running.add_metric([name], lane.num_running)
            waiting.add_metric([name], lane.num_waiting)
        yield running
        yield waiting
