"""Embedded models with prompts of the tasks that they know."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dllm_decode import MaskPredictor, load_model
from eval.runs.names import parse_task
from eval.runs.prompts import PromptTokenizer, encode_prompt
from eval.tasks import Example, Task

MODELS = {"word_problems": "mini", "ledgers": "mini-long"}
"""By task the embedded model that knows it."""


class World(NamedTuple):
    """A model and the prompts of some examples."""

    model: MaskPredictor
    tokenizer: PromptTokenizer
    task: Task
    examples: Sequence[Example]
    prompts: list[list[int]]

    def encode(self, example: Example) -> list[int]:
        """Returns the tokens of an example's prompt."""
        return encode_prompt(self.tokenizer, example, chat=True)

    def scores(self, texts: Sequence[str]) -> list[float]:
        """Returns 1 for every right answer, 0 for the others."""
        pairs = zip(self.examples, texts, strict=True)
        return [float(self.task.score(one, text)[self.task.primary] or 0.0) for one, text in pairs]


def open_world(
    name: str, limit: int, *, model: str = "", dtype: torch.dtype | None = None, **place: Any
) -> World:
    """Loads a model and the first prompts of a task."""
    loaded, tokenizer = load_model(model or MODELS[name], dtype=dtype, **place)
    assert tokenizer is not None
    selection = parse_task(f"{name}?limit={limit}")
    examples = selection.examples()
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    return World(loaded, tokenizer, selection.task, examples, prompts)
