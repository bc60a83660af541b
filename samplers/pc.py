"""Early and informative positions first (PC-Sampler)."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.base import ASSETS, Decision, Sampler
from samplers.checks import NonNegative, count_from
from samplers.fixed_schedule import ScheduleState, quota_to_the_end
from samplers.logits.statistics import highest
from samplers.view import View

# The authors' value, added to each frequency.
_SMOOTHING = 1e-9


@dataclass(frozen=True)
class PC(Sampler[ScheduleState]):
    """Commits the positions of highest score, as many as `FixedSchedule` would.

    The score of position i of the block, from 0, is exp(-decay i) min(-p ln f, most): p is the
    confidence, and f how frequent the proposed token is in a corpus. Early positions come first,
    and rare tokens before frequent ones.

    The frequencies are a JSON file of the authors' form: `{"num_token": N, "p_baseline_dict":
    {"17": 3, ...}}`, the tokens of the corpus and how often each occurs. A token that does not
    occur counts as one that occurs once. The file must be made with the model's tokenizer.

    Source: Huang et al. 2025, "PC-Sampler: Position-Aware Calibration of Decoding Bias in Masked
    Diffusion Models", https://arxiv.org/abs/2508.13021; the rule is that of the authors' code,
    github.com/NEUIR/PC-Sampler at 8b106b0, generate.py, which multiplies by p where a cross-entropy
    would sum over tokens.
    Differs: Steps whose quota is zero are skipped, not run. Equal scores commit from the left.

    Attributes:
        steps_per_block: Steps in which a whole block is committed, at least 1.
        decay: How fast later positions lose weight, at least 0; 0.25 is the authors' value for
            code and mathematics, 0 leaves positions out.
        most: The largest weighted information, in nats, so that a very rare token does not come
            first at any confidence.
        frequencies: An embedded file's name, or the path of a file.

    Raises:
        ValueError: If an attribute is outside its range or, when the first block is decoded, the
            file is not of this form.
        FileNotFoundError: If there is no such file.
    """

    steps_per_block: Annotated[int, count_from(1)] = 32
    decay: NonNegative = 0.25
    most: NonNegative = 10.0
    frequencies: str = "mini"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.frequencies, str):
            raise ValueError(f"frequencies must be a name or a path, got {self.frequencies!r}.")

    @property
    def files(self) -> tuple[Path, ...]:
        embedded = ASSETS / f"frequencies-{self.frequencies}.json"
        return (embedded if embedded.is_file() else Path(self.frequencies),)

    @cached_property
    def information(self) -> Float[Tensor, " n"]:
        """-ln f of each token, in nats; the last number is that of all further tokens."""
        (path,) = self.files
        try:
            content = json.loads(path.read_text())
            total = int(content["num_token"])
            counts = {int(token): int(count) for token, count in content["p_baseline_dict"].items()}
            occurrences = torch.ones(max(counts, default=-1) + 2, dtype=torch.float64)
            occurrences[list(counts)] = torch.tensor(list(counts.values()), dtype=torch.float64)
            return -(occurrences / total + _SMOOTHING).log().float()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                'frequencies must be a JSON file {"num_token": ..., "p_baseline_dict": {...}}, got '
                f"{self.frequencies!r} ({error}). See help(samplers.PC)."
            ) from error

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        """Copies of `information` by device, so that each device is sent one."""
        return {}

    def init(self, view: View) -> ScheduleState:
        return ScheduleState.at_start(view.eligible.sum(-1))

    def step(self, view: View, state: ScheduleState) -> tuple[Decision, ScheduleState]:
        masks, steps = state
        quota = quota_to_the_end(view, state, self.steps_per_block).clamp(min=1)
        commit = highest(self.scores(view), view.eligible, quota)
        return Decision(commit), ScheduleState(masks, steps + 1)

    def scores(self, view: View) -> Float[Tensor, "B W"]:
        """Returns the score of each position of the block."""
        device = view.tokens.device
        if device not in self._copies:
            self._copies[device] = self.information.to(device)
        information = self._copies[device]
        rarity = information[view.proposal.clamp(max=len(information) - 1)]
        columns = torch.arange(view.tokens.shape[1], device=device)
        weights = (-self.decay * columns.to(view.dtype)).exp()
        return weights * (view.confidence * rarity).clamp(max=self.most)
