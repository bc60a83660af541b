"""Learn2PD: the filter's file, its decisions, how examples are collected and filters trained."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from safetensors.torch import load_file, save_file
from tiny_models import BLOCK_CAUSAL, MODELS, load_tiny, load_without_tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from toys import HashModel

from dllm_decode import DecodeConfig, decode
from dllm_decode.core.model import fingerprint_of
from dllm_decode.training.filter_examples import FilterExamples, collect_examples
from dllm_decode.training.learn2pd import (
    ACTIVATION,
    FilterSettings,
    save_filter,
    split,
    train_filter,
)
from samplers import CreditDecoding, FixedSchedule, Learn2PD, Prophet
from samplers.learn2pd import MAX_FILTER_BYTES, load_filter, new_network
from samplers.view import View

BLOCK_LENGTH = 6


# With the default bias of `gate`, a filter says yes where the confidence exceeds 0.6.
ABOVE = 40.0 * torch.eye(BLOCK_LENGTH)


def gate(weight: Tensor = ABOVE, bias: float = -24.0) -> nn.Sequential:
    """Returns a filter of one layer, which has the same bias at each position."""
    network = new_network(BLOCK_LENGTH, (), "relu")
    (layer,) = network
    assert isinstance(layer, nn.Linear)
    layer.weight.data, layer.bias.data = weight, torch.full((BLOCK_LENGTH,), bias)
    return network


def looking(weight: float, *columns: int) -> nn.Sequential:
    """Returns a filter in which every position looks at these columns only."""
    weights = torch.zeros(BLOCK_LENGTH, BLOCK_LENGTH)
    weights[:, columns] = weight
    return gate(weights)


def saved(folder: Path, network: nn.Module, *, model: str = "hash model") -> str:
    path = folder / "filter.safetensors"
    layers = [layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear)]
    settings = FilterSettings(hidden_sizes=tuple(layers[:-1]))
    save_filter(network, path, model=model, settings=settings, threshold=0.96)
    return str(path)


def view_of(confidences: list[float], masked: list[bool]) -> View:
    share = torch.tensor(confidences, dtype=torch.float64)
    logits = torch.stack([share, *3 * [(1 - share) / 3]], -1).log()[None]
    return view_with(logits, masked=torch.tensor([masked]))


MASKED = [True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("network", "confidences", "masked", "committed"),
    [
        (gate(), [0.7, 0.3, 0.65, 0.9, 0.4, 0.5], MASKED, [0, 2]),
        (gate(), [0.3, 0.5, 0.4, 0.9, 0.4, 0.5], MASKED, [1]),
        (gate(-ABOVE, 16.0), [0.35, 0.8, 0.5, 0.6, 0.7, 0.9], [True] * 6, [0, 5]),
        (looking(40.0, 3), [0.5, 0.4, 0.3, 0.9, 0.3, 0.3], MASKED, [0, 1, 2, 4, 5]),
        (looking(40.0, 3), [0.5, 0.4, 0.3, 0.3, 0.3, 0.3], MASKED, [0]),
        (looking(20.0, 4, 5), [0.5, 0.4, 0.3], [True] * 3, [0, 1, 2]),
        (gate(0.0 * ABOVE, 0.0), [0.5, 0.4, 0.3, 0.9, 0.2, 0.6], [True] * 6, [3]),
    ],
    ids=[
        "those above 0.6", "the most confident one in any case", "those below 0.4",
        "a committed column is sure", "a committed column is unsure",
        "a short last block goes on with certainty", "a score of one half is not enough",
    ],
)  # fmt: skip
def test_a_filter_adds_to_the_most_confident_position(
    network: nn.Module, confidences: list[float], masked: list[bool], committed: list[int],
    tmp_path: Path,
) -> None:  # fmt: skip
    sampler = Learn2PD(saved(tmp_path, network), threshold=0.5)
    view = view_of(confidences, masked)
    decision, _ = sampler.step(view, sampler.init(view))
    assert decision.commit[0].nonzero().squeeze(-1).tolist() == committed


def test_a_file_reads_back_as_written(tmp_path: Path) -> None:
    default = new_network(32, FilterSettings().hidden_sizes, ACTIVATION)
    assert sum(weight.numel() for weight in default.parameters()) == 2112
    network = new_network(BLOCK_LENGTH, (5, 7), ACTIVATION)
    path = tmp_path / "filter.safetensors"
    settings = FilterSettings(hidden_sizes=(5, 7))
    save_filter(network, path, model="toy", settings=settings, threshold=0.9)
    filter_ = load_filter(str(path))
    assert (filter_.block_length, filter_.model) == (BLOCK_LENGTH, "toy")
    inputs = torch.rand(3, BLOCK_LENGTH)
    torch.testing.assert_close(filter_.network(inputs.double()).float(), network(inputs))
    for name, value in load_file(path).items():
        assert torch.equal(filter_.network.state_dict()[name].float(), value)


def test_decode_refuses_a_filter_for_another_block_length_or_model(tmp_path: Path) -> None:
    sampler = Learn2PD(saved(tmp_path, gate()))
    for wrapped in (sampler, CreditDecoding(sampler), Prophet(sampler)):
        with pytest.raises(ValueError, match=r"block_length must be 6, .* got 4"):
            decode(HashModel(), [[1]], wrapped, gen_length=12, block_length=4)
    foreign = Learn2PD(saved(tmp_path, gate(), model="mini"))
    with pytest.raises(ValueError, match=r"The model must be .mini., .* got .hash model."):
        decode(HashModel(), [[1]], foreign, gen_length=12, block_length=6)


def test_a_filter_knows_its_model_by_the_weights_and_not_by_the_folder(tmp_path: Path) -> None:
    """A copy under another name was refused, and any folder of the same last name was served."""
    trained, copied, changed = MODELS / "llada", tmp_path / "elsewhere", tmp_path / "llada"
    for folder in (copied, changed):
        shutil.copytree(trained, folder)
    weights = load_file(changed / "model.safetensors")
    # As after a training that changed one matrix.
    weights["model.transformer.blocks.1.ff_out.weight"] *= 1.01
    save_file(weights, changed / "model.safetensors")
    path, fingerprint = tmp_path / "filter.safetensors", load_tiny("llada").fingerprint
    settings = FilterSettings(hidden_sizes=())
    save_filter(gate(), path, model="llada", settings=settings, threshold=0.5,
                fingerprint=fingerprint)  # fmt: skip
    sampler = CreditDecoding(Learn2PD(str(path)))
    options: Any = {"gen_length": 6, "block_length": 6}
    for folder in (trained, copied):
        decode(load_without_tokenizer(folder, dtype="bfloat16")[0], [[5]], sampler, **options)
    with pytest.raises(ValueError, match="got 'llada', another one by its weights"):
        decode(load_without_tokenizer(changed)[0], [[5]], sampler, **options)
    # The model is checked before the block length, because no length is right for another model.
    with pytest.raises(ValueError, match=r"must be 'llada', .* got 'hash model'"):
        decode(HashModel(), [[1]], sampler, gen_length=12, block_length=4)


def test_a_fingerprint_is_of_the_weights_whatever_their_dtype(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    shutil.copytree(MODELS / "llada", folder)
    weights, prints = load_file(folder / "model.safetensors"), {load_tiny("llada").fingerprint}
    for dtype in (torch.float64, torch.bfloat16):
        stored = {name: weight.to(dtype) for name, weight in weights.items()}
        save_file(stored, folder / "model.safetensors")
        prints.add(load_without_tokenizer(folder)[0].fingerprint)
    assert len(prints) == 1
    assert len({load_tiny(key).fingerprint for key in ("llada", "dream", "sdar")}) == 3
    assert load_tiny("llada", mask_id=7).fingerprint not in prints
    assert fingerprint_of(HashModel()) == "hash model"


@pytest.mark.parametrize("sizes", [None, "[1000000000, 1000000000]", "[-1]", "[true, 2]"])
def test_a_file_with_other_content_is_refused(sizes: str | None, tmp_path: Path) -> None:
    """Sizes that the file has no weights for could fill the memory."""
    path, header = tmp_path / "other.safetensors", None
    if sizes:
        header = {"model": "toy", "activation": "relu", "block_length": "6", "hidden_sizes": sizes}
    save_file({"0.weight": torch.zeros(3)}, path, header)
    written = path.read_bytes()
    for content in (written, written[:7]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a file that save_filter wrote"):
            load_filter(str(path))


def test_a_file_is_looked_at_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file could fill the memory."""
    monkeypatch.setattr("samplers.learn2pd.safe_open", None)
    large, fifo = tmp_path / "large.safetensors", tmp_path / "fifo"
    with large.open("wb") as file:
        file.truncate(MAX_FILTER_BYTES + 1)
    with pytest.raises(ValueError, match=r"must be a file of at most 268,435,456 bytes, got"):
        load_filter(str(large))
    os.mkfifo(fifo)
    for special in (str(fifo), "/dev/zero", str(tmp_path), "nowhere"):
        with pytest.raises(FileNotFoundError, match="must be a file or an embedded name"):
            load_filter(special)


