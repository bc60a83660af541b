"""Refuses samplers, caches, verifiers, block schedules and models that do not fit together."""

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy
from dllm_decode.core.model import AnySubset, MaskPredictor, UniformState
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.engine import uniform_state_checks
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.default_sampler import default_sampler
from dllm_decode.engine.verifier import Verifier
from samplers.base import Sampler
from samplers.checks import require_bool, require_plugin, shown
from samplers.declared import require_declared
from samplers.facts import FACTS, Fact, Giver, PlugIn

_WORDS: dict[Giver, str] = {"cache": "cache policy", "blocks": "block schedule"}


def require_plugins(
    model: object,
    sampler: object,
    cache: object,
    verifier: object,
    blocks: object,
) -> None:
    """Raises ValueError unless each argument is an instance of its class."""
    require_model(model)
    wanted: tuple[tuple[str, object, type, str], ...] = (
        ("sampler", sampler, Sampler, "ConfidenceThreshold(0.9)"),
        ("cache", cache, CachePolicy, "DualCache()"),
        ("verifier", verifier, Verifier, "SelfVerify()"),
        ("blocks", blocks, BlockSchedule, "MultiBlock()"),
    )
    for name, value, kind, example in wanted:
        hint = "Pass the object, not its text; dllm_decode.settings.plugins.parse reads text."
        require_plugin(name, value, kind, example, hint=hint if isinstance(value, str) else "")


def require_model(model: object) -> None:
    """Raises ValueError unless the argument is a model."""
    if isinstance(model, type) or not isinstance(model, MaskPredictor):
        is_pair = isinstance(model, tuple)
        hint = " load_model returns two: model, tokenizer = load_model(...)." if is_pair else ""
        raise ValueError(
            f"model must be the model that load_model returns, got {shown(model)}.{hint}"
        )


def _require_special_ids(model: MaskPredictor) -> None:
    """Raises ValueError unless the model has `eos_ids`, all of them its tokens and not [MASK]."""
    ends = model.eos_ids
    if not ends or any(not 0 <= token < model.vocab_size for token in ends):
        raise ValueError(
            f"eos_ids of {model.name} must be one or more ids in [0, {model.vocab_size}), got "
            f"{shown(ends)}. Set them to the tokens that end an answer."
        )
    if model.mask_id in ends:
        raise ValueError(
            f"mask_id of {model.name} must not be one of its eos_ids, got {model.mask_id} in "
            f"{shown(ends)}. Take it out of eos_ids, which the generation config may list."
        )


def facts_of(model: MaskPredictor) -> frozenset[Fact]:
    """Returns the facts that a model gives."""
    is_uniform_state = isinstance(model, UniformState)
    holds_by_fact = {
        Fact.OWN_COLUMN_LOGITS: model.logit_shift == 0,
        Fact.SEES_BOTH_WAYS: model.causal_block_length == 0,
        Fact.HAS_MASK: not is_uniform_state,
        Fact.UNIFORM_STATE: is_uniform_state,
        Fact.ANY_SUBSET: isinstance(model, AnySubset),
    }
    return frozenset(fact for fact, holds in holds_by_fact.items() if holds)


def facts_of_sampler(sampler: Sampler) -> frozenset[Fact]:
    """Returns the facts that a sampler gives, and `DECIDES_ON_PART` if scope and needs imply it."""
    decides_on_part = sampler.scope == "block" and Fact.WHOLE_BLOCKS not in sampler.needs
    return sampler.gives | {Fact.DECIDES_ON_PART} if decides_on_part else sampler.gives


def check(
    model: MaskPredictor,
    sampler: Sampler,
    cache: CachePolicy,
    *,
    verifier: Verifier,
    blocks: BlockSchedule = Sequential(),
) -> None:
    """Raises ValueError if a part is of the wrong kind, or needs a fact that no part gives."""
    require_plugins(model, sampler, cache, verifier, blocks)
    require_declared(sampler, cache, verifier, blocks)
    _require_special_ids(model)
    refusal = refusal_of(model, sampler, cache, verifier=verifier, blocks=blocks)
    if refusal is not None:
        raise ValueError(refusal)


