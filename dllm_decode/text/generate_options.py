"""The options of `generate`, also by the names that other libraries use for them."""

from collections.abc import Sequence
from typing import Any, cast

from dllm_decode.core.options import DecodeConfig, DecodeOptions, require_config
from dllm_decode.core.other_names import value_of
from samplers.checks import require_bool, require_finite_non_negative, shown


class GenerateOptions(DecodeOptions, total=False):
    """The options of a decode, and the names that transformers has for some of them.

    Attributes:
        input_ids: Token ids, in place of `inputs`, as in `generate(model, tokenizer, **batch)`.
        token_type_ids: Ignored; some tokenizers put this key into each batch.
        max_new_tokens: The same as `gen_length`.
        do_sample: True: the temperature is 1 unless given. False: the temperature is 0.
        stop: The same as `stop_strings`.
    """

    input_ids: Any
    token_type_ids: Any
    max_new_tokens: int
    do_sample: bool
    stop: str | Sequence[str]


def read_options(
    inputs: Any, stop_strings: str | Sequence[str], config: DecodeConfig, options: GenerateOptions
) -> tuple[Any, tuple[str, ...], DecodeOptions]:
    """Returns the arguments of `generate` by the names of this library.

    Raises:
        ValueError: If an option is given by two names, or two options contradict each other.
    """
    require_config(config)
    renamed: dict[str, Any] = dict(options)
    renamed.pop("token_type_ids", None)
    inputs = value_of("inputs", inputs, "input_ids", renamed.pop("input_ids", None))
    stops = value_of("stop_strings", stop_strings or None, "stop", renamed.pop("stop", None)) or ()
    gen_length, new_tokens = renamed.pop("gen_length", None), renamed.pop("max_new_tokens", None)
    renamed["gen_length"] = value_of("gen_length", gen_length, "max_new_tokens", new_tokens)
    do_sample, temperature = renamed.pop("do_sample", None), renamed.get("temperature")
    if temperature is None and config.temperature > 0.0:
        temperature = config.temperature
    if temperature is not None:
        require_finite_non_negative("temperature", temperature)
    if do_sample is not None:
        require_bool("do_sample", do_sample)
        if temperature is not None and do_sample != (temperature > 0.0):
            raise ValueError(
                f"do_sample={do_sample!r} contradicts temperature={temperature!r}; leave do_sample "
                "out, since temperature=0 is greedy and any other samples."
            )
        renamed["temperature"] = temperature if temperature is not None else float(do_sample)
    strings = (stops,) if isinstance(stops, str) else stops
    if not isinstance(strings, Sequence) or not all(isinstance(string, str) for string in strings):
        raise ValueError(
            f"stop_strings must be a text or texts, got {shown(strings)}. A StopRule is given to "
            "decode or decode_many, as stop."
        )
    return inputs, tuple(strings), cast(DecodeOptions, renamed)
