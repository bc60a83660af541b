"""Reads `LocalLeap(radius=6)` from text: parsed from the syntax tree, never evaluated.

A user's own plug-in is named with its module, `my_package.my_module:MarginThreshold(0.8)`. Reading
it imports the module, as `import` would, and nothing else.
"""

import ast
import difflib
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from samplers.checks import shown

Constructors = Mapping[str, Callable[..., Any]]
Plugin = TypeVar("Plugin")

PACKAGES = ("samplers", "dllm_decode", "eval")
"""The packages of this distribution."""

# A quoted text, which is left alone, or `module:Class`.
_IMPORTED = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<![\w.-])(?P<module>[A-Za-z_][\w.]*+):(?P<name>[A-Za-z_]\w*)"""
)


def parse_plugin(
    text: str, base: type[Plugin], known: Constructors, *, parts: tuple[type, ...] = ()
) -> Plugin:
    """Builds a sampler, cache policy, verifier or schedule that an expression describes.

    In addition to the known names, `my_package.my_module:MarginThreshold(0.8)` is a class of the
    user's own, also as an argument: `CreditDecoding(my_module:MarginThreshold(0.8))`. Its module is
    imported; the expression is parsed, never evaluated.

    Args:
        text: The expression.
        base: Class of the result, such as `Sampler`.
        known: Constructors that the expression may call by name.
        parts: Further base classes that an imported argument may have.

    Raises:
        ValueError: If the text is not such an expression, a module or class cannot be found or is
            of another kind, or the constructor refuses its arguments.
    """
    imported: dict[str, Callable[..., Any]] = {}

    def note(match: re.Match[str]) -> str:
        if match["quoted"]:
            return match["quoted"]
        name = f"{match['module']}.{match['name']}"
        imported[name] = import_class(match["module"], match["name"], (base, *parts))
        return name

    plugin = parse_expression(_IMPORTED.sub(note, text), {**known, **imported})
    if not isinstance(plugin, base):
        raise ValueError(f"{shown(text)} must describe a {base.__name__}, got a {_kind(plugin)}.")
    return plugin


def expression_of(plugin: object) -> str:
    """Returns the expression that `parse_plugin` reads as this plug-in: its repr, for our own.

    A class of the user's own is written with its module, also where it is an argument or in a tuple
    of arguments, so that equal names in two modules differ. A class that is defined within
    another, or within a function, is written in the same way, but cannot be read again.
    """
    if type(plugin) is tuple:
        items = [expression_of(item) for item in plugin]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if not is_dataclass(plugin):
        return repr(plugin)
    kind = type(plugin)
    written = (
        f"{field.name}={expression_of(getattr(plugin, field.name))}"
        for field in fields(plugin)
        if field.repr
    )
    prefix = "" if is_ours(kind) else f"{kind.__module__}:"
    return f"{prefix}{kind.__qualname__}({', '.join(written)})"


def is_ours(kind: type) -> bool:
    """Returns whether a class is defined in one of `PACKAGES`."""
    return kind.__module__.partition(".")[0] in PACKAGES


def import_class(module: str, name: str, bases: tuple[type, ...]) -> Callable[..., Any]:
    """Returns a class of the user's own; its module is imported.

    Args:
        module: Dotted name of the module.
        name: Name of the class.
        bases: Classes from one of which the class must derive.

    Raises:
        ValueError: If there is no such module or class, or the class is of another kind.
    """
    address = f"{module}:{name}"
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"The module of {shown(address)} must be importable, got {error}. Install its package, "
            "or run in the folder that holds it."
        ) from error
    cls = vars(loaded).get(name)
    kinds = " or ".join(base.__name__ for base in bases)
    if not isinstance(cls, type) or not issubclass(cls, bases):
        got = f"nothing of this name{_near_name(name, vars(loaded), bases)}"
        if cls is not None:
            got = f"a {_kind(cls)}."
        raise ValueError(f"{shown(address)} must be a class derived from {kinds}, got {got}")
    return cls


def _near_name(name: str, members: Mapping[str, object], bases: tuple[type, ...]) -> str:
    """Returns the question if another name was meant, or a full stop if none is near."""
    classes = {key: kind for key, kind in members.items() if isinstance(kind, type)}
    own = [key for key, kind in classes.items() if issubclass(kind, bases) and not is_ours(kind)]
    close = difflib.get_close_matches(name, own, n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def _kind(value: object) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else type(value).__name__


def parse_expression(text: str, constructors: Constructors) -> Any:
    """Builds the object that a constructor expression describes.

    The text is as `repr` prints it: a call of a known name whose arguments are literals or further
    such calls. A name without parentheses is a call without arguments.

    Args:
        text: The expression.
        constructors: Constructors by name.

    Raises:
        ValueError: If the text is not such an expression, names something unknown, or the
            constructor refuses its arguments.
    """
    try:
        return _parsed_call(text, constructors)
    except RecursionError:
        raise ValueError(
            f"An expression must not be nested deeper than Python reads, got {shown(text)}."
        ) from None


def _parsed_call(text: str, constructors: Constructors) -> Any:
    try:
        tree: ast.expr | None = ast.parse(text.strip(), mode="eval").body
    # Text that is nested too deeply or holds a NUL raises one of the last two in some versions.
    except (SyntaxError, ValueError, MemoryError):
        tree = None
    if isinstance(tree, ast.Name | ast.Attribute):
        tree = ast.Call(func=tree, args=[], keywords=[])
    if not isinstance(tree, ast.Call):
        raise ValueError(
            f"Expected an expression such as {_example(constructors)}, got {shown(text)}."
        )
    return _call(tree, constructors)


def _call(node: ast.Call, constructors: Constructors) -> Any:
    name = ast.unparse(node.func)
    if name not in constructors:
        raise ValueError(
            f"{shown(name)} is not known here; {_suggest(name, constructors)} A class of your own "
            "is written module:Class()."
        )
    constructor = constructors[name]
    arguments = [_value(argument, constructors) for argument in node.args]
    options = {word.arg or "**": _value(word.value, constructors) for word in node.keywords}
    if len(options) < len(node.keywords):
        raise ValueError(f"{name} has an option twice in {shown(ast.unparse(node))}; give it once.")
    parameters = inspect.signature(constructor).parameters
    unknown = [option for option in options if option not in parameters]
    if unknown:
        raise ValueError(
            f"{name} has no option {shown(unknown[0])}; {_suggest(unknown[0], parameters)}"
        )
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
                    "Arguments are literals or calls of known names, got "
                    f"{shown(ast.unparse(node))}."
                ) from None


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    choices = f"choose from {', '.join(sorted(known))}." if known else "it takes none."
    return f"did you mean {close[0]!r}? Otherwise {choices}" if close else choices


def _example(constructors: Constructors) -> str:
    name = next(iter(constructors), "Name")
    return f"{name}(...)"
