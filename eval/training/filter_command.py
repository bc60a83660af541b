"""The command `train-filter`: trains a Learn2PD filter and judges it."""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file

from dllm_decode import CachePolicy, NoVerifier
from dllm_decode.core.files import new_file
from dllm_decode.core.model import fingerprint_of
from dllm_decode.engine import compatibility
from dllm_decode.models.loading.weights import write_weights
from dllm_decode.settings.files import ANEW, write_json
from dllm_decode.settings.models import open_model
from dllm_decode.settings.options import given_options
from dllm_decode.settings.plugins import parse
from dllm_decode.text.progress_bar import ProgressBar
from dllm_decode.training.filter_examples import FilterExamples, collect_examples, join
from dllm_decode.training.learn2pd import (
    LEAST_PROMPTS,
    FilterSettings,
    save_filter,
    split,
    train_filter,
)
from eval.runs.settings import Run
from eval.training.command_options import FILTER_DECODING
from eval.training.held_out import description_of, score_held_out
from eval.training.questions import Questions, config_for_model, read_questions, settings_of
from eval.training.run_folder import SETTINGS_FILE, claim, claim_training, writing
from samplers import FixedSchedule, Learn2PD
from samplers.expression import expression_of


def run(options: argparse.Namespace) -> int:
    """Collects examples, trains a filter on them, writes it and judges it.

    Raises ValueError if anything is wrong, if possible before the first forward.
    """
    work = _require_output(Path(options.output))
    cache = parse(options.cache, CachePolicy)
    questions, judged = read_questions(
        options.task, options.held_out, prompts=options.prompts or "",
        least=LEAST_PROMPTS,
    )  # fmt: skip
    settings = FilterSettings(
        hidden_sizes=tuple(options.hidden), num_steps=options.steps,
        learning_rate=options.learning_rate, seed=options.seed,
    )  # fmt: skip
    loaded = open_model(options.model, options, options.revision)
    questions.warn(loaded.tokenizer)
    config = config_for_model(questions, loaded, given_options(options, FILTER_DECODING))
    assert config.block_length is not None
    reference = FixedSchedule(config.block_length)
    questions.run(loaded, reference, cache, config, options.batch_size)
    judging = judged.run(loaded, reference, cache, config, options.batch_size)
    # The filter does not exist yet; the oracle that its examples come from needs the same facts.
    compatibility.check(loaded.model, Learn2PD(options.output), cache, verifier=NoVerifier())
    training = FilterTraining(options, work, settings, questions, judged, judging)
    with writing(work):
        training.run(Console())
    return 0


def _require_output(output: Path) -> Path:
    """Returns the folder of the run, which has all that is needed to go on.

    Raises ValueError if filter or report cannot be written, or would replace other files.
    """
    if not output.name or output.suffix == ".json":
        raise ValueError(
            f"--output must name a file, and not the report, which ends in .json, got {output}; "
            "choose a name such as learn2pd.safetensors."
        )
    work = Path(f"{output}.run")
    has_run = (work / SETTINGS_FILE).exists()
    for file in (output, output.with_suffix(".json")):
        if file.is_dir() or (file.exists() and not has_run):
            raise ValueError(
                f"--output must name a new filter, or that of the run in {work}, got {file}, which "
                "exists; choose another, or remove it."
            )
    return work


@dataclass(frozen=True)
class FilterTraining:
    """A run of the command, all options of which were checked.

    Examples come from `questions`; `work` is the folder of all that is needed to go on.
    The filter is judged on the questions `judged`: `judging` decodes them once the filter is its
    sampler. Its model, cache and options are those of every decode.
    """

    options: argparse.Namespace
    work: Path
    settings: FilterSettings
    questions: Questions
    judged: Questions
    judging: Run

    def run(self, console: Console) -> None:
        """Runs the parts of the command; each part continues where it stopped."""
        options, judging, settings = self.options, self.judging, self.settings
        of_training = {"held_out": self.judged.settings()} | asdict(settings)
        claim(self.work, settings_of(options, judging, self.questions), of_training)
        examples = self.collect(console)
        claim_training(self.work, of_training)
        splits = split(examples, settings.seed)
        with ProgressBar(console, "training", settings.num_steps) as bar:
            network = train_filter(
                splits.train, splits.val, settings,
                observe=lambda step, loss: bar.update(step, f"validation loss {loss:.4f}"),
            )  # fmt: skip
        save_filter(
            network, Path(options.output), model=judging.model.name, settings=settings,
            threshold=options.threshold, fingerprint=fingerprint_of(judging.model),
        )  # fmt: skip
        self.judge(console)

    def collect(self, console: Console) -> FilterExamples:
        """Observes an oracle on all prompts, in batches of similar lengths, a file for each."""
        judging = self.judging
        prompts = sorted(self.questions.encoded(judging.tokenizer), key=len)
        parts, size = [], judging.batch_size
        with ProgressBar(console, "collecting", len(prompts)) as bar:
            for first in range(0, len(prompts), size):
                batch = prompts[first : first + size]
                file = self.work / "examples" / f"{first:06}.safetensors"
                if not file.exists():
                    examples = collect_examples(
                        judging.model, batch, judging.config, cache=judging.cache,
                        first_prompt=first,
                    )  # fmt: skip
                    write_examples(file, examples)
                parts.append(read_examples(file))
                bar.advance(len(batch))
        return join(parts)

    def judge(self, console: Console) -> None:
        """Decodes held-out prompts with the filter, and writes its accuracy and forwards."""
        options = self.options
        judging = replace(self.judging, sampler=Learn2PD(options.output, options.threshold))
        scores = score_held_out(judging, self.judged.examples)
        console.print(scores.said("held-out"), highlight=False, soft_wrap=True)
        report = description_of("train-filter", judging, self.judged) | {
            "sampler": expression_of(judging.sampler),
            **scores.point,
        }
        file = Path(options.output).with_suffix(".json")
        write_json(file, report)
        console.print(f"wrote {options.output} and {file}", highlight=False, soft_wrap=True)


def write_examples(file: Path, examples: FilterExamples) -> None:
    """Writes examples, as `new_file` does."""
    with new_file(file) as partial:
        write_weights(partial, vars(examples), {})


def read_examples(file: Path) -> FilterExamples:
    """Reads the examples of a batch; ValueError if the file is damaged."""
    try:
        return FilterExamples(**load_file(file))
    except (OSError, SafetensorError, TypeError) as error:
        raise ValueError(f"{file} must hold examples of a filter, got {error}; {ANEW}.") from None
