"""Counters in the format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dllm_decode.core.output import DecodeOutput
from dllm_decode.serve.lanes import Lane, LaneRunner

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The counters of one server, in their own registry."""

    def __init__(self, runner: LaneRunner) -> None:
        """Creates the counters, all at 0."""
        registry = self._registry = CollectorRegistry()
        self.responses = Counter(
            "dllm_responses", "HTTP responses", ["path", "status"], registry=registry
        )
        self.first_chunk_s = Histogram(
            "dllm_first_chunk_seconds", "From a request to its first chunk",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.request_s = Histogram(
            "dllm_request_seconds", "From a request to the end of its answer",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._prompt_tokens = Counter("dllm_prompt_tokens", "Tokens of prompts", registry=registry)
        self._tokens = Counter("dllm_answer_tokens", "Tokens of answers", registry=registry)
        self._forwards = Counter(
            "dllm_row_forwards", "Forwards, counted for each row", registry=registry
        )
        running = Gauge("dllm_running", "Answers that have a row", ["sampler"], registry=registry)
        waiting = Gauge("dllm_waiting", "Answers that wait", ["sampler"], registry=registry)

        def add(name: str, lane: Lane) -> None:
            running.labels(name).set_function(lambda: lane.num_running)
            waiting.labels(name).set_function(lambda: lane.num_waiting)

        for name, lane in runner.lanes.items():
            add(name, lane)

    def text(self) -> bytes:
        """Returns all counters."""
        return generate_latest(self._registry)

    def answered(self, num_prompt_tokens: int, num_tokens: int, output: DecodeOutput) -> None:
        """Counts an answer."""
        self._prompt_tokens.inc(num_prompt_tokens)
        self._tokens.inc(num_tokens)
        self._forwards.inc(int(output.nfe.sum()))
