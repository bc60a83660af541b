"""Where an EOS is proposed, in and after the open block; the laws cover the rest."""

import torch
from plugins_under_test import committed, view_with
from toys import HashModel

from dllm_decode import decode
from samplers import ConfidenceThreshold, EoTP, View

EOS = 1


def view_of(confidences: list[float], proposals: list[int]) -> View:
    """A block of two columns, and the rest of the answer."""
    shares = torch.full((1, len(proposals), 40), 0.0, dtype=torch.float64)
    for column, (confidence, proposal) in enumerate(zip(confidences, proposals, strict=True)):
        shares[0, column] = (1.0 - confidence) / 39
        shares[0, column, proposal] = confidence
    masked = torch.ones(1, len(proposals), dtype=torch.bool)
    eligible = masked & (torch.arange(len(proposals)) < 2)
    return view_with(shares.log(), masked=masked, eligible=eligible, block_length=2, eos_ids=(EOS,))


def test_the_most_confident_eos_of_later_blocks_is_committed() -> None:
    view = view_of([0.2, 0.3, 0.95, 0.97, 0.99, 0.97], [3, 3, EOS, EOS, 3, EOS])
    assert committed(EoTP(ConfidenceThreshold(0.9)), view) == [[1, 3]]


def test_an_eos_that_is_not_sure_is_left_to_later_steps() -> None:
    view = view_of([0.2, 0.3, 0.5, 0.4], [3, 3, EOS, EOS])
    assert committed(EoTP(ConfidenceThreshold(0.9)), view) == [[1]]
    assert committed(EoTP(ConfidenceThreshold(0.9), threshold=0.0), view) == [[1, 2]]


def test_an_eos_of_the_base_comes_first() -> None:
    view = view_of([0.2, 0.95, 0.97, 0.99], [3, EOS, EOS, EOS])
    assert committed(EoTP(ConfidenceThreshold(0.9)), view) == [[1]]


def test_a_long_answer_ends_where_the_eos_is_proposed() -> None:
    """The first canvas holds an EOS in a later block, and nothing after the EOS is decoded."""
    options = {"gen_length": 64, "block_length": 4, "truncate_at_eos": True}
    model, prompt = HashModel(), [[3, 7, 1]]
    plain = decode(model, prompt, ConfidenceThreshold(1.0), stop_at_eos=False, gen_length=64)
    ended = decode(model, prompt, EoTP(ConfidenceThreshold(1.0), 0.0), **options)
    assert int(ended.nfe) < int(plain.nfe)
    tokens = ended.tokens[0].tolist()
    end = tokens.index(model.eos_ids[0])
    assert tokens[end:] == [model.eos_ids[0]] * (64 - end)
