"""Checks for authors of cache policies, block schedules and verifiers: the laws of a decode.

`check_laws(MyCache())` decodes with small random models, and raises AssertionError with the law
that is broken; `row_of` makes a row by hand. `samplers.testing` has the laws of samplers, which
`check_laws` here also checks.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.blocks.sequential import Sequential
from dllm_decode.caches.base import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.core.rows import Row
from dllm_decode.engine.decoding import new_decoder, raise_errors
from dllm_decode.engine.loop import run
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from dllm_decode.models.loading.new_llada import new_llada
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer
from dllm_decode.verify.self_verify import SelfVerify
from samplers import testing
from samplers.base import Sampler
from samplers.checks import require_plugin, shown
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.facts import Fact, PlugIn
from samplers.fixed_schedule import FixedSchedule

_PROMPTS = ([17, 40, 41, 30, 5, 22], [19], [7, 7, 25, 31, 12, 13, 14, 44, 9])
# The template of the second row gives the third token of its answer.
_GIVEN_ROW, _GIVEN_AT, _GIVEN = 1, 2, 6
_BLOCK_LENGTH = 4
_KINDS: Mapping[str, type[PlugIn]] = {
    "sampler": Sampler, "cache": CachePolicy, "verifier": Verifier, "blocks": BlockSchedule
}  # fmt: skip
_DECODES: tuple[tuple[Sampler, DecodeConfig], ...] = (
    (ConfidenceThreshold(0.6), DecodeConfig(gen_length=10)),
    (FixedSchedule(3), DecodeConfig(gen_length=10, stop_at_eos=False)),
    (ConfidenceThreshold(0.4), DecodeConfig(gen_length=10, temperature=1.0)),
)


@dataclass(frozen=True)
class _Case:
    """One decode of three rows of different lengths.

    Attributes:
        model: The model.
        plugins: The plug-ins, by the names of the arguments of `decode`.
        config: The options.
    """

    model: MaskPredictor
    plugins: Mapping[str, Any]
    config: DecodeConfig

    def __str__(self) -> str:
        parts = ", ".join(repr(part) for part in self.plugins.values())
        return f"{parts} and temperature {self.config.temperature:g} on {self.model.name}"

    def refusal(self) -> str | None:
        """Returns why the decode is refused; `None` if it is not."""
        try:
            new_decoder(self.model, **self.plugins, config=self.config)
        except ValueError as refusal:
            return str(refusal)
        return None

    def answers(
        self, rows: Sequence[int] = (0, 1, 2), num_rows: int = 3
    ) -> dict[int, DecodeOutput]:
        """Decodes some rows, and returns the answer of each by its number."""
        decoder = new_decoder(self.model, **self.plugins, config=self.config)
        template = [self.model.mask_id] * _GIVEN_AT + [_GIVEN]
        requests = [
            decoder.request(_PROMPTS[row], row, template=template if row == _GIVEN_ROW else ())
            for row in rows
        ]
        ended = raise_errors(run(decoder, RequestQueue(requests), num_rows))
        return {answer.index: answer.output for answer in ended}

    def tokens(self) -> list[list[int]]:
        """Returns the answers of all rows in one batch."""
        answers = self.answers()
        return [answers[row].tokens[0].tolist() for row in sorted(answers)]

    def with_plugin(self, kind: str, plugin: PlugIn) -> "_Case":
        """Returns the decode with another plug-in of a kind."""
        return replace(self, plugins={**self.plugins, kind: plugin})


def check_laws(
    plugin: PlugIn,
    *,
    same_as: PlugIn | None = None,
    models: Sequence[MaskPredictor] = (),
    **plugins: PlugIn,
) -> None:
    """Checks that a cache policy, block schedule, verifier or sampler obeys the laws of a decode.

    A row has the same tokens, forwards and computed columns alone, in a batch, in a place that
    another row has left, and a second time. A row has the same tokens under `SelfVerify` if the
    cache gives `Fact.EXACT_REPLAY`. Combinations that are refused are left out. Every decode also
    checks its own steps, such as which columns were computed, and raises RuntimeError.

    Args:
        plugin: An instance.
        same_as: Another plug-in of the same kind that must give the same tokens, such as
            `NoVerifier()` for a verifier that is lossless.
        models: Models in float64 on a CPU, because the laws hold up to rounding; empty:
            `random_models`, for a block schedule also with causal blocks of 6.
        plugins: Other plug-ins to decode with, by their names in `decode`, such as `sampler=`.

    Raises:
        AssertionError: If a law is broken; its text says which one, and in which decode.
        ValueError: If `plugin` is no plug-in, `same_as` is of another kind, or another plug-in is
            not given by its name in `decode`.
    """
    kind = _kind_of(plugin)
    _require_names(kind, plugins)
    if same_as is not None:
        require_plugin("same_as", same_as, _KINDS[kind], repr(plugin))
    twin = copy.deepcopy(plugin)
    assert twin == plugin, (
        f"A copy of {plugin!r} must be equal to it. Make its class a @dataclass(frozen=True)."
    )
    assert repr(twin) == repr(plugin), f"A copy of {plugin!r} must have its repr, got {twin!r}."
    if isinstance(plugin, Sampler):
        testing.check_rule(plugin)
    # Blocks of a schedule may end where blocks of 4 end by chance.
    lengths = (_BLOCK_LENGTH, 6) if kind == "blocks" else (_BLOCK_LENGTH,)
    models = models or tuple(random_models(causal_block_lengths=lengths))
    cases = _cases(kind, plugin, models, plugins)
    with warnings.catch_warnings():
        # Some combinations warn that an option has no effect.
        warnings.simplefilter("ignore", UserWarning)
        refusals = [_check_case(case, kind, same_as) for case in cases]
    assert None in refusals, f"{plugin!r} must fit a model and a sampler. {refusals[0]}"


def row_of(prompt_length: int, gen_length: int, **fields: Any) -> Row:
    """Returns a row before its first round, to call a cache policy or block schedule by hand.

    Args:
        prompt_length: Tokens of the prompt; the answer begins at this column.
        gen_length: Tokens of the answer, all of them [MASK].
        fields: Fields of `Row` that have other values, such as `period_forwards=1`.
    """
    request = Request(0, [0] * prompt_length, DecodeConfig(gen_length=gen_length))
    return Row.of(request, block_multiple=1, mask_id=1)._replace(**fields)


def random_models(
    *, causal_block_lengths: Sequence[int] = (_BLOCK_LENGTH,)
) -> Iterator[MaskedTransformer]:
    """Yields a small random model of each kind, in float64, with confidences from low to high.

    In the first model a column sees all columns and predicts itself, as in LLaDA; in the second a
    column predicts the next one, as in Dream; in the others it sees no later block, as in SDAR.

    Args:
        causal_block_lengths: Tokens per block of each model such as SDAR.
    """
    kinds: dict[str, Mapping[str, Any]] = {
        "a model such as LLaDA": {},
        "a model such as Dream": {"logit_shift": 1},
    }
    for length in causal_block_lengths:
        name = f"a model such as SDAR with blocks of {length}"
        kinds[name] = {"causal_block_length": length}
    for name, options in kinds.items():
        model = new_llada(
            vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, mlp_hidden_size=24,
            mask_id=49, eos_ids=(48,), dtype=torch.float64,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        for part in model.transformer.requires_grad_(False).parameters():
            if part.ndim > 1:
                part.normal_(std=2.0 * part.shape[1] ** -0.5, generator=generator)
        yield MaskedTransformer(model.transformer, name=name, mask_id=49, eos_ids=(48,), **options)


def _kind_of(plugin: PlugIn) -> str:
    for name, kind in _KINDS.items():
        if isinstance(plugin, kind):
            return name
    raise ValueError(
        "plugin must be an instance of a sampler, a cache policy, a verifier or a block schedule, "
        f"got {shown(plugin)}."
    )


def _require_names(kind: str, plugins: Mapping[str, PlugIn]) -> None:
    """Raises ValueError unless the plug-ins to decode with have their names in `decode`."""
    names = {name: base for name, base in _KINDS.items() if name != kind}
    for given, plugin in plugins.items():
        fitting = [name for name, base in names.items() if isinstance(plugin, base)]
        if given not in fitting:
            hint = "".join(f" Write {name}={plugin!r}." for name in fitting)
            raise ValueError(
                f"Other plug-ins must be instances, given as {', '.join(names)}, "
                f"got {given}={shown(plugin)}.{hint}"
            )


def _cases(
    kind: str, plugin: PlugIn, models: Sequence[MaskPredictor], plugins: Mapping[str, PlugIn]
) -> Iterator[_Case]:
    for model in models:
        for sampler, config in _DECODES:
            parts: dict[str, Any] = {
                "sampler": sampler, "cache": NoCache(), "verifier": NoVerifier(),
                "blocks": Sequential(), **plugins, kind: plugin,
            }  # fmt: skip
            # A schedule may set the length of its blocks itself.
            length = model.causal_block_length or _BLOCK_LENGTH
            chosen = None if parts["blocks"].block_length else length
            yield _Case(model, parts, replace(config, block_length=chosen))


def _check_case(case: _Case, kind: str, same_as: PlugIn | None) -> str | None:
    """Checks one decode; returns why it is refused, `None` if it is not."""
    refusal = case.refusal()
    if refusal is not None:
        return refusal
    _check_rows(case)
    _check_replay(case)
    if same_as is not None:
        wanted, got = case.with_plugin(kind, same_as).tokens(), case.tokens()
        _require_tokens(wanted, got, f"must have the tokens of {same_as!r}", case)
    return None


def _check_rows(case: _Case) -> None:
    """Compares each row of a batch with itself elsewhere."""
    together, alone = case.answers(), dict[int, DecodeOutput]()
    for row in together:
        alone |= case.answers([row], num_rows=1)
    elsewhere = {
        "alone": alone, "in a place that another row has left": case.answers(num_rows=2),
        "a second time": case.answers(),
    }  # fmt: skip
    for words, again in elsewhere.items():
        for row, ref in together.items():
            for name in ("tokens", "nfe", "query_positions"):
                got, wanted = getattr(again[row], name)[0].tolist(), getattr(ref, name)[0].tolist()
                assert got == wanted, (
                    f"A row must have the same {name} {words} as in a batch, {wanted}, got {got} "
                    f"from {case}."
                )


def _check_replay(case: _Case) -> None:
    """Compares a decode with its own verified mode, if the cache says that both are the same."""
    gives = case.plugins["cache"].gives
    verified = case.with_plugin("verifier", SelfVerify(2))
    is_plain = case.plugins["verifier"] == NoVerifier()
    if Fact.EXACT_REPLAY in gives and is_plain and verified.refusal() is None:
        wanted, got = case.tokens(), verified.tokens()
        law = "must have the same tokens under SelfVerify(2), as it gives Fact.EXACT_REPLAY"
        _require_tokens(wanted, got, law, case)


def _require_tokens(wanted: list[list[int]], got: list[list[int]], law: str, case: _Case) -> None:
    """Raises AssertionError with the first token that is not the wanted one."""
    for row, answers in enumerate(zip(wanted, got, strict=True)):
        for position, (expected, actual) in enumerate(zip(*answers, strict=True)):
            assert actual == expected, (
                f"The plug-in {law}: token {expected} at position {position} of row {row}, "
                f"got {actual} from {case}."
            )
