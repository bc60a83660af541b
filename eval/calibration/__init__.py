"""Calibration: the fastest setting that keeps the accuracy, with a guarantee."""
