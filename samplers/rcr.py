"""Running confidence re-masking, Mask-Predict with a step a token (RCR)."""

from dataclasses import dataclass
from typing import Annotated

from samplers.checks import count_from
from samplers.mask_predict import MaskPredict


@dataclass(frozen=True)
class RCR(MaskPredict):
    """Fills all masks in each step, and re-masks the tokens of lowest running confidence.

    The running confidence of a token is that of the step that proposed it. After step t of S all
    but floor(m (S - t) / S) of a block's m masks are tokens. This is the rule of `MaskPredict`,
    which RCR found anew; this class has the name under which papers compare with it, and their
    number of steps.

    Source: He et al. 2025, "MDPO: Overcoming the Training-Inference Divide of Masked Diffusion
    Language Models", https://arxiv.org/abs/2508.13148; the rule is that of the authors' code,
    github.com/autonomousvision/mdpo at e6ae439, as ParallelBench has it,
    github.com/furiosa-ai/ParallelBench at 72de8f7, mdpo_rcr.py, with its schedule "linear".
    Differs: With several blocks the authors' code also re-masks tokens of finished blocks; here a
    finished block stays. Their floating-point floor re-masks one token too few in some steps. A
    block of fewer than S masks takes as many steps as it has masks.

    Attributes:
        steps_per_block: Steps of a block, S, at least 1.

    Raises:
        ValueError: If there is no step.
    """

    steps_per_block: Annotated[int, count_from(1)] = 32
