"""A masked-diffusion model for the Language Model Evaluation Harness; needs lm-eval."""

# The harness has no types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed
from jaxtyping import Shaped
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dllm_decode import DecodeOutput, decode
from dllm_decode.core.options import DEFAULT_BLOCK_LENGTH
from dllm_decode.settings.files import digest
from dllm_decode.settings.models import ALONE, Place
from eval.lm_harness.generation import Generation
from eval.lm_harness.likelihood import Likelihood, ScoredAnswer
from eval.lm_harness.records import CostLedger, cost_of_score
from eval.lm_harness.requests import LmJob, Prompt, alike, chunks, distinct, warn_of_unknown
from eval.lm_harness.settings import Opened, open_model
from eval.lm_harness.text import Codec
from eval.runs.answers import cost_of
from eval.tasks.base import Turn

# Long, because processes wait for the longest answers; launchers end all if one fails.
_PATIENCE = timedelta(days=7)

Item = TypeVar("Item")
Answer: TypeAlias = tuple[float, bool]
"""A log-likelihood, and whether greedy decoding gives the text."""


@register_model("dllm-decode")
class DecodeLM(TemplateLM):
    """Answers the harness with `decode` and `Likelihood`.

    The harness gives each process its share of the documents. At temperature 0 an answer depends on
    its batch-mates by rounding only; above 0, the noise of a row depends on its batch.

    Attributes:
        tokenizer: The model's tokenizer.
        settings: Everything that decides the answers.
        ledger: The cost of each answer.
    """

    def __init__(self, opened: Opened, place: Place = ALONE) -> None:
        super().__init__()
        self._model, self.tokenizer, self.settings = opened
        self._rank, self._world_size = place.rank, place.world_size
        self._owns_processes = place.world_size > 1 and not torch.distributed.is_initialized()
        if self._owns_processes:
            torch.distributed.init_process_group(
                "gloo", rank=place.rank, world_size=place.world_size, timeout=_PATIENCE
            )
        self._group = None
        if place.world_size > 1:
            # An existing group may support tensors on devices only.
            self._group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
        self._device = self._model.device
        self._codec = Codec(self.tokenizer, self.eot_token_id)
        settings, seed = self.settings, self.settings.decoding.seed
        self._likelihood = Likelihood(self._model, settings.estimator, seed, settings.batch_size)
        default = self._model.causal_block_length or DEFAULT_BLOCK_LENGTH
        chosen = settings.decoding.block_length or settings.blocks.block_length
        self._block_length = chosen or default
        self.ledger = CostLedger()

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> "DecodeLM":
        """Loads a model as `open_model` does."""
        added = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(open_model({**arg_dict, **added}), Place.of_launch())

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> "DecodeLM":
        """Loads a model from `name=value,name=value`; expressions must have no comma."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

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
                texts[number] = self._codec.answer(answers[row], generation)
                cost = {**cost_of(tokens, output, row), "gen_length": generation.gen_length}
                self._keep(jobs[number], texts[number], cost)
        return [texts[number] for number in places]

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[Answer]:
        """Scores (context, continuation) pairs."""
        jobs, places = distinct(requests)
        pairs = [self._codec.pair(*job.request.args) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        batches = chunks(order, self.settings.batch_size)
        answers: dict[int, Answer] = {}
        unknown: list[Instance] = []
        for batch in self._progress(batches, "scoring", disable_tqdm):
            started = time.perf_counter()
            scores = self._likelihood.score([pairs[i] for i in batch])
            spent = {"batch_length": len(batch), "batch_s": time.perf_counter() - started}
            for i, scored in zip(batch, scores, strict=True):
                answers[i] = _answer(scored)
                self._keep(jobs[i], answers[i], cost_of_score(pairs[i], scored) | spent)
                unknown += [jobs[i].request] * (scored.estimate.is_greedy is None)
        warn_of_unknown(unknown, requests)
        return [answers[number] for number in places]

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
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[Answer]:
        scored = self._likelihood.score([(context, text) for _, context, text in requests])
        return [_answer(answer) for answer in scored]

    def _prompt(self, number: int, text: str, options: Mapping[str, Any]) -> Prompt:
        length, temperature = self.settings.gen_length, self.settings.temperature
        generation = Generation.of(
            options, gen_length=length, block_length=self._block_length, temperature=temperature
        )
        return Prompt(number, self._codec.prompt(text), generation)

    def _decode(self, batch: Sequence[Prompt], first: LmJob) -> DecodeOutput:
        settings, generation = self.settings, batch[0].generation
        request = first.request
        # Each batch has its own seed, in every process: no two rows share their noise.
        key = [settings.decoding.seed, request.task_name, request.doc_id, request.idx, first.repeat]
        return decode(
            self._model, [prompt.tokens for prompt in batch], settings.sampler,
            cache=settings.cache, verifier=settings.verifier, blocks=settings.blocks,
            config=settings.decoding, gen_length=generation.gen_length,
            block_length=self._block_length, temperature=generation.temperature,
            seed=int(digest(key)[:15], 16),
        )  # fmt: skip

    def _keep(self, job: LmJob, answer: str | Answer, cost: Mapping[str, Any]) -> None:
        """Notes the cost, and the answer in the harness' store, in case the run is stopped."""
        self.ledger.add(job, cost)
        # The store has one place for all repeats of a request.
        if (job.request.repeats or 1) == 1:
            self.cache_hook.add_partial(job.request.request_type, job.request.args, answer)

    def _progress(self, batches: Sequence[Item], verb: str, disable: bool) -> Iterable[Item]:
        return track(batches, verb, console=Console(stderr=True), disable=disable or self.rank > 0)

    def get_model_info(self) -> dict[str, Any]:
        """Returns settings and cost; the harness puts them into `results["config"]`."""
        return {
            "decoding": self.settings.described() | {"fingerprint": self.settings.fingerprint()},
            "num_processes": self.world_size,
            "cost": self.ledger.summary(),
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Takes the harness' store of answers, which knows a request but not the settings.

        Raises ValueError if the store has answers of other settings, or of something else.
        """
        super().set_cache_hook(cache_hook)
        if cache_hook.dbdict is not None:
            self.settings.claim(cache_hook.dbdict)

    @property
    def eot_token_id(self) -> int:
        """The token that ends an answer."""
        return self._model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a continuation without a context."""
        return self._codec.prefix_id

    @property
    def tokenizer_name(self) -> str:
        """Name for the harness' own cache of requests."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Returns a text's token ids; see `Codec.encode`."""
        return self._codec.encode(string, add_special_tokens=add_special_tokens)

    def apply_chat_template(
        self, chat_history: list[Turn], add_generation_prompt: bool = True
    ) -> str:
        """Writes turns in the chat template; see `Codec.render`."""
        return self._codec.render(chat_history, add_generation_prompt=add_generation_prompt)

    def all_gather(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Returns every process's tensor, concatenated."""
        return torch.cat(self._of_all(torch.atleast_1d(tensor.cpu())))

    def gather_object(self, obj: Item, dst: int = 0) -> list[Item] | None:
        """Returns every process's object in process `dst`, None in the other processes."""
        objects = self._of_all(obj)
        return objects if self.rank == dst else None

    def barrier(self) -> None:
        """Waits for the other processes, and shares the costs.

        The harness calls it in every process after each type of request, and calls
        `get_model_info` later in the first process alone.
        """
        for ledger in self._of_all(self.ledger):
            self.ledger.take_over(ledger)

    def _of_all(self, value: Item) -> list[Item]:
        """Returns the values of all processes, which must be picklable, in order of rank."""
        values = [value] * self.world_size
        if self._group is not None:
            torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def close(self) -> None:
        """Ends the group of processes."""
        if self._owns_processes:
            torch.distributed.destroy_process_group()
        self._group, self._owns_processes = None, False


def _answer(scored: ScoredAnswer) -> Answer:
    return scored.estimate.log_likelihood, bool(scored.estimate.is_greedy)
