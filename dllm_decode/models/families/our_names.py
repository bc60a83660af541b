"""The names that tensors of a network have here; families translate them."""

OUR_NAMES = {
    "embedding.weight": "",
    "norm.weight": "",
    "head.weight": "not tied_head",
    "layers.{n}.attention_norm.weight": "",
    "layers.{n}.mlp_norm.weight": "",
    "layers.{n}.query.weight": "",
    "layers.{n}.key.weight": "",
    "layers.{n}.value.weight": "",
    "layers.{n}.qkv.weight": "",
    "layers.{n}.query.bias": "qkv_bias",
    "layers.{n}.key.bias": "qkv_bias",
    "layers.{n}.value.bias": "qkv_bias",
    "layers.{n}.qkv.bias": "qkv_bias",
    "layers.{n}.query_norm.weight": "qk_norm",
    "layers.{n}.key_norm.weight": "qk_norm",
    "layers.{n}.output.weight": "",
    "layers.{n}.gate.weight": "",
    "layers.{n}.up.weight": "",
    "layers.{n}.gate_up.weight": "",
    "layers.{n}.down.weight": "",
    "layers.{n}.router.weight": "moe",
    "layers.{n}.router.selection_bias": "moe.has_selection_bias",
    "layers.{n}.experts.{e}.gate.weight": "moe",
    "layers.{n}.experts.{e}.up.weight": "moe",
    "layers.{n}.experts.{e}.gate_up.weight": "moe",
    "layers.{n}.experts.{e}.down.weight": "moe",
    "layers.{n}.shared.gate.weight": "moe.shared_hidden_size",
    "layers.{n}.shared.up.weight": "moe.shared_hidden_size",
    "layers.{n}.shared.gate_up.weight": "moe.shared_hidden_size",
    "layers.{n}.shared.down.weight": "moe.shared_hidden_size",
}
"""Every name of a tensor of a network, with the switch of `NetworkConfig` that brings it.

`qkv` stands for query, key and value where `Family.split_qkv` is false, `gate_up` for gate and up
where a checkpoint has them in one tensor.
"""
