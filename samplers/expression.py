"""Reads `LocalLeap(radius=6)` from text: parsed from the syntax tree, never evaluated."""

import ast
import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

Constructors = Mapping[str, Callable[..., Any]]


def parse_expression(text: str, constructors: Constructors) -> Any:
    """Builds the object that a constructor expression describes.

    The text is what `repr` prints: a call of a known name whose arguments are literals or further
    such calls. Without parentheses a name stands for its defaults.

    Args:
        text: The expression.
        constructors: What may be called, by name.

    Raises:
        ValueError: If the text is not such an expression, names something unknown, or the
            constructor refuses its arguments.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(
            f"Expected an expression such as {_example(constructors)}, got {text!r}."
        ) from None
    if isinstance(tree, ast.Name):
        tree = ast.Call(func=tree, args=[], keywords=[])
    if not isinstance(tree, ast.Call):
        raise ValueError(f"Expected an expression such as {_example(constructors)}, got {text!r}.")
    return _call(tree, constructors)


def _call(node: ast.Call, constructors: Constructors) -> Any:
    name = ast.unparse(node.func)
    if name not in constructors:
        raise ValueError(f"{name!r} is not known here; {_suggest(name, constructors)}")
    constructor = constructors[name]
    arguments = [_value(argument, constructors) for argument in node.args]
    options = {word.arg or "**": _value(word.value, constructors) for word in node.keywords}
    if len(options) < len(node.keywords):
        raise ValueError(f"{name} has an option twice in {ast.unparse(node)!r}; give it once.")
    parameters = inspect.signature(constructor).parameters
    unknown = [option for option in options if option not in parameters]
    if unknown:
        raise ValueError(f"{name} has no option {unknown[0]!r}; {_suggest(unknown[0], parameters)}")
    try:
        inspect.signature(constructor).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}.") from None
    return constructor(*arguments, **options)


def _value(node: ast.expr, constructors: Constructors) -> Any:
    match node:
        case ast.Call():
            return _call(node, constructors)
        case ast.Tuple(elts=items):
            return tuple(_value(item, constructors) for item in items)
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -math.inf
        case _:
            try:
                return ast.literal_eval(node)
            except (ValueError, TypeError):
                raise ValueError(
                    f"Arguments are literals or calls of known names, got {ast.unparse(node)!r}."
                ) from None


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    choices = f"choose from {', '.join(sorted(known))}." if known else "it takes none."
    return f"did you mean {close[0]!r}? Otherwise {choices}" if close else choices


def _example(constructors: Constructors) -> str:
    return f"{min(constructors)}(...)" if constructors else "Name(...)"
