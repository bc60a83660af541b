"""Refuses unknown names before torch is loaded, because loading torch takes seconds.

Everything else about an expression or a model is checked where it is built.
"""

import ast
import re
from argparse import Namespace
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from dllm_decode.models.loading.find import find_here

_ROOT = Path(__file__).parents[2]
_PACKAGES = {
    "sampler": "samplers", "cache": "dllm_decode/caches", "verifier": "dllm_decode/verify",
    "blocks": "dllm_decode/blocks",
}  # fmt: skip
_LISTS = {
    "sampler": "samplers", "cache": "caches", "verifier": "verifiers", "blocks": "schedules"
}  # fmt: skip
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
# A name that is called, or a whole expression without parentheses; not "module:Name".
_CALLED = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)\s*(?=\(|$)")


def require_known(options: Namespace) -> None:
    """Raises if options name a plug-in, a card or a model that is not there.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If there is no such plug-in or card.
    """
    for part in _PACKAGES:
        for text in _texts(options, part):
            _require_plugin(part, text)
    for address in _texts(options, "model"):
        # A folder may have a question mark in its name.
        find_here(address if Path(address).is_dir() else address.partition("?")[0])


def _texts(options: Namespace, name: str) -> Iterator[str]:
    value = vars(options).get(name)
    yield from (text for text in (value if isinstance(value, list) else [value]) if text)


def _require_plugin(part: str, text: str) -> None:
    if text.startswith("@"):
        if not Path(text[1:]).is_file():
            raise ValueError(f"--{part} @FILE must name a card that is there, got {text[1:]!r}.")
        return
    names = plugin_names(part)
    for name in _CALLED.findall(_QUOTED.sub("", text)):
        if name not in names:
            close = get_close_matches(name, names, n=1)
            raise ValueError(
                f"{name!r} is not known here; {f'did you mean {close[0]!r}? ' if close else ''}"
                f"dllm-decode {_LISTS[part]} lists what is. A class of your own is written "
                "module:Class()."
            )


def plugin_names(part: str) -> list[str]:
    """Returns the names that an expression may call: those that the plug-ins' package exports."""
    folder = _ROOT / _PACKAGES[part]
    stub = folder / "__init__.pyi"
    source = stub if stub.is_file() else folder / "__init__.py"
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return [*names, "CausalTarget"] if part == "verifier" else names
