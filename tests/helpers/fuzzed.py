"""Decodes random cases alone, together and with too few rows; compares tokens, steps and costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fuzzed_cases import MASK, Case, OneByOne, case_of, written_by_target

from dllm_decode import DecodeOutput, MultiBlock, StepEvent, SuffixWindow, decode, decode_many
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.core.rows import Row
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.engine.loop import run
from dllm_decode.verify import ARVerify, NoVerifier, SelfVerify
from samplers import JointThreshold

COSTS = ("nfe", "query_positions", "target_nfe", "drafted", "accepted")
RARE = (
    "a row joined inside another row's block", "rows at different blocks",
    "rows of different temperature", "rows of different length", "a row moved",
    "cancelled while decoded", "cancelled while waiting", "a prompt shorter than a model's block",
    "an answer of no whole number of blocks", "a given EOS", "a given block", "a given answer",
    "a token edited in a later block", "a token re-masked", "a window shorter than the canvas",
    "several groups in one forward", "a row longer than all before it", "ended by an EOS",
    "ended by a stop rule", "drafts accepted by itself", "drafts accepted by a target",
    "several blocks open", "guidance", "deferred ids", "banned ids",
    "a model that computes no groups", "compared with the target alone",
    "compared with the target's own sample", "a draft of many tokens accepted",
)  # fmt: skip


class Found(NamedTuple):
    """An answer, the canvas of the row after each step, and the costs of the decode."""

    tokens: list[int]
    steps: list[tuple[list[int], list[bool]]]
    costs: dict[str, int]


@dataclass
class Watch:
    """Notes the steps of each request, and which rare events the case has met."""

    case: Case
    events: Counter[str] = field(default_factory=Counter)
    steps: dict[int, list[tuple[list[int], list[bool]]]] = field(default_factory=dict)
    rounds: int = 0
    order: list[int] = field(default_factory=list)

    def __call__(self, event: StepEvent) -> None:
        self.rounds += 1
        indices, rows = event.request_indices.tolist(), event.rows
        fresh = set(indices) - set(self.steps)
        parts = (indices, event.after.tokens.tolist(), event.after.unsettled.tolist(), rows)
        for index, tokens, unsettled, row in zip(*parts, strict=True):
            answer = slice(row.prompt_length, row.prompt_length + row.config.gen_length)
            self.steps.setdefault(index, []).append((tokens[answer], unsettled[answer]))
            is_inside = (
                index not in fresh
                and row.phase_steps > 1
                and row.first_unsettled < row.opening.stop
            )
            self.note("a row joined inside another row's block", is_inside and bool(fresh))
        self.note(
            "rows at different blocks", len({r.opening.start - r.blocks_start for r in rows}) > 1
        )
        self.note("rows of different temperature", len({r.config.temperature for r in rows}) > 1)
        self.note("rows of different length", len({r.config.gen_length for r in rows}) > 1)
        stayed = [index for index in self.order if index in indices]
        self.note("a row moved", [index for index in indices if index in self.order] != stayed)
        self.order = indices
        for row, has_ended in zip(rows, event.ended.tolist(), strict=True):
            self.note_row(row, has_ended and row.first_unsettled < row.answer_end)

    def note_row(self, row: Row, has_ended_early: bool) -> None:
        """Notes what a row is doing, and whether it has ended before its answer was full."""
        decoder, reads_tokens = self.case.decoder, row.request.stop.reads_tokens
        at_eos = row.config.stop_at_eos
        is_several = isinstance(decoder.blocks, MultiBlock)
        is_wide = row.opening.stop - row.opening.start > decoder.block_length
        self.note("several blocks open", is_several and is_wide)
        self.note("ended by an EOS", has_ended_early and at_eos and not reads_tokens)
        self.note("ended by a stop rule", has_ended_early and reads_tokens and not at_eos)

    def note(self, name: str, happened: bool) -> None:
        self.events[name] += happened


def check(case: Case, events: Counter[str]) -> list[str]:
    """Decodes a case in all ways, and returns the differences."""
    together = _together(case)
    faults = _faults(case, together)
    for index, answer in _with_few_rows(case, events).items():
        faults += _differences(case, f"row {index} with few rows", answer, together[index])
    plain = _plainly(case)
    for request in case.requests:
        index = request.index
        faults += _differences(case, f"row {index} alone", _alone(case, request), together[index])
        faults += _as_the_target(case, request, together[index], events)
        if plain:
            faults += _as_plainly(case, together[index], plain[index], f"row {index} verified")
    note_case(case, together, events)
    return faults


def _together(case: Case) -> dict[int, Found]:
    """Decodes all rows at once, and compares the calls of the model with the forwards."""
    watch, model = Watch(case), case.decoder.model
    calls = model.num_calls
    if case.is_uniform:
        out = _public(case, watch)
        forwards = out.forwards
        results = {row: _found(out, row, watch.steps.get(row)) for row in range(len(case.requests))}
    else:
        answers = list(run(case.decoder, RequestQueue(iter(case.requests)), len(case.requests),
                           [watch]))  # fmt: skip
        forwards = max(answer.forwards for answer in answers)
        results = answered(answers, watch)
    assert model.num_calls - calls == forwards, "calls of the model are miscounted"
    return results


def _public(case: Case, watch: Watch, way: Callable[..., Any] = decode, **options: Any) -> Any:
    """Decodes a case by a public function, which gives all rows the same options."""
    decoder, requests = case.decoder, case.requests
    return way(
        decoder.model, [request.prompt for request in requests], decoder.sampler,
        cache=decoder.cache, verifier=decoder.verifier, blocks=decoder.blocks,
        templates=[request.template for request in requests], observers=[watch],
        stop=requests[0].stop, config=decoder.config, **options,
    )  # fmt: skip


def _found(out: DecodeOutput, row: int, steps: list[tuple[list[int], list[bool]]] | None) -> Found:
    costs = {name: int(getattr(out, name)[row]) for name in COSTS}
    return Found(out.tokens[row].tolist(), steps or [], costs)


def answered(answers: Iterable[EndedRequest], watch: Watch) -> dict[int, Found]:
    listed = list(answers)
    assert not any(answer.error for answer in listed), [answer.error for answer in listed]
    return {
        answer.index: _found(answer.output, 0, watch.steps.get(answer.index)) for answer in listed
    }


def _with_few_rows(case: Case, events: Counter[str]) -> dict[int, Found]:
    """Decodes with fewer rows than requests; requests join late and are cancelled."""
    watch, decoder = Watch(case, events), case.decoder
    grouped = decoder.model.num_grouped
    if case.is_uniform:
        outs = _public(case, watch, decode_many, num_rows=case.num_rows)
        results = {row: _found(out, 0, watch.steps.get(row)) for row, out in enumerate(outs)}
    else:
        results = answered(_joining(case, watch), watch)
        for index in {request.index for request in case.requests} - set(results):
            assert index in case.cancels, f"row {index} has no answer"
            is_decoded = index in watch.steps
            events["cancelled while decoded"] += is_decoded
            events["cancelled while waiting"] += not is_decoded
    events["several groups in one forward"] += decoder.model.num_grouped > grouped
    return results


def _joining(case: Case, watch: Watch) -> Iterator[EndedRequest]:
    queue = RequestQueue()
    waiting = sorted(zip(case.joins, case.requests, strict=True), key=lambda pair: pair[0])

    def change(event: StepEvent) -> None:
        while waiting and waiting[0][0] <= watch.rounds:
            queue.put(waiting.pop(0)[1])
        for index, at in case.cancels.items():
            if at == watch.rounds:
                queue.cancel(index)

    while waiting:
        queue.put(waiting.pop(0)[1])
        yield from run(case.decoder, queue, case.num_rows, [watch, change])


def _alone(case: Case, request: Request) -> Found:
    """Decodes one request, in some cases by the public function."""
    watch = Watch(case)
    # `decode` numbers its only request 0, and the noise depends on this number.
    if case.seed % 2 and case.is_uniform and not request.index:
        return _found(_public(case._replace(requests=[request]), watch), 0, watch.steps.get(0))
    answers = run(case.decoder, RequestQueue(iter([request])), 1, [watch])
    return answered(answers, watch)[request.index]


def _plainly(case: Case) -> dict[int, Found]:
    """Decodes without `SelfVerify`, which changes no token; returns {} without this verifier."""
    if not isinstance(case.decoder.verifier, SelfVerify):
        return {}
    decoder = replace(case.decoder, verifier=NoVerifier())
    return _together(case._replace(decoder=decoder))


def _as_plainly(case: Case, found: Found, plain: Found, way: str) -> Iterator[str]:
    yield from _differences(case, way, found, plain, False)
    ours, plain_ones = found.costs["nfe"], plain.costs["nfe"]
    if ours > plain_ones:
        yield f"{way}: {ours} forwards, {plain_ones} plainly"


def _as_the_target(
    case: Case, request: Request, found: Found, events: Counter[str]
) -> Iterator[str]:
    """Compares an answer with the target's own, written with one forward for each token."""
    target_tokens = written_by_target(case.decoder, request)
    if target_tokens is None:
        return
    events["compared with the target alone"] += 1
    events["compared with the target's own sample"] += request.config.temperature > 0.0
    events["a draft of many tokens accepted"] += found.costs["accepted"] > 4
    if found.tokens != target_tokens:
        yield f"row {request.index}: {found.tokens}, the target alone {target_tokens}"
    elif _asks(case.decoder) and found.costs["target_nfe"] > found.costs["nfe"]:
        yield f"row {request.index}: more forwards of the target than in all"


