"""Replayed forwards give what eager ones give; on a CPU all but CUDA's own recording is tested."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from threading import Thread
from typing import Any

import pytest
import torch
from pretended import Accelerator
from tiny_models import FAMILIES, load_tiny, tiny
from torch import Tensor

from dllm_decode import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
    SelfVerify,
    decode,
    decode_many,
)
from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.graphs import ForwardGraphs, forward_graphs
from dllm_decode.models.graphs.backends import Buffers, Replay, TracingBackend, Work
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.operations import Pointwise
from samplers import ConfidenceThreshold, FixedSchedule

CACHES: tuple[CachePolicy, ...] = (
    NoCache(), PrefixCache(), DualCache(), DualCache(before=2, after=3), FreeCache(),
    DelayedCache(3, 1),
)  # fmt: skip
VERIFIERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch": {"verifier": SelfVerify(3)},
    "tree": {"verifier": SelfVerify(3, "tree")},
    "guided": {"cfg_scale": 0.7},
    "warm": {"temperature": 0.8, "seed": 3},
}
COSTS = ("nfe", "query_positions", "drafted", "accepted")
VIEWS = (
    "alias", "detach", "empty", "expand", "permute", "select", "slice", "split", "squeeze", "t.",
    "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
)  # fmt: skip


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> MaskedTransformer:
    """A model without graphs; with them, each kind is recorded when it first occurs."""
    monkeypatch.setattr(forward_graphs, "_OCCURRENCES", 1)
    return deepcopy(tiny("llada"))


def graphs_of(model: MaskedTransformer) -> ForwardGraphs:
    assert model._graphs is not None
    return model._graphs


def num_kinds(model: MaskedTransformer) -> int:
    assert graphs_of(model).calls[None] == 0
    return len(graphs_of(model).calls) - (None in graphs_of(model).calls)


def inputs_of(
    columns: range, seed: int, *, rows: Any = None, num_rows: int = 1, cache: KVCache | None = None
) -> ForwardInputs:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, 60, (num_rows, len(columns)), generator=generator)
    positions = torch.tensor(list(columns)).expand(num_rows, -1)
    slots = None if cache is None else slice(columns.start, columns.stop)
    wanted = positions[:, :4] - columns.start
    return ForwardInputs(tokens, positions, wanted, kv_cache=cache, slots=slots, rows=rows)


def two_caches(model: MaskedTransformer, num_rows: int, slots: int) -> tuple[KVCache, KVCache]:
    """Returns a cache for graphs and one for the eager model, with the same contents."""
    plain = model.new_kv_cache(num_rows, slots)
    model.graphs = True
    lent = model.new_kv_cache(num_rows, slots)
    for mine, theirs in zip(lent.buffers, plain.buffers, strict=True):
        theirs.normal_(generator=torch.Generator().manual_seed(9))
        mine.copy_(theirs)
    return lent, plain


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def eager(model: MaskedTransformer, groups: Sequence[ForwardInputs]) -> list[Tensor]:
    hidden = [model.transformer.forward_groups([group]) for group in groups]
    return [model.transformer.head(part) for part in hidden]


# 128 slots need no padding; after 50 slots, a mask hides the padding.
@pytest.mark.parametrize("slots", [128, 50])
def test_a_replay_with_other_values_is_the_eager_forward(
    model: MaskedTransformer, slots: int
) -> None:
    lent, plain = two_caches(model, 2, slots)
    for turn, start in enumerate((40, 8, 24)):
        inputs = inputs_of(range(start, start + 8), turn, num_rows=2, cache=lent)
        got = model.predict(inputs)
        [expected] = eager(model, [replace(inputs, kv_cache=plain)])
        assert_close(got, expected)
        assert slots != 128 or torch.equal(got, expected)
        for mine, theirs in zip(lent.buffers, plain.buffers, strict=True):
            assert_close(mine, theirs)
    assert num_kinds(model) == 1


def test_rows_that_take_no_part_keep_their_slots(model: MaskedTransformer) -> None:
    """Whole decodes do not notice if padded rows write to the first slot.

    Rows that wait may be longer than those that are computed.
    """
    lent, _ = two_caches(model, 4, 250)
    before = [buffer.clone() for buffer in lent.buffers]
    for rows in (slice(1, 3), torch.tensor([2, 1])):
        model.predict(inputs_of(range(8, 16), 0, rows=rows, num_rows=2, cache=lent.first(50)))
    for old, new in zip(before, lent.buffers, strict=True):
        changed = [not torch.equal(old[:, row], new[:, row]) for row in range(4)]
        assert changed == [False, True, True, False]
    assert num_kinds(model) == 1


def test_groups_of_different_widths_are_one_graph(model: MaskedTransformer) -> None:
    lent, plain = two_caches(model, 3, 50)
    for turn in range(2):
        groups = [
            inputs_of(
                range(8, 16), turn, rows=torch.tensor([2, 0]), num_rows=2, cache=lent.first(34)
            ),
            inputs_of(range(20, 44), turn, rows=slice(1, 2), cache=lent),
        ]
        sizes = (34, 50)
        twins = [
            replace(group, kv_cache=plain.first(size))
            for group, size in zip(groups, sizes, strict=True)
        ]
        for got, expected in zip(model.predict_groups(groups), eager(model, twins), strict=True):
            assert_close(got, expected)
    assert num_kinds(model) == 1


def test_a_mask_of_each_query_is_copied(model: MaskedTransformer) -> None:
    lent, plain = two_caches(model, 1, 50)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        attend = torch.rand(1, 8, 50, generator=generator) > 0.5
        inputs = replace(inputs_of(range(8, 16), seed, cache=lent), attend=attend)
        [expected] = eager(model, [replace(inputs, kv_cache=plain)])
        assert_close(model.predict(inputs), expected)
    assert num_kinds(model) == 1


@pytest.mark.exhaustive(1)
@pytest.mark.parametrize("cache", [DualCache(), FreeCache(), PrefixCache()], ids=repr)
def test_rows_that_come_and_go_have_the_eager_tokens_and_costs(
    model: MaskedTransformer, cache: CachePolicy
) -> None:
    prompts = [[5 + n + k for k in range(3 + 7 * n % 19)] for n in range(6)]

    def answers() -> list[tuple[list[int], int, int]]:
        outs = decode_many(
            model, prompts, FixedSchedule(4), gen_length=8, block_length=4, num_rows=3, cache=cache
        )
        return [(out.tokens.tolist(), out.forwards, int(out.query_positions)) for out in outs]

    expected = answers()
    model.graphs = True
    assert answers() == expected
    assert num_kinds(model) > 1


CASES = [
    pytest.param(family, cache, name, id=f"{family}, {cache!r}, {name}")
    for family in FAMILIES
    for cache in CACHES
    for name in VERIFIERS
]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("family", "cache", "name"), CASES)
def test_whole_decodes_have_the_eager_tokens_and_costs(
    family: str, cache: CachePolicy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_graphs, "_OCCURRENCES", 1)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in (5, 9, 14)]
    options = {"gen_length": 16, "block_length": 8, "stop_at_eos": False, "cache": cache}

    def answer(model: MaskedTransformer) -> Any:
        return decode(model, prompts, ConfidenceThreshold(0.6), **options, **VERIFIERS[name])

    try:
        expected = answer(tiny(family))
    except ValueError:
        pytest.skip("These plug-ins do not fit together.")
    model = deepcopy(tiny(family))
    model.graphs = True
    for _ in range(2):
        got = answer(model)
        assert torch.equal(got.tokens, expected.tokens)
        for cost in COSTS:
            assert torch.equal(getattr(got, cost), getattr(expected, cost)), cost
    assert num_kinds(model)


def test_two_decodes_of_one_time_do_not_share_a_cache(model: MaskedTransformer) -> None:
    model.graphs = True
    first, second = (model.new_kv_cache(1, 40) for _ in range(2))
    address = first.keys.data_ptr()
    assert second.keys.data_ptr() != address
    first.keys.fill_(torch.nan)
    del first
    again = model.new_kv_cache(1, 40)
    assert again.keys.data_ptr() == address
    assert not again.keys.any()


def test_interleaved_decodes_have_the_eager_tokens(model: MaskedTransformer) -> None:
    def answers() -> list[list[int]]:
        runs = [
            decode_many(
                model, [[seed, 8, 9 + seed]], FixedSchedule(2), gen_length=8, cache=FreeCache(),
                block_length=2,
            )
            for seed in (11, 31)
        ]  # fmt: skip
        events = [next(run) for run in runs]
        return [event.tokens.tolist() for event in events]

    expected = answers()
    model.graphs = True
    threads_got: list[list[list[int]]] = []
    threads = [Thread(target=lambda: threads_got.append(answers())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert threads_got == [expected] * 2


def test_a_longer_row_replaces_the_lasting_cache(model: MaskedTransformer) -> None:
    model.graphs = True
    for slots in (40, 200, 40):
        lent = model.new_kv_cache(2, slots)
        inputs = inputs_of(range(slots - 8, slots), 0, num_rows=2, cache=lent)
        plain = model._allocate_cache(2, slots)
        [expected] = eager(model, [replace(inputs, kv_cache=plain)])
        assert_close(model.predict(inputs), expected)
        del lent, inputs
    assert num_kinds(model) == 2


def moved(model: MaskedTransformer) -> None:
    model.to(torch.float32)


def renewed(model: MaskedTransformer) -> None:
    with torch.no_grad():
        for part in model.parameters():
            part.copy_(part.flip(0))


@pytest.mark.parametrize("change", [moved, renewed])
def test_new_weights_are_read(
    model: MaskedTransformer, change: Callable[[MaskedTransformer], None]
) -> None:
    model.graphs = True
    before = decode(model, [[7, 8, 9]], FixedSchedule(8), gen_length=8, cache=DualCache()).tokens
    change(model)
    after = decode(model, [[7, 8, 9]], FixedSchedule(8), gen_length=8, cache=DualCache()).tokens
    assert num_kinds(model)
    model.graphs = False
    expected = decode(model, [[7, 8, 9]], FixedSchedule(8), gen_length=8, cache=DualCache()).tokens
    assert torch.equal(after, expected)
    assert change is moved or not torch.equal(before, after)


def test_a_copy_of_a_model_has_graphs_of_its_own(model: MaskedTransformer) -> None:
    model.graphs = True
    inputs = inputs_of(range(8), 0)
    model.predict(inputs)
    twin = deepcopy(model)
    renewed(twin)
    assert not torch.equal(twin.predict(inputs), model.predict(inputs))
    assert num_kinds(twin) == num_kinds(model) == 1


def test_a_kind_is_recorded_when_it_recurs() -> None:
    model = deepcopy(tiny("llada"))
    model.graphs = True
    for seed in range(4):
        model.predict(inputs_of(range(8), seed))
    assert list(graphs_of(model).calls.values()) == [2, 2]


def test_the_number_of_kinds_is_bounded(
    model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_graphs, "_MOST_KINDS", 2)
    model.graphs = True
    for width in (4, 5, 6, 4):
        model.predict(inputs_of(range(width), 0))
    assert graphs_of(model).calls[None] == 1


def test_logits_are_the_callers_to_change(model: MaskedTransformer) -> None:
    model.graphs = True
    inputs = inputs_of(range(8), 0)
    logits = model.predict(inputs)
    expected = logits.clone()
    model.predict(inputs_of(range(8), 1))
    assert torch.equal(logits, expected)
    logits.add_(1.0)
    assert torch.equal(model.predict(inputs), expected)


class Failing:
    """A back end that fails with some error."""

    def __init__(self, error: RuntimeError) -> None:
        self.error = error

    def record(self, work: Work, buffers: Buffers) -> Replay:
        work(buffers)
        raise self.error


def test_a_kind_that_cannot_be_recorded_stays_eager(
    model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        forward_graphs, "backend_on", lambda device: Failing(RuntimeError("no capture"))
    )
    model.graphs = True
    inputs = inputs_of(range(8), 0)
    [expected] = eager(model, [inputs])
    with pytest.warns(UserWarning, match="stays eager: no capture"):
        assert torch.equal(model.predict(inputs), expected)
    # Warnings are errors in these tests.
    assert torch.equal(model.predict(inputs), expected)
    model.predict(inputs_of(range(9), 0))
    assert graphs_of(model).calls == {None: 3}


def test_graphs_are_recorded_without_a_compiler(
    model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*inputs: Tensor) -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(forward_graphs, "compiled_pointwise", lambda: Pointwise(refuse, refuse))
    model.graphs = True
    graphs_of(model).is_fused = True
    inputs = inputs_of(range(8), 0)
    with pytest.warns(UserWarning, match="no compiled operations: no compiler"):
        got = model.predict(inputs)
    assert torch.equal(got, *eager(model, [inputs]))
    assert num_kinds(model) == 1


def test_without_memory_all_graphs_are_dropped(
    model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.graphs = True
    model.predict(inputs_of(range(8), 0))
    monkeypatch.setattr(
        graphs_of(model), "_backend", Failing(torch.OutOfMemoryError("out of memory"))
    )
    with pytest.warns(UserWarning, match="no memory for graphs"):
        model.predict(inputs_of(range(9), 0))
    for width in (8, 9):
        model.predict(inputs_of(range(width), 0))
    assert graphs_of(model).calls[None] == 3


def test_every_input_of_a_forward_is_in_a_buffer_or_in_the_kind() -> None:
    """A new field must be copied into a buffer, or forwards that have it must be eager."""
    buffers = {"tokens", "positions", "wanted", "attend", "slots", "kv_cache"}
    # `rows` says which rows of the buffers a group has; no network here reads `belief`.
    assert {field.name for field in fields(ForwardInputs)} == buffers | {"rows", "belief"}
    # Made inside of a recording, of the buffers alone.
    made = {"rotation", "bias", "kv_slots", "query_scale", "wanted", "pointwise"}
    assert set(LayerContext._fields) == made


class Capturing:
    """A back end that refuses what CUDA refuses during a capture."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def record(self, work: Work, buffers: Buffers) -> Replay:
        with self.accelerator.capturing():
            work(buffers)
        return lambda: work(buffers)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("family", "dtype", "cache"),
    [("llada", "float64", FreeCache()), ("llada_moe", "bfloat16", DualCache())],
    ids=str,
)
def test_nothing_is_copied_between_host_and_device_in_a_capture(
    family: str, dtype: str, cache: CachePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With experts, the host read where the tokens of each expert end."""
    options: Any = {"gen_length": 8, "block_length": 4, "cache": cache}
    here = load_tiny(family, dtype=dtype)
    expected = decode(here, [[7, 8, 9], [5, 6]], FixedSchedule(4), **options)
    with Accelerator() as accelerator:
        monkeypatch.setattr(forward_graphs, "backend_on", lambda device: Capturing(accelerator))
        there = load_tiny(family, device="cuda", dtype=dtype, graphs=True)
        graphs_of(there).is_fused = False
        got = decode(there, [[7, 8, 9], [5, 6]], FixedSchedule(4), **options)
    assert got.tokens.tolist() == expected.tokens.tolist()
    assert num_kinds(there) > 1


def test_a_layer_launches_few_operations(
    model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA 20 a layer; a CPU composes the root mean square of several operations."""
    backend = TracingBackend()
    monkeypatch.setattr(forward_graphs, "backend_on", lambda device: backend)
    model.graphs = True
    cache = model.new_kv_cache(1, 63)
    model.predict(inputs_of(range(8, 16), 0, cache=cache))
    [trace] = backend.traces
    launches = [
        node.target
        for node in trace.graph.nodes
        if node.op == "call_function"
        and not any(f"aten.{view}" in str(node.target) for view in VIEWS)
    ]
    assert 0 < len(launches) <= 38 * model.transformer.config.num_layers + 20


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_experts_are_recorded(model: MaskedTransformer, dtype: str) -> None:
    experts = load_tiny("llada_moe", dtype=dtype, graphs=True)
    for seed in range(2):
        inputs = inputs_of(range(8), seed)
        assert torch.equal(experts.predict(inputs), *eager(experts, [inputs]))
    assert num_kinds(experts) == 1


def test_experts_in_a_loop_stay_eager(model: MaskedTransformer) -> None:
    """The loop reads how many tokens each expert has; `tolist` is no operation on a CPU."""
    experts = load_tiny("llada_moe", dtype="float64", graphs=True)
    with pytest.warns(UserWarning, match="stays eager: A graph must not read values of tensors"):
        experts.predict(inputs_of(range(8), 0))
    inputs = inputs_of(range(8), 1)
    assert torch.equal(experts.predict(inputs), *eager(experts, [inputs]))
    assert list(graphs_of(experts).calls) == [None]
