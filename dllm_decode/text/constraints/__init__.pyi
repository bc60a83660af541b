from .compilation import build_automaton, compile_constraint
from .constraints import Constraint, JsonSchema, OneOf, Regex, constraint_of
from .vocabulary import Vocabulary, read_vocabulary

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
]