def refusal_of(
    model: MaskPredictor,
    sampler: Sampler,
    cache: CachePolicy,
    *,
    verifier: Verifier,
    blocks: BlockSchedule = Sequential(),
) -> str | None:
    """Returns why a decode is refused; `None` if all parts fit together."""
    plugins: dict[Giver, PlugIn] = {
        "sampler": sampler,
        "cache": cache,
        "verifier": verifier,
        "blocks": blocks,
    }
    gives = {giver: plugin.gives for giver, plugin in plugins.items()} | {"model": facts_of(model)}
    gives["sampler"] = facts_of_sampler(sampler)
    names = {giver: repr(plugin) for giver, plugin in plugins.items()} | {"model": model.name}
    for kind, plugin in plugins.items():
        needs = plugin.needs
        if Fact.UNIFORM_STATE in needs:
            needs |= {Fact.STARTS_AS_NOISE}
        for fact in (*FACTS.values(), *sorted(needs)):
            if fact in needs and fact not in gives[fact.giver]:
                return (
                    f"{names[kind]} needs {fact.sentence}, got {names[fact.giver]}. Use "
                    f"{fact.remedy}, or another {_WORDS.get(kind, kind)}."
                )
    return None


def warn_of_settings_without_effect(decoder: Decoder) -> None:
    """Warns of settings that have no effect in this combination.

    A verifier that never asks the sampler begins a block with each forward, so that policies that
    compute everything at the start of a block save nothing.
    """
    model, cache, config = decoder.model, decoder.cache, decoder.config
    if model.causal_block_length and type(cache).hidden is not CachePolicy.hidden:
        warn_user(f"{cache!r} hides nothing: the blocks of {model.name} see no later ones.")
    if decoder.verifier.asks_sampler:
        return
    idle = [repr(decoder.sampler)] if decoder.sampler != default_sampler(model) else []
    idle += [f"block_length={config.block_length}"] if config.block_length is not None else []
    idle += [repr(cache)] if Fact.BEGINS_BLOCKS_ANEW in cache.gives else []
    for setting in idle:
        warn_user(f"{setting} has no effect: {decoder.verifier!r} never asks the sampler.")


def check_options(decoder: Decoder) -> None:
    """Raises ValueError if the model or a plug-in does not support an option."""
    model, cache, verifier, config = (
        decoder.model, decoder.cache, decoder.verifier, decoder.config
    )  # fmt: skip
    require_bool("return_logprobs", decoder.return_logprobs)
    for name, ids in (("banned_ids", config.banned_ids), ("deferred_ids", config.deferred_ids)):
        if ids and max(ids) >= model.vocab_size:
            raise ValueError(
                f"{name} must be below {model.vocab_size} for {model.name}, got {max(ids)}."
            )
    if len({model.mask_id, *model.banned_ids, *config.banned_ids}) >= model.vocab_size:
        raise ValueError(f"banned_ids must leave a token of {model.name}, got all of them.")
    uniform_state_checks.check_config(model, config, return_logprobs=decoder.return_logprobs)
    reshapes = config.is_tempered or config.cfg_scale or config.deferred_ids
    if Fact.SAMPLER_DECIDES not in verifier.gives and reshapes:
        raise ValueError(
            "top_p, top_k, cfg_scale, confidence_from and deferred_ids must be left out with "
            f"{verifier!r}, which does not let the sampler decide every step. Use "
            f"{Fact.SAMPLER_DECIDES.remedy}."
        )
    if config.cfg_scale and Fact.EVERY_COLUMN not in cache.gives:
        raise ValueError(
            f"cfg_scale must be 0 with {cache!r}, since guidance looks at two canvases and the "
            "cache holds one. Use NoCache()."
        )
