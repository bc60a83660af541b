"""The contract of a verifier: the forwards of a round, and who decides after them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.requests import Request
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from samplers.base import Decision, Sampler
from samplers.facts import PlugIn
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


class Verifier(PlugIn, ABC):
    """Runs the forwards of a round, if any are needed; may decide which tokens are kept.

    The sampler decides after the forwards, unless the verifier has decided in its place.
    `state.verifier_state` is a NamedTuple of tensors, nested as needed, batch axis first. Rows that
    join get zeros, the values of rows that leave are dropped. The loop opens blocks before the
    look, and asks the sampler after it.
    """

    @property
    def num_branches(self) -> int:
        """The most branches of one row that are rows of one forward, each with its own cache."""
        return 1

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the verifier was read from, such as a target's weights."""
        return ()

    def check(self, model: MaskPredictor) -> None:
        """Raises ValueError if the verifier cannot serve this model; by default it always can."""

    def check_request(self, decoder: Decoder, request: Request) -> None:
        """Raises ValueError if the verifier cannot serve a request; by default it always can."""

    @property
    def asks_sampler(self) -> bool:
        """True if the sampler is ever asked; otherwise records of a run do not name the sampler."""
        return True

    def eos_ids(self, model: MaskPredictor) -> tuple[int, ...]:
        """Returns the tokens that end an answer; the first one fills the columns after the end."""
        return model.eos_ids

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        """Returns the number of steps within which `num_masks` masks are settled."""
        return sampler.max_steps(num_masks)

    @abstractmethod
    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        """Runs forwards as needed and returns the view of the rows that take a step.

        At least one row takes a step. `dllm_decode.engine.look.look` makes the sampler's own view;
        `dllm_decode.engine.forward.forward` returns logits of any window, columns and drafts.
        """

    def after(self, decoder: Decoder, state: State) -> tuple[State, Int[Tensor, "B N"] | None]:
        """Updates `verifier_state` after the round has written tokens; by default does nothing.

        Returns:
            The state, and numbers of each row, which the host reads into `PluginNumbers.verifier`.
        """
        return state, None
