"""Decodes a batch of examples and scores it: the one way from a run and examples to records."""

from collections.abc import Sequence

from dllm_decode import DecodeConfig, DecodeOutput, Gains, Observer, Trace, decode
from eval.runs.lines import AnswerCost, ScoredExample, tokens_of
from eval.runs.prompts import encode_prompt
from eval.runs.settings import Run
from eval.runs.traces import Proposals, RunnersUp, recorded
from eval.tasks import Example
from eval.tasks.checks import FAILURES, checked_scores


def answer(
    run: Run, examples: Sequence[Example], config: DecodeConfig, observers: Sequence[Observer] = ()
) -> list[ScoredExample]:
    """Decodes one batch and scores the answers, in the order of the examples.

    `run.trace` says whether traces are kept; `config` has the seed of the batch. Raises ValueError
    as `decode`, or if a chat prompt has no template.
    """
    chat = (run.prompts or run.selection.task.prompts) == "chat"
    prompts = [encode_prompt(run.tokenizer, example, chat=chat) for example in examples]
    gains, trace, runners_up, proposals = Gains(), Trace(), RunnersUp(), Proposals()
    traced: Sequence[Observer] = [trace, runners_up, proposals] if run.trace else []
    output = decode(
        run.model, prompts, run.sampler, cache=run.cache, verifier=run.verifier,
        blocks=run.blocks, config=config, observers=[*observers, gains, *traced],
    )  # fmt: skip
    gained = gains.by_row()
    proposed = proposals.of(output.tokens, output.lengths())
    found: list[ScoredExample] = []
    for row, (example, tokens) in enumerate(zip(examples, output.answers(), strict=True)):
        one: ScoredExample = {
            **_scored(run, example, run.tokenizer.decode(tokens, skip_special_tokens=True)),
            **cost_of(prompts[row], output, row),
            "committed": gained[row].committed,
            "gains": gained[row].per_forward,
            "tokens": output.tokens[row].tolist(),
            "trace": None,
        }
        if run.trace:
            lead = len(prompts[row]) % (run.model.causal_block_length or 1)
            told = recorded(trace, runners_up, proposed[row], row, lead)
            pieces = {str(t): run.tokenizer.decode([t]) for t in sorted(tokens_of(one, told))}
            one = {**one, "trace": told, "pieces": pieces}
        found.append(one)
    return found


def cost_of(prompt: Sequence[int], output: DecodeOutput, row: int) -> AnswerCost:
    """Returns what the answer to a prompt cost."""
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


def said_of(error: BaseException) -> str:
    """Returns how a record names an error."""
    return f"{type(error).__name__}: {error}"


def _scored(run: Run, example: Example, text: str) -> ScoredExample:
    task = run.selection.task
    try:
        scores = checked_scores(task.score(example, text), task.primary)
    except FAILURES as error:
        return {"text": text, "error": said_of(error)}
    return {"text": text, "error": None, "scores": scores}
