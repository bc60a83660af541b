"""Log-probabilities of rollouts under a model's present weights, with gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from dllm_decode.core.model import MaskPredictor
from dllm_decode.engine.compatibility import require_model
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.weight_versions import version_of
from dllm_decode.models.predictors.masked_transformer import attention_on, require_own_network
from dllm_decode.rollouts.canvases import Canvases, Steps, canvases_of, require_steps
from dllm_decode.rollouts.rollout import Rollout, Write
from dllm_decode.rollouts.scored_rows import ScoredRow, rows_of
from samplers.checks import require_integer, shown
from samplers.logits.float64 import widest
from samplers.logits.statistics import widen
from samplers.logits.truncation import Truncation

LogprobSource: TypeAlias = Literal["model", "drawn"]
"""The model's distribution at temperature 1, or the one of the draws, see `Commits`."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Log-probabilities of the scored tokens, in nats: one row a rollout, padded to N.

    `(logprobs - recorded).exp()` is the ratio of a token's probabilities that PPO and GRPO clip.
    With a sample of steps, the sum of `weights * logprobs` and its gradient are unbiased estimates
    of those over all steps; a ratio of whole answers would be biased.

    Attributes:
        logprobs: Under the present weights, with gradients; 0 in padding.
        recorded: Under the weights of the decode; `None` if the caller passed canvases.
        weights: 1, or with a sample of steps the size of the stratum that a token's step was drawn
            from; 0 in padding.
        positions: Place of each token in the answer; -1 in padding.
        columns: Columns that the forwards computed, without padding.
        difference: The largest |logprobs - recorded| if the weights are still those of the decode,
            else `None`. It is 0 up to rounding, unless the decode's cache is approximate.
    """

    logprobs: Float[Tensor, "B N"]
    recorded: Float[Tensor, "B N"] | None
    weights: Float[Tensor, "B N"]
    positions: Int[Tensor, "B N"]
    columns: int
    difference: float | None


def score(
    model: MaskPredictor,
    rollouts: Sequence[Rollout],
    *,
    law: LogprobSource = "model",
    steps: Steps = "all",
    shrink: int = 1,
    rows_per_forward: int | None = None,
    generator: torch.Generator | None = None,
) -> Scores:
    """Computes the log-probability of each committed token on the canvas before its step.

        group = next(roll_out(model, tokenizer, questions, temperature=1.0))
        scores = score(model.requires_grad_(), group.rollouts)
        ratio = (scores.logprobs - scores.recorded).exp()

    Tokens that a later step changed are scored too, as are tokens that fill up the last block of a
    block-causal model, because all of them were drawn and other tokens depend on them.

    Source: `shrink` is that of TraceRL, Wang et al. 2025, "Revolutionizing Reinforcement Learning
    Framework for Diffusion Large Language Models", https://arxiv.org/abs/2509.06949. The canvases
    of diffu-GRPO, Zhao et al. 2025, "d1: Scaling Reasoning in Diffusion Large Language Models via
    Reinforcement Learning", https://arxiv.org/abs/2504.12216, are made by `Canvases.of_answer`.

    Args:
        model: A network of this package. Without gradients, `torch.no_grad()` saves memory.
        rollouts: At least one.
        law: "model": the model's distribution at temperature 1. "drawn": the one at the
            decode's temperature, `top_p` and `top_k`, which may exclude a token under new weights
            (-inf); not for rollouts under a constraint.
        steps: "all", or a number of steps: the steps of each rollout are divided into that
            many strata of nearly equal length, and one step of each stratum is drawn, with the
            stratum's size as weight. Or the caller's own `Canvases` of each rollout.
        shrink: Number of successive steps to score on the canvas before the first of these steps:
            above 1, fewer columns are computed and scores are biased; 1: each step has its canvas.
        rows_per_forward: Largest number of rows in a forward; `None`: all of one length and config.
            A row is a canvas, or on block-causal models a rollout. With gradients, the memory of
            all forwards adds up; score fewer rollouts at a time to save memory.
        generator: Draws the steps, on the CPU; `None`: torch's default generator.

    Raises:
        ValueError: Before the first forward, if gradients are on but no parameter requires them,
            rollouts are of another model, or an argument is out of its range.
    """
    require_model(model)
    network = require_own_network(model)
    _require(network, rollouts, law)
    require_steps(steps, len(rollouts))
    require_integer("shrink", shrink, least=1)
    if rows_per_forward is not None:
        require_integer("rows_per_forward", rows_per_forward, least=1)
    chosen: list[Canvases] = []
    commits: list[list[Write]] | None = None
    if isinstance(steps, str | int):
        pairs = [canvases_of(rollout, steps, shrink, generator) for rollout in rollouts]
        chosen, commits = [canvases for canvases, _ in pairs], [writes for _, writes in pairs]
    else:
        for canvases, rollout in zip(steps, rollouts, strict=True):
            canvases.check(rollout, network.vocab_size)
        chosen = list(steps)
    # An optimiser's step needs unpacked parameters too, because a packed one is NaN.
    network.transformer.unpack()
    logprobs, columns = _run_forwards(network, rollouts, chosen, law, rows_per_forward)
    recorded = None if commits is None else [_recorded_logprobs(writes, law) for writes in commits]
    difference = None
    if recorded is not None and shrink == 1:
        difference = _difference(network, rollouts, logprobs, recorded)
    device = network.device
    return Scores(
        logprobs=_padded(logprobs, device),
        recorded=None if recorded is None else _padded(recorded, device),
        weights=_padded([canvases.weights for canvases in chosen], device),
        positions=_padded([canvases.positions for canvases in chosen], device, -1),
        columns=columns,
        difference=difference,
    )


def _require(model: MaskedTransformer, rollouts: object, law: object) -> None:
    """Raises ValueError unless rollouts can be scored by a model."""
    if not isinstance(rollouts, list | tuple) or not rollouts:
        raise ValueError(f"rollouts must be a list of at least one Rollout, got {shown(rollouts)}.")
    if law not in get_args(LogprobSource):
        raise ValueError(f'law must be "model" or "drawn", got {shown(law)}.')
    if torch.is_grad_enabled() and not any(part.requires_grad for part in model.parameters()):
        raise ValueError(
            f"Parameters of {model.name} must require gradients, got none that does. Call "
            "model.requires_grad_() first, or score within torch.no_grad()."
        )
    for number, rollout in enumerate(rollouts):
        if not isinstance(rollout, Rollout):
            raise ValueError(f"rollouts must hold Rollouts, got {shown(rollout)}.")
        _require_model(model, rollout, number)
        if law == "drawn" and rollout.is_constrained:
            raise ValueError(
                'law must be "model" for rollouts under a constraint, whose tokens were drawn '
                f'together from the texts that remained possible, got "drawn" for number {number}.'
            )


def _require_model(model: MaskedTransformer, rollout: Rollout, number: int) -> None:
    """Raises ValueError unless a rollout can be of a model."""
    tokens = (*rollout.prompt, *rollout.tokens, *(write.token for write in rollout.writes))
    end, length = len(rollout.prompt) + rollout.length, model.causal_block_length
    facts = (
        ("model", rollout.model, model.name),
        ("mask_id", rollout.mask_id, model.mask_id),
        ("largest token", max(tokens), min(max(tokens), model.vocab_size - 1)),
        ("end of the last block", end, end - end % length if length else end),
    )
    for name, value, wanted in facts:
        if value != wanted:
            raise ValueError(
                f"Rollouts must be of the model that scores them, {model.name}, got one of "
                f"{rollout.model} as number {number}: its {name} is {value}, not {wanted}."
            )


def _run_forwards(
    model: MaskedTransformer,
    rollouts: Sequence[Rollout],
    chosen: Sequence[Canvases],
    law: LogprobSource,
    rows_per_forward: int | None,
) -> tuple[list[Float[Tensor, " _"]], int]:
    """Runs the forwards; returns each rollout's log-probabilities, and the columns computed."""
    sizes = [len(canvases.canvas) for canvases in chosen]
    firsts = accumulate(sizes[:-1], initial=0)
    rows = [
        row
        for rollout, canvases, first in zip(rollouts, chosen, firsts, strict=True)
        for row in rows_of(model, rollout, canvases, first)
    ]
    if not rows:
        return [torch.zeros(0) for _ in sizes], 0
    logprobs, entries, columns = [], [], 0
    for batch in _batches(rows, rows_per_forward):
        logprobs.append(_log_probabilities(model, batch, law))
        entries += [row.entries for row in batch]
        columns += sum(len(row.tokens) * (2 if row.config.cfg_scale else 1) for row in batch)
    order = torch.cat(entries).argsort().to(model.device)
    return list(torch.cat(logprobs)[order].split(sizes)), columns


