"""The decoder: a model, plug-ins and options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.caches.base import CachePolicy
from dllm_decode.core.automaton import Automaton
from dllm_decode.core.model import Compilable, MaskPredictor, RoutesByBlock, UniformState
from dllm_decode.core.options import DecodeConfig, DecodeOptions, RequestOptions
from dllm_decode.core.prompts import Prompt, read_prompt, read_template
from dllm_decode.core.requests import Request
from dllm_decode.core.sizes import round_up
from dllm_decode.core.stopping import NeverStop, StopRule
from dllm_decode.engine import uniform_state_checks
from dllm_decode.engine.constraints.checks import check_constraint
from dllm_decode.engine.layout import Sight
from samplers.base import Sampler
from samplers.checks import require_plugin
from samplers.facts import Fact

if TYPE_CHECKING:
    # Methods of a verifier take a decoder.
    from dllm_decode.engine.verifier import Verifier


@dataclass(frozen=True)
class Decoder:
    """A model, the plug-ins and the options of one decode. `decoding.new_decoder` checks them.

    Attributes:
        model: The mask predictor.
        sampler: Which positions to commit, and with which token.
        cache: Which columns a forward computes.
        verifier: Runs the forwards of a round, and may decide in the sampler's place.
        blocks: Which unsettled positions are open.
        config: The options; a request may replace some of them.
        return_logprobs: As in `decode`.
    """

    model: MaskPredictor
    sampler: Sampler
    cache: CachePolicy
    verifier: "Verifier"
    blocks: BlockSchedule
    config: DecodeConfig
    return_logprobs: bool = False

    @cached_property
    def block_length(self) -> int:
        """Tokens per block.

        Raises:
            ValueError: If it is given twice, or does not fit the answer or the model.
        """
        model, config = self.model, self.config
        fixed, chosen = self.blocks.block_length, config.block_length
        if fixed is not None and chosen not in (None, fixed):
            raise ValueError(
                f"block_length must be left out or be that of {self.blocks!r}, got {chosen}."
            )
        length = uniform_state_checks.block_length_of(model, chosen or fixed, config.gen_length)
        config = replace(config, block_length=length)
        return config.resolved_block_length(model.causal_block_length, model_name=model.name)

    @cached_property
    def block_multiple(self) -> int:
        """Tokens per block of a block-causal model, else 1: blocks begin at multiples of it."""
        return self.model.causal_block_length or 1

    @cached_property
    def window_length(self) -> int:
        """Columns of the sampler's window, W: one number for a whole decode."""
        answer_length = round_up(
            self.config.gen_length + self.block_multiple - 1, self.block_multiple
        )
        if self.sampler_sees_block_only:
            return self.blocks.window_length(self.block_length, answer_length)
        return answer_length

    @cached_property
    def sight(self) -> Sight:
        """How the model sees and predicts."""
        model = self.model
        return Sight(
            shift=model.logit_shift,
            causal_block_length=model.causal_block_length,
            sees_later_blocks=not (model.causal_block_length or self.is_uniform_state),
            with_kv_cache=self.cache.needs_kv_cache,
            device=model.device,
            routing_block_length=(
                model.routing_block_length if isinstance(model, RoutesByBlock) else 1
            ),
        )

    @cached_property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that are never proposed, in ascending order."""
        model = self.model
        banned = {model.mask_id, *model.banned_ids, *self.config.banned_ids}
        return tuple(sorted(token for token in banned if token < model.vocab_size))

    @cached_property
    def is_uniform_state(self) -> bool:
        """True if the model is uniform-state: a block begins as random tokens, not as [MASK]."""
        return isinstance(self.model, UniformState)

    @cached_property
    def calls_per_forward(self) -> int:
        """Calls of the model in one forward: with guidance a second one, without the prompt."""
        return 2 if self.config.cfg_scale else 1

    @cached_property
    def sampler_sees_block_only(self) -> bool:
        """True if the sampler sees only the open block, not the answer or the rest of it."""
        return self.sampler.scope == "block"

    @cached_property
    def tokens_are_final(self) -> bool:
        """True if a token that the sampler has written never changes."""
        return Fact.FINAL_TOKENS in self.sampler.gives

    @cached_property
    def sampler_reads_committed(self) -> bool:
        """True if the sampler needs the model's logits at committed positions."""
        return Fact.LOGITS_OF_COMMITTED in self.sampler.needs

    @cached_property
    def cache_narrows(self) -> bool:
        """True if the cache policy may leave out columns that predict open positions."""
        return Fact.DECIDES_ON_PART in self.cache.needs

    @cached_property
    def cache_reads_look(self) -> bool:
        """True if the cache policy reads how each [MASK] was last predicted."""
        return Fact.LAST_LOOK in self.cache.needs and self.cache.reads_history

    @property
    def model_is_compiled(self) -> bool:
        """True if the model is compiled; the statistics of its logits are too."""
        return isinstance(self.model, Compilable) and self.model.compiled

    def request(
        self,
        prompt: Prompt,
        index: int,
        *,
        noise_index: int | None = None,
        template: Sequence[int] = (),
        stop: StopRule = NeverStop(),
        constraint: Automaton | None = None,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Returns a request; its `options` replace options of this decode.

        Args:
            prompt: Token ids.
            index: Number of the request.
            noise_index: As in `Request`; `None`: the index.
            template: First tokens of the answer, the model's `mask_id` at its blanks.
            stop: Ends the answer early.
            constraint: The texts of which the answer must be one, compiled for the model.
            options: Options that may differ from row to row.

        Raises:
            TypeError: If there is no such option.
            ValueError: If prompt, template or options cannot be decoded.
        """
        require_plugin("stop", stop, StopRule, "StopStrings(tokenizer, strings)")
        config = self._request_config(options)
        tokens = read_prompt(prompt, self.model, config.gen_length)
        uniform_state_checks.check_request(self.model, tokens, config, template, self.block_length)
        self.sampler.check(
            model_name=self.model.name, gen_length=config.gen_length, block_length=self.block_length
        )
        request = Request(
            index=index,
            prompt=tokens,
            config=config,
            template=read_template(template, self.model, config.gen_length),
            noise_index=index if noise_index is None else noise_index,
            stop=stop,
            constraint=constraint,
        )
        if constraint is not None:
            eos_ids = self.verifier.eos_ids(self.model)
            check_constraint(request, self.model, self.sampler, self.verifier, eos_ids=eos_ids)
        self.verifier.check_request(self, request)
        return request

    def _request_config(self, options: RequestOptions) -> DecodeConfig:
        """Returns the options of a request, which replace options of this decode.

        Raises:
            TypeError: If there is no such option.
            ValueError: If an option cannot differ from row to row, or does not fit the decode.
        """
        for name in options:
            if name in DecodeOptions.__annotations__ and name not in RequestOptions.__annotations__:
                raise ValueError(
                    f"An option of a request must be one of "
                    f"{', '.join(RequestOptions.__annotations__)}, got {name}, which is one for "
                    "all rows of a decode."
                )
        config = self.config.updated(**options)
        if config.is_tempered and Fact.SAMPLER_DECIDES not in self.verifier.gives:
            raise ValueError(
                f"top_p and top_k of a request must be left out with {self.verifier!r}, which does "
                f"not let the sampler decide every step, got top_p={config.top_p} and "
                f"top_k={config.top_k}. Use {Fact.SAMPLER_DECIDES.remedy}."
            )
        if config.gen_length > self.config.gen_length:
            raise ValueError(
                f"gen_length of a request must be at most that of the decode, "
                f"{self.config.gen_length}, got {config.gen_length}."
            )
        return config
