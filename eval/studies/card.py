"""The card of a calibration: what is guaranteed, for which setting, and how it was found."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dllm_decode import CausalTarget
from dllm_decode.blocks import Sequential
from dllm_decode.cli.files import converted, read_object, write_json, write_text
from dllm_decode.cli.plugins import built, no_target
from eval.runs.names import SELECTION, parse_task
from eval.runs.settings import RunSettings, named_parts
from eval.studies.procedure import Guarantee, Judgement

Format = Literal["dllm-decode calibration card 2"]
FORMAT: Format = "dllm-decode calibration card 2"

# It names no block schedule: all its settings were decoded with Sequential().
_WITHOUT_BLOCKS = "dllm-decode calibration card 1"

# Any other difference voids the guarantee. Noise is part of the certified setting, not its seed.
_FREE = ("sampler", "task", "task_version", "examples", "num_examples", "batch_size", "seed")


class Rating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting that was tested, as records have it, and what the tests found.

    `tokens_per_forward` is on the prompts that were looked at; forwards of a target count.
    """

    setting: dict[str, Any]
    verdict: Judgement
    tokens_per_forward: float


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a calibration.

    The guarantee is void for other prompts than those of the task, and for another model, answer
    length, cache, block schedule, precision or device.

    Attributes:
        setting: The fastest certified setting; the reference if none is certified.
        expressions: Its sampler, cache, verifier and blocks as they were given, with the modules of
            the user's own classes.
        is_certified: True if a setting other than the reference is certified.
        agreement: Answers equal the reference's, rather than being right as often.
        reference: The setting that the others are compared with.
        ratings: Every setting that was tested, in the order of the test.
        untested: Settings after the first that could not be certified.
        ordered_on: Prompts on which the order was learned; they were not used for the test.
        warnings: Reasons why the guarantee may be void.
        machine: The note on the machine and the versions.
    """

    format: Format = FORMAT
    setting: dict[str, Any]
    expressions: dict[str, str]
    is_certified: bool
    guarantee: Guarantee
    agreement: bool
    reference: dict[str, Any]
    reference_tokens_per_forward: float
    ratings: tuple[Rating, ...]
    untested: tuple[str, ...]
    ordered_on: int
    warnings: tuple[str, ...]
    machine: dict[str, Any]
    date: str

    def settings(self, target: Callable[[str], CausalTarget] = no_target) -> dict[str, Any]:
        """Returns what `decode` takes: sampler, cache, verifier, blocks and config.

        Raises ValueError if a plug-in of the card cannot be found. `target` loads a verifier's
        causal model, as `load_target` does.
        """
        own = RunSettings.of(dict(self.setting), "The card's setting")
        return {**built(self.expressions, target), "config": own.decoding}

    def misfits(self, settings: RunSettings) -> list[str]:
        """Says how settings with the card's sampler leave the guarantee; empty if they do not."""
        used = settings.written()
        found = [
            f"{name} is {used[name]}, the card's is {value}"
            for name, value in {"constraint": "", **self.setting}.items()
            if name not in _FREE and used[name] != value
        ]
        task, own = _task_of(settings.task), _task_of(self.setting["task"])
        if task != own:
            found.insert(0, f"the task is {task}, the card's is {own}")
        if settings.examples == self.setting["examples"]:
            found.append("the prompts are those of the calibration, which chose by them")
        return found

    def write(self, path: str | Path) -> None:
        """Writes the card as JSON, and as text next to it: `card.json` and `card.txt`."""
        file = Path(path)
        write_json(file, msgspec.to_builtins(self))
        stem = file.name.removesuffix(".json")
        write_text(file.with_name(f"{stem}.txt"), self.text())

    def text(self) -> str:
        """Returns the card in words."""
        said = [self._headline(), "", f"reference: {name_of(self.reference)}, "
                f"{self.reference_tokens_per_forward:.2f} tokens/forward"]  # fmt: skip
        for rating in self.ratings:
            said.append(f"- {name_of(rating.setting)}: {_outcome(rating, self.guarantee)}")
        said += [f"- {name}: not tested" for name in self.untested]
        if self.ordered_on:
            said.append(f"The order was learned on {self.ordered_on} prompts of their own.")
        said += [f"WARNING: {warning}" for warning in self.warnings]
        own = self.reference
        said += [
            "",
            f"task: {own['task']} ({own['num_examples']} prompts, {own['examples']})",
            f"model: {' '.join(filter(None, (own['model'], own['revision'])))}, {own['dtype']}, "
            f"gen_length {own['gen_length']}, block_length {own['block_length']}, "
            f"seed {own['seed']}",
            f"machine: {self.machine.get('device_name')}, {self.machine.get('threads')} threads, "
            f"torch {self.machine.get('torch')}, commit {self.machine.get('commit')}, {self.date}",
            f"command: {self.machine.get('command')}",
            "Void for other prompts, models, lengths, precisions and devices.",
        ]
        return "\n".join(said) + "\n"

    def _headline(self) -> str:
        share = f"{self.guarantee.confidence:.4g}"
        if not self.is_certified:
            return f"No setting could be certified at confidence {share}: keep the reference."
        what = "answers differ from the reference's in" if self.agreement else "accuracy drops by"
        speed = next(r.tokens_per_forward for r in self.ratings if r.setting == self.setting)
        return (
            f"{name_of(self.setting)}: with confidence {share}, {what} at most "
            f"{self.guarantee.max_drop:.4g}; {speed:.2f} tokens/forward."
        )


