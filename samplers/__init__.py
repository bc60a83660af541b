"""Unmasking samplers for masked-diffusion language models: small, pure, composable policies.

The public names are listed in `__init__.pyi`; each is imported when it is first used, because the
checks of options need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
