"""Evaluation: tasks, runs, metrics, reports, and calibration of decoding settings.

frame = eval.frame("results")                       # one row for each record, in pandas
found = eval.compare("results/slow", "results/fast")  # paired difference, interval, test

The public names are listed in `__init__.pyi`; each is imported when it is first used, because help
and reports need no pandas.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