def _differences(
    case: Case, way: str, found: Found, expected: Found, with_costs: bool = True
) -> Iterator[str]:
    if found.tokens != expected.tokens:
        yield f"{way}: tokens {found.tokens}, expected {expected.tokens}"
    elif found.steps != expected.steps:
        yield f"{way}: other steps, {len(found.steps)} and {len(expected.steps)}"
    # The drafts of SelfVerify depend on the rows that a row waits for.
    if with_costs and not _waits(case.decoder) and found.costs != expected.costs:
        yield f"{way}: costs {found.costs}, expected {expected.costs}"


def _asks(decoder: Decoder) -> bool:
    verifier = decoder.verifier
    return not isinstance(verifier, ARVerify) or verifier.drafting.num_forwards > 0


def _waits(decoder: Decoder) -> bool:
    return isinstance(decoder.verifier, SelfVerify) and decoder.verifier.draft_steps > 1


def _faults(case: Case, answers: dict[int, Found]) -> list[str]:
    """Returns the faults that answers show without a comparison."""
    model, faults = case.decoder.model, []
    banned = {MASK, *model.banned_ids, *case.decoder.config.banned_ids}
    ends = case.decoder.verifier.eos_ids(model)
    for request in case.requests:
        tokens = answers[request.index].tokens
        template = [*request.template, *[MASK] * (len(tokens) - len(request.template))]
        pairs = list(zip(tokens, template, strict=True))
        if any(token == MASK for token in tokens):
            faults.append(f"row {request.index}: [MASK] in the answer {tokens}")
        cut = any(token in ends for token in tokens)
        if any(given not in (MASK, token) for token, given in pairs) and not cut:
            faults.append(f"row {request.index}: lost given tokens, {tokens} of {template}")
        if any(token in banned - {ends[0]} for token, given in pairs if given == MASK):
            faults.append(f"row {request.index}: a banned token in {tokens}")
    return faults


