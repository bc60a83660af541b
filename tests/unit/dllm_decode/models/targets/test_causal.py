from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toys import logits_of, tiny_llama, tiny_target
from transformers import (
    GenerationConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from dllm_decode import CausalTarget, load_target

TOKENS = [
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7],
    [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0],
    [1, 4, 1, 4, 2, 1, 3, 5, 6, 2, 3, 7, 3, 0],
]


def tokenizer_of(words: list[str]) -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=words[0])))


@pytest.mark.parametrize("kept", [[1, 1, 1], [4, 2, 3], [2, 4, 1], [4, 4, 4]])
def test_after_any_rollback_the_next_logits_are_those_of_a_fresh_start(kept: list[int]) -> None:
    target, model = tiny_target(), tiny_llama()
    prompts, lengths = [5, 2, 3], [5, 2, 3]
    past = target.start(3)
    feed = torch.tensor([row[:9] for row in TOKENS])
    counts = torch.tensor(prompts) + torch.tensor([4, 2, 3])
    reading = target.read(past, feed, counts, num_logits=9)
    num_kept = torch.minimum(torch.tensor(prompts) + torch.tensor(kept), counts)
    past = reading.keep(num_kept)
    lengths = num_kept.tolist()
    assert past.lengths.tolist() == lengths
    assert past.num_slots == max(lengths)
    for _ in range(2):
        feed = torch.tensor([TOKENS[2][length : length + 3] for length in lengths])
        counts = torch.tensor([3, 1, 2])
        reading = target.read(past, feed, counts, num_logits=3)
        for row, length in enumerate(lengths):
            known = TOKENS[row][: num_kept[row]] + TOKENS[2][num_kept[row] : length]
            count = int(counts[row])
            fresh = logits_of(model, known + feed[row, :count].tolist())[-count:]
            torch.testing.assert_close(reading.logits[row, :count], fresh)
        past = reading.keep(torch.ones(3, dtype=torch.long))
        lengths = past.lengths.tolist()


@pytest.mark.parametrize("kept", [[1, 1, 1], [3, 2, 2], [2, 3, 1]])
def test_rows_whose_logits_begin_at_different_columns_are_read_as_if_alone(kept: list[int]) -> None:
    """Behind a past, too, where the columns that rows are moved by lie between old and new."""
    target, model = tiny_target(), tiny_llama()
    read, past, width = [0, 0, 0], target.start(3), 9
    for counts, first in (([9, 4, 6], [5, 1, 2]), ([4, 6, 3], [1, 3, 0]), ([3, 3, 5], [0, 0, 2])):
        feed = torch.tensor([TOKENS[row][read[row] :][:width] for row in range(3)])
        reading = target.read(
            past, feed, torch.tensor(counts), num_logits=3, first_logits=torch.tensor(first)
        )
        assert reading.logits.shape[1] == 3
        for row in range(3):
            fresh = logits_of(model, TOKENS[row][: read[row] + counts[row]])
            fresh = fresh[read[row] + first[row] :][:3]
            torch.testing.assert_close(reading.logits[row, : len(fresh)], fresh)
        past = reading.keep(torch.tensor(kept))
        read, width = past.lengths.tolist(), 6
        assert past.num_slots == max(read)


def test_a_reading_changes_no_past() -> None:
    target = tiny_target()
    past = target.read(target.start(1), torch.tensor([[1, 2, 3]]), torch.tensor([3]), num_logits=1)
    kept = past.keep(torch.tensor([3]))
    before = [key.clone() for key, _ in kept.layers]
    first = target.read(kept, torch.tensor([[4, 5]]), torch.tensor([2]), num_logits=2).logits
    again = target.read(kept, torch.tensor([[4, 5]]), torch.tensor([2]), num_logits=2).logits
    assert torch.equal(first, again)
    assert all(torch.equal(old, new) for old, (new, _) in zip(before, kept.layers, strict=True))


def test_a_target_is_loaded_with_its_stop_tokens_and_compared_by_id(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(22)] + ["<eos>", "<other>"]
    model = tiny_llama()
    model.generation_config = GenerationConfig(eos_token_id=[22, 3])
    model.save_pretrained(tmp_path)
    tokenizer_of(words).save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer_of([*words, "<mask>"]))
    assert target.eos_ids == (22, 3)
    assert target.num_shared_ids == 24
    assert repr(target) == f"CausalTarget({tmp_path.name!r})"
    swapped = [words[1], words[0], *words[2:]]
    with pytest.raises(ValueError, match=r"got 2 ids that differ: 0 is 'w0' for .* and 'w1' for"):
        load_target(tmp_path, tokenizer_of(swapped))
    with pytest.raises(ValueError, match=r"23 is '<other>' for .* and None for the mask predictor"):
        load_target(tmp_path, tokenizer_of(words[:-1]))


def test_a_target_that_forgets_or_never_stops_is_refused() -> None:
    config = MistralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    with pytest.raises(ValueError, match="must attend to all tokens before, got window"):
        CausalTarget(MistralForCausalLM(config), name="window")
    config.sliding_window = None
    config.eos_token_id = None
    endless = MistralForCausalLM(config)
    endless.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="must say which tokens end an answer, got endless"):
        CausalTarget(endless, name="endless")


def test_a_source_that_is_nowhere_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="got 'no-such-model'"):
        load_target("no-such-model", tokenizer_of(["a"]))
