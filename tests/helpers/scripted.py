"""A server whose model writes the texts that a test sets, and a client of OpenAI."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from served import byte_level, decoder_of, served
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from toys import HashModel
from transformers import AddedToken, PreTrainedTokenizerFast

from dllm_decode.core.model import ForwardInputs
from dllm_decode.serve.limits import Limits
from samplers import FixedSchedule

# The tags of Gemma are special tokens, those of Hermes are not.
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
SPECIAL = [
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<|channel>",
    "<channel|>",
    "<assistant>",
    "<other>",
    "[MASK]",
]
TURNS = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for turn in messages %}"
    "{{ turn.role }} {{ turn.reasoning_content }} {{ turn.content }}"
    "{% for call in turn.tool_calls or [] %}{{ call.function.name }}{% endfor %}\n{% endfor %}"
    "<assistant>"
)


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(sorted(ByteLevel.alphabet())), eos_token="<eos>",
        mask_token="[MASK]", chat_template=template,
    )  # fmt: skip
    tokenizer.add_tokens([AddedToken(text, special=False) for text in PLAIN])
    tokenizer.add_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer


@dataclass
class Scripted(HashModel):
    """Answers every prompt that ends with `<assistant>` with one script."""

    assistant_id: int = 0
    script: list[int] = field(default_factory=list)

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = torch.zeros(*inputs.wanted.shape, self.vocab_size, dtype=torch.float64)
        for row, tokens in enumerate(inputs.tokens.tolist()):
            first = max(n for n, token in enumerate(tokens) if token == self.assistant_id) + 1
            for place, column in enumerate(inputs.wanted[row].tolist()):
                at = column - first
                is_text = 0 <= at < len(self.script)
                logits[row, place, self.script[at] if is_text else self.eos_ids[0]] = 50.0
        return logits


@contextmanager
def answering(template: str) -> Iterator[tuple[Any, Any]]:
    """Yields a client of a server, and a function that sets the answer of its model."""
    tokenizer = tokenizer_of(template)
    mask_id, eos_id, assistant_id = (
        tokenizer.convert_tokens_to_ids(name) for name in ("[MASK]", "<eos>", "<assistant>")
    )
    model = Scripted(len(tokenizer), mask_id, (eos_id,), assistant_id=assistant_id)

    def write(text: str) -> None:
        model.script = tokenizer(text, add_special_tokens=False)["input_ids"]

    import openai

    limits = Limits(max_tokens=256, gen_length=256, max_length=1024)
    decoder = decoder_of(model, FixedSchedule(64), gen_length=256)
    with (
        served({"default": decoder}, limits=limits, tokenizer=tokenizer) as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, write
