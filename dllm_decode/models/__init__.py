"""Mask predictors: the transformer, the families it covers, and how they are read from disk.

The public names are listed in `__init__.pyi`; each is imported when it is first used, so that names
of models are looked for without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
