"""Constraints on answers: regular expressions, JSON schemas and choices."""

from dllm_decode.text.constraints.automata import (
    build_automaton,
    compile_constraint,
    require_length,
)
from dllm_decode.text.constraints.constraints import (
    Constraint,
    JsonSchema,
    OneOf,
    Regex,
    constraint_of,
)
from dllm_decode.text.constraints.vocabulary import Vocabulary, read_vocabulary

__all__ = [
    "Constraint",
    "JsonSchema",
    "OneOf",
    "Regex",
    "Vocabulary",
    "build_automaton",
    "compile_constraint",
    "constraint_of",
    "read_vocabulary",
    "require_length",
]
