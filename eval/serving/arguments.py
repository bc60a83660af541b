"""Options of `dllm-decode serve`. Nothing heavy is imported: help is at once."""

from argparse import ArgumentParser, ArgumentTypeError

from dllm_decode.serve.limits import Limits
from eval.runs.arguments import add_machine, add_model
from eval.runs.options import add_options, number, positive, whole

# The answer length is that of each request.
DECODING = (
    "block_length", "temperature", "top_p", "top_k", "cfg_scale", "confidence_from", "banned_ids",
    "deferred_ids", "seed", "stop_at_eos", "truncate_at_eos",
)  # fmt: skip
BOUNDS = {
    "num_rows": "rows of one batch",
    "gen_length": "tokens of an answer if a request does not say",
    "max_tokens": "tokens of an answer that a request may ask for",
    "max_length": "tokens of a prompt and its answer together",
    "max_columns": "tokens of all prompts and answers in one batch",
    "max_choices": "answers of one request",
    "max_waiting": "answers that wait for a row; more are refused with status 429",
    "max_body_bytes": "size of a request",
}
TIMES = {
    "deadline_s": "seconds after which a request is given up",
    "grace_s": "seconds that running requests have when the server is told to end",
}


def port(written: object) -> int:
    """Reads the number of a port."""
    found = whole(written)
    if not 0 <= found < 2**16:
        raise ArgumentTypeError(f"must be between 0 and 65535, got {found}")
    return found


def add_serve(parser: ArgumentParser) -> None:
    """Adds the options."""
    add, defaults = parser.add_argument, Limits()
    add_model(parser)
    add(
        "--served-name",
        metavar="NAME",
        help="of the model for clients (default: the last part of its address)",
    )
    add("--host", default="127.0.0.1",
        help="where it listens; 0.0.0.0 lets other machines in (default: 127.0.0.1)")  # fmt: skip
    add("--port", type=port, default=8000, help="0: any free one (default: 8000)")
    add("--api-key", metavar="KEY", help="what clients must send (default: nothing)")
    add("--sampler", default="ConfidenceThreshold(0.9)", metavar="EXPR",
        help="which positions to commit (default: ConfidenceThreshold(0.9))")  # fmt: skip
    add("--allow-sampler", action="append", default=[], metavar="NAME=EXPR",
        help="a further sampler, which requests may name; each has a batch of its own")  # fmt: skip
    add("--cache", default="NoCache()", metavar="EXPR",
        help="which columns to recompute (default: NoCache())")  # fmt: skip
    add("--verifier", default="NoVerifier()", metavar="EXPR",
        help="how proposals are checked (default: NoVerifier())")  # fmt: skip
    add("--blocks", default="Sequential()", metavar="EXPR",
        help="which positions are open (default: Sequential())")  # fmt: skip
    add_machine(parser)
    bounds = parser.add_argument_group("bounds")
    for name, text in {**BOUNDS, **TIMES}.items():
        default = getattr(defaults, name)
        bounds.add_argument(
            f"--{name.replace('_', '-')}", type=positive if name in BOUNDS else number,
            default=default, metavar="N", help=f"{text} (default: {default:g})",
        )  # fmt: skip
    group = parser.add_argument_group("options of the decode, unless a request says otherwise")
    add_options(group, DECODING, defaults={})
