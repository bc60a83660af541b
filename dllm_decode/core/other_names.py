"""Names that other libraries have for options: taken if the meaning is equal, or else a hint.

This module loads no torch, so that help is fast.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from samplers.checks import shown

HINTS = {
    "steps": "the sampler has it. FixedSchedule(n) takes n steps a block, so that LLaDA's steps "
    "are n * gen_length / block_length.",
    "remasking": 'the sampler has it. FixedSchedule(n) is LLaDA\'s "low_confidence", '
    'FixedSchedule(n, order="random") its "random".',
    "alg": 'the sampler has it. FixedSchedule(n, order=...) takes "confidence", "margin", '
    '"entropy" or "random".',
    "threshold": "the sampler has it, such as ConfidenceThreshold(0.9).",
    "factor": "the sampler has it, such as Factor(1.0).",
    "block_size": "its name is block_length.",
    "use_cache": "caches are plug-ins, such as cache=PrefixCache().",
    "dual_cache": "caches are plug-ins, such as cache=DualCache().",
    "max_length": "gen_length is the length of the answer alone.",
    "max_tokens": "its name is gen_length.",
    "num_samples": "its name is num_return_sequences, in generate.",
    "n": "its name is num_return_sequences, in generate.",
    "batch_size": "its name is num_rows, in generate and decode_many.",
    "eos_token_id": "the model knows it; stop_at_eos=False goes on after it.",
    "num_beams": "nothing here corresponds to it; leave it out.",
    "repetition_penalty": "nothing here corresponds to it; leave it out.",
    "alg_temp": "nothing here corresponds to it; leave it out.",
    "prompt": "the first argument after the tokenizer takes texts, chats and token ids.",
    "messages": "the first argument after the tokenizer takes texts, chats and token ids.",
    "use_chat_template": "its name is chat.",
    "mask_id": "load_model reads it from the checkpoint, or takes mask_id.",
    "mask_token_id": "load_model reads it from the checkpoint, or takes mask_id.",
    "right_shift_logits": "the family of the checkpoint says so; leave it out.",
    "logits_eos_inf": "its name is banned_ids, a tuple with the EOS.",
    "suppress_tokens": "its name is banned_ids.",
    "confidence_eos_eot_inf": "its name is deferred_ids, a tuple with EOS and EOT.",
    "begin_suppress_tokens": "its name is deferred_ids.",
    "eos_early_stop": "its name is stop_at_eos.",
    "generator": "its name is seed, a number.",
    "cache_implementation": "caches are plug-ins, such as cache=FreeCache().",
    "editing_threshold": "the sampler has it, as JointThreshold(edit_threshold=...).",
    "max_post_steps": "the sampler has it, as JointThreshold(max_edit_steps=...).",
    "minimal_topk": "the sampler has it, as JointThreshold(at_least=...).",
    "num_inference_steps": "the sampler has it, as FixedSchedule(n) or, on uniform-state models, "
    "AcceptAndRenoise(num_steps=...).",
    "output_history": "an observer sees each step, such as observers=[Trace()].",
    "callback_on_step_end": "an observer sees each step: observers=[...].",
    "generation_tokens_hook_func": "an observer sees each step: observers=[...].",
    "generation_logits_hook_func": "a sampler of your own may change logits.",
}


def refusal(name: str, of: str, known: Sequence[str], hints: Mapping[str, str]) -> str:
    """Returns the message for a keyword that is no option: a hint, or similar names."""
    if hint := hints.get(name):
        return f"{name} is no option of {of}: {hint}"
    similar = ", ".join(get_close_matches(name, known) or known)
    return f"A keyword must be an option of {of}, such as {similar}, got {name!r}."


def value_of(name: str, value: Any, alias: str, alias_value: Any) -> Any:
    """Returns the value of an option with two names; ValueError if both are given."""
    if value is not None and alias_value is not None:
        raise ValueError(
            f"{alias} must be left out beside {name}, got {alias}={shown(alias_value)} and "
            f"{name}={shown(value)}. "
            "They mean the same; pass one."
        )
    return alias_value if value is None else value
