"""Requirements of any-subset decoding; its laws are in tests/property."""

from typing import Any

import pytest
from tiny_models import load_xlnet
from toys import HashModel

from dllm_decode import AnySubsetVerify, MultiBlock, PrefixCache, decode, new_decoder, run
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.requests import RequestQueue
from samplers import ConfidenceThreshold

PROMPTS = [[1, 3], [4]]


def decoded(model: Any = None, draft_tokens: int = 3, **options: Any) -> Any:
    return decode(
        load_xlnet("tiny_xlnet", mask_id=6) if model is None else model, PROMPTS,
        ConfidenceThreshold(0.9), verifier=AnySubsetVerify(draft_tokens), gen_length=8, **options,
    )  # fmt: skip


def test_models_that_do_not_read_any_subset_are_refused_by_name() -> None:
    message = (
        r"AnySubsetVerify\(draft_tokens=3\) needs a model that predicts any tokens from any "
        r"others.*got hash model\. Use an any-subset model such as XLNet, or another verifier\."
    )
    with pytest.raises(ValueError, match=message):
        decoded(HashModel())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": PrefixCache()}, "needs a cache policy that computes every column"),
        (
            {"blocks": MultiBlock()},
            "needs a verifier that runs a forward before every step, got Any",
        ),
        ({"top_p": 0.9, "temperature": 1.0}, "top_p, top_k, cfg_scale.* must be left out with"),
    ],
    ids=str,
)
def test_unfit_plugins_and_options_are_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decoded(**options)


def test_rows_have_their_own_temperature() -> None:
    config = DecodeConfig(gen_length=8, stop_at_eos=False)
    decoder = new_decoder(
        load_xlnet("tiny_xlnet", mask_id=6), ConfidenceThreshold(0.9),
        verifier=AnySubsetVerify(4), config=config,
    )  # fmt: skip
    temperatures = (0.0, 1.0, 0.0, 2.0)
    requests = [decoder.request([4, 1], n, temperature=t) for n, t in enumerate(temperatures)]
    together = {ended.index: ended.output for ended in run(decoder, RequestQueue(requests), 4)}
    assert together[0].tokens.tolist() == together[2].tokens.tolist()
    for n, request in enumerate(requests):
        (alone,) = run(decoder, RequestQueue([request]), 1)
        assert alone.output.tokens.tolist() == together[n].tokens.tolist()
        assert alone.output.nfe.tolist() == together[n].nfe.tolist()


def test_banned_tokens_are_neither_drafted_nor_written() -> None:
    banned = (0, 3, 5, 7, 8, 9, 10, 11)
    out = decoded(banned_ids=banned, temperature=5.0, stop_at_eos=False)
    assert set(out.tokens.flatten().tolist()) <= {1, 2, 4}
