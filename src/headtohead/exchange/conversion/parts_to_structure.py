"""Describe a model configuration of parts as a `ModelStructure`: the inverse of `structure_to_parts`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter
from typing import Any, get_args

from headtohead.config.base import ComponentConfig
from headtohead.config.tables.model import TransformerConfig
from headtohead.config.validation.component_options import get_component_options
from headtohead.exchange.architectures.architecture import NoMatchError, StructureFields
from headtohead.exchange.conversion.structure_to_parts import build_parts_config
from headtohead.exchange.model_structure import BlockKind, ExpertOptions, ModelStructure, QueryKeyNorm
from headtohead.nn.parts import registry

IGNORED_OPTIONS = ("std", "init", "hidden", "key_heads")
"""options that determine initial values only, and sizes, whose defaults depend on the model"""
MLM_HEAD_OPTIONS = ("activation", "hidden_bias", "norm_bias", "eps")


def describe_parts_config(config: TransformerConfig, vocab_size: int, *, is_causal: bool) -> ModelStructure:
    """Return the structure of a model of parts. Raise NoMatchError with a part that has no match in transformers."""
    structure_fields: StructureFields = {
        "vocab_size": vocab_size,
        "width": config.width,
        "num_layers": config.layers,
        "num_heads": config.heads,
        "head_dim": config.resolved_head_dim,
        "context": config.context,
        "is_causal": is_causal,
        "embedding_width": None if config.embedding_width == config.width else config.embedding_width,
        "embedding_norm": config.embedding_norm,
        "final_norm": config.final_norm,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    _require_kind("stack", config.stack, "sequential")
    _require_kind("merge", _get_common_part(config, "merge"), "concat")
    if not config.mask_padding:
        raise NoMatchError("mask_padding = false has no match")
    structure_fields |= _describe_embedding(config)
    structure_fields |= _describe_positions(config)
    structure_fields |= _describe_patterns(config, is_causal)
    structure_fields |= _describe_attention(config)
    structure_fields |= _describe_feedforward(config)
    structure_fields |= _describe_norm(config)
    structure_fields |= _describe_blocks(config)
    structure_fields |= _describe_output(config)
    structure = ModelStructure(**structure_fields)
    _check_round_trip(config, structure)
    return structure


def _check_round_trip(config: TransformerConfig, structure: ModelStructure) -> None:
    """Raise NoMatchError unless the parts built from the structure are those of the configuration."""
    rebuilt_config = build_parts_config(structure)
    for slot in ("embedding", "position", "projection", "attention", "feedforward", "block", "norm", "output"):
        parts, rebuilt_parts = (
            [_resolve_part(slot, part) for name, part in model_config.list_parts() if name == slot]
            for model_config in (config, rebuilt_config)
        )
        if not all(part in rebuilt_parts for part in parts):
            kind, _ = next(part for part in parts if part not in rebuilt_parts)
            raise NoMatchError(f"{slot} {kind!r} has no match")


def _resolve_part(slot: str, part: ComponentConfig) -> tuple[str, dict[str, Any]]:
    """Return a part's name and all its options, apart from those that determine initial values."""
    options = _resolve_options(slot, part)
    return part.kind, {name: value for name, value in options.items() if name not in IGNORED_OPTIONS}


def _resolve_options(slot: str, part: ComponentConfig) -> dict[str, Any]:
    """Return the options of a part to describe, including the defaults of those that are not set."""
    defaults = get_component_options(registry.get_part_class(slot, part.kind))
    options = {name: option.default for name, option in defaults.items() if option.default is not Parameter.empty}
    options |= part.options
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _require_kind(slot: str, part: ComponentConfig, *kinds: str) -> dict[str, Any]:
    """Return the options of a part; raise NoMatchError if its name is none of `kinds`."""
    if part.kind not in kinds:
        raise NoMatchError(f"{slot} {part.kind!r} has no match")
    return _resolve_options(slot, part)


def _list_layer_parts(config: TransformerConfig, slot: Any) -> list[tuple[ComponentConfig, ...]]:
    """Return the parts in a slot of each layer."""
    return [config.get_layer_parts(slot, layer) for layer in range(config.layers)]


def _get_common_part(config: TransformerConfig, slot: Any) -> ComponentConfig:
    """Return the single part that all layers have in a slot; raise NoMatchError if there are several."""
    layers = _list_layer_parts(config, slot)
    if len(set(layers)) > 1 or len(layers[0]) != 1:
        raise NoMatchError(f"{slot}: several parts have no match")
    return layers[0][0]


def _describe_embedding(config: TransformerConfig) -> StructureFields:
    """Describe the embedding parts as fields of a `ModelStructure`."""
    first, *steps = config.embedding
    _require_kind("embedding", first, "table")
    scale = 1.0
    for step in steps:
        by = _require_kind("embedding", step, "scale")["by"]
        scale *= (config.embedding_width or config.width) ** 0.5 if by is None else by
    return {"embedding_scale": scale}


