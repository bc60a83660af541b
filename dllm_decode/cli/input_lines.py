"""Prompts of `dllm-decode generate --input FILE`, a JSON object a line; loads no torch."""

from pathlib import Path
from typing import Any, cast

import msgspec

from dllm_decode.core.options import DecodeConfig, RequestOptions
from dllm_decode.settings.files import parse_json
from dllm_decode.text.brackets import split_blanks

_REMEDY = "mend or remove the line"


class InputLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of the input, a text or a chat; both may be left out with a template.

    Blanks, stop strings and options of the decode are as in `generate`, `constraint` is as
    `constraint_of` reads it, and `id` is copied to the answer.
    """

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    template: str | None = None
    constraint: dict[str, Any] | None = None
    id: str | int | None = None
    stop_strings: tuple[str, ...] = ()
    gen_length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_at_eos: bool | None = None
    truncate_at_eos: bool | None = None

    def options(self) -> RequestOptions:
        """Returns the options of the decode that the line names."""
        values = msgspec.structs.asdict(self)
        options = {name: values[name] for name in RequestOptions.__annotations__}
        return cast(RequestOptions, {name: v for name, v in options.items() if v is not None})

    def check(self, where: str) -> None:
        """Raises ValueError if an option is out of its range, or a blank too long."""
        try:
            DecodeConfig().updated(**self.options())
            split_blanks(self.template or "")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def read_prompts(file: Path) -> dict[int, InputLine]:
    """Returns the prompts of a file of JSON lines, by number of the line, from 0.

    Raises ValueError if there is no prompt, or if a line, which it names, is no prompt.
    """
    prompts = {}
    for number, line in enumerate(file.read_bytes().split(b"\n")):
        if not line.strip():
            continue
        where = place_of(file, number)
        prompt = parse_json(line, InputLine, where, _REMEDY)
        num_given = (prompt.text is not None) + (prompt.messages is not None)
        if num_given > 1 or (not num_given and prompt.template is None):
            raise ValueError(
                f"{where} must have either 'text' or 'messages', or a 'template'; {_REMEDY}."
            )
        if prompt.text is not None and prompt.template is None and not prompt.text.strip():
            raise ValueError(f"{where} must have a 'text' that is not blank; {_REMEDY}.")
        prompt.check(where)
        prompts[number] = prompt
    if not prompts:
        raise ValueError(f"--input must hold one JSON object a line, got none in {str(file)!r}.")
    return prompts


def place_of(file: str | Path, number: int) -> str:
    """Returns how messages name a line, by its number from 0."""
    return f"Line {number + 1} of {file}"
