"""The encoder of T5, with relative position biases. Its decoder is not exchanged."""

from __future__ import annotations

from collections.abc import Sequence

from headtohead.exchange.architectures.architecture import (
    Architecture,
    Config,
    ConfigFields,
    FieldGroup,
    StructureFields,
)
from headtohead.exchange.architectures.config_fields import activation_field, copied_fields, size_fields
from headtohead.exchange.architectures.tensor_rules import TensorRule, copy_rule, copy_rules
from headtohead.exchange.model_structure import ModelStructure


def _read_t5_feedforward(config: Config) -> StructureFields:
    return {"is_gated": config["is_gated_act"], **activation_field("dense_act_fn").read(config)}


def _write_t5_feedforward(structure: ModelStructure) -> ConfigFields:
    """Return the configuration field of T5 for the activation and gate of its feed-forward layers."""
    activation = activation_field("dense_act_fn").write(structure)["dense_act_fn"]
    projection = activation
    if structure.is_gated:
        projection = "gated-gelu" if structure.activation == "gelu-tanh" else f"gated-{activation}"
    return {"feed_forward_proj": projection, "is_gated_act": structure.is_gated, "dense_act_fn": activation}


def _list_t5_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of the encoder of T5."""
    layer = "encoder.block.{i}.layer"
    modules = {
        "embedding": "shared",
        "position": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "final_norm": "encoder.final_layer_norm",
        "attention_norm": f"{layer}.0.layer_norm",
        "query": f"{layer}.0.SelfAttention.q",
        "key": f"{layer}.0.SelfAttention.k",
        "value": f"{layer}.0.SelfAttention.v",
        "attention_output": f"{layer}.0.SelfAttention.o",
        "feed_norm": f"{layer}.1.layer_norm",
        "down": f"{layer}.1.DenseReluDense.wo",
    }
    gated = {"gate": f"{layer}.1.DenseReluDense.wi_0", "up": f"{layer}.1.DenseReluDense.wi_1"}
    return [*copy_rules(modules | gated), copy_rule("up", f"{layer}.1.DenseReluDense.wi")]


T5_ENCODER = Architecture(
    "t5",
    "T5 encoder",
    (
        size_fields(
            width="d_model",
            num_layers="num_layers",
            num_heads="num_heads",
            num_key_heads=None,
            head_dim="d_kv",
            feedforward_size="d_ff",
            context=None,
            default_context=512,
        ),
        copied_fields(
            norm_eps="layer_norm_epsilon",
            relative_buckets="relative_attention_num_buckets",
            relative_max_distance="relative_attention_max_distance",
        ),
        FieldGroup(("feed_forward_proj", "is_gated_act", "dense_act_fn"), _read_t5_feedforward, _write_t5_feedforward),
        # Scores are not divided by sqrt(head_dim).
        FieldGroup((), lambda config: {"query_scale": config["d_kv"] ** 0.5}, lambda _: {}),
    ),
    _list_t5_tensor_rules,
    fixed_structure={"is_causal": False, "output_head": "none", "position": "relative"},
    # The decoder is not exchanged.
    ignored_fields=frozenset(
        "num_decoder_layers is_decoder scale_decoder_outputs is_encoder_decoder tie_word_embeddings".split()
    ),
    unused_tensors=("encoder.embed_tokens.weight",),
)
