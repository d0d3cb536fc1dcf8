"""Decoders with most of Llama's module names, but other norms or factors: StableLM, Granite, Cohere and Phi."""

from __future__ import annotations

from collections.abc import Sequence

from headtohead.exchange.architectures.architecture import (
    Architecture,
    Config,
    ConfigFields,
    FieldGroup,
    StructureFields,
)
from headtohead.exchange.architectures.config_fields import (
    TIED_EMBEDDINGS,
    activation_field,
    copied_fields,
    rope_field,
    size_fields,
)
from headtohead.exchange.architectures.llama_family import (
    ATTENTION_BIAS,
    ATTENTION_MODULES,
    EMBEDDING_AND_OUTPUT_MODULES,
    LLAMA_MODULES,
    RMS_EPS,
)
from headtohead.exchange.architectures.tensor_rules import (
    TensorRule,
    copy_rules,
    flat_norm_scale_rule,
    interleaved_rope_rule,
    norm_scale_per_head_rule,
    residual_scale_rule,
)
from headtohead.exchange.model_structure import ModelStructure, QueryKeyNorm


def _read_qk_layer_norm(config: Config, enabling_field: str, *, scale: str, bias: bool) -> QueryKeyNorm | None:
    """Return the layer norm of queries and keys, or None if the configuration does not enable it."""
    if not config[enabling_field]:
        return None
    return QueryKeyNorm(norm="layer", over="head", scale=scale, bias=bias, eps=config["layer_norm_eps"])


def _read_stablelm_norms(config: Config) -> StructureFields:
    """Return the kind of block, the QK norm and the epsilon of StableLM from its configuration."""
    return {
        "block": "parallel" if config["use_parallel_residual"] else "pre",
        "qk_norm": _read_qk_layer_norm(config, "qk_layernorm", scale="per-head", bias=False),
        "norm_eps": config["layer_norm_eps"],
    }


def _write_stablelm_norms(structure: ModelStructure) -> ConfigFields:
    """Return the configuration fields of StableLM for the kind of block, the QK norm and the epsilon."""
    return {
        "use_parallel_residual": structure.block == "parallel",
        "layer_norm_eps": structure.norm_eps,
        "qk_layernorm": structure.qk_norm is not None,
    }


def _list_stablelm_tensor_rules(s: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of StableLM."""
    modules = {role: module for role, module in LLAMA_MODULES.items() if role != "feed_norm" or s.block != "parallel"}
    qk_norm_rules = [
        norm_scale_per_head_rule("query_norm", "model.layers.{i}.self_attn.q_layernorm.norms.{head}", s.num_heads),
        norm_scale_per_head_rule("key_norm", "model.layers.{i}.self_attn.k_layernorm.norms.{head}", s.num_key_heads),
    ]
    return [*copy_rules(modules), *(qk_norm_rules if s.qk_norm else [])]


STABLELM = Architecture(
    "stablelm",
    "StableLM",
    (
        size_fields(head_dim=None),
        activation_field(),
        TIED_EMBEDDINGS,
        rope_field(),
        copied_fields(query_bias="use_qkv_bias"),
        FieldGroup(
            ("use_parallel_residual", "qk_layernorm", "layer_norm_eps"), _read_stablelm_norms, _write_stablelm_norms
        ),
    ),
    _list_stablelm_tensor_rules,
    fixed_structure={"norm": "layer", "norm_bias": True},
)


def _read_granite_multipliers(config: Config) -> StructureFields:
    """Return the factors of Granite on embeddings, attention scores, residuals and logits."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {
        "embedding_scale": config["embedding_multiplier"],
        "output_scale": 1 / config["logits_scaling"],
        "residual_scale": config["residual_multiplier"],
        "query_scale": config["attention_multiplier"] * head_dim**0.5,
    }


def _write_granite_multipliers(structure: ModelStructure) -> ConfigFields:
    """Return the configuration fields of Granite for its factors."""
    return {
        "embedding_multiplier": structure.embedding_scale,
        "logits_scaling": 1 / structure.output_scale,
        "residual_multiplier": structure.residual_scale,
        "attention_multiplier": structure.query_scale / structure.head_dim**0.5,
    }


