"""How wrong a cache is: its conditionals beside the exact ones, along real decodes."""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch
from jaxtyping import Float, Int
from rich.console import Console
from torch import Tensor

from dllm_decode import (
    CachePolicy,
    DecodeConfig,
    DecodeOutput,
    DelayedCache,
    DualCache,
    FreeCache,
    MaskPredictor,
    NoCache,
    NoVerifier,
    PrefixCache,
    Verifier,
    decode,
)
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.core.state import CacheState, State
from dllm_decode.decoder import Decoder, Look
from dllm_decode.loop import new_decoder
from dllm_decode.round import decide
from dllm_decode.settle import settle
from dllm_decode.views import look
from eval.metrics.statistics import mean, standard_error
from eval.runs.command import DTYPES
from eval.runs.files import require_file, write_json
from eval.runs.models import open_address
from eval.runs.names import Selection, parse_blocks, parse_cache, parse_sampler, parse_task
from eval.runs.options import given_of
from eval.runs.prompts import encode_prompt
from eval.runs.sweep import decoding_of
from eval.tasks.tokenizer import Tokenizer
from samplers import Sampler
from samplers.facts import Fact
from samplers.view import View

CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    DualCache(),
    DualCache(refresh_every=8),
    DualCache(before=16, after=16),
    FreeCache("clean"),
    FreeCache("official"),
    DelayedCache(),
)

_SETTINGS = (
    "task", "model", "revision", "dtype", "sampler", "blocks", "num_prompts", "batch_size",
)  # fmt: skip

# Of answers to random prompts.
_RANDOM_LENGTH = 64

Score = Callable[[Sequence[list[int]]], Sequence[float]]
"""Scores answers, token ids before EOS, in the order of the prompts; each in [0, 1]."""


@dataclass(frozen=True)
class CacheError:
    """What one policy does to one model, sampler and set of prompts.

    Attributes:
        cache: Its repr.
        num_prompts: Rows decoded.
        divergence: Mean over prompts of the mean KL(exact || cached) in nats at the positions that
            the sampler could have committed.
        divergence_stderr: Its standard error over prompts.
        changed: Mean over prompts of the share of steps that would have been decided otherwise on
            the exact conditionals of the same canvas.
        changed_stderr: Its standard error over prompts.
        accuracy: Mean score of the answers that have one; `None` if none has.
        accuracy_stderr: Its standard error over prompts.
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


class Tally:
    """Sums over the steps of a decode, one a row."""

    def __init__(self, num_rows: int) -> None:
        self.divergence = torch.zeros(num_rows, dtype=torch.float64)
        self.positions = torch.zeros_like(self.divergence)
        self.changed = torch.zeros_like(self.divergence)
        self.steps = torch.zeros_like(self.divergence)

    def divergences(self) -> list[float]:
        """Returns each row's mean over positions."""
        return (self.divergence / self.positions).tolist()

    def changes(self) -> list[float]:
        """Returns each row's share of steps."""
        return (self.changed / self.steps).tolist()


@dataclass(frozen=True)
class Compared(Verifier):
    """Lets the sampler decide on the cached view, and notes its decision on the exact view.

    The exact view costs a forward a step, which is not counted.

    Attributes:
        tally: Sums of the differences.
    """

    tally: Tally

    @property
    def gives(self) -> frozenset[Fact]:
        return NoVerifier().gives

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        state, seen = look(decoder, state)
        # Nothing is cached for the exact forward, and its layout is another one.
        blank = state._replace(cache=CacheState(state.cache.capacity), layout=None)
        computed, exact = look(replace(decoder, cache=NoCache()), blank)
        self._note(decoder, state, seen, exact)
        return state._replace(breaches=computed.breaches), seen

    def _note(self, decoder: Decoder, state: State, seen: Look, exact: Look) -> None:
        view, tokens = _decided(decoder, state, seen)
        # What is open may depend on the logits, too.
        expected, others = _decided(decoder, state, exact)
        divergence = _divergence(expected.logits, view.logits)
        divergence = divergence.masked_fill(~view.eligible, 0.0)
        rows = [row.request.index for row in state.rows]
        self.tally.divergence[rows] += divergence.sum(-1).cpu()
        self.tally.positions[rows] += view.eligible.sum(-1).cpu()
        self.tally.changed[rows] += (others != tokens).any(-1).cpu()
        self.tally.steps[rows] += 1


def _decided(decoder: Decoder, state: State, seen: Look) -> tuple[View, Int[Tensor, "B L"]]:
    """Returns what the sampler is shown, and the tokens after its decision."""
    after, seen, decision = decide(decoder, state, seen)
    return seen.view, settle(decoder, after, seen, decision).here.tokens