def read_card(path: str | Path) -> Card:
    """Reads a card, or raises ValueError if the file is no card of this version."""
    remedy = "give a card that calibrate wrote"
    try:
        written = read_object(Path(path), remedy=remedy)
    except OSError as error:
        raise ValueError(f"{path} must be a card that calibrate wrote, got {error}.") from None
    is_older = written.get("format") == _WITHOUT_BLOCKS
    if is_older:
        written["format"] = FORMAT
    card = converted(written, Card, f"The card {path}", remedy)
    if is_older:
        for setting in (card.setting, card.reference, *(one.setting for one in card.ratings)):
            setting.setdefault("blocks", repr(Sequential()))
        card.expressions.setdefault("blocks", "Sequential()")
    return card


def warn_of_misfits(samplers: Sequence[str], runs: Sequence[RunSettings]) -> None:
    """Warns on standard error where a card's sampler is used beyond what the card guarantees.

    `samplers` are as the user named them ("@card.json"); `runs` are about to be decoded.
    """
    for path in (text[1:] for text in samplers if text.startswith("@")):
        card = read_card(path)
        own = [settings for settings in runs if settings.sampler == card.setting["sampler"]]
        misfits = dict.fromkeys(misfit for settings in own for misfit in card.misfits(settings))
        if misfits:
            sys.stderr.write(
                f"WARNING: The guarantee of {path} does not hold here: {'; '.join(misfits)}.\n"
            )


def _task_of(address: str) -> str:
    """Returns an address without the options that select among the task's examples."""
    name, _, query = parse_task(address).address.partition("?")
    own = [one for one in query.split("&") if one and one.partition("=")[0] not in SELECTION]
    return "?".join([name, *(["&".join(own)] if own else [])])


def name_of(setting: Mapping[str, Any]) -> str:
    """Names a setting by its parts."""
    names = ("sampler", "cache", "verifier", "blocks")
    return " + ".join(named_parts(*(setting[name] for name in names)))


def _outcome(rating: Rating, guarantee: Guarantee) -> str:
    found = rating.verdict
    p_values = [
        f"{name} p = {p:.3g}"
        for name, p in (("binomial", found.binomial_p), ("betting", found.betting_p))
        if p is not None
    ]
    said = "certified" if found.certified else "not certified"
    said += (
        f", n = {found.num_prompts}, {found.num_lost} lost, {found.num_gained} gained, "
        f"{', '.join(p_values)} (level {guarantee.level:.4g}), "
        f"{rating.tokens_per_forward:.2f} tokens/forward"
    )
    if found.num_needed is not None:
        said += f"; about {found.num_needed - found.num_prompts} more prompts would certify it"
    elif not found.certified:
        said += "; more prompts would not certify it at this rate"
    return said
