"""The error of a cache: its conditionals against the exact ones, along real decodes."""

import argparse
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace

import torch
from jaxtyping import Float, Int
from rich.console import Console
from torch import Tensor

from dllm_decode import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    Verifier,
)
from dllm_decode.blocks import BlockSchedule
from dllm_decode.core.sending import send
from dllm_decode.engine.decide import decide
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.settle import settle
from dllm_decode.engine.state import CacheState, Look, State
from dllm_decode.settings.files import output_file, write_json
from dllm_decode.settings.models import open_model
from dllm_decode.settings.options import given_of
from dllm_decode.settings.plugins import parse
from eval.grid import show_grid
from eval.metrics.statistics import mean, standard_error
from eval.runs.answers import answer
from eval.runs.names import parse_task
from eval.runs.records import ScoredExample
from eval.runs.runner import Checked
from eval.runs.settings import Run, decoding_of
from eval.runs.sweep import warn_of_unknown_words
from samplers import Sampler
from samplers.expression import expression_of
from samplers.facts import Fact
from samplers.view import View

CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    DualCache(),
    DualCache(refresh_every=8),
    DualCache(before=16, after=16),
    FreeCache(),
    DelayedCache(),
)

_SETTINGS = (
    "task", "model", "revision", "dtype", "sampler", "verifier", "blocks", "batch_size",
)  # fmt: skip


@dataclass(frozen=True)
class CacheError:
    """The error of one cache policy for one model, sampler and set of prompts.

    Standard errors are over prompts.

    Attributes:
        cache: The expression of the policy.
        divergence: Mean over prompts of the mean KL(exact || cached) in nats at the positions that
            the sampler could have committed.
        changed: Mean over prompts of the share of steps that would have been decided otherwise on
            the exact conditionals of the same canvas.
        accuracy: Mean of the scores that are defined; `None` if none is.
        nfe: Mean forwards of a row.
        query_positions: Mean columns computed for a row.
    """

    cache: str
    num_prompts: int
    divergence: float
    divergence_stderr: float
    changed: float
    changed_stderr: float
    accuracy: float | None
    accuracy_stderr: float | None
    nfe: float
    query_positions: float


def compared(inner: Verifier, sums: Float[Tensor, "4 B"]) -> Verifier:
    """Returns a verifier that also compares each step with the exact view of the same canvas.

    The exact view costs a forward a step, which is not counted. `sums` has, for each row of the
    decode, the sums of divergences, their positions, changed decisions and steps.
    """

    def look(decoder: Decoder, state: State) -> tuple[State, Look]:
        state, seen = inner.look(decoder, state)
        # The exact forward uses no cache, and has another layout.
        blank = state._replace(cache=CacheState(state.cache.capacity), layout=None)
        computed, exact = NoVerifier().look(replace(decoder, cache=NoCache()), blank)
        _note(decoder, state, seen, exact, sums)
        return state._replace(breaches=computed.breaches), seen

    noting = copy(inner)
    # Set on the object, so that everything else stays as in the verifier.
    object.__setattr__(noting, "look", look)
    return noting


def _note(
    decoder: Decoder, state: State, seen: Look, exact: Look, sums: Float[Tensor, "4 B"]
) -> None:
    """Adds the differences between two looks of one canvas to the sums of the rows that step."""
    stepping = seen.stepping(state)
    part = state.take(stepping)
    if seen.waiting:
        exact = Look(exact.view.take(send(stepping, state.device)), seen.window)
    view, tokens = _decided(decoder, part, seen)
    # The open positions may depend on the logits, too.
    expected, expected_tokens = _decided(decoder, part, exact)
    divergence = _divergence(expected.logits, view.logits)
    divergence = divergence.masked_fill(~view.eligible, 0.0)
    changed = (expected_tokens != tokens).any(-1)
    parts = (divergence.sum(-1), view.eligible.sum(-1), changed, torch.ones_like(changed))
    rows = [row.request.index for row in part.rows]
    sums[:, rows] += torch.stack([values.double() for values in parts]).cpu()


def _decided(decoder: Decoder, state: State, seen: Look) -> tuple[View, Int[Tensor, "B L"]]:
    """Returns the sampler's view, and the tokens after its decision; no row of the state waits."""
    after, seen, decision = decide(decoder, state, seen)
    return seen.view, settle(decoder, after, seen, decision)[0].canvas.tokens


