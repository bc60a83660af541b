"""XLNet of transformers as a mask predictor: what a forward reads, and how it is loaded."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import MODELS, edit_config, load_without_tokenizer, load_xlnet, tokenizer_of
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from dllm_decode import (
    AnySubsetVerify,
    DecodeOutput,
    NoVerifier,
    PrefixCache,
    SelfVerify,
    Verifier,
    decode,
    generate,
    load_model,
)
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.predictors.xlnet import XLNet
from samplers import ConfidenceThreshold, FixedSchedule, Sampler, Wino

MASK = 6
TINY = MODELS.parent / "assd" / "tiny_xlnet"
PROMPTS = [[3, 1, 4, 9, 2], [5], [7, 7, 0, 1, 11, 4, 10]]


@pytest.fixture
def model() -> XLNet:
    return load_xlnet("tiny_xlnet", mask_id=MASK)


def asked(
    model: XLNet, tokens: list[int], wanted: list[int], attend: Tensor | None = None
) -> Tensor:
    columns = torch.arange(len(tokens))[None]
    inputs = ForwardInputs(torch.tensor([tokens]), columns, torch.tensor([wanted]), attend)
    return model.predict(inputs)[0]


def test_neither_masks_nor_the_own_column_are_read(model: XLNet) -> None:
    tokens = [1, 2, MASK, 4, MASK]
    base = asked(model, tokens, [2, 4])
    for column in (0, 1, 3):
        assert not torch.allclose(
            asked(model, [*tokens[:column], 9, *tokens[column + 1 :]], [2])[0], base[0]
        )
    torch.testing.assert_close(asked(model, [*tokens, *[MASK] * 4], [2, 4]), base)
    # A token that no other column reads says nothing about its own column.
    attend = torch.ones(5, 5, dtype=torch.bool)
    attend[:, 2] = False
    logits = asked(model, [1, 2, 7, 4, MASK], [2, 4], attend[None])
    assert torch.equal(logits, asked(model, [1, 2, 8, 4, MASK], [2, 4], attend[None]))
    torch.testing.assert_close(logits, base)


def test_each_column_reads_what_its_row_of_the_mask_names(model: XLNet) -> None:
    attend = torch.ones(5, 5, dtype=torch.bool)
    attend[:, 3] = False
    attend[4, 3] = True
    base = asked(model, [1, 2, MASK, 4, MASK], [2, 4], attend[None])
    logits = asked(model, [1, 2, MASK, 8, MASK], [2, 4], attend[None])
    assert torch.equal(logits[0], base[0])
    assert not torch.allclose(logits[1], base[1])


def test_a_column_may_be_wanted_twice(model: XLNet) -> None:
    once, twice = (asked(model, [1, MASK, 4, MASK], w) for w in ([1, 3], [3, 1, 3, 3]))
    torch.testing.assert_close(twice, once[[1, 0, 1, 1]])


def plain(model: XLNet, sampler: Sampler, **options: Any) -> DecodeOutput:
    return decode(model, PROMPTS, sampler, gen_length=8, stop_at_eos=False, **options)


def test_samplers_decode_it_and_drafts_are_verified(model: XLNet) -> None:
    out = plain(model, FixedSchedule(1), block_length=1)
    answer: list[int] = []
    for place in range(8):
        logits = asked(model, [*PROMPTS[0], *answer, *[MASK] * (8 - place)], [5 + place])[0]
        logits[MASK] = -torch.inf
        answer.append(int(logits.argmax()))
    assert out.tokens[0].tolist() == answer
    sampler = FixedSchedule(8, "random")
    drafted = plain(model, sampler, verifier=SelfVerify(3, evaluate="batch"))
    assert torch.equal(plain(model, sampler).tokens, drafted.tokens)
    assert drafted.accepted.sum() > 0


@pytest.mark.parametrize(
    ("sampler", "verifier"),
    [(Wino(), NoVerifier()), (FixedSchedule(8), SelfVerify(3, evaluate="tree"))],
)
def test_copies_of_columns_are_refused(model: XLNet, sampler: Sampler, verifier: Verifier) -> None:
    with pytest.raises(ValueError, match=r"must be asked with the columns 0, 1, 2.*evaluate='bat"):
        plain(model, sampler, verifier=verifier)


def test_caches_are_refused(model: XLNet) -> None:
    with pytest.raises(ValueError, match=r"cache must be NoCache\(\) with tiny_xlnet, an XLNet"):
        plain(model, ConfidenceThreshold(0.9), cache=PrefixCache())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_runs_in_every_precision(model: XLNet, dtype: str) -> None:
    half, _ = load_without_tokenizer(TINY, device="cpu", dtype=dtype)
    assert isinstance(half, XLNet)
    assert {part.dtype for part in half.network.parameters()} == {getattr(torch, dtype)}
    assert half.fingerprint == load_without_tokenizer(TINY, device="cpu")[0].fingerprint
    logits, exact = (asked(xlnet, [1, 2, MASK, 4, MASK], [2, 4]) for xlnet in (half, model))
    torch.testing.assert_close(logits.double(), exact, rtol=0.0, atol=0.2)


def test_it_keeps_the_precision_of_its_checkpoint(tmp_path: Path) -> None:
    """The library would leave projections in float32."""
    half, _ = load_without_tokenizer(TINY, device="cpu", dtype="bfloat16")
    assert isinstance(half, XLNet)
    half.network.save_pretrained(tmp_path)
    model, _ = load_without_tokenizer(tmp_path, device="cpu")
    assert isinstance(model, XLNet)
    assert {part.dtype for part in model.network.parameters()} == {torch.bfloat16}
    assert model.dtype is torch.bfloat16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(TINY, tmp_path / "own", copy_function=shutil.copy)
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_type": "uni"}, r"'attn_type' must be 'bi', so that any subset.*got 'uni'"),
        ({"bi_data": True}, r"'bi_data' must be False, so that any subset.*got True"),
        ({"eos_token_id": 12}, r"'eos_token_id' must be.*got 12"),
    ],
)
def test_other_kinds_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    edit_config(folder, **change)
    with pytest.raises(ValueError, match=message):
        load_without_tokenizer(folder, device="cpu")


def test_options_of_our_networks_are_refused() -> None:
    for option in ({"compile": True}, {"block_length": 4}, {"family": "llada"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be left out for tiny_xln"):
            load_without_tokenizer(TINY, device="cpu", **option)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device must be one device"):
        load_without_tokenizer(TINY, device={"": "cpu"})


def test_texts_are_filled_in_between_texts_as_they_are(folder: Path) -> None:
    """XLNet's own tokenizer ends a text with two special tokens."""
    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"]
    words = [*specials, "the", "cat", "sat", ".", "on"]
    own = tokenizer_of(
        words, bos_token="<s>", eos_token="</s>", mask_token="<mask>", pad_token="<pad>"
    )
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <sep> <cls>", special_tokens=[("<sep>", 4), ("<cls>", 3)]
    )
    own.save_pretrained(folder)
    model, tokenizer = load_model(folder, device="cpu", dtype="float64")
    assert isinstance(model, XLNet)
    assert (model.mask_id, model.eos_ids) == (6, (2,))
    assert tokenizer("the cat").input_ids == [7, 8]
    out = generate(
        model, tokenizer, "the cat", templates="[MASK:3] on the [MASK:2] .", chat=False,
        verifier=AnySubsetVerify(3),
    )  # fmt: skip
    expected = decode(
        model, [[7, 8]], ConfidenceThreshold(0.9), templates=[[6, 6, 6, 11, 7, 6, 6, 10]],
        verifier=AnySubsetVerify(1), gen_length=8, stop_at_eos=False,
    )  # fmt: skip
    assert out.decoded.tokens.tolist() == expected.tokens.tolist()
    text = tokenizer.decode(expected.tokens[0], skip_special_tokens=True)
    assert out.texts == [text]
