"""A masked-diffusion model for the Language Model Evaluation Harness; needs lm-eval."""

# The harness has no types.
# mypy: disallow-subclassing-any=False

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from jaxtyping import Shaped
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dllm_decode import DecodeOutput, MaskPredictor, decode
from dllm_decode.core.options import DEFAULT_BLOCK_LENGTH
from dllm_decode.settings.files import digest
from dllm_decode.text.prose import Prose
from eval.lm_harness.answer_costs import CostLedger, records_of, summary_of
from eval.lm_harness.generation import Generation
from eval.lm_harness.likelihood import Likelihood, MonteCarlo
from eval.lm_harness.lm_jobs import JobPrompt, LmJob, alike, chunks, distinct, warn_of_unknown
from eval.lm_harness.settings import LmSettings
from eval.runs.prompts import require_template
from eval.runs.scoring import cost_of
from eval.tasks.base import Turn

# Long, because processes wait for the longest answers; launchers end all if one fails.
_PATIENCE = timedelta(days=7)

Item = TypeVar("Item")
LogLikelihood: TypeAlias = tuple[float, bool]
"""A log-likelihood, and whether greedy decoding gives the text."""


class DecodeLM(TemplateLM):
    """Answers the harness with `decode` and `Likelihood`.

    The harness gives each process its share of the documents. At temperature 0 an answer depends on
    its batch-mates by rounding only; above 0, the noise of a row depends on its batch.

    Attributes:
        tokenizer: The model's tokenizer.
        settings: Everything that decides the answers.
        ledger: The cost of each generated answer.
    """

    def __init__(self, model: MaskPredictor, tokenizer: Any, settings: LmSettings) -> None:
        super().__init__()
        self._model, self.tokenizer, self.settings = model, tokenizer, settings
        self._processes = PartialState(cpu=True, timeout=_PATIENCE)
        self._rank, self._world_size = self._processes.process_index, self._processes.num_processes
        self._device = model.device
        # The chat template writes all special tokens.
        self._adds_special_tokens = True
        seed = settings.config.seed
        self._likelihood = Likelihood(model, settings.estimator, seed, settings.batch_size)
        default = model.causal_block_length or DEFAULT_BLOCK_LENGTH
        chosen = settings.config.block_length or settings.blocks.block_length
        self._block_length = chosen or default
        self.ledger: CostLedger = {}

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Decodes answers to (prompt, options); see `Generation.of` for the options."""
        jobs, places = distinct(requests)
        prompts = [self._prompt(i, *job.request.args) for i, job in enumerate(jobs)]
        batches = alike(prompts, self.settings.batch_size)
        texts = [""] * len(jobs)
        for batch in self._progress(batches, "decoding", disable_tqdm):
            output = self._decode(batch, jobs[batch[0].number])
            answers = output.answers()
            for row, (number, tokens, generation) in enumerate(batch):
                texts[number] = Prose(self.tokenizer, generation.until).whole(answers[row])
                cost = {**cost_of(tokens, output, row), "gen_length": generation.gen_length}
                self._keep(jobs[number], texts[number], cost)
        return [texts[number] for number in places]

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[LogLikelihood]:
        """Scores (context, continuation) pairs."""
        if isinstance(self.settings.estimator, MonteCarlo):
            warn_of_unknown(requests)
        answers: list[LogLikelihood] = super().loglikelihood(requests, disable_tqdm)
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Raises ValueError."""
        raise ValueError(
            "A masked-diffusion model gives the likelihood of an answer of known length to a "
            "prompt, not that of a text as it grows, which tasks of output_type "
            "loglikelihood_rolling need. Choose tasks of type loglikelihood, multiple_choice or "
            "generate_until."
        )

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[LogLikelihood]:
        lengths = [len(prompt) + len(answer) for _, prompt, answer in requests]
        order = sorted(range(len(requests)), key=lambda i: -lengths[i])
        batches = chunks(order, self.settings.batch_size)
        answers: dict[int, LogLikelihood] = {}
        for batch in self._progress(batches, "scoring", disable_tqdm):
            scores = self._likelihood.score([requests[i][1:] for i in batch])
            for i, scored in zip(batch, scores, strict=True):
                answers[i] = scored.log_likelihood, bool(scored.is_greedy)
                self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
        return [answers[i] for i in range(len(requests))]

    def _prompt(self, number: int, text: str, options: Mapping[str, Any]) -> JobPrompt:
        length, temperature = self.settings.gen_length, self.settings.temperature
        generation = Generation.of(
            options, gen_length=length, block_length=self._block_length, temperature=temperature
        )
        return JobPrompt(number, self.tok_encode(text) or [self.prefix_token_id], generation)

    def _decode(self, batch: Sequence[JobPrompt], first: LmJob) -> DecodeOutput:
        settings, generation = self.settings, batch[0].generation
        request = first.request
        # Each batch has its own seed, in every process: no two rows share their noise.
        key = [settings.config.seed, request.task_name, request.doc_id, request.idx, first.repeat]
        return decode(
            self._model, [prompt.tokens for prompt in batch], settings.sampler,
            cache=settings.cache, verifier=settings.verifier, blocks=settings.blocks,
            config=settings.config, gen_length=generation.gen_length,
            block_length=self._block_length, temperature=generation.temperature,
            seed=int(digest(key)[:15], 16),
        )  # fmt: skip

    def _keep(self, job: LmJob, answer: str, cost: Mapping[str, Any]) -> None:
        """Notes the cost, and the answer in the harness' store, in case the run is stopped."""
        request, repeat = job
        self.ledger[request.task_name, request.doc_id, request.idx, repeat] = dict(cost)
        # The store has one place for all repeats of a request.
        if (request.repeats or 1) == 1:
            self.cache_hook.add_partial("generate_until", request.args, answer)

    def _progress(self, batches: Sequence[Item], verb: str, disable: bool) -> Iterable[Item]:
        return track(batches, verb, console=Console(stderr=True), disable=disable or self.rank > 0)

    def get_model_info(self) -> dict[str, Any]:
        """Returns settings and cost; the harness puts them into `results["config"]`."""
        return {
            "decoding": self.settings.described() | {"fingerprint": self.settings.fingerprint()},
            "num_processes": self.world_size,
            "cost": summary_of(records_of(self.ledger)),
        }

    @property
    def eot_token_id(self) -> int:
        """The token that ends an answer."""
        return self._model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context: BOS, or EOS if there is no BOS."""
        bos_id: int | None = self.tokenizer.bos_token_id
        return self.eot_token_id if bos_id is None else bos_id

    @property
    def tokenizer_name(self) -> str:
        """Name for the harness' own cache of requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Returns a text's ids; `None` adds special tokens unless the text begins with one."""
        bare: list[int] = self.tokenizer.encode(string, add_special_tokens=False)
        if add_special_tokens is None:
            has_some = bool(bare) and bare[0] in self.tokenizer.all_special_ids
            add_special_tokens = self._adds_special_tokens and not has_some
        return list(self.tokenizer.encode(string)) if add_special_tokens else bare

    def apply_chat_template(
        self, chat_history: list[Turn], add_generation_prompt: bool = True
    ) -> str:
        """Writes turns in the chat template; without generation prompt the last turn goes on."""
        require_template(self.tokenizer)
        self._adds_special_tokens = False
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def all_gather(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Returns every process's tensor, concatenated."""
        return torch.cat(gather_object([torch.atleast_1d(tensor.cpu())]))

    def gather_object(self, obj: Item, dst: int = 0) -> list[Item] | None:
        """Returns every process's object in process `dst`, None in the other processes."""
        objects: list[Item] = gather_object([obj])
        return objects if self.rank == dst else None

    def barrier(self) -> None:
        """Waits for the other processes, and shares the costs.

        The harness calls it in every process after each type of request, and calls
        `get_model_info` later in the first process alone.
        """
        for ledger in gather_object([self.ledger]):
            self.ledger |= ledger

    def close(self) -> None:
        """Ends the group of processes."""
        self._processes.destroy_process_group()
