"""Words the errors of rows in which a plug-in broke a rule."""

from collections.abc import Sequence

from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import Breach, State
from dllm_decode.engine.verifier import Look
from samplers.facts import Fact


def errors_of(
    decoder: Decoder,
    state: State,
    seen: Look,
    stepping: Sequence[int],
    broken: Sequence[Sequence[int]],
) -> list[str]:
    """Returns the first error of each row, "" where no rule was broken."""
    errors = [""] * len(state.rows)
    for breach, values in zip(state.breaches, broken, strict=True):
        for row, is_broken in zip(breach.rows, values, strict=True):
            if is_broken and not errors[row]:
                errors[row] = _error(decoder, state, seen, stepping, breach, row)
    return errors


def _error(
    decoder: Decoder,
    state: State,
    seen: Look,
    stepping: Sequence[int],
    breach: Breach,
    row: int,
) -> str:
    """Returns the sentence that names a rule broken in a row, and the plug-in that broke it."""
    culprit, duty = breach.culprit, breach.duty
    # Read only now, because the host waits: no sampler can commit if nothing is eligible.
    has_decided = culprit is decoder.sampler and row in stepping
    if has_decided and not seen.view.eligible[stepping.index(row)].any():
        if not decoder.tokens_are_final:
            return f"{culprit} must re-mask tokens of the open block only, and re-masked another."
        opens_whole_blocks = Fact.WHOLE_BLOCKS in decoder.blocks.gives
        culprit = decoder.verifier if opens_whole_blocks else decoder.blocks
        duty = "leave at least one unsettled position of every row eligible"
        if seen.view.eligible.is_inference():
            # A schedule or verifier made this view, and no write into it was counted.
            duty += f", unless {decoder.sampler} wrote into view.eligible"
    return f"{culprit} must {duty}, and did not in round {state.num_rounds + 1}."