def slow_examples(
    model: HashModel, prompt: list[int], gen_length: int, block_length: int
) -> list[tuple[list[float], list[bool]]]:
    """Returns the examples of the oracle pass, by plain loops over one row."""
    reference = decode(model, [prompt], FixedSchedule(block_length), gen_length=gen_length,
                       block_length=block_length, stop_at_eos=False).tokens[0]  # fmt: skip
    canvas = torch.tensor([prompt + [model.mask_id] * gen_length])
    examples = []
    for start in range(0, gen_length, block_length):
        block = list(range(start, min(start + block_length, gen_length)))
        while True:
            where = [len(prompt) + position for position in block]
            masked = [bool(canvas[0, column] == model.mask_id) for column in where]
            if not any(masked):
                break
            logits = model.logits_of(canvas)[0]
            logits[:, model.mask_id] = -torch.inf
            shares, tokens = logits.softmax(-1).max(-1)
            final = [
                bool(tokens[column] == reference[position])
                for column, position in zip(where, block, strict=True)
            ]
            missing = block_length - len(block)
            sure = shares[where].tolist() + [1.0] * missing
            examples.append((sure, final + [True] * missing))
            hits = [i for i in range(len(block)) if masked[i] and final[i]]
            for i in hits or [i for i in range(len(block)) if masked[i]]:
                canvas[0, where[i]] = reference[block[i]]
    return examples


