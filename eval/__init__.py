"""Evaluation: tasks, runs, metrics, reports, and calibration of decoding settings.

records = eval.records("results")                     # a dictionary for each record
found = eval.compare("results/slow", "results/fast")  # paired difference, interval, test

The public names are listed in `__init__.pyi`; each is imported when it is first used, because help
needs nothing heavy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
