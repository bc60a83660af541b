"""Needs computed from configurations of published models are the numbers of their authors."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny

from dllm_decode.blocks import BlockSchedule
from dllm_decode.cli import model_description
from dllm_decode.cli.main import main, make_parser
from dllm_decode.models.loading.model_needs import needs_of
from dllm_decode.settings.plugins import parse
from samplers import Sampler

# Qwen2.5 and Qwen3, from their published config.json.
QWEN2_7B = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_2B = QWEN2_7B | {
    "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
    "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_4B = QWEN3_8B | {"hidden_size": 2560, "intermediate_size": 9728}
QWEN3_30B = QWEN3_8B | {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip
LLADA = {
    "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "embedding_size": 126464, "vocab_size": 126464, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "weight_tying": False, "mask_token_id": 126336, "eos_token_id": 126081,
    "max_sequence_length": 4096,
}  # fmt: skip
LLADA2_MINI = {
    "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 5120, "rms_norm_eps": 1e-6,
    "rope_theta": 6e5, "partial_rotary_factor": 0.5, "vocab_size": 157184,
    "first_k_dense_replace": 1, "num_experts": 256, "num_experts_per_tok": 8,
    "num_shared_experts": 1, "moe_intermediate_size": 512, "n_group": 8, "topk_group": 4,
    "routed_scaling_factor": 2.5, "pad_token_id": 156892,
}  # fmt: skip
# Architecture, sizes, and the published number of parameters, with as many digits as its source.
PUBLISHED: dict[str, tuple[str, dict[str, Any], float, float]] = {
    # model.safetensors.index.json: 16,031,162,368 bytes in bfloat16. LLaDA-1.5 has the same sizes.
    "LLaDA-8B": ("LLaDAModelLM", LLADA, 16_031_162_368 / 2, 0),
    # Model card of Qwen2.5-7B, exactly; Dream-Coder and DiffuCoder have the same sizes.
    "Dream-7B": ("DreamModel", QWEN2_7B, 7_615_616_512, 0),
    # Nie et al., "LLaDA-MoE": 7 B, 14.7 GB; two independent notes say 7.357 B.
    "LLaDA-MoE-7B-A1B": (
        "LLaDAMoEModelLM",
        {
            "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 16, "expert_intermediate_size": 1024, "num_experts": 64,
            "num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e4,
            "vocab_size": 157184, "routed_scaling_factor": 1,
        },
        7.357e9, 5e5,
    ),
    # Bie et al. 2025, "LLaDA2.0": mini has 16 B.
    "LLaDA2.0-mini": ("LLaDA2MoeModelLM", LLADA2_MINI, 16e9, 5e8),
    # As transformers 5.2 writes it; sizes and tensors are those of 2.0 and 2.1.
    "LLaDA2.2-mini": (
        "LLaDA2MoeModelLM",
        LLADA2_MINI | {
            "rope_theta": 3e6, "expert_capacity": 48, "block_size": 32, "use_qk_norm": True,
            "delete_token_id": 156930, "split_token_id": 156931, "rotary_dim": 64,
            "sliding_window": 4096, "use_sliding_window": False, "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 3e6, "partial_rotary_factor": 0.5,
            },
        },
        16e9, 5e8,
    ),
    # Model card of Qwen3-8B: 8.2 B (8,190,735,360 in its index).
    "SDAR-8B": ("SDARForCausalLM", QWEN3_8B, 8_190_735_360, 0),
    # Qwen3-4B has 4,022,468,096 with a tied head; SDAR unties it.
    "SDAR-4B": ("SDARForCausalLM", QWEN3_4B, 4_022_468_096 + 151936 * 2560, 0),
    # Model card of Qwen3-30B-A3B: 30.5 B (30,532,122,624 in its index).
    "SDAR-30B-A3B": ("SDARMoeForCausalLM", QWEN3_30B, 30_532_122_624, 0),
    "RND1": ("RND1LM", QWEN3_30B, 30_532_122_624, 0),
    "Fast-dLLM-v2-7B": ("Fast_dLLM_QwenForCausalLM", QWEN2_7B, 7_615_616_512, 0),
    # Model card of Qwen2.5-1.5B: 1.54 B (1,543,714,304 in its index).
    "Fast-dLLM-v2-1.5B": ("Fast_dLLM_QwenForCausalLM", QWEN2_2B, 1_543_714_304, 0),
    # One file of 7,663,347,000 bytes in bfloat16, whose header has some 25 kB.
    "Nemotron-3B": (
        "NemotronLabsDiffusionModel",
        {
            "hidden_size": 3072, "num_hidden_layers": 26, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216,
            "rms_norm_eps": 1e-5, "rope_theta": 1e6, "vocab_size": 131072, "eos_token_id": 2,
        },
        7_663_347_000 / 2, 2e4,
    ),
}  # fmt: skip


def written(folder: Path, model: str) -> Path:
    architecture, sizes, *_ = PUBLISHED[model]
    config = {"architectures": [architecture], **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_are_the_published_ones(model: str, tmp_path: Path) -> None:
    *_, published, margin = PUBLISHED[model]
    assert abs(needs_of(written(tmp_path, model)).num_parameters - published) <= margin


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_what_is_read_is_what_is_loaded(family: str) -> None:
    model = load_tiny(family)
    read = needs_of(MODELS / family, **OPTIONS.get(family, {}))
    assert read.num_parameters == sum(part.numel() for part in model.parameters())
    assert read.facts.mask_id == model.mask_id
    assert read.facts.eos_ids == model.eos_ids
    assert read.max_length == model.max_length
    cache = model.new_kv_cache(2, 40)
    assert read.kv_bytes(model.dtype, 40) * 2 == cache.num_bytes


def test_the_command_says_it_before_anything_is_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_description, "free_bytes", lambda device: 20 * 10**9)
    folder = written(tmp_path, "LLaDA-8B")
    assert main(["models", str(folder)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "LLaDA (llada)", "8,015,581,184", "in both directions", "126336", "126081, 126348",
        "4,096 columns", "chat template  none", "32.1 GB", "16.0 GB", "536.9 MB", "4.3 GB",
        "cpu has 20.0 GB free: the weights fit in bfloat16.", '--sampler "FixedSchedule(32)"',
    ):  # fmt: skip
        assert text in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if str(folder) not in line)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert main(["models", str(folder)]) == 0
    assert "chat template  yes" in capsys.readouterr().out
    assert main(["models", "mini-uniform"]) == 2
    assert "transformers computes" in capsys.readouterr().err


def test_the_authors_settings_are_commands_that_run() -> None:
    published = tomllib.loads(model_description._PUBLISHED.read_text(encoding="utf-8"))
    assert published.keys() == set(EVERY_FAMILY)
    for entry in published.values():
        options = make_parser().parse_args(["generate", "q", *shlex.split(entry["options"])])
        parse(options.blocks, BlockSchedule)
        if options.sampler:
            parse(options.sampler, Sampler)
