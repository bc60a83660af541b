"""Forwards whose columns the verifier names."""

import pytest
import torch
from tiny_models import tiny

from dllm_decode import CachePolicy, DualCache, NoCache
from dllm_decode.core.columns import Columns
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.passes import Pass
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.join import join, new_canvas
from dllm_decode.engine.packing import Packing, unpack
from dllm_decode.engine.round import open_blocks
from dllm_decode.engine.state import State
from samplers import ConfidenceThreshold

NO_CACHE = NoCache()


def begun(cache: CachePolicy = NO_CACHE) -> tuple[Decoder, State]:
    config = DecodeConfig(gen_length=8, block_length=4)
    decoder = new_decoder(tiny("llada"), ConfidenceThreshold(), cache=cache, config=config)
    # All rows end at column 10.
    prompts = ([3, 4], [5, 6], [7, 8, 9, 10, 11, 12])
    requests = [
        decoder.request(prompt, index, gen_length=10 - len(prompt))
        for index, prompt in enumerate(prompts)
    ]
    taken = RequestQueue(requests).take(3)
    state = join(decoder, State.empty(3, new_canvas(decoder, ())), taken)
    return decoder, open_blocks(decoder, state)


def of_the_block(state: State, more: int = 0) -> tuple[Window, list[Columns]]:
    starts = [row.opening.start for row in state.rows]
    columns = [(range(start, start + 4 + more * n),) for n, start in enumerate(starts)]
    return Window.of(starts, 4, state.canvas), columns


def test_columns_that_were_never_computed_are_added_to_those_of_a_verifier() -> None:
    decoder, state = begun(DualCache())
    window, columns = of_the_block(state)
    plain, expected = forward(decoder, state, Pass(window))
    after, logits = forward(decoder, begun(DualCache())[1], Pass(window, columns=columns))
    assert torch.equal(logits, expected)
    assert [row.computed for row in after.rows] == [(range(10),)] * 3
    # Now that every slot is written, only the named columns are computed.
    again, logits = forward(decoder, after, Pass(window, columns=columns))
    assert [row.query_positions for row in again.rows] == [10 + 4] * 3
    torch.testing.assert_close(logits, forward(decoder, plain, Pass(window))[1])
    # Rows may name different numbers of columns.
    window, columns = of_the_block(again, more=-1)
    more = forward(decoder, again, Pass(window, columns=columns))[0]
    assert [row.query_positions for row in more.rows] == [18, 17, 16]


def test_columns_that_do_not_fit_are_refused() -> None:
    decoder, state = begun(DualCache())
    window, columns = of_the_block(state)
    state, _ = forward(decoder, state, Pass(window))
    for wrong in ([(range(3, 20),)] * 3, [()] * 3, [[3, 4]] * 3, [(range(6, 8), range(2, 4))] * 3):
        with pytest.raises(RuntimeError, match=r"columns of Pass by NoVerifier\(\) must be ranges"):
            forward(decoder, state, Pass(window, columns=wrong))
    decoder, state = begun()
    with pytest.raises(RuntimeError, match=r"columns of Pass must be empty with NoCache\(\)"):
        forward(decoder, state, Pass(window, columns=columns))


def test_a_row_may_leave_out_some_of_its_branches() -> None:
    """Alone in its forward, such a row had the logits of the branches that it left out."""
    logits = torch.arange(6.0)[None, :, None]
    branch_numbers = torch.tensor([0, 2])
    unpacked = unpack(
        logits, Packing(torch.zeros(2).long(), branch_numbers, num_rows=1, num_branches=3)
    )
    assert unpacked.squeeze(-1).tolist() == [[0.0, 1.0], [4.0, 5.0]]
