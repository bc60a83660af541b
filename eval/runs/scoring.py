"""Decodes a batch of examples and scores the answers; nothing else makes scored records."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode import DecodeConfig, DecodeOutput, Gains, Observer, StepEvent, Trace, decode
from eval.runs.prompts import encode_prompt, templates_of
from eval.runs.records import AnswerCost, RecordedTrace, ScoredExample, TokenDistribution, tokens_of
from eval.runs.settings import Run
from eval.tasks import Example
from eval.tasks.task_checks import FAILURES, checked_scores
from samplers.logits.noise import wrap_seed

NUM_TOKENS = 4

# Distance of the seeds of batches.
_BATCH_STRIDE = 1 << 32


def decode_and_score(
    run: Run, examples: Sequence[Example], config: DecodeConfig, observers: Sequence[Observer] = ()
) -> list[ScoredExample]:
    """Decodes one batch and scores the answers, in the order of the examples.

    `run.trace` says whether traces are kept; `config` has the seed of the batch. Raises ValueError
    as `decode`, or if a chat prompt has no template.
    """
    chat = (run.prompts or run.selection.task.prompts) == "chat"
    prompts = [encode_prompt(run.tokenizer, example, chat=chat) for example in examples]
    gains, trace, runners_up, since = Gains(), Trace(), RunnersUp(), LikelySince()
    traced: Sequence[Observer] = [trace, runners_up, since] if run.trace else []
    output = decode(
        run.model, prompts, run.sampler, cache=run.cache, verifier=run.verifier,
        blocks=run.blocks, config=config, observers=[*observers, gains, *traced],
        templates=templates_of(run.tokenizer, run.model, examples, config.gen_length),
        constraint=run.automaton(),
    )  # fmt: skip
    gained = gains.by_row()
    results: list[ScoredExample] = []
    for row, (example, tokens) in enumerate(zip(examples, output.answers(), strict=True)):
        result: ScoredExample = {
            **_score(run, example, run.tokenizer.decode(tokens, skip_special_tokens=True)),
            **cost_of(prompts[row], output, row),
            "committed": gained[row].committed,
            "gains": gained[row].per_forward,
            "tokens": output.tokens[row].tolist(),
            "trace": None,
        }
        if run.trace:
            lead = len(prompts[row]) % (run.model.causal_block_length or 1)
            recorded_trace = _record_of_trace(trace, runners_up, row, lead)
            start = result_start(tokens, run.marker)
            decided = since.decided(row, range(start, len(tokens)))
            recorded_trace["decided"] = decided, trace.num_steps[row]
            pieces = {
                str(t): run.tokenizer.decode([t]) for t in sorted(tokens_of(result, recorded_trace))
            }
            result = {**result, "trace": recorded_trace, "pieces": pieces}
        results.append(result)
    return results


def cost_of(prompt: Sequence[int], output: DecodeOutput, row: int) -> AnswerCost:
    """Returns the cost of the answer to a prompt."""
    return {
        "prompt_length": len(prompt),
        "length": int(output.lengths()[row]),
        "nfe": int(output.nfe[row]),
        "query_positions": int(output.query_positions[row]),
        "target_nfe": int(output.target_nfe[row]),
        "drafted": int(output.drafted[row]),
        "accepted": int(output.accepted[row]),
        "batch_length": len(output.tokens),
        "batch_forwards": output.forwards,
        "batch_target_forwards": output.target_forwards,
        "batch_s": output.wall_s,
    }


def batch_seed(seed: int, number: int) -> int:
    """Returns the seed of a batch, so far from others that no two rows of a run share noise."""
    return wrap_seed(seed + _BATCH_STRIDE * number)


def error_text(error: BaseException) -> str:
    """Returns the text that names an error in a record."""
    return f"{type(error).__name__}: {error}"


def _score(run: Run, example: Example, text: str) -> ScoredExample:
    task = run.selection.task
    try:
        scores = checked_scores(task.score(example, text), task.primary)
    except FAILURES as error:
        return {"text": text, "error": error_text(error)}
    return {"text": text, "error": None, "scores": scores}


class RunnersUp:
    """Observes a decode and keeps, for each answer position, the distribution it was drawn from.

    Positions are those of `Trace`; the last commit of a position counts. `distributions`
    has them by the prompt's index and the position.
    """

    def __init__(self) -> None:
        self.distributions: dict[int, dict[int, TokenDistribution]] = {}

    def __call__(self, event: StepEvent) -> None:
        columns = event.columns
        before, after = (part.tokens.gather(1, columns) for part in (event.before, event.after))
        committed = ~event.after.masked.gather(1, columns) & (before != after)
        top = event.view.likeliest(min(NUM_TOKENS, event.view.vocab_size))
        rows, at = committed.nonzero(as_tuple=True)
        # Once for all rows, because the CPU waits for each of these.
        parts = (event.view.positions, event.view.entropy, top.tokens, top.probabilities)
        values = (part[rows, at].tolist() for part in parts)
        entries = zip(event.request_indices[rows].tolist(), *values, strict=True)
        for request, position, nats, ids, shares in entries:
            likely = [(i, round(p, 4)) for i, p in zip(ids, shares, strict=True)]
            by_position = self.distributions.setdefault(request, {})
            by_position[position] = (round(nats, 4), likely)

    def of(self, request: int, steps: list[int]) -> list[TokenDistribution | None]:
        """Returns the distribution of each position that a step committed, otherwise None."""
        by_position = self.distributions.get(request, {})
        return [by_position.get(at) if step >= 0 else None for at, step in enumerate(steps)]


class LikelySince:
    """Observes a decode and finds since which step each position's token is the most likely one.

    A committed token counts as the most likely one as long as it stays. Positions that no view has
    shown yet, such as those of later blocks, count as undecided. Positions are those of `Trace`.
    """

    def __init__(self) -> None:
        self._since: dict[int, Int[Tensor, " G"]] = {}
        self._tokens: dict[int, Int[Tensor, " G"]] = {}
        self._steps: Counter[int] = Counter()

    def __call__(self, event: StepEvent) -> None:
        view, columns = event.view, event.columns
        after, masked = (
            part.gather(1, columns) for part in (event.after.tokens, event.after.masked)
        )
        likely = torch.where(masked, view.most_likely, after)
        is_shown = view.in_answer & (view.masked | ~masked)
        # Once for all rows, because the CPU waits for each of these.
        likely, is_shown, positions = likely.cpu(), is_shown.cpu(), view.positions.cpu()
        for index, row in enumerate(event.rows):
            request, length = row.request.index, row.config.gen_length
            self._steps[request] += 1
            tokens = self._tokens.setdefault(request, torch.full((length,), -1))
            since = self._since.setdefault(request, torch.zeros(length, dtype=torch.long))
            where, shown = positions[index, is_shown[index]], likely[index, is_shown[index]]
            since[where] = torch.where(tokens[where] == shown, since[where], self._steps[request])
            tokens[where] = shown

    def decided(self, request: int, positions: Iterable[int]) -> int:
        """Returns the first step, from 1, since which all positions have had their final token."""
        since = self._since[request].tolist()
        return max((since[position] for position in positions), default=0)


def result_start(tokens: Sequence[int], marker: Sequence[int]) -> int:
    """Returns where the result begins in an answer; 0 if the answer has no marker."""
    length = len(marker)
    places = range(len(tokens) - length + 1)
    return next((at + length for at in places if list(tokens[at : at + length]) == list(marker)), 0)


def _record_of_trace(trace: Trace, runners_up: RunnersUp, row: int, lead: int) -> RecordedTrace:
    """Returns step and confidence of each position; -1 and None where no round committed it.

    `lead` counts the prompt tokens in the first block of a block-causal model.
    """
    steps = trace.steps[row].tolist()
    return {
        "steps": steps,
        "runners_up": runners_up.of(row, steps),
        "confidences": [_rounded(value) for value in trace.confidences[row].tolist()],
        "revisions": [
            (r.position, r.token, r.committed, _rounded(r.confidence), r.removed)
            for r in trace.revisions[row]
        ],
        "lead": lead,
    }


def _rounded(confidence: float) -> float | None:
    return None if math.isnan(confidence) else round(confidence, 4)
