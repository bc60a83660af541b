"""Which tokens are scored, on which canvases; what is refused."""

from itertools import product
from typing import Any

import msgspec
import pytest
import torch
from tiny_models import TINY_PROMPTS, load_tiny, logprobs_of_columns, tiny, tiny_gemma
from toys import HashModel

from dllm_decode import (
    Canvases,
    DecodeConfig,
    PrefixCache,
    Rollout,
    Write,
    load_model,
    new_decoder,
    roll_out,
    score,
)
from dllm_decode.models.network.transformer import Transformer
from dllm_decode.rollouts.rollout_groups import rollouts_of
from samplers import ConfidenceThreshold


def rollouts_of_tiny(family: str, gen_length: int = 14, **options: Any) -> list[Rollout]:
    """Returns rollouts of three prompts, two of which are equally long."""
    config = DecodeConfig(gen_length=gen_length, temperature=1.0, block_length=4)
    decoder = new_decoder(tiny(family), ConfidenceThreshold(0.3), config=config, **options)
    requests = [decoder.request(prompt, n) for n, prompt in enumerate(TINY_PROMPTS[3:6])]
    rollouts = {ended.request.index: ended.rollout for ended in rollouts_of(decoder, requests, 2)}
    return [rollouts[index] for index in range(3)]


@pytest.mark.parametrize("family", ["dream", "fast_dllm_v2"])
def test_few_rows_a_forward_change_nothing(family: str) -> None:
    rollouts = rollouts_of_tiny(family)
    with torch.no_grad():
        batched = score(tiny(family), rollouts)
        for most in (1, 2, 5):
            part = score(tiny(family), rollouts, rows_per_forward=most)
            torch.testing.assert_close(part.logprobs, batched.logprobs, rtol=0.0, atol=1e-11)
            assert part.columns == batched.columns


def test_tokens_of_all_rollouts_are_in_their_places() -> None:
    rollouts = rollouts_of_tiny("sdar")
    rollouts[1] = msgspec.structs.replace(rollouts[1], config=DecodeConfig(gen_length=14))
    with torch.no_grad():
        batched = score(tiny("sdar"), rollouts, law="drawn")
        for n, rollout in enumerate(rollouts):
            alone = score(tiny("sdar"), [rollout], law="drawn")
            size = len(rollout.commits)
            torch.testing.assert_close(
                batched.logprobs[n, :size], alone.logprobs[0], rtol=0.0, atol=1e-11
            )
            assert batched.positions[n, :size].tolist() == [w.position for w in rollout.commits]
            assert batched.weights[n].sum() == size
            assert (batched.positions[n, size:] == -1).all()


