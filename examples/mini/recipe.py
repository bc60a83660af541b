"""What the recipes of all embedded models share: options, the run, causal models, answers."""

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dllm_decode import CachePolicy, MaskPredictor, decode_many
from dllm_decode.caches import NoCache
from dllm_decode.core.progress_bar import ProgressBar
from dllm_decode.training import (
    Batch,
    Kind,
    KindRows,
    Objective,
    Progress,
    Settings,
    make_optimisers,
    train,
)
from eval.runs.prompts import encode_prompt
from eval.runs.provenance import package_commit
from eval.tasks import Example, Task
from samplers import Sampler

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""Answers prompts with at most so many tokens: ids in, ids without EOS out."""

Export = Callable[[Path], dict[str, float]]
"""Writes the model to a folder and measures the files just written."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that all recipes share."""
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs"), help="folder for everything")
    add("--device", default="cpu")
    add("--minutes", type=float, default=0.0, help="length of the whole run")
    add("--samples", type=int, default=0, help="length, instead of --minutes")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--evaluate-every", type=float, default=5.0, help="in minutes")
    add("--evaluate-on", type=int, default=400, help="questions of each kind; lists: / 8")
    add("--float32", action="store_true", help="no bfloat16 arithmetic")
    add("--compile", action="store_true", help="compile the layers; needs a C++ compiler")
    add("--workers", type=int, default=0, help="processes that draw examples ahead")
    add("--threads", type=int, default=1, help="of torch on the CPU")
    add("--seed", type=int, default=0)
    add("--matrix-lr", type=float, default=0.02, help="peak rate of Muon")
    add("--other-lr", type=float, default=0.003, help="peak rate of AdamW")


def read_mixtures() -> dict[str, Any]:
    """Returns what the worlds are mixed of, as `mixtures.toml` says."""
    return tomllib.loads(Path(__file__).with_name("mixtures.toml").read_text(encoding="utf-8"))


def sizes(parser: argparse.ArgumentParser, num_layers: int) -> None:
    """Adds the sizes of a model."""
    for name, default in (("hidden", 128), ("layers", num_layers), ("heads", 4), ("mlp", 384)):
        parser.add_argument(f"--{name}", type=int, default=default)


def run(
    options: argparse.Namespace,
    objective: Objective[Batch],
    kinds: Sequence[Kind],
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    world: object,
    export: Export,
) -> Progress:
    """Trains, and keeps `output/name` ready to ship from the first evaluation on.

    `world` is what the numbers depend on besides the options, ready for JSON; `export` writes and
    measures the model. Raises SystemExit if the length of the run is given twice or not at all.
    """
    if bool(options.minutes) == bool(options.samples):
        raise SystemExit(
            "The length of a run is --minutes or --samples, one of them; e.g. add --minutes 9."
        )
    folder: Path = options.output / name
    settings = Settings(
        num_samples=options.samples or float("inf"),
        minutes=options.minutes or float("inf"),
        folder=options.output / f"{name}-checkpoints",
        evaluate_every_s=60 * options.evaluate_every,
        seed=options.seed,
    )
    source = KindRows(
        kinds, eos_id=int(tokenizer.eos_token_id), device=options.device, seed=options.seed,
        num_workers=options.workers,
    )  # fmt: skip
    accelerator = Accelerator(
        cpu=options.device == "cpu", mixed_precision="no" if options.float32 else "bf16"
    )
    model = objective.model
    with ProgressBar(Console(), name) as bar:
        bar.say(f"{sum(p.numel() for p in model.parameters()):,} parameters")

        def evaluate(_: Progress) -> dict[str, float]:
            tokenizer.save_pretrained(folder)
            measured = export(folder)
            shown = ", ".join(f"{task} {value:.3f}" for task, value in measured.items())
            bar.say(f"measured: {shown}")
            return measured

        progress = train(
            objective,
            make_optimisers(model, matrix_lr=options.matrix_lr, other_lr=options.other_lr),
            source,
            settings,
            accelerator=accelerator,
            evaluate=evaluate,
            observe=lambda report: bar.update(report.spent, report.said()),
            resume=options.resume,
        )
        tokenizer.save_pretrained(folder)
        record = {
            "settings": {k: v.name if isinstance(v, Path) else v for k, v in vars(options).items()},
            "world": world,
            "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
            "revision": package_commit(),
            "samples": progress.samples,
            "steps": progress.step,
            "elapsed_s": round(progress.elapsed_s, 1),
            "val": progress.history[-1],
            "history": progress.history,
        }
        text = json.dumps(record, indent=1) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")
        bar.say(f"{progress.samples:,} samples, {progress.elapsed_s / 60:.1f} min; wrote {folder}")
    return progress


def compile_layers(layers: Sequence[torch.nn.Module], *, dynamic: bool) -> None:
    """Compiles layers; evaluation, training and each objective have shapes of their own."""
    torch._dynamo.config.recompile_limit = 64
    for layer in layers:
        layer.compile(dynamic=dynamic)


def new_causal(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Returns a new causal model of the sizes that the options say."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        intermediate_size=options.mlp,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=int(tokenizer.eos_token_id),
        # Padding is EOS, and the embedding of padding would get no gradient.
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(options.seed)
    return LlamaForCausalLM(config).to(options.device)


def export_causal(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    measure: Callable[[Answer], dict[str, float]],
    folder: Path,
) -> dict[str, float]:
    """Writes a causal model in bfloat16, and measures the files just written greedily."""
    plain = deepcopy(model).bfloat16()
    plain.config.pad_token_id = plain.generation_config.pad_token_id = tokenizer.eos_token_id
    plain.save_pretrained(folder)
    written = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return measure(causal_answer(written.to(model.device).eval()))


def causal_answer(model: PreTrainedModel) -> Answer:
    """Returns what answers prompts greedily, in batches."""
    eos_id = model.config.eos_token_id

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, len(prompts), 512):
            batch = prompts[start : start + 512]
            width = max(map(len, batch))
            tokens = torch.tensor([[eos_id] * (width - len(p)) + p for p in batch])
            attend = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
            generated = model.generate(
                input_ids=tokens.to(model.device), attention_mask=attend.to(model.device),
                max_new_tokens=gen_length, do_sample=False,
            )  # fmt: skip
            for ids in generated[:, width:].tolist():
                found.append(ids[: ids.index(eos_id)] if eos_id in ids else ids)
        return found

    return answer


def masked_answer(
    model: MaskPredictor,
    sampler: Sampler,
    *,
    block_length: int,
    cache: CachePolicy = NoCache(),
    temperature: float = 0.0,
) -> Answer:
    """Returns what answers prompts by `decode_many`."""

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        outputs = decode_many(
            model, prompts, sampler, num_rows=1024, cache=cache, gen_length=gen_length,
            block_length=min(block_length, gen_length), temperature=temperature,
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    return answer


def mean_scores(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    examples: Sequence[Example],
    answer: Answer,
    gen_length: int | None = None,
) -> dict[str, float]:
    """Answers examples of a task, and returns the mean of each of its scores.

    `gen_length` are the tokens of an answer; `None`: as many as the task has.
    """
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    # Special tokens stay visible where they are wrong.
    answers = answer(prompts, gen_length or task.gen_length)
    texts = [str(tokenizer.decode(ids)) for ids in answers]
    scores = [task.score(*pair) for pair in zip(examples, texts, strict=True)]
    return {name: sum(own[name] or 0 for own in scores) / len(scores) for name in scores[0]}
