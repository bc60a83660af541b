"""Recorded self-speculation of Nemotron-Labs-Diffusion, with the adapter on in drafts alone."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, load_tiny
from torch import Tensor

from dllm_decode import (
    ARVerify,
    DraftLength,
    LinearSpec,
    PathSearch,
    StepEvent,
    as_causal_target,
    decode,
    load_drafter,
)
from dllm_decode.models import MaskedTransformer, load_model
from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.models.targets.target_network import CausalInputs
from samplers import ConfidenceThreshold

FOLDER = MODELS.parent / "nemotron_spec"
GOLDEN = load_file(FOLDER / "golden.safetensors")
ADAPTER = FOLDER / "linear_spec_lora"
BLOCK = 8
# It is never asked.
SAMPLER = ConfidenceThreshold(0.9)


@pytest.fixture(scope="module")
def model() -> MaskedTransformer:
    return load_tiny("nemotron_labs_diffusion", dtype=torch.float32)


@pytest.fixture(scope="module")
def target(model: MaskedTransformer) -> CausalTarget:
    return as_causal_target(model)


@pytest.fixture(scope="module")
def drafter(model: MaskedTransformer) -> CausalTarget:
    return load_drafter(model, ADAPTER)


def whole(target: CausalTarget, attend: Tensor) -> Tensor:
    tokens = GOLDEN["full.input_ids"]
    columns = torch.arange(48)
    attend = attend.expand(2, -1, -1)
    inputs = CausalInputs(tokens, columns.expand(2, -1), attend, (), columns)
    return target.network.read(inputs).logits


def test_whole_rows_have_the_recorded_logits_with_and_without_the_adapter(
    target: CausalTarget, drafter: CausalTarget
) -> None:
    everything = torch.ones(1, 48, 48, dtype=torch.bool)
    for got, key in (
        (whole(drafter, everything), "on.full.logits"),
        (whole(drafter, everything.tril()), "on.causal.logits"),
        # After a forward with the adapter, a forward without it.
        (whole(target, everything), "off.full.logits"),
    ):
        torch.testing.assert_close(got, GOLDEN[key], atol=1e-3, rtol=0)
    assert (GOLDEN["on.full.logits"] - GOLDEN["off.full.logits"]).abs().max() > 0.1


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_draft_and_the_first_check_have_the_recorded_logits(
    number: int, target: CausalTarget, drafter: CausalTarget
) -> None:
    prompt, block = GOLDEN[f"spec{number}.prompt"], GOLDEN[f"spec{number}.draft_block"]
    size = prompt.shape[1]
    past = target.read(target.start(1), prompt, torch.tensor([size]), num_logits=1).layers
    columns = torch.arange(BLOCK)
    attend = torch.ones(1, BLOCK, size + BLOCK, dtype=torch.bool)
    draft = CausalInputs(block, size + columns[None], attend, past, columns)
    got = drafter.network.read(draft).logits
    torch.testing.assert_close(got, GOLDEN[f"spec{number}.draft_logits"], atol=1e-3, rtol=0)
    check = draft._replace(tokens=GOLDEN[f"spec{number}.check_block"], attend=attend[:, 0])
    got = target.network.read(check).logits
    torch.testing.assert_close(got, GOLDEN[f"spec{number}.check_logits"], atol=1e-3, rtol=0)


class Accepted:
    """Tokens that each round wrote."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def __call__(self, event: StepEvent) -> None:
        self.taken.append(int((event.before.unsettled & ~event.after.unsettled).sum()))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("name", "threshold"), [("t0", 0.0), ("t03", 0.3)])
def test_a_recorded_episode_is_repeated(
    number: int, name: str, threshold: float, model: MaskedTransformer, target: CausalTarget,
    drafter: CausalTarget,
) -> None:  # fmt: skip
    key = f"spec{number}"
    prompt, expected = GOLDEN[f"{key}.prompt"][0], GOLDEN[f"{key}.{name}.output"][0]
    drafting = LinearSpec(drafter, BLOCK, threshold)
    verifier = ARVerify(target, DraftLength(BLOCK - 1, BLOCK - 1), drafting)
    accepted = Accepted()
    out = decode(
        model, [prompt.tolist()], SAMPLER, verifier=verifier, observers=[accepted],
        gen_length=len(expected) - len(prompt),
    )  # fmt: skip
    assert torch.equal(out.tokens[0], expected[len(prompt) :])
    # The first forward of the target reads the prompt, and has no draft.
    assert accepted.taken == [1, *GOLDEN[f"{key}.{name}.taken"].tolist()]
    assert int(out.nfe + out.target_nfe) == int(GOLDEN[f"{key}.{name}.nfe"])


PROMPTS = [GOLDEN["spec0.prompt"][0].tolist(), [99], GOLDEN["spec1.prompt"][0].tolist()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_what_the_target_writes_alone(
    temperature: float,
) -> None:
    model = load_tiny("nemotron_labs_diffusion", dtype=torch.float64)
    exact = as_causal_target(model)
    drafting = LinearSpec(load_drafter(model, ADAPTER), BLOCK, 0.3)
    options = {"gen_length": 20, "temperature": temperature, "seed": 3}
    out = decode(
        model, PROMPTS, SAMPLER, verifier=ARVerify(exact, DraftLength(7, 7), drafting), **options
    )
    assert int(out.accepted.sum()) > 0 or temperature
    assert out.forwards >= int(out.nfe.max()) > 0
    plain = ARVerify(exact, DraftLength(1, 1), PathSearch(width=1, weight=1.0))
    assert torch.equal(
        out.tokens, decode(model, PROMPTS, SAMPLER, verifier=plain, **options).tokens
    )
    for row, prompt in enumerate(PROMPTS[:1]):
        verifier = ARVerify(exact, DraftLength(7, 7), drafting)
        alone = decode(model, [prompt], SAMPLER, verifier=verifier, **options)
        assert torch.equal(alone.tokens[0], out.tokens[row])
        assert (alone.nfe[0], alone.target_nfe[0]) == (out.nfe[row], out.target_nfe[row])


def test_the_adapter_of_a_model_is_named_and_others_are_refused(
    tmp_path: Path, model: MaskedTransformer, target: CausalTarget
) -> None:
    shutil.copytree(MODELS / "nemotron_labs_diffusion", tmp_path, dirs_exist_ok=True)
    shutil.copytree(ADAPTER, tmp_path / "linear_spec_lora")
    bundled, _ = load_model(tmp_path, tokenizer="optional", dtype="float32", device="cpu")
    assert isinstance(bundled, MaskedTransformer)
    drafter = load_drafter(bundled, "linear_spec_lora")
    assert drafter.name.endswith("(causal) with linear_spec_lora")
    assert drafter.files[-1].name == "adapter_model.safetensors"
    with pytest.raises(FileNotFoundError, match="no_such_adapter"):
        load_drafter(bundled, "no_such_adapter")
    weights = tmp_path / "linear_spec_lora" / "adapter_model.safetensors"
    tensors = load_file(weights)
    renamed = {name.replace("o_proj", "gate_proj"): part for name, part in tensors.items()}
    save_file({name: part.clone() for name, part in renamed.items()}, weights)
    with pytest.raises(ValueError, match="An adapter must fit its base model"):
        load_drafter(bundled, "linear_spec_lora")
    with pytest.raises(ValueError, match="LinearSpec must be loaded"):
        LinearSpec("mini-ar")  # type: ignore[arg-type]  # a name
