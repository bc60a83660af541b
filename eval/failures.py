"""Errors that a sampler, a scorer or a model raises when its code is wrong about one example."""

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Anything else, such as an interrupt or a full disk, ends a run; its records are kept."""
