"""Digests of the source of a user's own plug-ins, which an edit changes and their repr does not."""

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path

from eval.runs.models import parse_model
from eval.runs.settings import Run

_PACKAGES = ("samplers", "dllm_decode", "eval")


def sources_of(run: Run) -> dict[str, str]:
    """Returns, by module, digests of the files that define the user's own classes in a run.

    These are its plug-ins, its task and its model family. What their files import is not looked at,
    nor is a class that no file defines.
    """
    plugins = (run.sampler, run.cache, run.verifier, run.blocks, run.selection.task)
    modules = {module for plugin in plugins for module in own_modules(plugin)}
    own_family = parse_model(run.model_source).own_module if run.model_source else None
    modules |= {own_family} if own_family else set()
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {
        module: blake2b(Path(file).read_bytes(), digest_size=12).hexdigest()
        for module, file in sorted(files.items())
        if file is not None and Path(file).is_file()
    }


def own_modules(plugin: object) -> Iterator[str]:
    """Yields the modules of a plug-in's own classes, and of those that it holds."""
    for kind in type(plugin).__mro__:
        if not _is_ours(kind) and any(_is_ours(base) for base in kind.__mro__):
            yield kind.__module__
    if is_dataclass(plugin):
        for field in fields(plugin):
            yield from own_modules(getattr(plugin, field.name))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES
