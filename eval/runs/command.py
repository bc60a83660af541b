"""The commands `run` and `sweep`: settings over examples, into a results folder."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from rich.console import Console

from dllm_decode.cli.models import Place, open_model
from dllm_decode.cli.options import axes_of
from eval.runs.crew import decoding_on_ray
from eval.runs.progress import Reporter
from eval.runs.prompts import said_of_unknown_words
from eval.runs.records import Folder, RunSettings
from eval.runs.runner import Checked, Decoding, RunPlan, execute, in_turn
from eval.runs.settings import Run
from eval.runs.sweep import Sweep, read_sweep
from eval.sandbox.code_runner import NO_CODE, CodeRunner
from eval.sandbox.sandbox import Sandbox

DEFAULT_SAMPLERS = ("FixedSchedule()", "ConfidenceThreshold(0.9)")

Warn: TypeAlias = Callable[[Sequence[str], Sequence[RunSettings]], None]
"""Warns the user, given samplers as they were named and the settings that are run."""


class Measured(NamedTuple):
    """A results folder, and those of its settings that the command decoded."""

    folder: Folder
    settings: list[RunSettings]


def run(options: argparse.Namespace, warn: Warn) -> Measured:
    """Runs the settings that the options name."""
    sweep = Sweep(
        models=(options.model,),
        tasks=(options.task,),
        samplers=tuple(options.sampler or DEFAULT_SAMPLERS),
        caches=tuple(options.cache or ("NoCache()",)),
        verifiers=tuple(options.verifier or ("NoVerifier()",)),
        blocks=tuple(options.blocks or ("Sequential()",)),
        decoding=axes_of(options),
        batch_size=options.batch_size,
        prompts=options.prompts or "",
        revision=options.revision,
    )
    return measure(sweep, options, warn)


def run_sweep(options: argparse.Namespace, warn: Warn) -> Measured:
    """Runs the settings that a file names; options that are given take the place of the file's."""
    sweep = read_sweep(options.config)
    sweep = replace(sweep, decoding={**sweep.decoding, **axes_of(options)})
    sweep = replace(sweep, models=tuple(options.model or sweep.models))
    return measure(sweep, options, warn)


def measure(sweep: Sweep, options: argparse.Namespace, warn: Warn) -> Measured:
    """Decodes what the results folder lacks, all of it checked before the first forward."""
    place = Place.of_launch()
    Folder(options.out).require_usable()
    if options.ray_actors and not options.ray:
        raise ValueError(
            f"--ray-actors must be given with --ray, got --ray-actors {options.ray_actors} alone."
        )
    own: list[RunSettings] = []

    def tell(plan: RunPlan, others: list[RunSettings]) -> None:
        own.extend(one.settings for one in plan.runs)
        if place.rank > 0:
            return
        for one in plan.skipped:
            sys.stderr.write(f"Skipped {one.setting}: {one.reason}\n")
        if others:
            sys.stderr.write(
                f"The folder holds {len(others)} settings besides; they stay in the report "
                "(--drop-others leaves them out).\n"
            )
        warn_of_unknown_words(plan.runs)
        warn(sweep.samplers, own)

    decoding: AbstractContextManager[Decoding] = nullcontext(in_turn)
    here = options
    if options.ray:
        opener = partial(open_runs, sweep, options)
        decoding = decoding_on_ray(options, opener, Folder(options.out), place.world_size)
        # This process decodes nothing: it checks the runs and keeps the records.
        here = argparse.Namespace(**{**vars(options), "device": "cpu"})
    with decoding as decoded:
        folder = execute(
            open_runs(sweep, here),
            options.out,
            place=place,
            decoded=decoded,
            reporter=Reporter(Console(stderr=True)),
            retry_errors=options.retry_errors,
            skip_impossible=options.skip_impossible,
            drop_others=options.drop_others,
            on_plan=tell,
        )
    return Measured(folder, own)


def open_runs(sweep: Sweep, options: argparse.Namespace) -> list[Run]:
    """Reads the examples and loads the models of a sweep."""
    selections = sweep.selections(code_for(options))
    loaded = {source: open_model(source, options, sweep.revision) for source in sweep.models}
    return list(sweep.runs(loaded, selections, trace=not options.no_trace))


def code_for(options: argparse.Namespace) -> CodeRunner:
    """Returns what runs programs that a model wrote, as far as the user allows it."""
    return Sandbox(options.code_runner) if options.allow_code else NO_CODE


def warn_of_unknown_words(runs: Sequence[Checked]) -> None:
    """Warns on standard error, once a task and model, of words that the tokenizer does not know."""
    told = set()
    for run, examples, settings in runs:
        key = (settings.model, settings.task, settings.prompts)
        if key not in told:
            told.add(key)
            said = said_of_unknown_words(run.tokenizer, examples, chat=settings.prompts == "chat")
            if said:
                sys.stderr.write(f"WARNING: {settings.task}, model {settings.model}: {said}\n")
