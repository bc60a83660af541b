"""The embedded models of long answers do what docs/embedded_models.md says of them."""

import torch

from dllm_decode import FreeCache, NoCache, decode, load_model
from eval.runs.prompts import encode_prompt
from eval.tasks import Ledgers
from samplers import ConfidenceThreshold


def test_ledgers_are_answered_right_in_fewer_forwards_and_columns() -> None:
    model, tokenizer = load_model("mini-long", dtype=torch.float32)
    task = Ledgers()
    examples = task.examples("test", 5)
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    outs = [
        decode(model, prompts, ConfidenceThreshold(0.9), cache=cache, gen_length=256)
        for cache in (FreeCache(), NoCache())
    ]
    cached, plain = outs
    # The model attends in blocks, so the cache is exact.
    assert cached.answers() == plain.answers()
    assert cached.query_positions.sum() < plain.query_positions.sum() / 8
    texts = [tokenizer.decode(answer) for answer in cached.answers()]
    scores = [task.score(example, text) for example, text in zip(examples, texts, strict=True)]
    assert sum(score["answer"] == 1 for score in scores) >= 4
    lengths = sum(len(answer) for answer in cached.answers())
    assert cached.nfe.sum() < lengths / 2