@dataclass(frozen=True)
class Trial:
    """One setting: a model on some prompts with a sampler.

    Attributes:
        model: A model with keys and values.
        prompts: Token ids, one sequence per row.
        sampler: Decides every step, on the cached view.
        decoding: All other options of the decode.
        batch_size: Rows decoded together.
        score: Scores the answers; `None` leaves accuracy out.
        blocks: Which positions are open.
    """

    model: MaskPredictor
    prompts: Sequence[Sequence[int]]
    sampler: Sampler
    decoding: DecodeConfig = DecodeConfig()
    batch_size: int = 16
    score: Score | None = None
    blocks: BlockSchedule = Sequential()

    def check(self, cache: CachePolicy) -> None:
        """Refuses a policy that does not fit, before anything is decoded.

        Raises:
            ValueError: As `decode`.
        """
        new_decoder(self.model, self.sampler, cache=cache, blocks=self.blocks, config=self.decoding)

    def error_of(self, cache: CachePolicy) -> CacheError:
        """Decodes the prompts, each step beside an exact forward on the same canvas.

        Raises:
            ValueError: As `decode`.
        """
        batches = [
            self._decode(self.prompts[first : first + self.batch_size], cache)
            for first in range(0, len(self.prompts), self.batch_size)
        ]
        divergences = [share for tally, _ in batches for share in tally.divergences()]
        changes = [share for tally, _ in batches for share in tally.changes()]
        answers = [answer for _, out in batches for answer in out.answers()]
        scores = None if self.score is None else list(self.score(answers))
        return CacheError(
            cache=repr(cache),
            num_prompts=len(self.prompts),
            divergence=mean(divergences),
            divergence_stderr=standard_error(divergences),
            changed=mean(changes),
            changed_stderr=standard_error(changes),
            accuracy=mean(scores) if scores else None,
            accuracy_stderr=standard_error(scores) if scores else None,
            nfe=mean([nfe for _, out in batches for nfe in out.nfe.tolist()]),
            query_positions=mean([q for _, out in batches for q in out.query_positions.tolist()]),
        )

    def _decode(
        self, prompts: Sequence[Sequence[int]], cache: CachePolicy
    ) -> tuple[Tally, DecodeOutput]:
        tally = Tally(len(prompts))
        out = decode(
            self.model, prompts, self.sampler, cache=cache, verifier=Compared(tally),
            blocks=self.blocks, config=self.decoding,
        )  # fmt: skip
        return tally, out


def run(options: argparse.Namespace) -> int:
    """Measures, and prints the table."""
    caches = [parse_cache(text) for text in options.cache] if options.cache else CACHES
    sampler, blocks = parse_sampler(options.sampler), parse_blocks(options.blocks)
    given = given_of(options)
    decoding = DecodeConfig(**{"gen_length": _RANDOM_LENGTH, **given})
    selection = parse_task(options.task) if options.task else None
    if selection:
        # Before the model is loaded: files may be missing.
        selection.task.require_scorable()
        selection.require_scores(selection.examples())
    written = None if options.json is None else require_file("--json", options.json)
    if options.threads:
        torch.set_num_threads(options.threads)
    model, tokenizer = open_address(
        options.model, device=options.device, dtype=DTYPES[options.dtype],
        revision=options.revision or None, tokenizer="required" if selection else "optional",
    )  # fmt: skip
    prompts = random_prompts(model, options.num_prompts, seed=decoding.seed)
    trial = Trial(model, prompts, sampler, decoding, options.batch_size, blocks=blocks)
    if selection:
        if tokenizer is None:
            raise ValueError(f"A task needs a tokenizer, got none in {options.model}.")
        own = decoding_of(selection, given, blocks)
        trial = on_task(replace(trial, decoding=own), selection, cast(Tokenizer, tokenizer))
    for cache in caches:
        trial.check(cache)
    errors = [trial.error_of(cache) for cache in caches]
    Console().print(markdown(errors), markup=False, highlight=False, soft_wrap=True, end="")
    if written:
        named = {name: value for name, value in vars(options).items() if name in _SETTINGS}
        settings = named | asdict(trial.decoding)
        content = {"settings": settings, "errors": [asdict(error) for error in errors]}
        write_json(written, content)
    return 0


def random_prompts(model: MaskPredictor, num_prompts: int, *, seed: int = 0) -> list[list[int]]:
    """Draws prompts of 16 to 64 ids, none special: for models without text."""
    rng = random.Random(seed)
    special = {model.mask_id, *model.eos_ids, *model.banned_ids}
    ids = [token for token in range(model.vocab_size) if token not in special]
    return [rng.choices(ids, k=rng.randint(16, 64)) for _ in range(num_prompts)]


def on_task(trial: Trial, selection: Selection, tokenizer: Tokenizer) -> Trial:
    """Returns the trial on a task's examples, scored by the task."""
    task = selection.task
    task.require_scorable()
    examples = selection.examples()
    chat = selection.prompts == "chat"

    def score(answers: Sequence[list[int]]) -> list[float]:
        texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        scores = [task.score(example, text) for example, text in zip(examples, texts, strict=True)]
        return [s for found in scores if (s := found[task.primary]) is not None]

    return replace(
        trial,
        prompts=[encode_prompt(tokenizer, example, chat=chat) for example in examples],
        score=score,
    )


def markdown(errors: Sequence[CacheError]) -> str:
    """Lays out a table; a figure is followed by its standard error."""
    lines = [
        f"n = {errors[0].num_prompts} prompts; figures are followed by their standard error",
        "",
        "| cache | KL from exact, nats | decisions changed | accuracy | NFE | query positions |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for error in errors:
        accuracy = "-"
        if error.accuracy is not None and error.accuracy_stderr is not None:
            accuracy = f"{error.accuracy:.3f} ({error.accuracy_stderr:.3f})"
        lines.append(
            f"| `{error.cache}` | {error.divergence:.4f} ({error.divergence_stderr:.4f}) "
            f"| {error.changed:.3f} ({error.changed_stderr:.3f}) | {accuracy} "
            f"| {error.nfe:.1f} | {error.query_positions:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _divergence(
    exact: Float[Tensor, "B W V"], cached: Float[Tensor, "B W V"]
) -> Float[Tensor, "B W"]:
    p, q = exact.double().log_softmax(-1), cached.double().log_softmax(-1)
    # What must never be emitted has no share in either.
    terms = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q))
    return terms.sum(-1).clamp(min=0.0)
