"""Rollouts of many prompts, in groups as they end."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Unpack

from torch import nn

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor, UniformState, fingerprint_of
from dllm_decode.core.options import DecodeConfig, DecodeOptions, require_config
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.engine.compatibility import require_model
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import raise_errors
from dllm_decode.engine.loop import rounds
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from dllm_decode.models.loading.weight_versions import version_of
from dllm_decode.rollouts.rollout import Rollout, RolloutRecorder
from dllm_decode.text.answers import Answer, answer_of
from dllm_decode.text.constraints import Constraint
from dllm_decode.text.text_requests import decoder_of_texts, read_templates, requests_of_texts
from dllm_decode.text.tokenization import ChatMode, Inputs, Tokenizer, prompt_ids, require_tokenizer
from samplers.base import Sampler
from samplers.checks import require_integer, shown
from samplers.facts import Fact


class RolloutGroup(NamedTuple):
    """The rollouts of one prompt.

    Attributes:
        prompt_index: Number of the prompt.
        rollouts: The prompt's rollouts, `num_return_sequences` many.
        answers: The rollouts' answers, as `generate` returns them.
    """

    prompt_index: int
    rollouts: list[Rollout]
    answers: list[Answer]


def roll_out(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    prompts: Inputs,
    sampler: Sampler | None = None,
    *,
    num_return_sequences: int = 8,
    chat: ChatMode = "auto",
    templates: str | Sequence[str] = (),
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    constraint: Constraint | Sequence[Constraint | None] | None = None,
    stop_strings: Sequence[str] = (),
    num_rows: int = 8,
    config: DecodeConfig = DecodeConfig(),
    **options: Unpack[DecodeOptions],
) -> Iterator[RolloutGroup]:
    """Answers prompts several times, and yields each prompt's answers as soon as all have ended.

    When an answer has ended, a waiting one takes its row in the next round. Tokens are those of
    `generate` with the same arguments, apart from rounding.

        for group in roll_out(model, tokenizer, questions, temperature=1.0):
            rewards = [reward(answer.text) for answer in group.answers]
            loss = policy_loss(score(model, group.rollouts), rewards)

    The weights may change whenever a group has been yielded, by an optimiser's step or by
    `replace_weights`: running rows then begin again with new caches. Each rollout holds the version
    of the weights that made it.

    Args:
        model: The mask predictor.
        tokenizer: Its tokenizer.
        prompts: As the inputs of `generate`.
        sampler: Which positions to commit, and with which token; `None`: the default of `generate`.
        num_return_sequences: Rollouts of each prompt.
        chat: As in `generate`.
        templates: As in `generate`: for each prompt, the answer with blanks. Given tokens are not
            scored.
        cache: Which columns to recompute. On models that attend both ways every choice but
            `NoCache` makes scores differ from the record, see `Scores.difference`.
        verifier: A verifier that lets the sampler decide every step.
        blocks: Which positions are open, as in `decode`.
        constraint: As in `generate`. The tokens of a step are drawn together from the texts that
            remain possible; `score` computes the model's distribution of each token, not the
            joint one.
        stop_strings: Texts that end an answer.
        num_rows: Largest number of rows in a forward.
        config: The options of the decode.
        **options: Fields of `DecodeConfig`, which override `config`. At temperature 0
            tokens are not drawn, so that their log-probabilities are not those of draws.

    Raises:
        ValueError: At once, if the arguments do not fit together.
        RuntimeError: If a plug-in or the model breaks its contract.
    """
    require_config(config)
    require_tokenizer(tokenizer)
    require_model(model)
    require_integer("num_return_sequences", num_return_sequences, least=1)
    require_integer("num_rows", num_rows, least=1)
    template_tokens, config = read_templates(tokenizer, model, templates, config, options)
    decoder = decoder_of_texts(
        model, tokenizer, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config
    )
    _require_recordable(decoder)
    if config.temperature == 0.0 and num_return_sequences > 1:
        warn_user(
            "At temperature=0 answers are not drawn, so that a policy cannot learn from them. Pass "
            "a temperature, such as 1.0."
        )
    if not isinstance(stop_strings, Sequence):
        raise ValueError(f"stop_strings must be a text or texts, got {shown(stop_strings)}.")
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    requests = requests_of_texts(
        decoder, tokenizer, prompt_ids(tokenizer, prompts, chat=chat), template_tokens,
        constraint=constraint, stop_strings=strings, copies=num_return_sequences,
    )  # fmt: skip
    finished = rollouts_of(decoder, requests, num_rows)
    return _grouped(finished, tokenizer, strings, num_return_sequences)


def _require_recordable(decoder: Decoder) -> None:
    """Raises ValueError unless the steps of a decode can be scored again."""
    if isinstance(decoder.model, UniformState):
        raise ValueError(
            f"A rollout needs {Fact.HAS_MASK.sentence}, got {decoder.model.name}. Use "
            f"{Fact.HAS_MASK.remedy.partition(',')[0]}."
        )
    if Fact.SAMPLER_DECIDES not in decoder.verifier.gives:
        raise ValueError(
            f"A rollout needs {Fact.SAMPLER_DECIDES.sentence}, got {decoder.verifier!r}. Use "
            f"{Fact.SAMPLER_DECIDES.remedy}."
        )


class RolledOut(NamedTuple):
    """A request that has ended: its rollout, and the output of its row."""

    request: Request
    rollout: Rollout
    output: DecodeOutput


def rollouts_of(
    decoder: Decoder, requests: Sequence[Request], num_rows: int
) -> Iterator[RolledOut]:
    """Answers requests, and yields each with its rollout as soon as it has ended.

    The requests must have different indices, and `_require_recordable` must accept the decoder.
    """
    waiting = deque(requests)
    while waiting:
        yield from _on_one_version(decoder, waiting, num_rows)


def _on_one_version(
    decoder: Decoder, waiting: deque[Request], num_rows: int
) -> Iterator[RolledOut]:
    """Answers waiting requests until the weights change; the running ones then wait again."""
    recorder, version = RolloutRecorder(), version_of(decoder.model)
    running: dict[int, Request] = {}

    def taken() -> Iterator[Request]:
        while waiting:
            request = waiting.popleft()
            running[request.index] = request
            yield request

    for answers in rounds(decoder, RequestQueue(taken()), num_rows, [recorder]):
        finished = []
        for ended in raise_errors(iter(answers)):
            request = running.pop(ended.index)
            rollout = recorder.rollout(decoder, request, ended.output, version)
            finished.append(RolledOut(request, rollout, ended.output))
        if finished:
            before = _num_changes(decoder.model)
            yield from finished
            if _num_changes(decoder.model) != before:
                waiting.extendleft(reversed(running.values()))
                return


def _num_changes(model: MaskPredictor) -> tuple[str, int]:
    """Returns a value that changes with the weights, without reading the weights."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return fingerprint_of(model), sum(parameter._version for parameter in parameters)


def _grouped(
    finished: Iterator[RolledOut], tokenizer: Tokenizer, strings: Sequence[str], size: int
) -> Iterator[RolloutGroup]:
    """Yields the rollouts of each prompt when all of them have ended."""
    groups: dict[int, dict[int, tuple[Rollout, Answer]]] = {}
    for request, rollout, output in finished:
        group, member = divmod(request.index, size)
        answer = answer_of(tokenizer, request, output, 0, strings)
        members = groups.setdefault(group, {})
        members[member] = rollout, answer
        if len(members) == size:
            ordered = [members[n] for n in range(size)]
            yield RolloutGroup(group, *(list(part) for part in zip(*ordered, strict=True)))
            del groups[group]
