from pathlib import Path

import pytest
from tiny_models import tokenizer_of
from toys import tiny_llama
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from dllm_decode import CausalTarget, load_target


def test_a_target_is_loaded_with_its_stop_tokens_and_compared_by_id(tmp_path: Path) -> None:
    words = ["<unk>", *(f"w{i}" for i in range(1, 22)), "<eos>", "<other>"]
    model = tiny_llama()
    model.generation_config = GenerationConfig(eos_token_id=[22, 3])
    model.save_pretrained(tmp_path)
    tokenizer_of(words).save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer_of([*words, "<mask>"]))
    assert target.eos_ids == (22, 3)
    assert target.num_shared_ids == 24
    assert repr(target) == f"CausalTarget({tmp_path.name!r})"
    swapped = [words[1], words[0], *words[2:]]
    with pytest.raises(ValueError, match=r"got 2 ids that differ: 0 is '<unk>' .* and 'w1' for"):
        load_target(tmp_path, tokenizer_of(swapped))
    with pytest.raises(FileNotFoundError, match="got 'no-such-model'"):
        load_target("no-such-model", tokenizer_of(words))
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
