"""Records the usual kinds of forwards as graphs, before clients wait for them."""

import time
from collections.abc import Callable

import torch

from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.loop import rounds
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer
from dllm_decode.serve.limits import Limits

# Tokens of the rows. Each length needs other kinds of forwards; those of longer rows are recorded
# when they recur. Not multiples of the step of slots, which need no mask and are rare.
_LENGTHS = (120, 248, 376, 504)


def warm_up(decoder: Decoder, limits: Limits, say: Callable[[str], object]) -> None:
    """Answers random prompts of usual lengths, alone and several at a time.

    Does nothing if the model has no graphs.

    Args:
        decoder: Answers the prompts.
        limits: Bounds of the server.
        say: Is told how many rows have been recorded.
    """
    model = decoder.model
    if not (isinstance(model, MaskedTransformer) and model.graphs):
        return
    longest = limits.length_for(model.max_length)
    gen_length = min(2 * decoder.block_length, limits.max_tokens)
    num_rows = 1
    while num_rows <= limits.num_rows:
        begun_s = time.perf_counter()
        for length in _LENGTHS:
            if gen_length + num_rows < length <= longest:
                _answer(decoder, limits, num_rows, length - gen_length, gen_length)
        seconds = time.perf_counter() - begun_s
        say(f"Recorded forwards of {num_rows} of {limits.num_rows} rows in {seconds:.1f} s.")
        num_rows *= 2


def _answer(
    decoder: Decoder, limits: Limits, num_rows: int, prompt_length: int, gen_length: int
) -> None:
    """Answers prompts that differ in length, as those of clients do."""
    model, generator = decoder.model, torch.Generator().manual_seed(0)
    special = {model.mask_id, *model.eos_ids, *model.banned_ids}
    plain = torch.tensor([token for token in range(model.vocab_size) if token not in special])
    requests = []
    for number in range(num_rows):
        drawn = torch.randint(len(plain), (prompt_length - number,), generator=generator)
        requests.append(
            decoder.request(plain[drawn].tolist(), number, gen_length=gen_length, noise_index=0)
        )
    # Keys and values as the server's own decodes have them, or the graphs would be dropped.
    longest = limits.length_for(model.max_length) + decoder.block_multiple
    for _ in rounds(decoder, RequestQueue(requests), limits.num_rows, reserved_slots=longest):
        pass
