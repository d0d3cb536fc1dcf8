"""ModernBERT: an encoder with rotary position embeddings, whose base and window differ between layers."""

from __future__ import annotations

from collections.abc import Sequence

from headtohead.exchange.architectures.architecture import (
    Architecture,
    Config,
    ConfigFields,
    FieldGroup,
    NoMatchError,
    StructureFields,
)
from headtohead.exchange.architectures.config_fields import (
    TIED_EMBEDDINGS,
    activation_field,
    copied_fields,
    size_fields,
)
from headtohead.exchange.architectures.tensor_rules import TensorRule, copy_rules, stack_rule
from headtohead.exchange.model_structure import ModelStructure


def _read_modernbert_layers(config: Config) -> StructureFields:
    """Return the RoPE base and the window of each layer of ModernBERT, which depend on its type."""
    layer_types, window_size = config["layer_types"], config["local_attention"] // 2 + 1
    rope_bases = []
    for layer_type in layer_types:
        parameters = config["rope_parameters"][layer_type]
        if parameters.get("rope_type", "default") != "default":
            raise NoMatchError(
                f"modernbert: rope_parameters.{layer_type}.rope_type = {parameters['rope_type']!r} has no match"
            )
        rope_bases.append(float(parameters["rope_theta"]))
    window_sizes = tuple(window_size if layer_type == "sliding_attention" else None for layer_type in layer_types)
    return {
        "rope_bases": tuple(rope_bases) if len(set(rope_bases)) > 1 else (rope_bases[0],),
        "window_sizes": window_sizes if any(window_sizes) else (),
    }


def _write_modernbert_layers(structure: ModelStructure) -> ConfigFields:
    """Return the configuration fields of ModernBERT for the RoPE base and the window of each layer."""
    window_sizes = structure.window_sizes or (None,) * structure.num_layers
    layer_types = ["full_attention" if size is None else "sliding_attention" for size in window_sizes]
    rope_bases = structure.rope_bases * (structure.num_layers if len(structure.rope_bases) == 1 else 1)
    used_sizes = [size for size in window_sizes if size is not None]
    base_by_type = dict(zip(layer_types, rope_bases, strict=True))
    return {
        "layer_types": layer_types,
        "local_attention": 2 * (used_sizes[0] - 1) if used_sizes else 128,
        "rope_parameters": {
            layer_type: {"rope_type": "default", "rope_theta": base} for layer_type, base in base_by_type.items()
        },
    }


def _read_modernbert_norms(config: Config) -> StructureFields:
    has_bias, eps = config["norm_bias"], config["norm_eps"]
    return {"norm_eps": eps, "norm_bias": has_bias, "mlm_head_eps": eps, "mlm_head_norm_bias": has_bias}


def _write_modernbert_norms(structure: ModelStructure) -> ConfigFields:
    return {"norm_eps": structure.norm_eps, "norm_bias": structure.norm_bias}


def _read_modernbert_head(config: Config) -> StructureFields:
    activation = activation_field("classifier_activation", "mlm_head_activation").read(config)
    return {**activation, "mlm_head_hidden_bias": config["classifier_bias"], "output_bias": config["decoder_bias"]}


def _write_modernbert_head(structure: ModelStructure) -> ConfigFields:
    activation = activation_field("classifier_activation", "mlm_head_activation").write(structure)
    return {**activation, "classifier_bias": structure.mlm_head_hidden_bias, "decoder_bias": structure.output_bias}


def _list_modernbert_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of ModernBERT."""
    modules = {
        "embedding": "model.embeddings.tok_embeddings",
        "embedding_norm": "model.embeddings.norm",
        "final_norm": "model.final_norm",
        "attention_norm": "model.layers.{i}.attn_norm",
        "feed_norm": "model.layers.{i}.mlp_norm",
        "attention_output": "model.layers.{i}.attn.Wo",
        "down": "model.layers.{i}.mlp.Wo",
        "head_hidden": "head.dense",
        "head_norm": "head.norm",
        "output": "decoder",
    }
    return [
        *copy_rules(modules),
        stack_rule(("query", "key", "value"), "model.layers.{i}.attn.Wqkv"),
        stack_rule(("gate", "up"), "model.layers.{i}.mlp.Wi"),
    ]


MODERNBERT = Architecture(
    "modernbert",
    "ModernBERT",
    (
        size_fields(num_key_heads=None, head_dim=None),
        activation_field("hidden_activation"),
        TIED_EMBEDDINGS,
        copied_fields(query_bias="attention_bias", attention_output_bias="attention_bias"),
        copied_fields(feedforward_bias="mlp_bias"),
        FieldGroup(
            ("layer_types", "local_attention", "rope_parameters"), _read_modernbert_layers, _write_modernbert_layers
        ),
        FieldGroup(("norm_eps", "norm_bias"), _read_modernbert_norms, _write_modernbert_norms),
        FieldGroup(
            ("classifier_activation", "classifier_bias", "decoder_bias"), _read_modernbert_head, _write_modernbert_head
        ),
    ),
    _list_modernbert_tensor_rules,
    fixed_structure={
        "is_causal": False,
        "output_head": "mlm-head",
        "embedding_norm": True,
        "norm": "layer",
        "first_attention_norm": False,
    },
    ignored_fields=frozenset(
        """initializer_cutoff_factor deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
        classifier_pooling reference_compile""".split()
    ),
    base_prefix="model.",
)
