"""Runs: settings over examples, recorded, resumable, in one process or several."""
