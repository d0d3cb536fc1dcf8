"""Decoders of the GPT family: GPT-2, GPT-J and GPT-NeoX."""

from __future__ import annotations

from collections.abc import Sequence

from headtohead.exchange.architectures.architecture import (
    Architecture,
    Config,
    FieldGroup,
    NoMatchError,
    StructureFields,
)
from headtohead.exchange.architectures.config_fields import (
    TIED_EMBEDDINGS,
    activation_field,
    copied_fields,
    rope_field,
    size_fields,
)
from headtohead.exchange.architectures.tensor_rules import (
    TensorRule,
    copy_rules,
    interleaved_rope_rule,
    qkv_by_key_head_rule,
    stack_rule,
    transpose_rule,
)
from headtohead.exchange.model_structure import ModelStructure

LAYER_NORM = {"norm": "layer", "norm_bias": True}
MLP_WITH_BIASES = {"is_gated": False, "feedforward_bias": True}
ATTENTION_WITH_BIASES = {"query_bias": True, "attention_output_bias": True}
GPT2_END_MODULES = {"embedding": "transformer.wte", "final_norm": "transformer.ln_f", "output": "lm_head"}


def _list_gpt2_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of GPT-2."""
    modules = {
        **GPT2_END_MODULES,
        "position": "transformer.wpe",
        "attention_norm": "transformer.h.{i}.ln_1",
        "feed_norm": "transformer.h.{i}.ln_2",
    }
    return [
        *copy_rules(modules),
        stack_rule(("query", "key", "value"), "transformer.h.{i}.attn.c_attn", is_transposed=True),
        transpose_rule("attention_output", "transformer.h.{i}.attn.c_proj"),
        transpose_rule("up", "transformer.h.{i}.mlp.c_fc"),
        transpose_rule("down", "transformer.h.{i}.mlp.c_proj"),
    ]


GPT2_SIZES = size_fields(
    width="n_embd",
    num_layers="n_layer",
    num_heads="n_head",
    num_key_heads=None,
    head_dim=None,
    feedforward_size="n_inner",
    context="n_positions",
)
GPT2 = Architecture(
    "gpt2",
    "GPT-2",
    (
        GPT2_SIZES,
        activation_field("activation_function"),
        copied_fields(norm_eps="layer_norm_epsilon"),
        TIED_EMBEDDINGS,
    ),
    _list_gpt2_tensor_rules,
    fixed_structure={"position": "learned", **LAYER_NORM, **MLP_WITH_BIASES, **ATTENTION_WITH_BIASES},
    required_fields={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    ignored_fields=frozenset(
        """reorder_and_upcast_attn summary_type summary_use_proj summary_activation summary_proj_to_labels
        summary_first_dropout""".split()
    ),
)


def _read_gptj_rotary_dim(config: Config) -> StructureFields:
    """Return the RoPE fraction of GPT-J: its field `rotary_dim` divided by the head dimension."""
    head_dim = config["n_embd"] // config["n_head"]
    rotary_dim = config["rotary_dim"]
    if rotary_dim is None or rotary_dim % 2:
        raise NoMatchError(f"gptj: rotary_dim = {rotary_dim!r} has no match (supported: an even number)")
    return {"rope_fraction": rotary_dim / head_dim}


def _list_gptj_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of GPT-J."""
    modules = {
        **GPT2_END_MODULES,
        "attention_norm": "transformer.h.{i}.ln_1",
        "value": "transformer.h.{i}.attn.v_proj",
        "attention_output": "transformer.h.{i}.attn.out_proj",
        "up": "transformer.h.{i}.mlp.fc_in",
        "down": "transformer.h.{i}.mlp.fc_out",
    }
    return [
        *copy_rules(modules),
        interleaved_rope_rule("query", "transformer.h.{i}.attn.q_proj"),
        interleaved_rope_rule("key", "transformer.h.{i}.attn.k_proj"),
    ]


GPTJ = Architecture(
    "gptj",
    "GPT-J",
    (
        GPT2_SIZES,
        activation_field("activation_function"),
        copied_fields(norm_eps="layer_norm_epsilon"),
        TIED_EMBEDDINGS,
        FieldGroup(("rotary_dim",), _read_gptj_rotary_dim, lambda s: {"rotary_dim": s.rotary_dim}),
    ),
    _list_gptj_tensor_rules,
    fixed_structure={"block": "parallel", "output_bias": True, **LAYER_NORM, **MLP_WITH_BIASES},
)


# ---- GPT-NeoX


def _read_neox_block(config: Config) -> StructureFields:
    is_parallel = config["use_parallel_residual"]
    return {"block": "parallel" if is_parallel else "pre", "separate_norms": is_parallel}


def _list_neox_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of GPT-NeoX."""
    modules = {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "output": "lm_head",
        "attention_norm": "gpt_neox.layers.{i}.input_layernorm",
        "feed_norm": "gpt_neox.layers.{i}.post_attention_layernorm",
        "attention_output": "gpt_neox.layers.{i}.attention.dense",
        "up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
        "down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
    }
    return [*copy_rules(modules), qkv_by_key_head_rule("gpt_neox.layers.{i}.attention.query_key_value")]


GPT_NEOX = Architecture(
    "gpt_neox",
    "GPT-NeoX",
    (
        size_fields(num_key_heads=None, head_dim=None),
        activation_field(),
        copied_fields(norm_eps="layer_norm_eps"),
        copied_fields(query_bias="attention_bias", attention_output_bias="attention_bias"),
        TIED_EMBEDDINGS,
        rope_field(),
        FieldGroup(
            ("use_parallel_residual",), _read_neox_block, lambda s: {"use_parallel_residual": s.block == "parallel"}
        ),
    ),
    _list_neox_tensor_rules,
    fixed_structure={**LAYER_NORM, **MLP_WITH_BIASES},
    ignored_fields=frozenset({"is_decoder"}),
)
