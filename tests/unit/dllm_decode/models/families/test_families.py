"""Config.json of every family: what is read from it, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, config_of, load_tiny
from tiny_models import load_without_tokenizer as load_model

from dllm_decode.models.families import FAMILIES, LLADA, Family, Refusal, family_of
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.families.transformers_format import MOE_NAMES, NAMES, read_shape
from dllm_decode.models.network.config import MoEConfig, NetworkConfig
from dllm_decode.models.network.tensor_names import pattern_of
from dllm_decode.models.network.transformer import Transformer
from dllm_decode.training.lora import LoRA


def without(family: str, name: str) -> dict[str, Any]:
    return {key: value for key, value in config_of(family).items() if key != name}


def read_tiny(family: str, **changes: Any) -> Any:
    options = {key: value for key, value in OPTIONS.get(family, {}).items() if key != "family"}
    return FAMILIES[family].read({**config_of(family), **changes}, **options)


@pytest.mark.parametrize("key", EVERY_FAMILY)
def test_a_family_is_recognised_or_asks_to_be_named(key: str) -> None:
    family, config = FAMILIES[key], config_of(key)
    assert family_of(config, key) is family
    if not family.is_named_by_caller:
        assert family_of(config) is family
        return
    with pytest.raises(ValueError, match=f"name its family: family='{key}'"):
        family_of(config)


@pytest.mark.usefixtures("no_checks_of_types")
def test_an_unknown_family_lists_what_is_supported() -> None:
    for named in (["GPT2LMHeadModel"], [], None, "LLaDAModelLM"):
        with pytest.raises(ValueError, match=r"must name a supported architecture \(LLaDAModelLM"):
            family_of({"architectures": named, "model_type": "llada"})
    with pytest.raises(ValueError, match=r"family must be one of llada, dream, .*, got 'lada'"):
        family_of(config_of("llada"), "lada")
    number: Any = 5
    with pytest.raises(ValueError, match=r"family must be a name or a Family, got 5\."):
        family_of(config_of("llada"), number)
    with pytest.raises(ValueError, match=r"must be \['DreamModel'\], or be left out, got"):
        load_model(MODELS / "llada", family="dream")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("WeDLMForCausalLM", "A mask of WeDLM sees only the columns before it"),
        ("SumiForMaskGeneration", "Sumi is a uniform-state model"),
    ],
)
def test_a_published_model_that_is_not_implemented_is_refused_with_the_reason(
    architecture: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=rf"got '{architecture}'\. {reason}"):
        family_of({"architectures": [architecture]})


def test_dmax_is_a_llada2() -> None:
    """`config.json` of Zigeng/DMax-Math-16B, which transformers 4.56 wrote."""
    config = {
        "_moe_implementation": "fused", "architectures": ["LLaDA2MoeModelLM"],
        "attention_dropout": 0.0, "dtype": "bfloat16", "embedding_dropout": 0.0,
        "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5120, "max_position_embeddings": 16384,
        "max_window_layers": 28, "model_type": "llada2_moe", "moe_intermediate_size": 512,
        "moe_router_enable_expert_bias": True, "n_group": 8, "norm_head": False,
        "norm_softmax": False, "norm_topk_prob": True, "num_attention_heads": 16,
        "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 20,
        "num_key_value_heads": 4, "num_shared_experts": 1, "output_dropout": 0.0,
        "output_router_logits": False, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 600000, "rotary_dim": 64,
        "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
        "sliding_window": 4096, "tie_word_embeddings": False, "topk_group": 4,
        "transformers_version": "4.56.0", "use_bias": False, "use_cache": False,
        "use_qkv_bias": False, "vocab_size": 157184,
    }  # fmt: skip
    facts = family_of(config).read(config)
    assert (facts.mask_id, facts.eos_ids, facts.causal_block_length) == (156895, (156892,), 32)
    assert facts.shape.routing_block_length == 1


SWITCHES = [
    pytest.param(key, refusal.key, refusal.allowed, id=f"{key}-{refusal.key}")
    for key, family in FAMILIES.items()
    for refusal in family.refusals
]


def other_than(allowed: tuple[object, ...]) -> object:
    """Returns a value that is not allowed, of the same type if there is a type."""
    values = {bool: not allowed[0], str: "another", int: 7}
    return values.get(type(allowed[0]), {"type": "linear"})


@pytest.mark.parametrize(("key", "switch", "allowed"), SWITCHES)
def test_a_variant_that_is_not_implemented_is_refused_by_its_switch(
    key: str, switch: str, allowed: tuple[object, ...]
) -> None:
    value = other_than(allowed)
    message = f"{FAMILIES[key].name} checkpoints need '{switch}' to be"
    with pytest.raises(ValueError, match=message) as caught:
        read_tiny(key, **{switch: value})
    assert f"got {value!r}." in str(caught.value)
    for understood in allowed:
        read_tiny(key, **{switch: understood})


@pytest.mark.parametrize("key", sorted({*EVERY_FAMILY} - {"llada2_moe"}))
def test_a_head_that_is_rotated_in_part_is_refused(key: str) -> None:
    """Such a head was rotated as a whole, and the logits were silently wrong."""
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5}
    if key == "nemotron_labs_diffusion":
        rope["rope_theta"] = 1e4
    nested = {"rope_parameters": rope, "partial_rotary_factor": None}
    for changes in ({"partial_rotary_factor": 0.5}, nested):
        with pytest.raises(
            ValueError, match=r"'partial_rotary_factor' must be 1 or absent, got 0.5"
        ):
            read_tiny(key, **changes)
    read_tiny(key, partial_rotary_factor=1.0)


YARN = config_of("nemotron_labs_diffusion")["rope_parameters"]
# Every key of every family with every kind of wrong value: property/test_fuzz_files.py.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dream", {"rms_norm_eps": 511}, "'rms_norm_eps' must be a number above 0 and at most 0.01, "),
    # With 0.001, frequencies rose.
    ("dream", {"rope_theta": 0.001}, "'rope_theta' must be a number above 1 and at most 1e"),
    ("llada", {"n_layers": 1.5}, "config.json: 'n_layers' must be an integer from 1 to 4096"),
    ("a2d_llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     "'default', 'llama3' or 'yarn', got 'linear'"),
    # Frequencies were not scaled.
    ("a2d_llama", {"rope_scaling": {"factor": 8.0}}, "must have the key 'rope_scaling.type'"),
    # Null is no number, and 1 was true.
    ("llada2_moe", {"routed_scaling_factor": None}, "'routed_scaling_factor' must be a number"),
    ("llada", {"rope": None}, "need 'rope' to be true, got null"),
    ("dream", {"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false, got"),
    # An empty list silently meant the tokens of the family.
    ("llada", {"eos_token_id": []}, "'eos_token_id' must be one token or more, got []"),
    *(("llada", {"eos_token_id": value}, "'eos_token_id' must be integers from 0 to 511, got")
      for value in (512, [[3]])),
    ("nemotron_labs_diffusion", {"rope_parameters": YARN | {"truncate": 3}},
     "'rope_parameters.truncate' must be true or false, got 3"),
    ("nemotron_labs_diffusion", {"rope_parameters": "yarn"},
     "'rope_parameters' must be an object, got 'yarn'"),
    # Sizes that do not fit together.
    ("llada", {"n_kv_heads": 3}, "checkpoint: num_kv_heads must divide num_heads, got 3 and 4"),
    ("llada2_moe", {"n_group": 3},
     "checkpoint: num_groups must divide num_experts, got 3 and 16"),
    ("llada2_moe", {"topk_group": 5},
     "checkpoint: num_open_groups must be from 1 to num_groups = 4"),
    ("llada2_moe", {"num_experts_per_tok": 9}, "checkpoint: num_active must be at most 8"),
    ("llada2_moe", {"expert_capacity": 5}, "must have the key 'block_size', which is missing"),
    ("llada2_moe", {"expert_capacity": 2, "block_size": 8},
     "checkpoint: pool_size must be from num_active = 3 to num_experts = 16, got 2"),
    ("llada2_moe", {"expert_capacity": 5, "block_size": 16},
     "block_length must be a multiple of 16, the tokens that choose their experts together, got 8"),
    ("llada2_moe", {"partial_rotary_factor": 0.3}, "checkpoint: 'rotary_dim' must be head_dim"),
    ("llada_moe", {"moe_layer_freq": [1]},
     "checkpoint: 'moe_layer_freq' must have one number for each"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "changes", "message"), REFUSED, ids=str)
def test_a_wrong_value_is_refused_in_a_sentence(
    key: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as told:
        read_tiny(key, **changes)
    is_null = None in changes.values() and "need" not in message
    assert not is_null or ", got null" in str(told.value)


def test_several_tokens_may_end_a_text_and_a_missing_key_is_named() -> None:
    assert read_tiny("llada", eos_token_id=[3, 5]).eos_ids == (3, 5)
    # Its configuration names only the padding token, which also ends texts.
    assert read_tiny("llada2_moe", pad_token_id=6).eos_ids == (6,)
    missing = "must have the key 'd_model', which is missing.* of your own, change its read_shape"
    with pytest.raises(ValueError, match=missing):
        LLADA.read(without("llada", "d_model"))


def test_null_is_as_good_as_absent() -> None:
    config = config_of("llada")
    nulls = {"n_kv_heads": None, "embedding_size": None, "bias_for_layer_norm": None}
    assert read_tiny("llada", **nulls) == read_tiny("llada")
    shape = read_tiny("llada", mlp_hidden_size=None).shape
    assert shape.mlp_hidden_size == config["mlp_ratio"] * config["d_model"]
    shape = read_tiny("a2d_llama", head_dim=None, num_key_value_heads=None).shape
    assert (shape.num_kv_heads, shape.head_dim) == (4, 16)


def test_a_mask_token_that_the_tokenizer_contradicts_is_refused() -> None:
    """Config.json silently won."""
    message = "'mask_token_id' must be the .MASK. token of the tokenizer, 7, got 508. Pass mask_id"
    with pytest.raises(ValueError, match=message):
        LLADA.read(config_of("llada"), tokenizer_mask_id=7)
    assert LLADA.read(config_of("llada"), tokenizer_mask_id=508).mask_id == 508
    assert LLADA.read(config_of("llada"), tokenizer_mask_id=7, mask_id=9).mask_id == 9
    assert LLADA.read(without("llada", "mask_token_id"), tokenizer_mask_id=7).mask_id == 7


def test_an_error_in_a_folder_names_its_config(tmp_path: Path) -> None:
    """The error named "config.json", but not its folder."""
    path = tmp_path / "config.json"
    for changes in ({"n_layers": 0}, {"architectures": ["Other"]}, {"mask_token_id": 512}):
        path.write_text(json.dumps(config_of("llada") | changes))
        with pytest.raises(ValueError, match=re.escape(repr(str(path)))):
            load_model(tmp_path)


QWEN = (151643, 151645)


@pytest.mark.parametrize(
    ("key", "mask_id", "block_length", "eos_ids"),
    [
        ("llada", 126336, 0, (126081, 126348)), ("dream", 151666, 0, QWEN),
        ("sdar", 151669, 4, QWEN), ("llada_moe", 156895, 0, (156892,)),
        ("llada2_moe", 156895, 32, (156892,)), ("sdar_moe", 151669, 4, QWEN),
        ("fast_dllm_v2", 151665, 32, (151645,)), ("a2d_qwen3", 151669, 0, QWEN),
        ("a2d_qwen2", 151665, 0, QWEN), ("a2d_llama", None, 0, (7, 128009)),
        ("stable_diffcoder", 5, 4, (2,)), ("open_dllm", 151665, 0, QWEN),
        ("rnd1", 151669, 0, (151645, 151643)), ("nemotron_labs_diffusion", 100, 0, (7,)),
    ],
)  # fmt: skip
def test_published_defaults_fill_in_what_a_configuration_lacks(
    key: str, mask_id: int | None, block_length: int, eos_ids: tuple[int, ...]
) -> None:
    family = FAMILIES[key]
    named = (*family.block_keys, *family.eos_keys, "mask_token_id")
    bare = {name: value for name, value in config_of(key).items() if name not in named}
    bare |= {"vocab_size": 200000, "embedding_size": 200000}
    if mask_id is None:
        with pytest.raises(ValueError, match=r"which token is \[MASK\].* got none. Pass mask_id"):
            family.read(bare)
        mask_id = bare["mask_token_id"] = 9
    facts = family.read(bare, tokenizer_eos_id=7)
    assert (facts.mask_id, facts.causal_block_length) == (mask_id, block_length)
    assert facts.eos_ids == eos_ids


@pytest.mark.parametrize("key", EVERY_FAMILY)
@pytest.mark.usefixtures("no_checks_of_types")
def test_a_caller_overrides_the_mask_token_and_the_block_length(key: str) -> None:
    family, config = FAMILIES[key], config_of(key)
    assert family.read(config, mask_id=7).mask_id == 7
    with pytest.raises(ValueError, match=r"an id in \[0, 512\), got 512"):
        family.read(config, mask_id=512)
    wrong: Any
    for wrong in ("a", 4.0, True):
        with pytest.raises(ValueError, match=rf"an id in \[0, 512\), got {wrong!r}\. Pass"):
            family.read(config, mask_id=wrong)
    if family.block_length or family.may_be_block_causal:
        assert family.read(config, mask_id=7, block_length=6).causal_block_length == 6
        for wrong in ("x", 4.0, True, 0, 10**9):
            with pytest.raises(ValueError, match=f"block_length must be .*, got {wrong!r}"):
                family.read(config, mask_id=7, block_length=wrong)
        return
    with pytest.raises(ValueError, match="attend in both directions, got block_length=6"):
        family.read(config, mask_id=7, block_length=6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_selection_bias_stays_in_float32(dtype: torch.dtype) -> None:
    loaded, exact, converted = (
        load_tiny("llada2_moe", dtype=precision)
        for precision in (dtype, torch.float64, torch.float64)
    )
    converted.to(torch.bfloat16)
    for layer in (1, 2):
        router, exact_router, converted_router = (
            model.transformer.layers[layer].mlp.router for model in (loaded, exact, converted)
        )
        assert router.selection_bias.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(router.selection_bias.double(), exact_router.selection_bias)
        assert converted_router.weight.dtype == torch.bfloat16


SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4, "rms_norm_eps": 1e-6,
}  # fmt: skip
SPLIT = (".gate.weight", ".up.weight")
JOINED = {"layers.{n}.gate_up.weight": "model.layers.{n}.mlp.gate_up_proj.weight"}
OWN = Family(
    name="Own", architecture="OwnModel", read_shape=read_shape, refusals=(), mask_id=None, eos_id=0,
    names={name: NAMES[name] for name in NAMES if not name.endswith(SPLIT)} | JOINED,
    mask_keys=("diffusion_mask", "mask_token_id"),
)  # fmt: skip
MINIMAL = NetworkConfig(
    vocab_size=8, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4,
    mlp_hidden_size=8, norm_eps=1e-6, rope_theta=1e4, tied_head=True,
)  # fmt: skip
CONFIG = {"architectures": ["OwnModel"], "diffusion_mask": 7, **SIZES}


def write_checkpoint(folder: Path, family: Family, config: dict[str, Any]) -> Transformer:
    torch.manual_seed(0)
    network = Transformer(family.read(config).shape)
    for weight in network.parameters():
        torch.nn.init.normal_(weight)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: part.clone() for name, part in family.tensors(network).items()}
    save_file(tensors, folder / "model.safetensors")
    return network


def test_a_family_of_ones_own_is_passed_or_named_with_its_module(tmp_path: Path) -> None:
    network = write_checkpoint(tmp_path, OWN, CONFIG)
    for family in (OWN, f"{__name__}:OWN"):
        model, _ = load_model(tmp_path, family=family)
        assert model.mask_id == 7
        for name, weight in model.transformer.named_parameters():
            assert torch.equal(weight, network.get_parameter(name))
    with pytest.raises(ValueError, match=f"'{__name__}:CONFIG' must be a Family, got a dict"):
        load_model(tmp_path, family=f"{__name__}:CONFIG")
    with pytest.raises(ValueError, match="'no_such_module:OWN' must be importable"):
        load_model(tmp_path, family="no_such_module:OWN")
    with pytest.raises(ValueError, match=r"or pass a family of your own \(docs/extending.md\)"):
        load_model(tmp_path)


def test_an_adapter_of_a_joined_tensor_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    write_checkpoint(tmp_path, OWN, CONFIG)
    model, _ = load_model(tmp_path, family=OWN)
    lora = LoRA(model, rank=2)
    for weight in lora.weights:
        torch.nn.init.normal_(weight)
    lora.save(tmp_path / "adapter", base=str(tmp_path))
    merged, _ = load_model(tmp_path, family=OWN, adapter=tmp_path / "adapter")
    tokens, positions = torch.tensor([[1, 2, 3]]), torch.arange(3)[None]
    with torch.no_grad():
        expected = model.transformer(tokens, positions)
        torch.testing.assert_close(
            merged.transformer(tokens, positions), expected, atol=1e-3, rtol=1e-3
        )


def test_gate_and_up_may_be_one_tensor_of_every_expert() -> None:
    joined = "model.layers.{n}.mlp.experts.{e}.w13.weight"
    split = (".experts.{e}.gate.weight", ".experts.{e}.up.weight")
    names = {name: official for name, official in MOE_NAMES.items() if not name.endswith(split)}
    family = replace(OWN, names=names | {"layers.{n}.experts.{e}.gate_up.weight": joined})
    moe = MoEConfig(num_experts=3, num_active=2, hidden_size=8)
    network = Transformer(replace(MINIMAL, num_layers=2, moe=moe))
    for weight in network.parameters():
        torch.nn.init.normal_(weight)
    tensors, parts = family.tensors(network), network.parts()
    for n in range(2):
        for e in range(3):
            pieces = [parts[f"layers.{n}.experts.{e}.{kind}.weight"] for kind in ("gate", "up")]
            assert torch.equal(tensors[joined.format(n=n, e=e)], torch.cat(pieces))


def test_names_that_lack_a_tensor_or_tell_two_not_apart_are_refused() -> None:
    """The first ended in a KeyError, the others in tensors that were left over."""
    network = Transformer(OWN.read(CONFIG).shape)
    lacking = {name: official for name, official in OWN.names.items() if "_norm" not in name}
    missing = "got none for layers.{n}.attention_norm.weight, layers.{n}.mlp_norm.weight."
    with pytest.raises(ValueError, match=re.escape(missing)):
        replace(OWN, names=lacking).tensors(network)
    alike = {**OWN.names, "layers.{n}.down.weight": "model.layers.mlp.down_proj.weight"}
    with pytest.raises(ValueError, match=r"'layers.1.down.weight' and for another. Is {n} or"):
        replace(OWN, names=alike).tensors(network)


def test_every_name_of_ours_is_one_of_a_network_with_the_switch_that_the_manual_says() -> None:
    page = Path(__file__).parents[5] / "docs" / "extending" / "family.md"
    text = page.read_text(encoding="utf-8")
    rows = text[text.index("| `embedding.weight`") :].partition("\n\n")[0]
    table = dict(re.findall(r"^\| `([\w.{}]+)` \| `?(.*?)`? \| ", rows, re.MULTILINE))
    moe = MoEConfig(num_experts=2, num_active=1, hidden_size=8)
    basic_names = names_of(MINIMAL) | names_of(replace(MINIMAL, moe=moe))
    assert basic_names == {name for name, switch in table.items() if switch in ("", "moe")}
    switches = {
        "not tied_head": replace(MINIMAL, tied_head=False),
        "qkv_bias": replace(MINIMAL, qkv_bias=True),
        "qk_norm": replace(MINIMAL, qk_norm=True),
        "moe.has_selection_bias": replace(MINIMAL, moe=replace(moe, has_selection_bias=True)),
        "moe.shared_hidden_size": replace(MINIMAL, moe=replace(moe, shared_hidden_size=8)),
    }
    assert {*table.values()} == {"", "moe", *switches}
    for switch, shape in switches.items():
        brought = {name for name, by in table.items() if by == switch}
        assert brought == names_of(shape) - basic_names != set()


def names_of(shape: NetworkConfig) -> set[str]:
    """Returns the names of a network's tensors, with projections joined and split."""
    mlps = ("", "shared.", "experts.{e}.")
    joined = [f"layers.{{n}}.{mlp}gate_up.weight" for mlp in mlps]
    joined += [f"layers.{{n}}.qkv.{kind}" for kind in ("weight", "bias")]
    network = Transformer(shape)
    return {pattern_of(name)[0] for names in ((), joined) for name in network.parts(names)}