def test_the_oracle_s_examples_are_those_of_a_slow_loop() -> None:
    model, prompts = HashModel(peak=12.0, vocab_size=7, mask_id=6, eos_ids=(5,)), [[1, 2], [3]]
    examples = collect_examples(
        model, prompts, DecodeConfig(gen_length=10, block_length=4, stop_at_eos=False),
        first_prompt=7,
    )  # fmt: skip
    for row, prompt in enumerate(prompts):
        mine = examples.where(examples.prompts == 7 + row)
        expected = slow_examples(model, prompt, 10, 4)
        assert len(mine) == len(expected)
        for index, (confidences, final) in enumerate(expected):
            assert mine.confidences[index].tolist() == pytest.approx(confidences, abs=1e-6)
            assert mine.final[index].tolist() == final
    assert not examples.final.all()
    assert len(examples) < 2 * 10, "the oracle never committed two tokens at once"


def test_nothing_is_collected_behind_the_end_of_an_answer() -> None:
    model = HashModel(peak=12.0, vocab_size=7, mask_id=6, eos_ids=(0, 1, 2))
    config = DecodeConfig(gen_length=24, block_length=4)
    short = collect_examples(model, [[4]], config)
    full = collect_examples(model, [[4]], config.updated(stop_at_eos=False))
    truncated = collect_examples(model, [[4]], config.updated(truncate_at_eos=True))
    assert 0 < len(short) < len(full)
    # End-of-text prediction fills up what follows an EOS, and so changes what the filter sees.
    assert truncated.confidences.tolist() != short.confidences.tolist()


def test_a_filter_is_trained_and_used_on_a_block_causal_model(tmp_path: Path) -> None:
    """The oracle waited for ever for a reference after the answer, in its filled last block."""
    model = load_tiny(BLOCK_CAUSAL, block_length=4, dtype="float64")
    prompts = [[7, 8, 9], [10, 11, 12, 13, 14, 15], [16]]
    config = DecodeConfig(gen_length=10, block_length=8)
    splits = split(collect_examples(model, prompts * 4, config), seed=0)
    settings = FilterSettings(num_steps=20, learning_rate=0.02)
    network = train_filter(splits.train, splits.val, settings)
    path = tmp_path / "filter.safetensors"
    save_filter(network, path, model=model.name, settings=settings, threshold=0.5)
    sampler = Learn2PD(str(path), threshold=0.3)
    together = decode(model, prompts, sampler, config=config)
    alone = [decode(model, [prompt], sampler, config=config) for prompt in prompts]
    assert torch.equal(together.tokens, torch.cat([out.tokens for out in alone]))


def toy_examples(num_prompts: int = 60) -> FilterExamples:
    """Returns examples in which proposals are final if the left neighbour is sure."""
    generator = torch.Generator().manual_seed(0)
    confidences = torch.rand(num_prompts * 8, BLOCK_LENGTH, generator=generator)
    final = confidences.roll(1, -1) > 0.5
    return FilterExamples(confidences, final, torch.arange(num_prompts).repeat(8))


def test_a_filter_learns_what_no_threshold_on_the_confidence_can() -> None:
    splits = split(toy_examples(), seed=0)
    settings = FilterSettings(num_steps=40, learning_rate=0.2)
    losses: list[float] = []
    network = train_filter(
        splits.train, splits.val, settings, observe=lambda _, loss: losses.append(loss)
    )
    held_out = toy_examples(80).where(torch.arange(640) >= 480)
    accepted = network(held_out.confidences).sigmoid() > 0.8
    assert held_out.final[accepted].float().mean() > 0.9
    assert accepted[held_out.final].float().mean() > 0.6
    assert held_out.final[held_out.confidences > 0.8].float().mean() < 0.65
    assert len(losses) == 40
    val = splits.val
    loss = F.binary_cross_entropy_with_logits(network(val.confidences), val.final.float())
    assert loss.item() == pytest.approx(min(losses))
    assert losses[0] > losses[-1] > min(losses), "the last weights were the best"
    # Nothing depends on the state of torch's generator, so that a killed training begins anew.
    torch.rand(1)
    again = train_filter(splits.train, splits.val, settings)
    for found, expected in zip(again.parameters(), network.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_no_prompt_is_in_two_splits() -> None:
    splits = split(toy_examples(), seed=3)
    parts = [set(part.prompts.tolist()) for part in splits]
    assert [len(part) for part in parts] == [54, 6]
    assert len(set.union(*parts)) == 60
    with pytest.raises(ValueError, match="at least 10 prompts, got 9"):
        split(toy_examples(9), seed=0)
