"""Build the model configuration of parts for a `ModelStructure`. `parts_to_structure` is its inverse."""

from __future__ import annotations

from typing import Any

from headtohead.config.tables.model import TransformerConfig
from headtohead.exchange.model_structure import ModelStructure


def build_parts_config(structure: ModelStructure) -> TransformerConfig:
    """Return the model configuration of parts with this structure."""
    s = structure
    settings: dict[str, Any] = {
        "width": s.width,
        "layers": s.num_layers,
        "heads": s.num_heads,
        "head_dim": s.head_dim,
        "context": s.context,
        "embedding": _list_parts("table", s.embedding_scale != 1 and {"kind": "scale", "by": s.embedding_scale}),
        "embedding_width": s.embedding_width,
        "position": _build_position_parts(s),
        "pattern": _build_pattern_parts(s),
        "attention": _build_attention_part(s),
        "projection": _list_parts(
            {"kind": "linear", "bias": s.query_bias, "key_heads": s.num_key_heads},
            s.qk_norm is not None and {"kind": "qk-norm", **s.qk_norm._asdict()},
            s.query_scale != 1 and {"kind": "query-scale", "by": s.query_scale},
        ),
        "feedforward": _build_feedforward_part(s),
        "norm": {"kind": s.norm, "eps": s.norm_eps, **({"bias": s.norm_bias} if s.norm == "layer" else {})},
        "block": _build_block_parts(s),
        "output": _build_output_parts(s),
        "tie_word_embeddings": s.tie_word_embeddings,
        "final_norm": s.final_norm,
        "embedding_norm": s.embedding_norm,
    }
    return TransformerConfig.model_validate(settings)


def _list_parts(first_part: Any, *optional_steps: Any) -> list[Any]:
    """Return the parts of a slot that takes a list: the first part, and those steps that are not False."""
    return [first_part, *(step for step in optional_steps if step)]


def _build_position_parts(s: ModelStructure) -> Any:
    """Build the position parts of a `ModelStructure`."""
    if s.position == "rope":
        if s.rope_frequencies is not None:
            return {"kind": "rope", "fraction": s.rope_fraction, "frequencies": list(s.rope_frequencies)}
        parts = [{"kind": "rope", "base": base, "fraction": s.rope_fraction} for base in s.rope_bases]
        return parts[0] if len(parts) == 1 else {"layers": parts}
    if s.position == "alibi":
        return "alibi" if s.alibi_slopes is None else {"kind": "alibi", "slopes": list(s.alibi_slopes)}
    if s.position == "relative":
        return {"kind": "relative", "buckets": s.relative_buckets, "max_distance": s.relative_max_distance}
    return s.position


def _build_pattern_parts(s: ModelStructure) -> Any:
    """Return the attention patterns: sliding windows in the layers that have them."""
    if not s.window_sizes:
        return None
    default = "causal" if s.is_causal else "full"
    parts = [default if size is None else {"kind": "window", "size": size} for size in s.window_sizes]
    return parts[0] if all(part == parts[0] for part in parts) else {"layers": parts}


def _build_attention_part(s: ModelStructure) -> Any:
    options: dict[str, Any] = {"kind": s.attention, "output_bias": s.attention_output_bias}
    if s.attention_softcap is not None:
        options |= {"kind": "softcap", "cap": s.attention_softcap}
    return options if s.attention_norm_eps is None else {**options, "eps": s.attention_norm_eps}


def _build_feedforward_part(s: ModelStructure) -> Any:
    if s.experts is not None:
        return {"kind": "gated-experts", "hidden": s.feedforward_size, **s.experts._asdict()}
    kind = "swiglu" if s.is_gated else "mlp"
    return {"kind": kind, "hidden": s.feedforward_size, "activation": s.activation, "bias": s.feedforward_bias}


def _build_block_parts(s: ModelStructure) -> Any:
    """Build the blocks and norms of a `ModelStructure`."""
    if s.block == "parallel":
        return {"kind": "parallel", "separate_norms": s.separate_norms}
    if s.first_attention_norm:
        return s.block
    return {"layers": [{"kind": s.block, "attention_norm": False}, *[s.block] * (s.num_layers - 1)]}


def _build_output_parts(s: ModelStructure) -> Any:
    """Build the output parts of a `ModelStructure`."""
    if s.output_head == "none":
        return "hidden-states"
    if s.output_head == "mlm-head":
        return {
            "kind": "mlm-head",
            "activation": s.mlm_head_activation,
            "hidden_bias": s.mlm_head_hidden_bias,
            "norm_bias": s.mlm_head_norm_bias,
            "eps": s.mlm_head_eps,
            "bias": s.output_bias,
        }
    return _list_parts(
        {"kind": "linear", "bias": s.output_bias},
        s.output_scale != 1 and {"kind": "scale", "by": s.output_scale},
        s.output_softcap is not None and {"kind": "softcap", "cap": s.output_softcap},
    )