def test_a_sample_of_steps_has_the_expectation_of_all() -> None:
    """The mean over all equally likely samples is exact."""
    rollout = rollouts_of_tiny("llada", gen_length=6)[0]
    steps = sorted({write.step for write in rollout.commits})
    assert len(steps) in (4, 5, 6)
    sizes = [len(steps) * (n + 1) // 2 - len(steps) * n // 2 for n in range(2)]
    with torch.no_grad():
        total = float(score(tiny("llada"), [rollout]).logprobs.sum())
        sums: dict[tuple[int, ...], float] = {}
        generator = torch.Generator().manual_seed(0)
        for _ in range(100):
            part = score(tiny("llada"), [rollout], steps=2, generator=generator)
            key = tuple(part.positions[0].tolist())
            sums[key] = float((part.weights * part.logprobs).sum())
            assert part.difference < 1e-9
        assert len(sums) == len(list(product(*map(range, sizes))))
        assert sum(sums.values()) / len(sums) == pytest.approx(total, abs=1e-9)
        many = score(tiny("llada"), [rollout], steps=50)
        assert float(many.logprobs.sum()) == pytest.approx(total)
        assert (many.weights == 1).all()


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_shrinking_scores_successive_steps_on_one_canvas(family: str) -> None:
    rollout = rollouts_of_tiny(family)[0]
    steps = list(dict.fromkeys(write.step for write in rollout.commits))
    firsts = {step: steps[n - n % 3] for n, step in enumerate(steps)}
    merged = tuple(write._replace(step=firsts[write.step]) for write in rollout.writes)
    rewritten = msgspec.structs.replace(rollout, writes=merged)
    with torch.no_grad():
        shrunk = score(tiny(family), [rollout], shrink=3)
        expected = score(tiny(family), [rewritten])
        torch.testing.assert_close(shrunk.logprobs, expected.logprobs, rtol=0.0, atol=1e-11)
        unshrunk = score(tiny(family), [rollout])
    assert shrunk.columns < unshrunk.columns
    assert shrunk.difference is None
    assert not torch.allclose(shrunk.logprobs, unshrunk.logprobs)


@pytest.mark.parametrize("family", ["dream", "sdar"])
def test_canvases_of_ones_own_are_scored_where_they_hide_the_answer(family: str) -> None:
    """As in coupled-GRPO, the canvases are a mask of the answer and its complement."""
    model, rollout = tiny(family), rollouts_of_tiny(family)[0]
    width, start = len(rollout.prompt) + rollout.length, len(rollout.prompt)
    hidden = torch.zeros(2, width, dtype=torch.bool)
    hidden[0, start::2] = hidden[1, start + 1 :: 2] = True
    canvases = Canvases.of_answer(rollout, hidden)
    with torch.no_grad():
        scores = score(model, [rollout], steps=[canvases])
        assert scores.recorded is None
        assert sorted(scores.positions[0].tolist()) == list(range(14))
        for n, position in enumerate(scores.positions[0].tolist()):
            logprobs = logprobs_of_columns(model, canvases.tokens[int(canvases.canvas[n])])
            expected = logprobs[start + position, rollout.tokens[position]]
            torch.testing.assert_close(scores.logprobs[0, n], expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize(("family", "cache"), [("llada", None), ("sdar", PrefixCache())])
def test_scoring_costs_about_the_columns_of_the_decode(family: str, cache: Any) -> None:
    options = {} if cache is None else {"cache": cache}
    config = DecodeConfig(gen_length=48, temperature=1.0, block_length=4)
    decoder = new_decoder(tiny(family), ConfidenceThreshold(0.3), config=config, **options)
    outcomes = list(rollouts_of(decoder, [decoder.request([9, 8, 7], n) for n in range(8)], 8))
    decoded = sum(int(outcome.output.query_positions) for outcome in outcomes)
    with torch.no_grad():
        scored = score(tiny(family), [outcome.rollout for outcome in outcomes])
    assert scored.columns <= 1.1 * decoded


def test_bfloat16_with_gradients_rounds_as_the_decode_did() -> None:
    """Attention was written out for gradients on a CPU: 0.58 nats off at unchanged weights."""
    loaded: Any = load_model("mini", dtype="bfloat16")
    model, tokenizer = loaded
    model.requires_grad_()
    question = "emma has 12 apples. emma finds 30 apples. how many apples does emma have now?"
    options: Any = {"gen_length": 64, "temperature": 1.0, "num_return_sequences": 4}
    group = next(roll_out(model, tokenizer, [question], ConfidenceThreshold(0.3), **options))
    scores = score(model, group.rollouts)
    assert scores.difference < 1e-3
    scores.logprobs.sum().backward()
    torch.optim.SGD(model.parameters(), 1e-3).step()
    assert all(part.isfinite().all() for part in model.parameters())
    assert score(model, group.rollouts).difference is None


@pytest.mark.usefixtures("no_checks_of_types")
def test_what_cannot_be_scored_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = rollouts_of_tiny("llada")[0]
    with pytest.raises(ValueError, match="model must be the model that load_model returns"):
        score([rollout], tiny("llada"))  # type: ignore[arg-type]
    change = msgspec.structs.replace
    width = len(rollout.prompt) + rollout.length
    full = Canvases.of_answer(rollout, torch.ones(1, width, dtype=torch.bool))
    far = (Write(0, 0, 999, -1.0, -1.0), *rollout.writes)
    cases: list[Any] = [
        ([], {}, "at least one Rollout"),
        ([rollout, 3], {}, "must hold Rollouts, got 3"),
        ([change(rollout, model="other")], {}, "its model is other, not llada"),
        ([rollout, change(rollout, mask_id=7)], {}, "as number 1: its mask_id is 7"),
        ([change(rollout, writes=far)], {}, "largest token is 999, not 511"),
        ([rollout], {"law": "both"}, 'law must be "model" or "drawn"'),
        ([rollout], {"steps": 0}, 'steps must be "all", a number of steps'),
        ([rollout], {"steps": True}, 'steps must be "all", a number of steps'),
        ([rollout], {"steps": [full, full]}, "each of 1 rollouts, got 2"),
        ([rollout], {"steps": [full._replace(tokens=full.tokens[:, 1:])]}, "must have .* columns"),
        ([rollout], {"steps": [full._replace(targets=full.targets[1:])]}, "equally many"),
        ([rollout], {"steps": [full._replace(targets=full.targets + 512)]}, "targets of Canvases"),
        ([rollout], {"shrink": 0}, "shrink must be at least 1"),
        ([rollout], {"rows_per_forward": 0}, "rows_per_forward must be at least 1"),
    ]
    # The errors come before the first forward.
    monkeypatch.setattr(Transformer, "forward", None)
    for rollouts, options, reason in cases:
        with torch.no_grad(), pytest.raises(ValueError, match=reason):
            score(tiny("llada"), rollouts, **options)


def test_other_models_are_refused_by_name() -> None:
    rollout = rollouts_of_tiny("llada")[0]
    with pytest.raises(ValueError, match="Parameters of llada must require gradients, got none"):
        score(load_tiny("llada"), [rollout])
    for model in (HashModel(), tiny_gemma()):
        with pytest.raises(ValueError, match="network of this package"):
            score(model, [rollout])
    sdar = msgspec.structs.replace(rollout, model="sdar", length=rollout.length + 1)
    with torch.no_grad(), pytest.raises(ValueError, match="end of the last block"):
        score(tiny("sdar"), [sdar])
