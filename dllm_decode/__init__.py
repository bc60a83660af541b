"""Decodes masked-diffusion language models: one loop, pluggable samplers, caches and verifiers.

The public names are listed in `__init__.pyi`; each is imported when it is first used, so that
`import dllm_decode` loads neither torch nor transformers.
"""

import lazy_loader

from dllm_decode.own_packages import require_own

__version__ = "0.2.0"

require_own("samplers")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
