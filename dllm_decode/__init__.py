"""Decodes masked-diffusion language models: one loop, pluggable samplers, caches and verifiers.

The public names are listed in `__init__.pyi`; each is imported when it is first used, so that
`import dllm_decode` loads neither torch nor transformers.
"""

import importlib.util

import lazy_loader

__version__ = "0.2.0"


def _require_own_samplers() -> None:
    """Raises ImportError with an explanation if another package has the name `samplers`."""
    found = importlib.util.find_spec("samplers")
    if found is not None and found.submodule_search_locations is None:
        raise ImportError(
            f"dllm_decode needs its own package samplers, got {found.origin}, which Python finds "
            "first. Rename that file, or run from another folder."
        )


_require_own_samplers()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
