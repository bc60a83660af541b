"""Trains an embedded model, as its recipe in recipes.toml says.

    python examples/mini/train.py mini
    python examples/mini/train.py mini-long --start-from runs/mini-long-ar --compile --resume

The first command writes `runs/mini`, which `dllm_decode.load_model("runs/mini")` loads; causal
models are for transformers. More rows and larger sizes, as for a GPU, go into the table.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from jaxtyping import Float
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module, functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils.logging import disable_progress_bar
from vocabulary import CONNECTIVES, build_ledger_tokenizer, build_tokenizer
from worlds import TABLE, Answer, accuracies, kinds_of

from dllm_decode import NoCache, PrefixCache, decode_many, load_model, training
from dllm_decode.models import MaskedTransformer, new_llada, save_model
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.text.progress_bar import ProgressBar
from dllm_decode.training.block_diffusion import BlockDiffusion, hidden_of_copies
from dllm_decode.training.from_model import copy_by_words, start_from, write_fast_dllm_v2
from eval.runs.provenance import package_commit
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

BLOCK_LENGTH = 32
SAMPLERS = {"one token a step": FixedSchedule(), "threshold": ConfidenceThreshold(0.9)}
# The objective with its model, the model's layers, and a function that writes the model to a folder
# and returns how the written model answers.
Trained = tuple[training.Objective, Sequence[Module], Callable[[Path], dict[str, Answer]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, measures and writes a model, run by run."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("name", choices=TABLE["recipes"], help="the recipe")
    add("--output", type=Path, default=Path("runs"), help="folder for everything")
    add("--start-from", help="folder or name of a model, instead of the recipe's")
    add("--device", default="cpu")
    add("--samples", type=int, help="length of each run in rows, instead of the recipe's")
    add("--evaluate-on", type=int, help="questions of each kind, instead of the recipe's")
    add("--resume", action="store_true", help="continue from the checkpoints")
    add("--compile", action="store_true", help="compile the layers; needs a C++ compiler")
    options = parser.parse_args(arguments)
    disable_progress_bar()
    runs = runs_of(options.name)
    for i, run in enumerate(runs, start=1):
        # The last run writes the model of the recipe.
        name = options.name if i == len(runs) else f"{options.name}-{i}"
        run.start_from = run.start_from if options.start_from is None else options.start_from
        run.evaluate_on = options.evaluate_on or run.evaluate_on
        run.samples = options.samples or run.samples
        run.device = options.device
        train_one(options, run, name)
        options.start_from = str(options.output / name)


def runs_of(name: str) -> list[Namespace]:
    """Returns the settings of each run of a recipe."""
    shared, runs = TABLE["defaults"] | TABLE["recipes"][name], []
    for own in shared.pop("runs"):
        unknown = (shared | own).keys() - TABLE["defaults"]
        if unknown:
            raise ValueError(f"{name} must have settings of [defaults], got {sorted(unknown)}.")
        runs.append(Namespace(**shared | own))
    return runs


def train_one(options: Namespace, run: Namespace, name: str) -> None:
    """Trains one run; `output/name` can be loaded from the first evaluation on."""
    folder: Path = options.output / name
    tokenizer = build_ledger_tokenizer() if "ledgers" in run.rows else build_tokenizer()
    make = {"causal": make_causal, "masked": make_masked, "blocks": make_blocks}[run.kind]
    objective, layers, write = make(run, tokenizer, folder)
    if options.compile:
        # Evaluation, training and each objective have shapes of their own.
        torch._dynamo.config.recompile_limit = 64
        for layer in layers:
            layer.compile(dynamic="ledgers" in run.rows)
    settings = training.Settings(
        run.samples, options.output / f"{name}-checkpoints", run.evaluate_every, run.seed
    )
    source = training.KindRows(
        kinds_of(tokenizer, run.rows, tuple(run.gen_lengths)), eos_id=int(tokenizer.eos_token_id),
        device=run.device, seed=run.seed,
    )  # fmt: skip
    with ProgressBar(Console(), name) as bar:

        def evaluate(_: training.Progress) -> dict[str, float]:
            measured = {}
            for way, answer in write(folder).items():
                right = accuracies(tokenizer, run.rows, run.evaluate_on, answer)
                measured |= {f"{task}, {way}": value for task, value in right.items()}
            bar.say(", ".join(f"{task} {value:.3f}" for task, value in measured.items()))
            return measured

        rates = {"matrix_lr": run.matrix_lr, "other_lr": run.other_lr}
        progress = training.train(
            objective, training.make_optimisers(objective.model, **rates), source, settings,
            accelerator=Accelerator(cpu=run.device == "cpu", mixed_precision="bf16"),
            evaluate=evaluate, resume=options.resume,
            observe=bar.update,
        )  # fmt: skip
        bar.say(f"{progress.samples:,} samples; wrote {folder}")
    record = {
        "settings": vars(run), "mixtures": TABLE["mixtures"],
        "revision": package_commit(), "samples": progress.samples, "steps": progress.step,
        "history": progress.history,
    }  # fmt: skip
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def make_causal(run: Namespace, tokenizer: Tokenizer, _: Path) -> Trained:
    """Makes a causal model, new or from another one of these sizes, word by word."""
    eos_id = int(tokenizer.eos_token_id)
    # No `pad_token_id`, because padding is EOS, whose embedding would get no gradient.
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=run.hidden, intermediate_size=run.mlp,
        num_hidden_layers=run.layers, num_attention_heads=run.heads, max_position_embeddings=512,
        rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=eos_id, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(run.seed)
    model = LlamaForCausalLM(config).to(run.device)
    # Faster on a CPU than fused attention, whose backward is slow.
    model.set_attn_implementation("eager")
    if run.start_from:
        folder = find_model(run.start_from)
        words = AutoTokenizer.from_pretrained(folder).get_vocab()
        weights = load_file(folder / "model.safetensors")
        copy_by_words(
            dict(model.named_parameters()), tokenizer.get_vocab(), weights, words,
            by_word=("model.embed_tokens.weight", "lm_head.weight"),
        )  # fmt: skip

    def write(folder: Path) -> dict[str, Answer]:
        plain = deepcopy(model).bfloat16()
        plain.config.pad_token_id = plain.generation_config.pad_token_id = eos_id
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        written = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        written = written.to(run.device).eval()

        def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
            batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt").to(run.device)
            out = written.generate(**batch, max_new_tokens=gen_length, do_sample=False)
            answers = out[:, batch["input_ids"].shape[1] :].tolist()
            return [[*ids, eos_id][: [*ids, eos_id].index(eos_id)] for ids in answers]

        return {"greedy": answer}

    return training.Causal(model, eos_id), model.model.layers, write


def make_masked(run: Namespace, tokenizer: Tokenizer, folder: Path) -> Trained:
    """Makes a model in LLaDA's format, new or from another one, which may be causal."""
    model = new_llada(
        vocab_size=len(tokenizer), hidden_size=run.hidden, num_layers=run.layers,
        num_heads=run.heads, mlp_hidden_size=run.mlp, mask_id=int(tokenizer.mask_token_id),
        eos_ids=(int(tokenizer.eos_token_id),), rope_theta=10_000.0, name=folder.name,
        seed=run.seed,
    ).to(run.device)  # fmt: skip
    if run.start_from:
        start_from(model, tokenizer, find_model(run.start_from))
    masks = training.MaskSampler(BLOCK_LENGTH, run.block_share, run.ordered_share)
    objective = training.MaskedDiffusion(model, masks)
    write = partial(write_masked, model, tokenizer, BLOCK_LENGTH)
    return objective, model.transformer.layers, write


def make_blocks(run: Namespace, tokenizer: Tokenizer, folder: Path) -> Trained:
    """Makes a model in Fast-dLLM v2's format, from such a model or from a causal one."""
    source = find_model(run.start_from)
    if read_json(source / "config.json")["model_type"] == "llama":
        begun = folder.with_name(f"{folder.name}-begun")
        write_fast_dllm_v2(
            source, begun, mask_id=int(tokenizer.mask_token_id), num_layers=run.layers,
            block_length=run.block_length,
        )  # fmt: skip
        source = begun
    model, _ = load_model(source, device=run.device, dtype=torch.float32)
    model.requires_grad_(True)
    shares = (run.ordered_share, run.confident_share)
    diffusion = BlockDiffusion(model, tuple(run.block_lengths) or None, *shares)
    objective = Phrases(diffusion, tokenizer, run.phrases_share)
    write = partial(write_masked, model, tokenizer, run.block_length)
    return objective, model.transformer.layers, write


class Phrases(training.Objective[training.Batch]):
    """In a share of the batches the loss of two phrases, in the others that of `blocks`.

    The loss is the mean cross-entropy of the first word of "so now" and "which means", given the
    rest. Only the second word tells which phrase it is, and a model that begins as a causal one has
    never looked at a later word: after 118 thousand rows it still wrote "so means".
    """

    def __init__(self, blocks: BlockDiffusion, tokenizer: Tokenizer, share: float) -> None:
        self.model = blocks.model
        self._blocks, self._share = blocks, share
        phrases = [tokenizer.convert_tokens_to_ids(phrase.split()) for phrase in CONNECTIVES]
        self._phrases = torch.tensor(phrases)

    def loss(self, batch: training.Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Draws which loss, hides words and returns their mean loss, in nats."""
        if torch.rand((), generator=generator, device=generator.device) >= self._share:
            return self._blocks.loss(batch, generator)
        block_length = self.model.causal_block_length
        blocks = batch.blocks(block_length)
        same = functional.pad(blocks[:, 1:] == blocks[:, :-1], (1, 1))
        first, second = self._phrases.to(batch.tokens.device).unbind(1)
        begins = torch.isin(batch.tokens, first) & same[:, :-1] & same[:, 1:]
        begins[:, :-1] &= torch.isin(batch.tokens[:, 1:], second)
        masked = begins[:, batch.start :]
        hidden = hidden_of_copies(self.model, batch, masked, block_length)
        logits = self.model.transformer.head(hidden[masked])
        answers = batch.answers[masked]
        total = functional.cross_entropy(logits.float(), answers, reduction="sum")
        # A batch may have no phrase within a block.
        return total / max(1, len(answers))


def write_masked(
    model: MaskedTransformer, tokenizer: Tokenizer, block_length: int, folder: Path
) -> dict[str, Answer]:
    """Writes a masked-diffusion model, and returns how the written model answers."""
    save_model(model, folder, dtype=torch.bfloat16, tokenizer=tokenizer)
    written, _ = load_model(folder, device=str(model.device))
    cache = PrefixCache() if written.causal_block_length else NoCache()

    def answer(sampler: Sampler, prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        outputs = decode_many(
            written, prompts, sampler, num_rows=1024, cache=cache, gen_length=gen_length,
            block_length=min(block_length, gen_length),
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    return {way: partial(answer, sampler) for way, sampler in SAMPLERS.items()}


if __name__ == "__main__":
    main()
