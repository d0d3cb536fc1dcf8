"""Decoders with the module names of Llama: Llama, Mistral, Qwen, OLMo and Gemma."""

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
    constant_qk_norm,
    copied_fields,
    rope_field,
    size_fields,
    window_fields,
)
from headtohead.exchange.architectures.tensor_rules import (
    TensorRule,
    copy_rules,
    flat_norm_scale_rule,
    norm_offset_rule,
)
from headtohead.exchange.model_structure import ModelStructure

ATTENTION_MODULES = {
    "query": "model.layers.{i}.self_attn.q_proj",
    "key": "model.layers.{i}.self_attn.k_proj",
    "value": "model.layers.{i}.self_attn.v_proj",
    "attention_output": "model.layers.{i}.self_attn.o_proj",
}
GATED_MLP_MODULES = {
    "gate": "model.layers.{i}.mlp.gate_proj",
    "up": "model.layers.{i}.mlp.up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
}
NORM_MODULES = {
    "attention_norm": "model.layers.{i}.input_layernorm",
    "feed_norm": "model.layers.{i}.post_attention_layernorm",
    "final_norm": "model.norm",
}
EMBEDDING_AND_OUTPUT_MODULES = {"embedding": "model.embed_tokens", "output": "lm_head"}
LLAMA_MODULES = ATTENTION_MODULES | GATED_MLP_MODULES | NORM_MODULES | EMBEDDING_AND_OUTPUT_MODULES

RMS_EPS = copied_fields(norm_eps="rms_norm_eps")
ATTENTION_BIAS = copied_fields(query_bias="attention_bias", attention_output_bias="attention_bias")
LLAMA_FIELDS = (size_fields(), activation_field(), RMS_EPS, TIED_EMBEDDINGS, rope_field())


def _list_llama_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Llama and Mistral."""
    return copy_rules(LLAMA_MODULES)


LLAMA = Architecture(
    "llama",
    "Llama",
    (*LLAMA_FIELDS, ATTENTION_BIAS, copied_fields(feedforward_bias="mlp_bias")),
    _list_llama_tensor_rules,
)
MISTRAL = Architecture(
    "mistral", "Mistral", (*LLAMA_FIELDS, window_fields(has_layer_types=False)), _list_llama_tensor_rules
)

# `layer_types` decides which layers have a window; this field only determines its default.
QWEN_IGNORED_FIELDS = frozenset({"max_window_layers"})


def _write_use_sliding_window(structure: ModelStructure) -> ConfigFields:
    return {"use_sliding_window": bool(structure.window_sizes)}


USE_SLIDING_WINDOW = FieldGroup(("use_sliding_window",), lambda _: {}, _write_use_sliding_window)
QWEN2 = Architecture(
    "qwen2",
    "Qwen 2",
    (size_fields(), activation_field(), RMS_EPS, TIED_EMBEDDINGS, rope_field(), window_fields(), USE_SLIDING_WINDOW),
    _list_llama_tensor_rules,
    fixed_structure={"query_bias": True},
    ignored_fields=QWEN_IGNORED_FIELDS,
)


def _list_qk_norm_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules that Qwen 3 adds to those of Llama, for QK norms; OLMo 2 shares them."""
    qk_norm_rules = [
        flat_norm_scale_rule(f"{name}_norm", f"model.layers.{{i}}.self_attn.{name[0]}_norm")
        for name in ("query", "key")
    ]
    return [*copy_rules(LLAMA_MODULES), *qk_norm_rules]


QWEN3 = Architecture(
    "qwen3",
    "Qwen 3",
    (*LLAMA_FIELDS, ATTENTION_BIAS, window_fields(), USE_SLIDING_WINDOW, constant_qk_norm()),
    _list_qk_norm_tensor_rules,
    ignored_fields=QWEN_IGNORED_FIELDS,
)


def _list_olmo2_tensor_rules(structure: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of OLMo 2."""
    norm_modules = {
        "attention_norm": "model.layers.{i}.post_attention_layernorm",
        "feed_norm": "model.layers.{i}.post_feedforward_layernorm",
    }
    rules = [rule for rule in _list_qk_norm_tensor_rules(structure) if not set(rule.roles) & set(norm_modules)]
    return [*rules, *copy_rules(norm_modules)]


OLMO2 = Architecture(
    "olmo2",
    "OLMo 2",
    (
        size_fields(),
        activation_field(),
        RMS_EPS,
        TIED_EMBEDDINGS,
        rope_field(),
        ATTENTION_BIAS,
        constant_qk_norm(over="all-heads"),
    ),
    _list_olmo2_tensor_rules,
    fixed_structure={"block": "reordered"},
)


# ---- Gemma: norms store their scale minus 1, and embeddings are multiplied by sqrt(width)

GEMMA_EMBEDDING_SCALE = FieldGroup((), lambda config: {"embedding_scale": config["hidden_size"] ** 0.5}, lambda _: {})


def _list_gemma_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Gemma."""
    return [
        *copy_rules(ATTENTION_MODULES | GATED_MLP_MODULES | EMBEDDING_AND_OUTPUT_MODULES),
        *(norm_offset_rule(role, module) for role, module in NORM_MODULES.items()),
    ]


GEMMA = Architecture(
    "gemma",
    "Gemma",
    (*LLAMA_FIELDS, ATTENTION_BIAS, GEMMA_EMBEDDING_SCALE),
    _list_gemma_tensor_rules,
    required_fields={"use_bidirectional_attention": None},
)


def _read_gemma2_query_scale(config: Config) -> StructureFields:
    return {"query_scale": (config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5}


def _write_gemma2_query_scale(structure: ModelStructure) -> ConfigFields:
    scalar = structure.head_dim / structure.query_scale**2
    return {"query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-9 * scalar else scalar}


def _list_gemma2_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Gemma 2."""
    norm_modules = {
        "attention_norm": "model.layers.{i}.input_layernorm",
        "attention_output_norm": "model.layers.{i}.post_attention_layernorm",
        "feed_norm": "model.layers.{i}.pre_feedforward_layernorm",
        "feed_output_norm": "model.layers.{i}.post_feedforward_layernorm",
        "final_norm": "model.norm",
    }
    return [
        *copy_rules(ATTENTION_MODULES | GATED_MLP_MODULES | EMBEDDING_AND_OUTPUT_MODULES),
        *(norm_offset_rule(role, module) for role, module in norm_modules.items()),
    ]


GEMMA2 = Architecture(
    "gemma2",
    "Gemma 2",
    (
        size_fields(),
        activation_field("hidden_activation"),
        RMS_EPS,
        TIED_EMBEDDINGS,
        rope_field(),
        ATTENTION_BIAS,
        GEMMA_EMBEDDING_SCALE,
        window_fields(),
        copied_fields(attention_softcap="attn_logit_softcapping", output_softcap="final_logit_softcapping"),
        FieldGroup(("query_pre_attn_scalar",), _read_gemma2_query_scale, _write_gemma2_query_scale),
    ),
    _list_gemma2_tensor_rules,
    fixed_structure={"block": "sandwich"},
    required_fields={"use_bidirectional_attention": None},
)
