"""Unmasking samplers for masked-diffusion language models: small, pure, composable policies.

A file whose name is not in this list has one rule, or rules of one paper.

base.py          the contract of a rule; view.py: what it sees; state.py: what it remembers
facts.py         what plug-ins need and give
calls.py         how the engine calls a rule, with checks of what it returns
checks.py        checks of settings
declared.py      checks of what plug-ins say of themselves
wrapper.py       the base of rules around a rule
logits/          statistics, noise and truncation
registry.py      all rules by name; expression.py: from a text to a rule
testing.py       views and laws for authors of rules

The public names are listed in `__init__.pyi`; each is imported when it is first used, because the
checks of options need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
