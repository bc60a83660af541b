"""The result of a decode."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.commits import Commits
from dllm_decode.core.rows import Row


@dataclass(frozen=True)
class DecodeOutput:
    """Answers and their cost.

    Attributes:
        tokens: The answers, `gen_length` tokens a row. Positions that were still unsettled when the
            row stopped hold an EOS.
        unsettled: True at positions that were still unsettled. A row that a stop rule has ended may
            have settled tokens after them.
        nfe: Calls of the model in each row's forwards: one a forward, two with guidance.
        query_positions: Columns computed for each row, summed over these calls.
        forwards: Calls of the model for the whole batch.
        target_nfe: Forwards of a verifier's causal target that each row took part in.
        target_forwards: Calls of that target for the whole batch.
        drafted: Tokens that a verifier had drafted for each row.
        accepted: Drafted tokens that were verified and kept; a forward commits further tokens that
            the sampler or the target itself decided.
        wall_s: Seconds that the decode took; for a row of `decode_many`, since the row joined.
        eos_ids: Tokens that end an answer.
        commits: At which step each token was committed, and how likely it was; `None` unless
            `return_logprobs` was set.
    """

    tokens: Int[Tensor, "B G"]
    unsettled: Bool[Tensor, "B G"]
    nfe: Int[Tensor, " B"]
    query_positions: Int[Tensor, " B"]
    forwards: int
    target_nfe: Int[Tensor, " B"]
    target_forwards: int
    drafted: Int[Tensor, " B"]
    accepted: Int[Tensor, " B"]
    wall_s: float
    eos_ids: tuple[int, ...]
    commits: Commits | None = None

    def lengths(self) -> Int[Tensor, " B"]:
        """Counts the tokens of each of `answers`, and the EOS that ends it if it was committed."""
        num_settled = (~self.unsettled).sum(-1).tolist()
        ends = zip(self.answers(), num_settled, strict=True)
        return torch.tensor([min(len(answer) + 1, settled) for answer, settled in ends])

    def answers(self) -> list[list[int]]:
        """Returns each row's token ids before its first EOS.

        Positions that were still unsettled when the row stopped are left out.
        """
        rows = zip(self.tokens, ~self.unsettled, strict=True)
        return [before_end(tokens[settled].tolist(), self.eos_ids) for tokens, settled in rows]

    @property
    def tokens_per_forward(self) -> float:
        """The ratio of all answers' lengths to all rows' forwards."""
        return self.lengths().sum().item() / max(1, int(self.nfe.sum()))


def before_end(tokens: Iterable[int], eos_ids: Collection[int]) -> list[int]:
    """Returns the tokens before the first token that ends an answer."""
    return list(takewhile(lambda token: token not in eos_ids, tokens))


def join_outputs(
    outputs: Sequence[DecodeOutput], *, forwards: int, target_forwards: int, wall_s: float
) -> DecodeOutput:
    """Joins the outputs of rows that were decoded together into one output.

    Args:
        outputs: Outputs of one row each, with answers of one length.
        forwards: Calls of the model for all of them.
        target_forwards: Calls of a verifier's target for all of them.
        wall_s: Seconds for all of them.
    """
    of_rows: dict[str, Any] = {
        name: torch.cat([getattr(output, name) for output in outputs])
        for name, value in vars(outputs[0]).items()
        if isinstance(value, Tensor)
    }
    commits = Commits.of([output.commits for output in outputs])
    costs: Any = {"forwards": forwards, "target_forwards": target_forwards, "wall_s": wall_s}
    return replace(outputs[0], **of_rows, **costs, commits=commits)


def final_tokens(rows: Sequence[Row], canvas: Canvas, *, is_final: bool) -> list[list[int]]:
    """Returns for each row the beginning of its answer that never changes, before its first EOS.

    Args:
        rows: The rows.
        canvas: The tokens of these rows.
        is_final: True if a settled token never changes; otherwise the open block is left out until
            it is finished.
    """
    answers = []
    for row, tokens in zip(rows, canvas.tokens.tolist(), strict=True):
        is_open = row.first_unsettled < row.opening.stop
        stop = row.first_unsettled if is_final or not is_open else row.opening.start
        answer = tokens[row.prompt_length : min(stop, row.answer_end)]
        answers.append(before_end(answer, canvas.eos_ids))
    return answers