def _list_granite_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Granite."""
    residual_outputs = ("attention_output", "down")
    rules = copy_rules({role: module for role, module in LLAMA_MODULES.items() if role not in residual_outputs})
    return [*rules, *(residual_scale_rule(role, LLAMA_MODULES[role]) for role in residual_outputs)]


GRANITE_MULTIPLIERS = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
GRANITE = Architecture(
    "granite",
    "Granite",
    (
        size_fields(),
        activation_field(),
        RMS_EPS,
        TIED_EMBEDDINGS,
        rope_field(),
        ATTENTION_BIAS,
        copied_fields(feedforward_bias="mlp_bias"),
        FieldGroup(GRANITE_MULTIPLIERS, _read_granite_multipliers, _write_granite_multipliers),
    ),
    _list_granite_tensor_rules,
)


def _read_cohere_norms(config: Config) -> StructureFields:
    qk_norm = _read_qk_layer_norm(config, "use_qk_norm", scale="per-head", bias=False)
    return {"norm_eps": config["layer_norm_eps"], "qk_norm": qk_norm}


def _write_cohere_norms(structure: ModelStructure) -> ConfigFields:
    return {"layer_norm_eps": structure.norm_eps, "use_qk_norm": structure.qk_norm is not None}


def _list_cohere_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Cohere."""
    rotated_modules = {
        "query": ATTENTION_MODULES["query"],
        "key": ATTENTION_MODULES["key"],
        "query_norm": "model.layers.{i}.self_attn.q_norm",
        "key_norm": "model.layers.{i}.self_attn.k_norm",
    }
    modules = {
        role: module for role, module in LLAMA_MODULES.items() if role not in rotated_modules and role != "feed_norm"
    }
    return [*copy_rules(modules), *(interleaved_rope_rule(role, module) for role, module in rotated_modules.items())]


COHERE = Architecture(
    "cohere",
    "Cohere",
    (
        size_fields(),
        activation_field(),
        TIED_EMBEDDINGS,
        rope_field(),
        ATTENTION_BIAS,
        copied_fields(output_scale="logit_scale"),
        FieldGroup(("layer_norm_eps", "use_qk_norm"), _read_cohere_norms, _write_cohere_norms),
    ),
    _list_cohere_tensor_rules,
    fixed_structure={"norm": "layer", "block": "parallel"},
)


def _read_phi_norms(config: Config) -> StructureFields:
    qk_norm = _read_qk_layer_norm(config, "qk_layernorm", scale="shared", bias=True)
    return {"norm_eps": config["layer_norm_eps"], "qk_norm": qk_norm}


def _write_phi_norms(structure: ModelStructure) -> ConfigFields:
    return {"layer_norm_eps": structure.norm_eps, "qk_layernorm": structure.qk_norm is not None}


def _list_phi_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Phi."""
    modules = {
        **{role: ATTENTION_MODULES[role] for role in ("query", "key", "value")},
        "attention_output": "model.layers.{i}.self_attn.dense",
        "attention_norm": "model.layers.{i}.input_layernorm",
        "up": "model.layers.{i}.mlp.fc1",
        "down": "model.layers.{i}.mlp.fc2",
        "final_norm": "model.final_layernorm",
        **EMBEDDING_AND_OUTPUT_MODULES,
    }
    qk_norm_rules = [
        flat_norm_scale_rule(f"{name}_norm", f"model.layers.{{i}}.self_attn.{name[0]}_layernorm")
        for name in ("query", "key")
    ]
    return [*copy_rules(modules), *qk_norm_rules]


PHI = Architecture(
    "phi",
    "Phi",
    (
        size_fields(),
        activation_field(),
        TIED_EMBEDDINGS,
        rope_field(),
        FieldGroup(("layer_norm_eps", "qk_layernorm"), _read_phi_norms, _write_phi_norms),
    ),
    _list_phi_tensor_rules,
    fixed_structure={
        "norm": "layer",
        "norm_bias": True,
        "block": "parallel",
        "query_bias": True,
        "attention_output_bias": True,
        "is_gated": False,
        "feedforward_bias": True,
        "output_bias": True,
    },
)
