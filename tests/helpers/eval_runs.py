"""Toy runs, models and tasks for the tests of `eval`; as a script, a run in a process of its own.

python tests/helpers/eval_runs.py FOLDER
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from toys import HashModel

from dllm_decode import DecodeConfig, ForwardInputs, decode
from dllm_decode.blocks import Sequential
from dllm_decode.models import new_llada, save_model
from dllm_decode.settings.ranks import ProcessRank
from eval.metrics.costs import COSTS, CostMeasure, SummaryRow
from eval.reports.table import show_settings
from eval.runs.folder import Folder
from eval.runs.prompts import encode_prompt
from eval.runs.records import Record, append
from eval.runs.runner import execute
from eval.runs.settings import Run, RunSettings
from eval.runs.task_addresses import parse_task
from eval.tasks import WordProblems
from eval.tasks.base import Turn
from examples.mini.vocabulary import build_tokenizer
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, SamplerState, View

TOKENIZER = build_tokenizer()


def table(rows: Sequence[SummaryRow], cost: CostMeasure = COSTS["forwards"]) -> str:
    """Returns the table of settings as a file shows it, in Markdown."""
    file = StringIO()
    show_settings(Console(file=file), rows, cost)
    return file.getvalue()


SETTINGS = RunSettings(
    model="toy", revision=None, dtype="float32", task="lists/shuffle?n=3", task_version=1,
    examples="", num_examples=3, sampler="FixedSchedule(4)", cache="NoCache()",
    verifier="NoVerifier()", blocks=repr(Sequential()),
    config=DecodeConfig(gen_length=8, block_length=4, temperature=1.0),
    batch_size=1, prompts="chat",
)  # fmt: skip


def record(settings: RunSettings, example: str, score: float | None, **own: Any) -> Record:
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


def failed(settings: RunSettings, example: str) -> Record:
    """Returns the record of an example that raised."""
    full_record = record(settings, example, None, error="RuntimeError: no")
    return {name: full_record[name] for name in Record.__required_keys__}


def folder_of(path: Path, settings: Iterable[RunSettings], records: Iterable[Record]) -> Folder:
    """Writes records into a results folder, which need not be empty, and returns the folder."""
    folder = Folder(path)
    folder.claim(settings)
    append(folder.repair_part(0), records)
    return folder


def write_lines(path: Path, *rows: object) -> str:
    """Writes rows as lines of JSON, texts as they are, and returns the path."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_model(folder: Path, scale: float = 20.0) -> Path:
    """Writes a tiny random model with the embedded models' tokenizer.

    The matrices are scaled, because a fresh model answers one token everywhere.
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


def interrupted(work: Callable[..., Any], *, at: int) -> Callable[..., Any]:
    """Returns a function that does the work, but raises KeyboardInterrupt at one of its calls."""
    calls = count(1)

    def stopped(*arguments: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return work(*arguments, **named)

    return stopped


class TokenIds:
    """A tokenizer for models without text: ids, separated by spaces."""

    chat_template: str | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(token) for token in text.split()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, token_ids))

    def apply_chat_template(self, conversation: list[Turn], **options: bool) -> str:
        raise ValueError("Token ids have no chat template.")


@dataclass
class CountedModel(HashModel):
    """A hash model that counts its forwards."""

    num_forwards: int = 0

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.num_forwards += 1
        return super().predict(inputs)


@dataclass(frozen=True)
class Fussy(Sampler):
    """Raises an error if any position proposes a certain token."""

    token: int

    def step(self, view: View, state: SamplerState) -> tuple[Decision, SamplerState]:
        if bool((view.proposal == self.token).any()):
            raise RuntimeError(f"Token {self.token} is not to my taste.")
        return Decision(commit=view.eligible), state


def model() -> CountedModel:
    eos_ids = (0, *range(40, 400, 8))
    return CountedModel(len(TOKENIZER), mask_id=1, eos_ids=eos_ids, banned_ids=(2, 3))


def runs(
    *,
    samplers: tuple[Sampler, ...] = (FixedSchedule(8), ConfidenceThreshold(0.05)),
    task: str = "lists/shuffle?n=4&limit=10",
    temperature: float = 1.0,
    batch_size: int = 4,
) -> list[Run]:
    counted = model()
    return [
        Run(
            counted, TOKENIZER, parse_task(task), sampler,
            config=DecodeConfig(gen_length=8, block_length=4, temperature=temperature),
            batch_size=batch_size,
        )
        for sampler in samplers
    ]  # fmt: skip


def answered(
    loaded: tuple[Any, Any], num_problems: int, sampler: Sampler, **options: Any
) -> tuple[list[str], float, float]:
    """Answers word problems; returns texts, the share that is right, and mean forwards of a row."""
    model, tokenizer = loaded
    task = WordProblems()
    examples = task.examples("test", num_problems)
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    out = decode(model, prompts, sampler, **options)
    texts = [tokenizer.decode(answer) for answer in out.answers()]
    scores = [
        task.score(example, text)["answer"] for example, text in zip(examples, texts, strict=True)
    ]
    return texts, sum(score == 1 for score in scores) / len(scores), out.nfe.float().mean().item()


_HEAD = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
  cache_dir: {cache}
test_split: test
doc_to_text: "{{{{question}}}} answer :"
target_delimiter: " "
num_fewshot: 0
"""

_GENERATE = """\
output_type: generate_until
doc_to_target: "{{number}}"
generation_kwargs:
  until: ["Question:"]
  do_sample: false
  max_gen_toks: 40
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "#### (\\\\d+)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""

_CHOOSE = """\
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""

_SCORE = """\
output_type: loglikelihood
doc_to_target: " {{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


def write_tasks(folder: Path, num_docs: int = 7) -> Path:
    """Writes one task of each output type on the same documents, and returns the folder."""
    examples = parse_task(f"word_problems?split=test&limit={num_docs}").examples()
    lines = []
    for index, example in enumerate(examples):
        solution, number = str(example.target).rsplit(" ", 1)
        wrong = f"{solution} {int(number) % 90 + 1}"
        choices = [example.target, wrong] if index % 2 else [wrong, example.target]
        lines.append(
            {"question": example.prompt, "answer": example.target, "number": number,
             "choices": choices, "right": 1 - index % 2}
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    file = write_lines(folder / "problems.jsonl", *lines)
    for kind, body in (("generate", _GENERATE), ("choose", _CHOOSE), ("score", _SCORE)):
        head = _HEAD.format(name=f"words_{kind}", file=file, cache=folder / "cache")
        (folder / f"words_{kind}.yaml").write_text(head + body)
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    execute(runs(), sys.argv[1], process=ProcessRank.of_launch())
