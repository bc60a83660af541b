"""What a verifier shows of the model in one round."""

from collections.abc import Sequence
from typing import NamedTuple

from dllm_decode.core.passes import Window
from dllm_decode.engine.state import State
from samplers.base import Decision
from samplers.view import View


class Look(NamedTuple):
    """A verifier's result of one round.

    Attributes:
        view: The view of the rows that take a step, so of all that do not wait.
        window: The columns of the view, of the same rows.
        waiting: The rows that take no step.
        decision: The verifier's decision within the window; `None`: the sampler decides.
    """

    view: View
    window: Window
    waiting: Sequence[int] = ()
    decision: Decision | None = None

    def stepping(self, state: State) -> Sequence[int]:
        """Returns the rows that take a step."""
        return [row for row in range(len(state.rows)) if row not in self.waiting]
