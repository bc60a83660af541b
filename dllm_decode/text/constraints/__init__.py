"""Constraints on answers: regular expressions, JSON schemas and choices.

The names are listed in `__init__.pyi`; each is imported when it is first used, so that a command
line reads a constraint without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
