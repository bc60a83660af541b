"""The plug-in for SGLang on a stub of its loop, against the loop of this project."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from pretended import Accelerator
from tiny_models import tiny
from torch import Tensor

from dllm_decode import decode
from dllm_decode.core.model import ForwardInputs
from dllm_decode.integrations.sglang import UNUSED, BlockSteps, refusal_of, register
from samplers import (
    T2M,
    ConfidenceThreshold,
    CreditDecoding,
    DecayingThreshold,
    FixedSchedule,
    JointThreshold,
    JointThresholdInDel,
    Klass,
    Prophet,
    Sampler,
    Wino,
)
from samplers.base import Decision, RevisingSampler
from samplers.logits.statistics import highest_one
from samplers.view import View

PROMPTS = [[17, 40, 41], [99, 7, 7, 250, 31], [12, 13, 14, 444]]
LENGTH = 4
ALL = 1 << 30


@dataclass
class Request:
    text: list[int]
    end: int
    name: str
    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    state: Any = None
    num_steps: int = 0
    block: list[int] = field(default_factory=list)


def info_of(requests: list[Request]) -> Any:
    return SimpleNamespace(
        is_all_greedy=all(one.top_k == 1 for one in requests),
        need_top_p_sampling=any(one.top_p < 1.0 for one in requests),
        need_top_k_sampling=any(one.top_k != ALL for one in requests),
        temperatures=torch.tensor([[one.temperature] for one in requests]),
        top_ps=torch.tensor([one.top_p for one in requests]),
        top_ks=torch.tensor([one.top_k for one in requests]),
    )


class Engine:
    """SGLang's two loops on a tiny model: all blocks of a batch to their end, or one by one."""

    def __init__(self, steps: BlockSteps, requests: list[Request], *, shape: str = "old") -> None:
        self.model = tiny("sdar")
        self.steps, self.requests, self.shape = steps, requests, shape
        for one in requests:
            one.block = one.text[len(one.text) // LENGTH * LENGTH :]
            one.text = one.text[: len(one.text) - len(one.block)]
            one.block += [self.model.mask_id] * (LENGTH - len(one.block))

    def batch(self, requests: list[Request]) -> Any:
        starts = [len(one.text) for one in requests]
        return SimpleNamespace(
            batch_size=len(requests),
            input_ids=torch.tensor([one.block for one in requests]).view(-1),
            positions=torch.cat([torch.arange(start, start + LENGTH) for start in starts]),
            rids=[one.name for one in requests],
            sampling_info=info_of(requests),
        )

    def forward(self, requests: list[Request], batch: Any) -> Any:
        found = []
        for one, block in zip(requests, batch.input_ids.view(-1, LENGTH).tolist(), strict=True):
            text = torch.tensor([[*one.text, *block]])
            columns = torch.arange(text.shape[1])[None]
            blocks = columns // LENGTH
            found.append(self.model.predict(ForwardInputs(
                tokens=text, positions=columns, wanted=columns[:, -LENGTH:],
                attend=blocks[:, :, None] >= blocks[:, None],
            ))[0])  # fmt: skip
        logits = torch.cat(found)
        return logits if self.shape == "old" else SimpleNamespace(full_logits=logits)

    def run(self, *, is_together: bool) -> None:
        while left := [one for one in self.requests if len(one.text) < one.end]:
            batch = self.batch(left)
            pairs = zip(left, self.steps.init_step_state(batch), strict=True)
            states = [fresh if one.state is None else one.state for one, fresh in pairs]
            for _ in range(self.steps.max_steps(LENGTH) if is_together else 1):
                done = self.steps.step(batch, self.forward(left, batch), states)
                for one, is_done in zip(left, done, strict=True):
                    one.num_steps += not is_done
                if all(done):
                    break
            assert all(done) or not is_together
            blocks = batch.input_ids.view(-1, LENGTH).tolist()
            for one, is_done, block, state in zip(left, done, blocks, states, strict=True):
                one.block, one.state = block, state
                if is_done:
                    one.text += block
                    one.block, one.state = [self.model.mask_id] * LENGTH, None


def answers(sampler: Sampler, loop: str, options: list[dict[str, Any]]) -> list[Request]:
    requests = [
        Request([*prompt], len(prompt) + 8, f"request {n}", **own)
        for n, (prompt, own) in enumerate(zip(PROMPTS, options, strict=True))
    ]
    steps = BlockSteps(sampler, LENGTH, tiny("sdar").mask_id)
    engine = Engine(steps, requests, shape="old" if loop == "together" else "new")
    engine.run(is_together=loop == "together")
    return requests


class Steps(NamedTuple):
    given: Tensor
    count: Tensor


@dataclass(frozen=True)
class SecondThoughts(RevisingSampler[Steps]):
    """Commits one token a step, and in the second step opens again what it has settled."""

    def max_steps(self, num_masks: int) -> int:
        return num_masks + 2

    def init(self, view: View) -> Steps:
        return Steps(~view.masked, torch.zeros_like(view.tokens[:, 0]))

    def step(self, view: View, state: Steps) -> tuple[Decision, Steps]:
        commit = highest_one(view.confidence, view.eligible)
        remask = ~view.masked & ~state.given & (state.count == 1)[:, None]
        return Decision(commit=commit, remask=remask), state._replace(count=state.count + 1)


@pytest.mark.parametrize("loop", ["together", "apart"])
@pytest.mark.parametrize(
    "sampler",
    [
        FixedSchedule(2), Klass(0.3, 0.1), JointThreshold(0.3, 0.1, 4),
        T2M(0.3, tau=0.2, max_post_steps=4, eos_early_stop=False),
        JointThresholdInDel(0.3, 0.1, 4, delete_id=133, split_id=178),
        # Its second thoughts were dropped without a word.
        SecondThoughts(),
    ],
    ids=repr,
)  # fmt: skip
def test_tokens_and_steps_are_those_of_the_own_loop(sampler: Sampler, loop: str) -> None:
    options: Any = {"gen_length": 8, "block_length": LENGTH, "stop_at_eos": False}
    for prompt, one in zip(PROMPTS, answers(sampler, loop, [{}] * 3), strict=True):
        out = decode(tiny("sdar"), [prompt], sampler, **options)
        assert one.text[len(prompt) : len(prompt) + 8] == out.tokens[0].tolist()
        assert one.num_steps == out.nfe[0]


def test_each_request_has_its_own_temperature() -> None:
    drawn = {"temperature": 1.3, "top_k": ALL}
    cut = {"temperature": 3.0, "top_k": 2}
    sampler = ConfidenceThreshold(0.3)
    greedy, mixed, again = (
        [one.text for one in answers(sampler, loop, options)]
        for loop, options in (
            ("apart", [{}] * 3),
            ("apart", [{}, drawn, cut]),
            ("together", [{}, drawn, cut]),
        )
    )
    assert mixed == again
    assert mixed[0] == greedy[0]
    assert mixed[1] != greedy[1]
    assert mixed[2] != greedy[2]
    others = [one.text for one in answers(sampler, "apart", [cut, drawn, {}])]
    assert others[1] == mixed[1]
    assert others[2] == greedy[2]
    only = [{"temperature": 3.0, "top_k": ALL, "top_p": 1e-9}] * 3
    assert [one.text for one in answers(sampler, "together", only)] == greedy


@pytest.mark.parametrize("sampler", [ConfidenceThreshold(0.3), JointThreshold()], ids=repr)
def test_the_host_reads_only_the_list_that_is_returned(sampler: Sampler) -> None:
    steps, accelerator = BlockSteps(sampler, LENGTH, 19), Accelerator()
    with accelerator:
        batch = SimpleNamespace(
            batch_size=2,
            input_ids=torch.full((8,), 19, device="cuda"),
            positions=torch.arange(8, device="cuda"),
            rids=None,
            sampling_info=SimpleNamespace(
                is_all_greedy=False, need_top_p_sampling=True, need_top_k_sampling=True,
                temperatures=torch.ones(2, 1, device="cuda"),
                top_ps=torch.full((2,), 0.9, device="cuda"),
                top_ks=torch.full((2,), 5, device="cuda"),
            ),
        )  # fmt: skip
        states = steps.init_step_state(batch)
        logits: Tensor = torch.randn(8, 20, dtype=torch.float64, device="cuda")
        accelerator.waits.clear()
        for _ in range(3):
            steps.step(batch, logits, states)
    assert dict(accelerator.waits) == {"tolist in sglang.BlockSteps.step": 3}


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (Wino(), r"Wino\(.* needs a model in which every column|needs a cache policy"),
        (Prophet(), "needs a cache policy that computes all masked columns after the open block"),
        (CreditDecoding(DecayingThreshold()), "needs the length of the answer"),
    ],
    ids=repr,
)
def test_samplers_that_see_more_than_the_block_are_refused(sampler: Sampler, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BlockSteps(sampler, 4, 0)


def test_options_and_requests_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"with a sampler such as .*, got {'threshold'"):
        BlockSteps.of({"threshold": 0.9}, block_size=4, mask_id=0)
    assert refusal_of(SimpleNamespace(**UNUSED)) is None
    asked = SimpleNamespace(**UNUSED | {"min_p": 0.1, "regex": "a+"})
    assert refusal_of(asked) == "min_p, regex must be left out with dllm_decode."
    batch = SimpleNamespace(batch_size=2, input_ids=torch.zeros(9), rids=None)
    with pytest.raises(ValueError, match="one block of 4 tokens, got 9 tokens of 2 requests"):
        BlockSteps(FixedSchedule(2), 4, 0).init_step_state(batch)


def test_the_algorithm_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class DllmAlgorithm:
        def __init__(self, config: Any) -> None:
            self.block_size = config.block_size

    names = ("sglang", "sglang.srt", "sglang.srt.dllm", "sglang.srt.dllm.algorithm")
    modules = {name: ModuleType(name) for name in (*names, f"{names[-1]}.base")}
    known: dict[str, Any] = {}
    vars(modules[names[-1]])["algo_name_to_cls"] = known
    vars(modules[f"{names[-1]}.base"])["DllmAlgorithm"] = DllmAlgorithm
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    register()
    options = {"sampler": "ConfidenceThreshold(0.9)", "seed": 3}
    config = SimpleNamespace(block_size=32, mask_id=7, algorithm_config=options)
    algorithm = known["dllm_decode"](config)
    assert algorithm.max_steps(32) == 33
    assert algorithm.step.__self__ == BlockSteps(ConfidenceThreshold(0.9), 32, 7, 3)
    with pytest.raises(ValueError, match="with a sampler such as"):
        known["dllm_decode"](SimpleNamespace(block_size=32, mask_id=7, algorithm_config=None))
