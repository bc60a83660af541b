"""Toy runs for the tests of the runner; as a script it runs them in a process of its own.

python tests/eval_runs.py FOLDER SECONDS_PER_FORWARD
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from toys import HashModel

from dllm_decode import DecodeConfig, ForwardInputs
from dllm_decode.blocks import Sequential
from dllm_decode.models import new_llada, save_model
from eval.runs.names import parse_task
from eval.runs.records import Record, Settings
from eval.runs.runner import execute
from eval.runs.settings import Place, Run
from examples.mini.vocabulary import build_tokenizer
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, State, View

TOKENIZER = build_tokenizer()

SETTINGS = Settings(
    model="toy", revision=None, dtype="float32", task="lists/shuffle?n=3", task_version=1,
    examples="", num_examples=3, sampler="FixedSchedule(4)", cache="NoCache()",
    verifier="NoVerifier()", blocks=repr(Sequential()),
    decoding=DecodeConfig(gen_length=8, block_length=4, temperature=1.0),
    batch_size=1, prompts="chat",
)  # fmt: skip


def record(settings: Settings, example: str, score: float | None, **own: Any) -> Record:
    """Returns the record of an example, made by hand."""
    return {
        "key": settings.key(example), "settings": settings.key(""), "example": example,
        "sampler": settings.sampler, "cache": settings.cache, "verifier": settings.verifier,
        "blocks": settings.blocks,
        "git": None, "machine": None, "date": None, "error": None,
        "primary": "answer", "prompt": "", "target": "", "text": "",
        "scores": {"answer": score}, "prompt_length": 2, "length": 4, "nfe": 2,
        "query_positions": 20, "target_nfe": 0, "drafted": 0, "accepted": 0, "committed": 6,
        "gains": [3, 3], "batch_length": 1, "batch_forwards": 2, "batch_target_forwards": 0,
        "batch_s": 0.5, "warm_up": False, "tokens": [], "trace": None,
    } | own  # type: ignore[return-value]  # own fields are a record's  # fmt: skip


def failed(settings: Settings, example: str) -> Record:
    """Returns the record of an example that raised."""
    whole = record(settings, example, None, error="RuntimeError: no")
    return {name: whole[name] for name in Record.__required_keys__}


def write_model(folder: Path, scale: float = 20.0) -> Path:
    """Writes a tiny random model with the embedded models' tokenizer.

    Args:
        folder: Where to.
        scale: Of its matrices; fresh ones, 1, answer one token everywhere.
    """
    torch.manual_seed(0)
    model = new_llada(
        vocab_size=len(TOKENIZER), hidden_size=16, num_layers=1, num_heads=2, mlp_hidden_size=32,
        mask_id=1, eos_ids=(0,),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    save_model(model, folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@dataclass
class SlowModel(HashModel):
    """A hash model that takes its time and counts its forwards."""

    wait_s: float = 0.0
    num_forwards: int = 0

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.num_forwards += 1
        time.sleep(self.wait_s)
        return super().predict(inputs)


@dataclass(frozen=True)
class Fussy(Sampler):
    """Fails wherever a row shows a token."""

    token: int

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        if bool((view.proposal == self.token).any()):
            raise RuntimeError(f"Token {self.token} is not to my taste.")
        return Decision(commit=view.eligible), state


def model(wait_s: float = 0.0) -> SlowModel:
    eos_ids = (0, *range(40, 400, 8))
    return SlowModel(len(TOKENIZER), mask_id=1, eos_ids=eos_ids, banned_ids=(2, 3), wait_s=wait_s)


def runs(
    wait_s: float = 0.0,
    *,
    samplers: tuple[Sampler, ...] = (FixedSchedule(8), ConfidenceThreshold(0.05)),
    task: str = "lists/shuffle?n=4&limit=10",
    temperature: float = 1.0,
    batch_size: int = 4,
) -> list[Run]:
    slow = model(wait_s)
    return [
        Run(
            slow, TOKENIZER, parse_task(task), sampler,
            decoding=DecodeConfig(gen_length=8, block_length=4, temperature=temperature),
            batch_size=batch_size,
        )
        for sampler in samplers
    ]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    execute(runs(float(sys.argv[2])), sys.argv[1], place=Place.of_launch())
