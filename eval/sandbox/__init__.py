"""Runs programs that a model wrote, in a sandbox, if the user allows it."""
