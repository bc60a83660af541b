"""Prompts to train on and prompts to judge by: no prompt is both."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dllm_decode import CachePolicy, DecodeConfig
from dllm_decode.core.model import fingerprint_of
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.settings.addresses import split_address
from dllm_decode.settings.models import Loaded
from eval.runs.prompts import PromptTokenizer, encode_prompt, warn_of_prompts
from eval.runs.settings import Run, config_of
from eval.runs.task_addresses import Selection, digest_of_examples, parse_task
from eval.tasks import Example
from eval.training.run_folder import DIGEST
from samplers import Sampler
from samplers.expression import expression_of

HELD_OUT_EVERY = 5


@dataclass(frozen=True)
class Questions:
    """Examples of a task, which are encoded only when they are used.

    Attributes:
        selection: Where the examples come from.
        examples: At least one.
        prompts: "chat" if plain prompts go into the chat template, or "plain".
    """

    selection: Selection
    examples: Sequence[Example]
    prompts: str

    def encoded(self, tokenizer: PromptTokenizer) -> list[list[int]]:
        """Returns the token ids of every prompt."""
        chat = self.prompts == "chat"
        return [encode_prompt(tokenizer, example, chat=chat) for example in self.examples]

    def run(
        self, loaded: Loaded, sampler: Sampler, cache: CachePolicy, config: DecodeConfig, size: int
    ) -> Run:
        """Returns the run of a sampler on these questions, in batches of `size`.

        Raises ValueError if the parts do not fit together, or a prompt cannot be decoded.
        """
        decoder = new_decoder(loaded.model, sampler, cache=cache, config=config)
        for i, prompt in enumerate(self.encoded(loaded.tokenizer)):
            decoder.request(prompt, i)
        return Run(
            loaded.model, loaded.tokenizer, self.selection, sampler, cache=cache, config=config,
            batch_size=size, prompts=self.prompts, dtype=loaded.dtype, trace=False,
        )  # fmt: skip

    def warn(self, tokenizer: PromptTokenizer) -> None:
        """Says on standard error which words of the prompts the tokenizer does not know."""
        warn_of_prompts(
            self.selection.address, tokenizer, self.examples, chat=self.prompts == "chat"
        )

    def described(self) -> dict[str, object]:
        """Returns what decides the questions, ready for JSON."""
        return {
            "address": self.selection.address,
            "num_examples": len(self.examples),
            "examples": digest_of_examples(self.examples),
            "prompts": self.prompts,
        }

    def settings(self) -> dict[str, object]:
        """Returns the same facts option by option, so that a changed option can be named."""
        name, options = split_address(self.selection.address, self.selection.address)
        return {
            "name": name,
            **options,
            "prompts": self.prompts,
            f"examples {DIGEST}": digest_of_examples(self.examples),
        }


def settings_of(options: argparse.Namespace, run: Run, questions: Questions) -> dict[str, Any]:
    """Returns the settings that decide the decodes of a run on some questions."""
    return {
        "model": options.model,
        "revision": options.revision,
        f"model {DIGEST}": fingerprint_of(run.model),
        "dtype": run.dtype,
        "task": questions.settings(),
        **asdict(run.config),
        "cache": expression_of(run.cache),
        "batch_size": run.batch_size,
    }


def config_for_model(
    questions: Questions, loaded: Loaded, given: Mapping[str, Any]
) -> DecodeConfig:
    """Returns how answers are decoded: as given, else as the task says, in blocks of the model."""
    config, model = config_of(questions.selection, given), loaded.model
    length = config.resolved_block_length(model.causal_block_length, model_name=model.name)
    return config.updated(block_length=length)


def read_questions(
    address: str, held_out: str, *, prompts: str = "", least: int = 1
) -> tuple[Questions, Questions]:
    """Reads the questions to train on and those to judge by.

    If `address` has no `split`, it means the training split, if the task has one. If `held_out` is
    empty, every fifth example of the first task is held out. `prompts` are "chat" or "plain", or
    empty for the task's default. Raises ValueError if an address is wrong, a prompt is in both, or
    there are fewer than `least` prompts to train on.
    """
    selection = _with_split(parse_task(address), "train")
    examples = selection.examples()
    if held_out:
        held_out_selection = parse_task(held_out)
        judged = held_out_selection.examples()
    else:
        held_out_selection = selection
        judged = examples[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        examples = [e for i, e in enumerate(examples, start=1) if i % HELD_OUT_EVERY]
    if len(examples) < least or not judged:
        why = "" if held_out else f" Every {HELD_OUT_EVERY}th prompt is held out."
        raise ValueError(
            f"There must be at least {least} prompts to train on and 1 to judge by, got "
            f"{len(examples)} of {selection.address} and {len(judged)} of "
            f"{held_out_selection.address}.{why} Raise limit=, or name a task that has more."
        )
    training_keys = {_key(example) for example in examples}
    shared = sum(_key(example) in training_keys for example in judged)
    if shared:
        raise ValueError(
            f"Held-out prompts must not be trained on, got {shared} of {len(judged)} that are "
            f"prompts of {selection.address} too. Name another split with --held-out."
        )
    held_out_selection.require_scores(judged)
    return (
        Questions(selection, examples, prompts or selection.task.prompts),
        Questions(held_out_selection, judged, prompts or held_out_selection.task.prompts),
    )


def _with_split(selection: Selection, split: str) -> Selection:
    """Returns the selection with a split, unless it names one or the task lacks the split."""
    if "split=" in selection.address or split not in selection.task.splits:
        return selection
    joint = "&" if "?" in selection.address else "?"
    return replace(selection, split=split, address=f"{selection.address}{joint}split={split}")


def _key(example: Example) -> str:
    return json.dumps(example.turns(), sort_keys=True)
