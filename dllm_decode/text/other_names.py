"""Names that other libraries have for options: those that mean the same here are taken."""

from collections.abc import Sequence
from typing import Any, cast

from dllm_decode.core.options import (
    DecodeConfig,
    DecodeOptions,
    require_config,
    require_not_negative,
)
from dllm_decode.models.loading.other_names import one_of
from samplers.checks import require_bool, shown


class GenerateOptions(DecodeOptions, total=False):
    """The options of a decode, and the names that transformers has for some of them.

    Attributes:
        input_ids: Token ids, in place of `inputs`, as in `generate(model, tokenizer, **batch)`.
        token_type_ids: Not read; some tokenizers put it into each batch.
        max_new_tokens: The same as `gen_length`.
        do_sample: True: the temperature is 1 unless it is given. False: it is 0.
        stop: The same as `stop_strings`.
    """

    input_ids: Any
    token_type_ids: Any
    max_new_tokens: int
    do_sample: bool
    stop: str | Sequence[str]


def by_our_names(
    inputs: Any, stop_strings: str | Sequence[str], config: DecodeConfig, options: GenerateOptions
) -> tuple[Any, tuple[str, ...], DecodeOptions]:
    """Returns the arguments of `generate` by our names.

    Raises:
        ValueError: If something is given by two names, or contradicts itself.
    """
    require_config(config)
    given: dict[str, Any] = dict(options)
    given.pop("token_type_ids", None)
    inputs = one_of("inputs", inputs, "input_ids", given.pop("input_ids", None))
    found = one_of("stop_strings", stop_strings or None, "stop", given.pop("stop", None)) or ()
    gen_length, same = given.pop("gen_length", None), given.pop("max_new_tokens", None)
    given["gen_length"] = one_of("gen_length", gen_length, "max_new_tokens", same)
    do_sample, temperature = given.pop("do_sample", None), given.get("temperature")
    if temperature is None and config.temperature > 0.0:
        temperature = config.temperature
    if temperature is not None:
        require_not_negative("temperature", temperature)
    if do_sample is not None:
        require_bool("do_sample", do_sample)
        if temperature is not None and do_sample != (temperature > 0.0):
            raise ValueError(
                f"do_sample={do_sample!r} contradicts temperature={temperature!r}; leave do_sample "
                "out, since temperature=0 is greedy and any other samples."
            )
        given["temperature"] = temperature if temperature is not None else float(do_sample)
    strings = (found,) if isinstance(found, str) else found
    if not isinstance(strings, Sequence) or not all(isinstance(one, str) for one in strings):
        raise ValueError(
            f"stop_strings must be a text or texts, got {shown(strings)}. A StopRule is given to "
            "decode or decode_many, as stop."
        )
    return inputs, tuple(strings), cast(DecodeOptions, given)
