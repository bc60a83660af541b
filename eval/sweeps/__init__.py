"""Sweeps: the files, and the commands `run` and `sweep`, which decode and report them."""
