"""The base of samplers that change how another sampler decides."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from samplers.base import Sampler
from samplers.calls import next_step
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.facts import Fact
from samplers.state import SamplerState
from samplers.view import Scope, View


@dataclass(frozen=True)
class Wrapper(Sampler[SamplerState]):
    """Changes how another sampler decides, and has the properties and checks of that sampler.

    A subclass defines `init` and `step`, and overrides properties that differ. A wrapper needs its
    own facts and all facts that the base needs.

    A base that re-masks or edits is refused, because it would change tokens that the wrapper wrote.

    Attributes:
        base: The sampler that is wrapped; it must give `Fact.FINAL_TOKENS`.

    Raises:
        ValueError: If the base cannot be wrapped.
    """

    base: Sampler = field(default_factory=ConfidenceThreshold)

    def __post_init__(self) -> None:
        super().__post_init__()
        fact = Fact.FINAL_TOKENS
        if fact not in self.base.gives:
            raise ValueError(
                f"{type(self).__name__} needs {fact.sentence}, got {self.base!r}. Use "
                f"{self.base!r} alone, or wrap another sampler."
            )

    @property
    def scope(self) -> Scope:
        return self.base.scope

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | self.base.needs

    @property
    def gives(self) -> frozenset[Fact]:
        return self.base.gives

    @property
    def files(self) -> tuple[Path, ...]:
        return self.base.files

    def check_model(self, *, model_name: str, fingerprint: str) -> None:
        self.base.check_model(model_name=model_name, fingerprint=fingerprint)

    def check(self, *, model_name: str, gen_length: int, block_length: int) -> None:
        self.base.check(model_name=model_name, gen_length=gen_length, block_length=block_length)

    def with_tokenizer(self, tokenizer: Any, marker: str = "") -> "Wrapper[SamplerState]":
        return replace(self, base=self.base.with_tokenizer(tokenizer, marker))

    def max_steps(self, num_masks: int) -> int:
        return self.base.max_steps(num_masks)

    def base_init(self, view: View) -> Any:
        """Returns the state in which the base begins, given the wrapper's view."""
        return self.base.init(view.within(self.base.scope))

    def base_step(
        self, view: View, state: SamplerState
    ) -> tuple[Bool[Tensor, "B W"], Int[Tensor, "B W"], SamplerState]:
        """Lets the base decide on the part of the view that it asks for.

        Args:
            view: The wrapper's view.
            state: The base's state.

        Returns:
            Which positions of the wrapper's view the base commits, their tokens, and the base's
            next state.

        Raises:
            RuntimeError: If the decision is one that a base must not make, such as an edit.
        """
        scope = self.base.scope
        part = view.within(scope)
        decision, next_state = next_step(self.base, part, state)
        tokens = part.proposal if decision.tokens is None else decision.tokens
        return view.widened(decision.commit, scope), view.widened(tokens, scope), next_state
