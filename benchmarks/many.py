"""Counts the calls of the model that `decode_many` saves: python -m benchmarks.many."""

import argparse
from collections.abc import Sequence

from torch import Tensor

from dllm_decode import DualCache, decode, decode_many, load_model
from dllm_decode.models.base import Inputs
from eval.prompts import encode_prompt
from eval.tasks import WordProblems
from samplers import FixedSchedule


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description="Decodes held-out word problems with `mini`, `DualCache()`, one token a step: "
        "in batches one after the other, and with new rows in the places of finished ones.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--limit", type=int, default=96, help="number of problems")
    parser.add_argument("--num-rows", type=int, default=8, help="rows of a forward")
    parser.add_argument("--block-length", type=int, default=8, help="tokens")
    options = parser.parse_args(arguments)
    model, tokenizer = load_model("mini")
    assert tokenizer is not None
    examples = WordProblems().examples(num_examples=options.limit)
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    sampler, cache = FixedSchedule(options.block_length), DualCache()
    batches = [
        decode(
            model,
            prompts[start : start + options.num_rows],
            sampler,
            cache=cache,
            gen_length=64,
            block_length=options.block_length,
        )
        for start in range(0, len(prompts), options.num_rows)
    ]
    calls, predict = 0, model.predict

    def counted(inputs: Inputs) -> Tensor:
        nonlocal calls
        calls += 1
        return predict(inputs)

    model.predict = counted
    rows = decode_many(
        model,
        prompts,
        sampler,
        num_rows=options.num_rows,
        cache=cache,
        gen_length=64,
        block_length=options.block_length,
    )
    answers = [row.answers()[0] for row in rows]
    expected = [answer for batch in batches for answer in batch.answers()]
    same = sum(one == other for one, other in zip(answers, expected, strict=True))
    print(f"batches one after the other: {sum(batch.forwards for batch in batches)} calls")
    print(f"decode_many: {calls} calls, {same} of {len(prompts)} texts the same")


if __name__ == "__main__":
    main()