def _batches(rows: Sequence[ScoredRow], rows_per_forward: int | None) -> Iterator[list[ScoredRow]]:
    """Yields the rows of each forward: of equal options, and without `attend` of one length."""
    rows_by_options: dict[Any, list[ScoredRow]] = {}
    for row in rows:
        config, length = row.config, len(row.tokens) if row.attend is None else 0
        options = (
            config.temperature,
            config.top_p,
            config.top_k,
            config.cfg_scale,
            config.banned_ids,
        )
        rows_by_options.setdefault((length, options), []).append(row)
    for batch in rows_by_options.values():
        size = rows_per_forward or len(batch)
        for first in range(0, len(batch), size):
            yield batch[first : first + size]


def _log_probabilities(
    model: MaskedTransformer, batch: Sequence[ScoredRow], law: LogprobSource
) -> Float[Tensor, " N"]:
    """Runs one forward (with guidance two), and returns the scored tokens' log-probabilities."""
    config, device = batch[0].config, model.device
    logits = _logits(model, batch, [row.tokens for row in batch])
    if config.cfg_scale:
        hidden = [row.tokens.masked_fill(row.given, model.mask_id) for row in batch]
        unguided = _logits(model, batch, hidden)
        logits = unguided + (1.0 + config.cfg_scale) * (logits - unguided)
    banned = torch.tensor(sorted({model.mask_id, *model.banned_ids, *config.banned_ids}))
    logits = widen(logits).index_fill(-1, banned.to(device), -torch.inf)
    if law == "drawn":
        logits = Truncation(config.temperature, config.top_p, config.top_k)(logits)
    targets = torch.cat([row.targets for row in batch]).to(device)
    logprobs: Tensor = logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    return logprobs


