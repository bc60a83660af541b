"""Refuses wrong options before torch is loaded, because loading torch takes seconds.

Names of models, names and arguments of our plug-ins, and options of the decode are checked here;
everything else is checked where it is built.
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dllm_decode.core.options import DecodeConfig
from dllm_decode.models.loading.model_folder import find_on_disk
from dllm_decode.settings.argument_checks import argument_check_of, exported_names
from dllm_decode.settings.options import OPTIONS
from samplers.expression import parse_expression

_PACKAGES = {
    "sampler": "samplers", "cache": "dllm_decode/caches", "verifier": "dllm_decode/verify",
    "blocks": "dllm_decode/blocks",
}  # fmt: skip
_LISTS = {
    "sampler": "samplers", "cache": "caches", "verifier": "verifiers", "blocks": "schedules"
}  # fmt: skip
_EXAMPLES = {
    "sampler": "LocalLeap", "cache": "DualCache", "verifier": "SelfVerify", "blocks": "MultiBlock"
}  # fmt: skip
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
# A name that is called, or a whole expression without parentheses; not "module:Name".
_CALLED = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)\s*(?=\(|$)")
_OWN = re.compile(r"\w:[A-Za-z_]")


def require_known(options: Namespace) -> None:
    """Raises if options name something that is not there, or are outside their ranges.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If there is no such plug-in or card, or a value is outside its range.
    """
    for part in _PACKAGES:
        for text in _given_values(options, part):
            require_known_plugins(part, text)
    for name in OPTIONS:
        for value in _given_values(options, name):
            DecodeConfig().updated(**{name: value})
    for address in _given_values(options, "model"):
        # A folder may have a question mark in its name.
        find_on_disk(address if Path(address).is_dir() else address.partition("?")[0])


def _given_values(options: Namespace, name: str) -> Iterator[Any]:
    value = vars(options).get(name)
    values = value if isinstance(value, list) else [value]
    yield from (value for value in values if value not in (None, ""))


def require_known_plugins(part: str, text: str) -> None:
    """Raises ValueError unless a text names plug-ins of ours with arguments in their ranges."""
    if text.startswith("@"):
        if not Path(text[1:]).is_file():
            raise ValueError(f"--{part} @FILE must name a card that is there, got {text[1:]!r}.")
        return
    names, called = plugin_names(part), called_names(text)
    for name in called:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            raise ValueError(
                f"{name!r} is not known here; {f'did you mean {close[0]!r}? ' if close else ''}"
                f"dllm-decode {_LISTS[part]} lists what is. A class of your own is written "
                "module:Class()."
            )
    # A class of the user's own may import torch.
    if not _OWN.search(_QUOTED.sub("", text)):
        _, files = exported_names(_PACKAGES[part])
        known = {name: argument_check_of(name, files) for name in called or [_EXAMPLES[part]]}
        parse_expression(text, known | {"CausalTarget": lambda source: source})


def called_names(text: str) -> list[str]:
    """Returns the names that an expression calls, without classes of the user's own."""
    return _CALLED.findall(_QUOTED.sub("", text))


def plugin_names(part: str) -> list[str]:
    """Returns the names that an expression may call: those that the plug-ins' package exports."""
    names, _ = exported_names(_PACKAGES[part])
    return [*names, "CausalTarget"] if part == "verifier" else names
