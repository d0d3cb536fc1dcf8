"""Groups of configuration fields that many architectures of transformers share: sizes, activation, RoPE, windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headtohead.exchange.architectures.architecture import (
    Config,
    ConfigFields,
    FieldGroup,
    NoMatchError,
    StructureFields,
)
from headtohead.exchange.model_structure import ModelStructure, QueryKeyNorm

ACTIVATION_BY_CONFIG_VALUE = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""activation of the parts for each name of transformers"""
CONFIG_VALUE_BY_ACTIVATION = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}


def copied_fields(**config_names: str) -> FieldGroup:
    """Return configuration fields that hold fields of the structure unchanged, as in norm_eps="rms_norm_eps"."""
    return FieldGroup(
        tuple(config_names.values()),
        lambda config: {name: config[config_name] for name, config_name in config_names.items()},
        lambda structure: {config_name: getattr(structure, name) for name, config_name in config_names.items()},
    )


TIED_EMBEDDINGS = copied_fields(tie_word_embeddings="tie_word_embeddings")


def size_fields(
    *,
    width: str = "hidden_size",
    num_layers: str = "num_hidden_layers",
    num_heads: str = "num_attention_heads",
    num_key_heads: str | None = "num_key_value_heads",
    head_dim: str | None = "head_dim",
    feedforward_size: str | None = "intermediate_size",
    context: str | None = "max_position_embeddings",
    default_context: int = 2048,
) -> FieldGroup:
    """Return the configuration fields of a model's sizes, given their names in an architecture.

    None if an architecture has no such field; feed-forward layers then have a hidden size of 4 x width.
    """
    required_names = {"vocab_size": "vocab_size", "width": width, "num_layers": num_layers, "num_heads": num_heads}
    optional_names = {
        "num_key_heads": num_key_heads,
        "head_dim": head_dim,
        "feedforward_size": feedforward_size,
        "context": context,
    }
    config_names = required_names | {name: field for name, field in optional_names.items() if field is not None}

    def read(config: Config) -> StructureFields:
        sizes: dict[str, Any] = {name: config.get(field) for name, field in config_names.items()}
        default_sizes = {
            "num_key_heads": sizes["num_heads"],
            "head_dim": sizes["width"] // sizes["num_heads"],
            "feedforward_size": 4 * sizes["width"],
            "context": default_context,
        }
        return sizes | {name: default for name, default in default_sizes.items() if sizes.get(name) is None}

    def write(structure: ModelStructure) -> ConfigFields:
        return {field: getattr(structure, name) for name, field in config_names.items()}

    return FieldGroup(tuple(config_names.values()), read, write)


def activation_field(config_name: str = "hidden_act", name: str = "activation") -> FieldGroup:
    """Return the configuration field of an activation; `name` is the field of the structure."""

    def read(config: Config) -> StructureFields:
        if config[config_name] not in ACTIVATION_BY_CONFIG_VALUE:
            raise NoMatchError(
                f"{config_name} = {config[config_name]!r} has no match "
                f"(supported: {', '.join(ACTIVATION_BY_CONFIG_VALUE)})"
            )
        return {name: ACTIVATION_BY_CONFIG_VALUE[config[config_name]]}

    def write(structure: ModelStructure) -> ConfigFields:
        if getattr(structure, name) not in CONFIG_VALUE_BY_ACTIVATION:
            raise NoMatchError(f"activation {getattr(structure, name)!r} has no match in transformers")
        return {config_name: CONFIG_VALUE_BY_ACTIVATION[getattr(structure, name)]}

    return FieldGroup((config_name,), read, write)


def rope_field() -> FieldGroup:
    """Return the configuration field of rotary position embeddings that are equal in all layers."""

    def read(config: Config) -> StructureFields:
        parameters: Mapping[str, Any] = config["rope_parameters"]
        rope: StructureFields = {"position": "rope", "rope_bases": (float(parameters["rope_theta"]),)}
        rope_type = parameters.get("rope_type", "default")
        known = {"rope_type", "rope_theta", "partial_rotary_factor"}
        if rope_type == "default" and (unknown := sorted(set(parameters) - known)):
            raise NoMatchError(f"rope_parameters.{unknown[0]} has no match")
        rope["rope_fraction"] = float(parameters.get("partial_rotary_factor", 1.0))
        if rope_type != "default":
            rope |= read_scaled_rope(config, rope_type)
        return rope

    def write(structure: ModelStructure) -> ConfigFields:
        parameters: ConfigFields = {"rope_type": "default", "rope_theta": structure.rope_bases[0]}
        if structure.rope_fraction != 1:
            parameters["partial_rotary_factor"] = structure.rope_fraction
        return {"rope_parameters": parameters}

    return FieldGroup(("rope_parameters",), read, write)


def read_scaled_rope(config: Config, rope_type: str) -> StructureFields:
    """Return the frequencies of scaled rotary position embeddings (YaRN, Llama 3), as transformers computes them."""
    from transformers import CONFIG_MAPPING
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if rope_type not in ("linear", "llama3", "yarn"):
        raise NoMatchError(f"rope_parameters.rope_type = {rope_type!r} has no match (supported: linear, llama3, yarn)")
    config_class = CONFIG_MAPPING[config["model_type"]]
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](config_class.from_dict(dict(config)), "cpu")
    rope: StructureFields = {"rope_frequencies": tuple(frequencies.tolist()), "rope_bases": (10000.0,)}
    if attention_factor != 1:  # it multiplies rotated queries and keys
        if config["rope_parameters"].get("partial_rotary_factor", 1.0) != 1:
            raise NoMatchError("rope_parameters.attention_factor has no match together with partial_rotary_factor")
        rope["query_scale"] = float(attention_factor) ** 2
    return rope


def window_fields(*, has_layer_types: bool = True) -> FieldGroup:
    """Return the configuration fields of sliding windows: in all layers, or in those that `layer_types` lists."""

    def read(config: Config) -> StructureFields:
        window_size = config.get("sliding_window")
        if not has_layer_types:
            return {"window_sizes": () if window_size is None else (window_size,) * config["num_hidden_layers"]}
        layer_types = config["layer_types"]
        if unknown := sorted(set(layer_types) - {"sliding_attention", "full_attention"}):
            raise NoMatchError(f"layer_types: {unknown[0]!r} has no match")
        window_sizes = tuple(window_size if kind == "sliding_attention" else None for kind in layer_types)
        return {"window_sizes": window_sizes if any(window_sizes) else ()}

    def write(structure: ModelStructure) -> ConfigFields:
        window_sizes = structure.window_sizes or (None,) * structure.num_layers
        distinct_sizes = sorted({size for size in window_sizes if size is not None})
        window_size = distinct_sizes[0] if distinct_sizes else None
        if not has_layer_types:
            return {"sliding_window": window_size}
        layer_types = ["full_attention" if size is None else "sliding_attention" for size in window_sizes]
        return {"sliding_window": window_size, "layer_types": layer_types}

    return FieldGroup(("sliding_window", "layer_types") if has_layer_types else ("sliding_window",), read, write)


def constant_qk_norm(over: str = "head", eps_name: str = "rms_norm_eps") -> FieldGroup:
    """Return the RMS norm of queries and keys of an architecture that always has it, so that no field selects it."""

    def read(config: Config) -> StructureFields:
        return {"qk_norm": QueryKeyNorm(norm="rms", over=over, eps=config[eps_name])}

    return FieldGroup((), read, lambda _: {})
