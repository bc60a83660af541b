"""Reads the constraint of answers that options name; nothing heavy is imported."""

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from dllm_decode.settings.files import input_file


def constraint_json(options: Namespace) -> Mapping[str, Any] | None:
    """Returns the constraint that options name, as JSON that `constraint_of` reads, or `None`.

    Raises ValueError if options name several constraints.
    """
    named = {"regex": options.regex, "json": options.json_schema, "choice": options.choice}
    constraint = {name: value for name, value in named.items() if value}
    if not constraint:
        return None
    if len(constraint) > 1:
        raise ValueError("One of --regex, --json-schema and --choice must be given, got several.")
    if "json" in constraint:
        file = input_file("--json-schema", options.json_schema, "JSON")
        try:
            constraint["json"] = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"--json-schema must be a file of JSON, got {options.json_schema}: {error}."
            ) from None
    return constraint
