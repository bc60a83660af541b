"""Settings as records name them: everything that decides an answer, and its digest."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from typing import Any

import msgspec

from dllm_decode.blocks import Sequential
from dllm_decode.options import DecodeConfig
from eval.runs.files import converted
from eval.runs.options import OPTIONS

NEW_FOLDER = "run anew into another folder"
_NOTHING = ("", "NoCache()", "NoVerifier()", repr(Sequential()))


@dataclass(frozen=True)
class Settings:
    """Everything that decides an answer, except for the machine: one row of a table.

    Plug-ins are reprs.

    Attributes:
        dtype: Of the parameters.
        task: Canonical address.
        examples: Digest of the examples' ids, prompts and targets.
        sampler: Empty if the verifier asks none.
        decoding: All other options of the decode, with the block length that was used.
        batch_size: Rows decoded together: which rows share a batch moves floating-point rounding.
        prompts: "chat" or "plain".
    """

    model: str
    revision: str | None
    dtype: str
    task: str
    task_version: int
    examples: str
    num_examples: int
    sampler: str
    cache: str
    verifier: str
    blocks: str
    decoding: DecodeConfig
    batch_size: int
    prompts: str

    @property
    def seed(self) -> int:
        """Seed of the noise."""
        return self.decoding.seed

    @property
    def block_length(self) -> int | None:
        """Tokens per block."""
        return self.decoding.block_length

    @property
    def parts(self) -> list[str]:
        """Sampler, cache, verifier and block schedule, as far as they are not the usual ones."""
        return named_parts(self.sampler, self.cache, self.verifier, self.blocks)

    def key(self, example_id: str) -> str:
        """Returns the key of an example's record under these settings."""
        return self.keys()(example_id)

    def keys(self) -> Callable[[str], str]:
        """Returns `key` with the text of the settings worked out once, for many examples."""
        settings = _canonical(self.written())
        return lambda example: _digest_of(
            f'{{"example":{_canonical(example)},"settings":{settings}}}'
        )

    def with_seed(self, seed: int) -> "Settings":
        """Returns the same settings with another seed."""
        return replace(self, decoding=replace(self.decoding, seed=seed))

    def written(self) -> dict[str, Any]:
        """Returns the settings for JSON, the options of the decode among the others."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "decoding"}
        options = asdict(self.decoding)
        # JSON has no tuples: what is written and what is read are the same.
        return own | {n: list(v) if isinstance(v, tuple) else v for n, v in options.items()}

    @staticmethod
    def of(written: Mapping[str, Any], where: str = "Settings") -> "Settings":
        """Reads what `written` gave.

        Raises ValueError if a field is missing, unknown, of the wrong type or out of its range.
        """
        found = msgspec.structs.asdict(converted(written, _WrittenSettings, where, NEW_FOLDER))
        try:
            decoding = DecodeConfig(**{name: found.pop(name) for name in OPTIONS})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return Settings(decoding=decoding, **found)


_WrittenSettings = msgspec.defstruct(
    "_WrittenSettings",
    [*((f.name, f.type) for f in fields(Settings) if f.name != "decoding"), *OPTIONS.items()],
    forbid_unknown_fields=True,
)


def named_parts(*parts: str) -> list[str]:
    """Returns those of the reprs that a setting is named by: not those that change nothing."""
    return [text for text in parts if text not in _NOTHING]


def digest(value: object) -> str:
    """Returns a short hash of a value's canonical JSON."""
    return _digest_of(_canonical(value))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _digest_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()