def _describe_positions(config: TransformerConfig) -> StructureFields:
    """Describe the position parts as fields of a `ModelStructure`."""
    layers = _list_layer_parts(config, "position")
    if any(len(parts) != 1 for parts in layers):
        raise NoMatchError("position: several parts have no match")
    kinds = {parts[0].kind for parts in layers}
    if len(kinds) > 1:
        raise NoMatchError("position: different parts in different layers have no match")
    part = layers[0][0]
    options = _require_kind("position", part, "none", "learned", "rope", "alibi", "relative")
    structure_fields: StructureFields = {"position": part.kind}
    if part.kind == "rope":
        rope_bases = tuple(float(_resolve_options("position", parts[0])["base"]) for parts in layers)
        frequencies = options["frequencies"]
        structure_fields |= {
            "rope_bases": rope_bases if len(set(rope_bases)) > 1 else rope_bases[:1],
            "rope_fraction": float(options["fraction"]),
            "rope_frequencies": None if frequencies is None else tuple(frequencies),
        }
    elif part.kind == "alibi":
        slopes = options["slopes"] or (None if options["slope"] is None else [options["slope"]] * config.heads)
        structure_fields["alibi_slopes"] = None if slopes is None else tuple(slopes)
    elif part.kind == "relative":
        structure_fields |= {
            "relative_buckets": options["buckets"],
            "relative_max_distance": options["max_distance"],
        }
    return structure_fields


def _describe_patterns(config: TransformerConfig, is_causal: bool) -> StructureFields:
    """Describe the attention patterns as fields of a `ModelStructure`: causality and sliding windows."""
    window_sizes: list[int | None] = []
    for parts in _list_layer_parts(config, "pattern"):
        if len(parts) > 1:
            raise NoMatchError("pattern: several parts have no match")
        part = parts[0] if parts else ComponentConfig(kind="causal" if is_causal else "full")
        options = _require_kind("pattern", part, "causal" if is_causal else "full", "window")
        window_sizes.append(options.get("size"))
    return {"window_sizes": tuple(window_sizes) if any(window_sizes) else ()}


def _describe_attention(config: TransformerConfig) -> StructureFields:
    """Describe attention and projection parts as fields of a `ModelStructure`."""
    part = _get_common_part(config, "attention")
    options = _require_kind("attention", part, "composed", "softcap", "sinks", "differential")
    layers = _list_layer_parts(config, "projection")
    if len(set(layers)) > 1:
        raise NoMatchError("projection: different parts in different layers have no match")
    first, *steps = layers[0]
    linear = _require_kind("projection", first, "linear")
    structure_fields: StructureFields = {
        "attention_output_bias": options["output_bias"],
        "attention_softcap": options.get("cap"),
        "attention": "composed" if part.kind == "softcap" else part.kind,
        "attention_norm_eps": options.get("eps"),
        "query_bias": linear["bias"],
        "num_key_heads": linear["key_heads"] or config.heads,
    }
    for step in steps:
        step_options = _require_kind("projection", step, "qk-norm", "query-scale")
        if step.kind == "qk-norm":
            structure_fields["qk_norm"] = QueryKeyNorm(**step_options)
        else:
            structure_fields["query_scale"] = structure_fields.get("query_scale", 1.0) * step_options["by"]
    return structure_fields


def _describe_feedforward(config: TransformerConfig) -> StructureFields:
    """Describe the feed-forward parts as fields of a `ModelStructure`."""
    part = _get_common_part(config, "feedforward")
    options = _require_kind("feedforward", part, "mlp", "swiglu", "gated-experts")
    if part.kind == "gated-experts":
        experts = ExpertOptions(*(options[name] for name in ExpertOptions._fields))
        return {"experts": experts, "feedforward_size": options["hidden"] or config.width}
    default_size = round(8 * config.width / 3) if part.kind == "swiglu" else 4 * config.width
    return {
        "is_gated": part.kind == "swiglu",
        "feedforward_size": options["hidden"] or default_size,
        "activation": options["activation"],
        "feedforward_bias": options["bias"],
    }


def _describe_norm(config: TransformerConfig) -> StructureFields:
    options = _require_kind("norm", config.norm, "layer", "rms")
    return {"norm": config.norm.kind, "norm_eps": options["eps"], "norm_bias": options.get("bias", False)}


def _describe_blocks(config: TransformerConfig) -> StructureFields:
    """Describe blocks and norms as fields of a `ModelStructure`."""
    blocks: Sequence[ComponentConfig] = [parts[0] for parts in _list_layer_parts(config, "block")]
    all_options = [_require_kind("block", part, *get_args(BlockKind)) for part in blocks]
    kind = blocks[0].kind
    has_attention_norm = [options.get("attention_norm", True) for options in all_options]
    if any(part.kind != kind for part in blocks) or not all(has_attention_norm[1:]):
        raise NoMatchError("block: different parts in different layers have no match")
    separate_norms = {options.get("separate_norms", False) for options in all_options}
    if len(separate_norms) > 1:
        raise NoMatchError("block: different parts in different layers have no match")
    return {"block": kind, "separate_norms": separate_norms.pop(), "first_attention_norm": has_attention_norm[0]}


def _describe_output(config: TransformerConfig) -> StructureFields:
    """Describe the output parts as fields of a `ModelStructure`."""
    first, *steps = config.output
    options = _require_kind("output", first, "linear", "mlm-head", "hidden-states")
    if first.kind == "hidden-states":
        return {"output_head": "none"}  # tie_word_embeddings has no effect
    structure_fields: StructureFields = {"output_bias": options["bias"] is not False}
    if first.kind == "mlm-head":
        structure_fields["output_head"] = "mlm-head"
        structure_fields |= {f"mlm_head_{name}": options[name] for name in MLM_HEAD_OPTIONS}
    for step in steps:
        step_options = _require_kind("output", step, "scale", "softcap")
        if step.kind == "scale" and "output_softcap" not in structure_fields:
            structure_fields["output_scale"] = structure_fields.get("output_scale", 1.0) * step_options["by"]
        elif step.kind == "softcap" and "output_softcap" not in structure_fields:
            structure_fields["output_softcap"] = step_options["cap"]
        else:
            raise NoMatchError("output: steps after softcap have no match")
    return structure_fields