def _logits(
    model: MaskedTransformer, batch: Sequence[ScoredRow], tokens: Sequence[Int[Tensor, " _"]]
) -> Float[Tensor, "N V"]:
    """Returns the logits that predict the scored tokens of all rows, one after the other."""
    device = model.device
    predictors = [row.predictors for row in batch]
    is_real = _padded([torch.ones_like(part, dtype=torch.bool) for part in predictors], device)
    attend = None
    if batch[0].attend is not None:
        width = max(map(len, tokens))
        masks = [row.attend for row in batch if row.attend is not None]
        attend = torch.stack(
            [pad(mask, (0, width - len(mask), 0, width - len(mask))) for mask in masks]
        ).to(device)
    with attention_on(device):
        hidden: Tensor = model.transformer(
            _padded(tokens, device),
            _padded([row.positions for row in batch], device),
            attend=attend,
            wanted=_padded(predictors, device),
        )
    return model.transformer.head(hidden[is_real])


def _padded(
    parts: Sequence[Shaped[Tensor, " _"]], device: torch.device, value: int = 0
) -> Shaped[Tensor, "B _"]:
    """Returns parts as rows, padded to the longest; float32 if the device has no float64."""
    padded = pad_sequence(list(parts), batch_first=True, padding_value=value)
    return padded.to(device, widest(device)) if padded.dtype == torch.float64 else padded.to(device)


def _recorded_logprobs(commits: Sequence[Write], law: LogprobSource) -> Float[Tensor, " N"]:
    """Returns the recorded log-probabilities of commits; -inf where a token was excluded."""
    values = [write.logprob if law == "drawn" else write.model_logprob for write in commits]
    return torch.tensor(
        [-torch.inf if value is None else value for value in values], dtype=torch.float64
    )


def _difference(
    model: MaskedTransformer,
    rollouts: Sequence[Rollout],
    logprobs: Sequence[Float[Tensor, " _"]],
    recorded: Sequence[Float[Tensor, " _"]],
) -> float | None:
    """Returns the largest difference from the record; `None` if the weights have changed."""
    version = version_of(model)
    if any(rollout.weights != version for rollout in rollouts):
        return None
    scored = torch.cat([part.detach().cpu().double() for part in logprobs])
    # Equal infinities have the difference 0, not NaN.
    gaps = torch.where(scored == torch.cat(list(recorded)), 0.0, scored - torch.cat(list(recorded)))
    return float(gaps.abs().max()) if len(gaps) else 0.0