def error_of(run: Run) -> CacheError:
    """Decodes the examples of a run as `decode` does, with an exact forward for each step."""
    examples = run.selection.examples()
    divergences: list[float] = []
    changes: list[float] = []
    answers: list[ScoredExample] = []
    for first in range(0, len(examples), run.batch_size):
        batch = examples[first : first + run.batch_size]
        sums = torch.zeros(4, len(batch), dtype=torch.float64)
        noting = replace(run, verifier=compared(run.verifier, sums), trace=False)
        answers += answer(noting, batch, run.decoding)
        divergences += (sums[0] / sums[1]).tolist()
        changes += (sums[2] / sums[3]).tolist()
    primary = run.selection.task.primary
    # An answer whose scorer raised is wrong, as in a report.
    all_scores = [0.0 if a["error"] is not None else a["scores"][primary] for a in answers]
    scores = [score for score in all_scores if score is not None]
    return CacheError(
        cache=expression_of(run.cache),
        num_prompts=len(examples),
        divergence=mean(divergences),
        divergence_stderr=standard_error(divergences),
        changed=mean(changes),
        changed_stderr=standard_error(changes),
        accuracy=mean(scores) if scores else None,
        accuracy_stderr=standard_error(scores) if scores else None,
        nfe=mean([a["nfe"] for a in answers]),
        query_positions=mean([a["query_positions"] for a in answers]),
    )


def run(options: argparse.Namespace) -> int:
    """Measures, and prints the table."""
    caches = [parse(text, CachePolicy) for text in options.cache] if options.cache else CACHES
    sampler, blocks = parse(options.sampler, Sampler), parse(options.blocks, BlockSchedule)
    verifier = parse(options.verifier, Verifier)
    if Fact.SAMPLER_DECIDES not in verifier.gives:
        raise ValueError(
            f"--verifier must be {Fact.SAMPLER_DECIDES.sentence}, because its decisions are "
            f"compared, got {verifier!r}. Use {Fact.SAMPLER_DECIDES.remedy}."
        )
    selection = parse_task(options.task)
    # Before the model is loaded: files may be missing.
    selection.require_scores(selection.examples())
    written = None if options.json is None else output_file("--json", options.json)
    loaded = open_model(options.model, options, options.revision)
    base = Run(
        loaded.model, loaded.tokenizer, selection, sampler, blocks=blocks, verifier=verifier,
        decoding=decoding_of(selection, given_of(options), blocks), batch_size=options.batch_size,
        model_source=loaded.source,
    )  # fmt: skip
    runs = [replace(base, cache=cache) for cache in caches]
    examples = selection.examples()
    for cache_run in runs:
        cache_run.check(examples)
    warn_of_unknown_words([Checked(base, examples, base.settings(examples))])
    errors = [error_of(cache_run) for cache_run in runs]
    console = Console(highlight=False)
    console.print(f"n = {len(examples)} prompts; figures are followed by their standard error\n")
    show_grid(console, grid_of(errors))
    if written:
        named = {name: value for name, value in vars(options).items() if name in _SETTINGS}
        settings = named | {"num_prompts": len(examples)} | asdict(base.decoding)
        content = {"settings": settings, "errors": [asdict(error) for error in errors]}
        write_json(written, content)
    return 0


def grid_of(errors: Sequence[CacheError]) -> list[list[str]]:
    """Returns the head and the rows of a table; a figure is followed by its standard error."""
    head = "cache", "KL from exact, nats", "decisions changed", "accuracy", "NFE", "query positions"
    grid = [list(head)]
    for error in errors:
        grid.append([
            f"`{error.cache}`",
            _told(error.divergence, error.divergence_stderr, 4),
            _told(error.changed, error.changed_stderr, 3),
            _told(error.accuracy, error.accuracy_stderr, 3),
            f"{error.nfe:.1f}",
            f"{error.query_positions:.0f}",
        ])  # fmt: skip
    return grid


def _told(value: float | None, stderr: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} ({stderr:.{digits}f})"


def _divergence(
    exact: Float[Tensor, "B W V"], cached: Float[Tensor, "B W V"]
) -> Float[Tensor, "B W"]:
    p, q = exact.double().log_softmax(-1), cached.double().log_softmax(-1)
    # Tokens that must never be emitted have probability 0 in both.
    terms = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q))
    return terms.sum(-1).clamp(min=0.0)