def note_case(case: Case, whole: dict[int, Found], events: Counter[str]) -> None:
    """Counts the plug-ins of a case, and the rare events of its rows."""
    events.update(kinds(case))
    decoder, size = case.decoder, case.decoder.block_length
    config, ends, longest = decoder.config, decoder.verifier.eos_ids(decoder.model), 0
    events["guidance"] += config.cfg_scale > 0.0
    events["a model that computes no groups"] += isinstance(decoder.model, OneByOne)
    events["deferred ids"] += bool(config.deferred_ids)
    events["banned ids"] += bool(config.banned_ids)
    for number, request in enumerate(case.requests):
        length, template, answer = request.config.gen_length, request.template, whole[request.index]
        is_given = [token != MASK for token in template]
        blocks = [is_given[at : at + size] for at in range(0, len(is_given), size)]
        width = len(request.prompt) + length
        is_longer = case.num_rows <= number and width > longest and decoder.cache.needs_kv_cache
        longest = max(longest, width)
        saved = answer.costs["accepted"] > 0
        events["a prompt shorter than a model's block"] += (
            len(request.prompt) < decoder.block_multiple
        )
        events["an answer of no whole number of blocks"] += length % size > 0
        events["a given EOS"] += any(token in ends for token in template)
        events["a given block"] += any(len(block) == size and all(block) for block in blocks)
        events["a given answer"] += len(is_given) == length and all(is_given)
        events["a row longer than all before it"] += is_longer
        events["drafts accepted by itself"] += saved and isinstance(decoder.verifier, SelfVerify)
        events["drafts accepted by a target"] += saved and isinstance(decoder.verifier, ARVerify)
        events["a window shorter than the canvas"] += _hides(decoder, length)
        _note_changes(case, answer, events)


def _hides(decoder: Decoder, length: int) -> bool:
    cache = decoder.cache
    is_window = isinstance(cache, SuffixWindow) and not decoder.model.causal_block_length
    return is_window and decoder.block_length + cache.width + cache.tail < length


def _note_changes(case: Case, found: Found, events: Counter[str]) -> None:
    edits = isinstance(case.decoder.sampler, JointThreshold)
    for (old, _), (new, _) in zip(found.steps, found.steps[1:], strict=False):
        for position, (was, now) in enumerate(zip(old, new, strict=True)):
            is_later = position >= case.decoder.block_length
            changed = was not in (MASK, now)
            events["a token re-masked"] += changed and now == MASK
            events["a token edited in a later block"] += changed and edits and is_later


def kinds(case: Case) -> Iterator[str]:
    """Names the model and the classes of the plug-ins."""
    decoder = case.decoder
    yield decoder.model.name
    for plugin in (decoder.sampler, decoder.cache, decoder.verifier, decoder.blocks):
        yield type(plugin).__name__


def checked(seed: int, events: Counter[str]) -> list[str]:
    """Checks the case of a seed; returns its faults, and counts its rare events."""
    case = case_of(seed)
    if isinstance(case, str):
        events["refused"] += 1
        return []
    events["decoded"] += 1
    try:
        return check(case, events)
    # Any error is a fault of the case, and is reported with its seed.
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def described(seed: int) -> str:
    """Returns the parts of a case, and the command that repeats it."""
    case = case_of(seed)
    if isinstance(case, str):
        return case
    decoder = case.decoder
    parts = (
        decoder.model.name, f"align {decoder.block_multiple}, shift {decoder.model.logit_shift}",
        decoder.sampler, decoder.cache, decoder.verifier, decoder.blocks, decoder.config,
        f"{case.num_rows} rows, joins {case.joins}, cancels {case.cancels}", *case.requests,
        f"pytest -m slow tests/property/test_fuzz_engine.py --fuzz-seeds {seed}:{seed + 1}",
    )  # fmt: skip
    return "\n  ".join(map(str, parts))
