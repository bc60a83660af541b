"""Compiles a JSON schema to the automaton of its JSON texts."""

from dllm_decode.text.constraints.machines.limits import (
    MAX_BUILT,
    MAX_STATES,
    TooLargeError,
    require_states,
)
from dllm_decode.text.constraints.machines.octets import Octets
from dllm_decode.text.constraints.schemas.loops import find_loops
from dllm_decode.text.constraints.schemas.reader import Reader
from dllm_decode.text.constraints.schemas.references import Document, SchemaError
from dllm_decode.text.constraints.schemas.writer import Writer

# Most states of a place that can vary, from the widest to the narrowest; see `Writer`.
_LIMITS = (10_000, 5_000, 2_500, 1_200, 600, 300, 150, 60)


def compile_schema(document: Document, *, depth: int, space: Octets, extra_keys: bool) -> Octets:
    """Returns the automaton of the JSON texts of a schema; see `JsonSchema`.

    Sizes are estimated before anything is written, and the widest form that fits is taken.

    Raises:
        SchemaError: If no value is valid, or if the values are no regular language.
        TooLargeError: If there are too many states, or no processor time is left.
    """
    reader = Reader(document)
    root = reader.node(document.root)
    loops = find_loops(reader, root)
    for limit in _LIMITS:
        require_states(0)
        writer = Writer(reader, loops, space=space, depth=depth, extra_keys=extra_keys, limit=limit)
        size = writer.size(root)
        if size > (MAX_STATES if limit > _LIMITS[-1] else MAX_BUILT):
            continue
        try:
            octets = writer.write(root).smallest()
        except TooLargeError:
            continue
        if octets.is_empty:
            raise SchemaError("# of a JSON schema must allow a value, got one that allows none.")
        if len(octets) <= MAX_STATES:
            return octets
    raise TooLargeError(f"about {size} states")
