"""Prompts of token ids, for models without a tokenizer."""

import random
from dataclasses import dataclass

from dllm_decode import MaskPredictor
from eval.tasks import Example, Task
from eval.tasks.base import Turn


class TokenIds:
    """A tokenizer for models without text: ids, separated by spaces."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(token) for token in text.split()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, token_ids))

    def apply_chat_template(self, conversation: list[Turn], **options: bool) -> str:
        raise ValueError("Token ids have no chat template.")


@dataclass(frozen=True)
class TokenPrompts(Task):
    """Prompts of token ids, whose answers are neither right nor wrong."""

    ids: tuple[tuple[int, ...], ...]
    name = "token ids"
    version = 1
    primary = "answer"
    gen_length = 64
    prompts = "plain"

    @staticmethod
    def random(model: MaskPredictor, num_prompts: int, *, seed: int = 0) -> "TokenPrompts":
        """Draws prompts of 16 to 64 ids, none special."""
        rng = random.Random(seed)
        special = {model.mask_id, *model.eos_ids, *model.banned_ids}
        ids = [token for token in range(model.vocab_size) if token not in special]
        return TokenPrompts(
            tuple(tuple(rng.choices(ids, k=rng.randint(16, 64))) for _ in range(num_prompts))
        )

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> list[Example]:
        return [Example(" ".join(map(str, ids)), "", id=str(i)) for i, ids in enumerate(self.ids)]

    def score(self, example: Example, text: str) -> dict[str, float | None]:
        return {"answer": None}
