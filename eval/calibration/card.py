"""The card of a calibration: what is guaranteed, for which setting, and how it was found."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dllm_decode import CausalTarget
from dllm_decode.core.files import write_text
from dllm_decode.settings.files import checked_value, read_object, write_json
from dllm_decode.settings.plugins import build_plugins, no_target
from eval.calibration.procedure import Guarantee, Judgement
from eval.runs.settings import RunSettings, named_parts
from eval.runs.task_addresses import SELECTION, parse_task

Format = Literal["dllm-decode calibration card 4"]
FORMAT: Format = "dllm-decode calibration card 4"

# These may differ; any other difference voids the guarantee. Noise is certified, its seed is not.
_FREE = ("sampler", "task", "task_version", "examples", "num_examples", "batch_size", "seed")


class Rating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tested setting, as records have it, and the verdict of the test.

    `tokens_per_forward` is measured on the tested prompts; forwards of a target count.
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
        expressions: Sampler, cache, verifier and blocks of `setting` as the user gave them, with
            the modules of the user's own classes.
        is_certified: True if a setting other than the reference is certified.
        reference: The setting that the others are compared with.
        ratings: Every setting that was tested, in the order of the test.
        untested: Settings after the first that could not be certified.
        warnings: Reasons why the guarantee may be void.
        machine: The note on the machine and the versions.
    """

    format: Format = FORMAT
    setting: dict[str, Any]
    expressions: dict[str, str]
    is_certified: bool
    guarantee: Guarantee
    reference: dict[str, Any]
    reference_tokens_per_forward: float
    ratings: tuple[Rating, ...]
    untested: tuple[str, ...]
    warnings: tuple[str, ...]
    machine: dict[str, Any]
    date: str

    def settings(self, target: Callable[[str], CausalTarget] = no_target) -> dict[str, Any]:
        """Returns arguments for `decode`: sampler, cache, verifier, blocks and config.

        Raises ValueError if a plug-in of the card cannot be found. `target` loads a verifier's
        causal model, as `load_target` does.
        """
        settings = RunSettings.of(dict(self.setting), "The card's setting")
        return {**build_plugins(self.expressions, target), "config": settings.config}

    def misfits(self, settings: RunSettings) -> list[str]:
        """Lists why the guarantee does not hold for settings with the card's sampler, if so."""
        used = settings.written()
        reasons = [
            f"{name} is {used[name]}, the card's is {value}"
            for name, value in self.setting.items()
            if name not in _FREE and used[name] != value
        ]
        task, card_task = _task_of(settings.task), _task_of(self.setting["task"])
        if task != card_task:
            reasons.insert(0, f"the task is {task}, the card's is {card_task}")
        if settings.examples == self.setting["examples"]:
            reasons.append("the prompts are those of the calibration, which chose by them")
        return reasons

    def write(self, path: str | Path) -> None:
        """Writes the card as JSON, and as text next to it: `card.json` and `card.txt`."""
        file = Path(path)
        write_json(file, msgspec.to_builtins(self))
        stem = file.name.removesuffix(".json")
        write_text(file.with_name(f"{stem}.txt"), self.text())

    def text(self) -> str:
        """Returns the card in words."""
        lines = [self._headline(), "", f"reference: {name_of(self.reference)}, "
                f"{self.reference_tokens_per_forward:.2f} tokens/forward"]  # fmt: skip
        for rating in self.ratings:
            lines.append(f"- {name_of(rating.setting)}: {_outcome(rating, self.guarantee)}")
        lines += [f"- {name}: not tested" for name in self.untested]
        lines += [f"WARNING: {warning}" for warning in self.warnings]
        ref = self.reference
        lines += [
            "",
            f"task: {ref['task']} ({ref['num_examples']} prompts, {ref['examples']})",
            f"model: {' '.join(filter(None, (ref['model'], ref['revision'])))}, {ref['dtype']}, "
            f"gen_length {ref['gen_length']}, block_length {ref['block_length']}, "
            f"seed {ref['seed']}",
            f"machine: {self.machine.get('device_name')}, {self.machine.get('threads')} threads, "
            f"torch {self.machine.get('torch')}, commit {self.machine.get('commit')}, {self.date}",
            f"command: {self.machine.get('command')}",
            "Void for other prompts, models, lengths, precisions and devices.",
        ]
        return "\n".join(lines) + "\n"

    def _headline(self) -> str:
        share = f"{self.guarantee.confidence:.4g}"
        if not self.is_certified:
            return f"No setting could be certified at confidence {share}: keep the reference."
        speed = next(r.tokens_per_forward for r in self.ratings if r.setting == self.setting)
        return (
            f"{name_of(self.setting)}: with confidence {share}, accuracy drops by at "
            f"most {self.guarantee.max_drop:.4g}; {speed:.2f} tokens/forward."
        )


def read_card(path: str | Path) -> Card:
    """Reads a card, or raises ValueError if the file is no card of this version."""
    remedy = "give a card that calibrate wrote"
    try:
        written = read_object(Path(path), remedy=remedy)
    except OSError as error:
        raise ValueError(f"{path} must be a card that calibrate wrote, got {error}.") from None
    return checked_value(written, Card, f"The card {path}", remedy)


def warn_of_misfits(samplers: Sequence[str], runs: Sequence[RunSettings]) -> None:
    """Warns on standard error if a card's sampler is used beyond what the card guarantees.

    `samplers` are as the user named them ("@card.json"); `runs` are about to be decoded.
    """
    for path in (text[1:] for text in samplers if text.startswith("@")):
        card = read_card(path)
        card_runs = [s for s in runs if s.sampler == card.setting["sampler"]]
        misfits = dict.fromkeys(misfit for s in card_runs for misfit in card.misfits(s))
        if misfits:
            sys.stderr.write(
                f"WARNING: The guarantee of {path} does not hold here: {'; '.join(misfits)}.\n"
            )


def _task_of(address: str) -> str:
    """Returns an address without the options that select among the task's examples."""
    name, _, query = parse_task(address).address.partition("?")
    options = [o for o in query.split("&") if o and o.partition("=")[0] not in SELECTION]
    return "?".join([name, *(["&".join(options)] if options else [])])


def name_of(setting: Mapping[str, Any]) -> str:
    """Names a setting by its parts."""
    names = ("sampler", "cache", "verifier", "blocks")
    return " + ".join(named_parts(*(setting[name] for name in names)))


def _outcome(rating: Rating, guarantee: Guarantee) -> str:
    verdict = rating.verdict
    return (
        f"{'certified' if verdict.certified else 'not certified'}, n = {verdict.num_prompts}, "
        f"{verdict.num_lost} lost, {verdict.num_gained} gained, p = {verdict.p_value:.3g} "
        f"(level {guarantee.level:.4g}), {rating.tokens_per_forward:.2f} tokens/forward"
    )