def test_keys_inside_of_objects_are_named_with_dots_everywhere() -> None:
    """Such keys were read in read_shape alone, and ignored elsewhere."""
    family = replace(
        OWN, eos_id=None, mask_keys=("tokens.mask",), eos_keys=("tokens.eos",),
        block_keys=("net.block",),
        refusals=(Refusal("net.activation", ("silu",)),),
    )  # fmt: skip
    config = {**SIZES, "tokens": {"mask": 5, "eos": [2, 3]}, "net": {"block": 4}}
    facts = family.read(config)
    assert (facts.mask_id, facts.eos_ids, facts.causal_block_length) == (5, (2, 3), 4)
    with pytest.raises(ValueError, match=r"need 'net.activation' to be 'silu', got 'gelu'"):
        family.read({**config, "net": {"activation": "gelu"}})
    with pytest.raises(ValueError, match=r"'tokens.eos' must be integers from 0 to 63, got 64"):
        family.read({**config, "tokens": {"mask": 5, "eos": 64}})
    # A key with a dot in its name comes first.
    assert ConfigReader({"a.b": 3, "a": {"b": 4}}).integer("a.b") == 3
    assert not ConfigReader({"a": "text"}).has("a.b")


def test_the_tokenizer_says_what_ends_an_answer_where_nothing_else_does() -> None:
    """The tokenizer said what [MASK] is, but not what ends an answer."""
    family, config = replace(OWN, eos_id=None), dict(CONFIG)
    assert family.read(config, tokenizer_eos_id=4).eos_ids == (4,)
    assert family.read({**config, "eos_token_id": 3}, tokenizer_eos_id=4).eos_ids == (3,)
    assert OWN.read(config, tokenizer_eos_id=4).eos_ids == (0,)
    for unknown in (None, 64):
        with pytest.raises(ValueError, match=r"which token ends an answer.* change its eos_keys\."):
            family.read(config, tokenizer_eos_id=unknown)


def test_a_family_that_is_passed_needs_no_architecture_in_the_file() -> None:
    """The remedy was 'Leave family out', although the file names no known family."""
    for named in (None, []):
        assert family_of({"architectures": named}, OWN) is OWN
    with pytest.raises(ValueError, match="in 'architectures', got None"):
        family_of({"model_type": "own"})
    with pytest.raises(ValueError, match=r"'architectures' of a Own .*\['Other'\]"):
        family_of({"architectures": ["Other"]}, OWN)


def test_generation_config_says_what_config_does_not() -> None:
    """A null, which transformers 5 writes, was refused, although generation_config had ids."""
    stated = ConfigReader({"eos_token_id": [500, 501], "mask_token_id": 507})
    for nothing in ({"eos_token_id": None, "mask_token_id": None}, {}):
        config = without("dream", "eos_token_id") | {"mask_token_id": None} | nothing
        facts = FAMILIES["dream"].read(config, generation=stated)
        assert (facts.mask_id, facts.eos_ids) == (507, (500, 501))
    facts = FAMILIES["dream"].read(config_of("dream"), generation=stated)
    assert (facts.mask_id, facts.eos_ids) == (508, (500, 501))
