"""The command `oracle`: what samplers do on a model without errors of its own."""

import argparse
from functools import partial

from rich.console import Console

from dllm_decode import DecodeConfig, decode
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.settings.plugins import parse
from eval.metrics.statistics import wilson
from eval.oracle.joint import Joint, left_to_right
from eval.oracle.oracle import OracleModel
from eval.runs.task_addresses import parse_task
from eval.tasks import Example, ListTask, Task
from eval.tasks.lists import valid_outputs
from samplers import Sampler

_SAMPLERS = (
    "FixedSchedule(steps_per_block=16)",
    "FixedSchedule(steps_per_block=2)",
    "FixedSchedule(steps_per_block=1)",
    "ConfidenceThreshold(threshold=0.9)",
    "ConfidenceThreshold(threshold=0.5)",
    "Factor(factor=0.99)",
    "Factor(factor=1.3)",
)


def run(options: argparse.Namespace) -> int:
    """Prints exact accuracies, and accuracies of samplers."""
    selection = parse_task(options.task)
    if selection.limit is not None:
        raise ValueError(
            "limit= must be left out, because the oracle takes one example; see --rows."
        )
    example = selection.task.examples(selection.split, 1, selection.examples_seed)[0]
    joint = _joint_of(selection.task, example)
    config = DecodeConfig(
        gen_length=joint.length, block_length=joint.length, temperature=options.temperature,
        stop_at_eos=False,
    )  # fmt: skip
    model, texts = OracleModel(joint), options.sampler or _SAMPLERS
    samplers = [parse(text, Sampler) for text in texts]
    for sampler in samplers:
        # A sampler that does not fit is refused before anything is printed.
        new_decoder(model, sampler, config=config)
    write = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    write(f"{example.prompt}\n{len(joint.answers)} right answers of {joint.length} items; "
          f"total correlation {joint.total_correlation:.3f} bits\n")  # fmt: skip
    write("left to right at temperature 1, exactly:")
    for size in range(1, joint.length + 1):
        partition = left_to_right(joint.length, size)
        exact = joint.accuracy(partition)
        write(f"  {size} a step: accuracy {float(exact):.4f} = {exact}, "
              f"lost bits {abs(joint.lost_bits(partition)):.3f}")  # fmt: skip
    write(f"\nsamplers at temperature {options.temperature:g}, n = {options.rows}, 95 % interval:")
    for text, sampler in zip(texts, samplers, strict=True):
        prompts = [model.prompt(i) for i in range(options.rows)]
        out = decode(model, prompts, sampler, config=config)
        num_right = sum(model.is_right(row) for row in out.tokens.tolist())
        low, high = wilson(num_right, options.rows)
        write(f"  {text}: accuracy {num_right / options.rows:.3f} [{low:.3f}, {high:.3f}], "
              f"NFE {out.nfe.double().mean():.2f}")  # fmt: skip
    return 0


def _joint_of(task: Task, example: Example) -> Joint:
    """Returns the exact distribution over the right answers to an example, items only.

    Raises ValueError if the task's right answers are not known.
    """
    if not isinstance(task, ListTask):
        raise ValueError(
            f"The right answers to {task.name} are not known in closed form; "
            "choose a list task, such as 'lists/shuffle?n=4'."
        )
    return Joint.uniform(valid_outputs(example.meta["request"]))
