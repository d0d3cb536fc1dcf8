"""Decoders with ALiBi or multi-query attention: MPT, BLOOM and Falcon."""

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
    rope_field,
    size_fields,
)
from headtohead.exchange.architectures.gpt_family import ATTENTION_WITH_BIASES, LAYER_NORM, MLP_WITH_BIASES
from headtohead.exchange.architectures.tensor_rules import TensorRule, copy_rules, qkv_by_key_head_rule, stack_rule
from headtohead.exchange.model_structure import ModelStructure

# ---- MPT and BLOOM: ALiBi


def _read_mpt_attention(config: Config) -> StructureFields:
    """Return the query scale and the ALiBi slopes of MPT, from its field `attn_config`."""
    attention = config["attn_config"]
    for name, allowed in {"clip_qkv": None, "prefix_lm": False, "alibi": True, "qk_ln": False}.items():
        if attention.get(name, allowed) not in (allowed, 0 if allowed is None else allowed):
            raise NoMatchError(f"mpt: attn_config.{name} = {attention[name]!r} has no match (supported: {allowed!r})")
    num_heads, head_dim = config["n_heads"], config["d_model"] // config["n_heads"]
    softmax_scale = attention.get("softmax_scale")
    # The slopes for the next higher power of two, every second one first. With a power of two heads, they are those of
    # the paper.
    power = 2 ** (num_heads - 1).bit_length()
    series = [2.0 ** -((i + 1) * attention.get("alibi_bias_max", 8) / power) for i in range(power)]
    slopes = series if power == num_heads else (series[1::2] + series[::2])[:num_heads]
    is_default = slopes == [2.0 ** -(8 * (i + 1) / num_heads) for i in range(num_heads)] and power == num_heads
    return {
        "query_scale": 1.0 if softmax_scale is None else softmax_scale * head_dim**0.5,
        "alibi_slopes": None if is_default else tuple(slopes),
    }


def _write_mpt_attention(structure: ModelStructure) -> ConfigFields:
    softmax_scale = None if structure.query_scale == 1 else structure.query_scale / structure.head_dim**0.5
    return {"attn_config": {"softmax_scale": softmax_scale}}


def _list_mpt_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of MPT."""
    modules = {
        "embedding": "transformer.wte",
        "final_norm": "transformer.norm_f",
        "output": "lm_head",
        "attention_norm": "transformer.blocks.{i}.norm_1",
        "feed_norm": "transformer.blocks.{i}.norm_2",
        "attention_output": "transformer.blocks.{i}.attn.out_proj",
        "up": "transformer.blocks.{i}.ffn.up_proj",
        "down": "transformer.blocks.{i}.ffn.down_proj",
    }
    return [*copy_rules(modules), stack_rule(("query", "key", "value"), "transformer.blocks.{i}.attn.Wqkv")]


MPT = Architecture(
    "mpt",
    "MPT",
    (
        size_fields(
            width="d_model",
            num_layers="n_layers",
            num_heads="n_heads",
            num_key_heads=None,
            head_dim=None,
            feedforward_size=None,
            context="max_seq_len",
        ),
        copied_fields(norm_eps="layer_norm_epsilon"),
        TIED_EMBEDDINGS,
        FieldGroup(("attn_config",), _read_mpt_attention, _write_mpt_attention),
    ),
    _list_mpt_tensor_rules,
    fixed_structure={"position": "alibi", "norm": "layer", "is_gated": False, "activation": "gelu"},
    required_fields={"expansion_ratio": 4, "no_bias": True},
    # transformers' MPT does not read these fields.
    ignored_fields=frozenset({"learned_pos_emb", "init_device", "embedding_fraction", "norm_type", "logit_scale"}),
)


def _list_bloom_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of BLOOM."""
    modules = {
        "embedding": "transformer.word_embeddings",
        "embedding_norm": "transformer.word_embeddings_layernorm",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
        "attention_norm": "transformer.h.{i}.input_layernorm",
        "feed_norm": "transformer.h.{i}.post_attention_layernorm",
        "attention_output": "transformer.h.{i}.self_attention.dense",
        "up": "transformer.h.{i}.mlp.dense_h_to_4h",
        "down": "transformer.h.{i}.mlp.dense_4h_to_h",
    }
    return [*copy_rules(modules), qkv_by_key_head_rule("transformer.h.{i}.self_attention.query_key_value")]


BLOOM = Architecture(
    "bloom",
    "BLOOM",
    (
        size_fields(
            num_layers="n_layer",
            num_heads="n_head",
            num_key_heads=None,
            head_dim=None,
            feedforward_size=None,
            context=None,
        ),
        copied_fields(norm_eps="layer_norm_epsilon"),
        TIED_EMBEDDINGS,
    ),
    _list_bloom_tensor_rules,
    fixed_structure={
        "position": "alibi",
        "embedding_norm": True,
        "activation": "gelu-tanh",
        **LAYER_NORM,
        **MLP_WITH_BIASES,
        **ATTENTION_WITH_BIASES,
    },
    required_fields={"apply_residual_connection_post_layernorm": False},
    ignored_fields=frozenset({"slow_but_exact"}),  # the same result with a different order of operations
)


# ---- Falcon


def _read_falcon_block(config: Config) -> StructureFields:
    """Return heads, norms and biases, which depend on the generation of Falcon: 7B or 40B."""
    is_new, is_parallel = config["new_decoder_architecture"], config["parallel_attn"]
    if is_new and not is_parallel:
        raise NoMatchError("falcon: parallel_attn = False has no match together with new_decoder_architecture")
    num_norms = config["num_ln_in_parallel_attn"] or (2 if is_new else 1)
    if num_norms == 2 and not is_new:
        raise NoMatchError("falcon: num_ln_in_parallel_attn = 2 has no match without new_decoder_architecture")
    num_key_heads = 1 if config["multi_query"] else config["num_attention_heads"]
    return {
        "num_key_heads": config["num_kv_heads"] if is_new else num_key_heads,
        "block": "parallel" if is_parallel else "pre",
        "separate_norms": is_parallel and num_norms == 2,
        **dict.fromkeys(("query_bias", "attention_output_bias", "feedforward_bias"), config["bias"]),
    }


def _write_falcon_block(s: ModelStructure) -> ConfigFields:
    """Return the configuration fields of Falcon for heads, kind of block, norms and biases."""
    is_new = s.separate_norms or s.num_key_heads not in (1, s.num_heads)
    return {
        "new_decoder_architecture": is_new,
        "num_kv_heads": s.num_key_heads,
        "multi_query": s.num_key_heads == 1,
        "parallel_attn": s.block == "parallel",
        "num_ln_in_parallel_attn": 2 if s.separate_norms else 1,
        "bias": s.query_bias,
    }


def _list_falcon_tensor_rules(s: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of Falcon."""
    layer = "transformer.h.{i}"
    modules = {
        "embedding": "transformer.word_embeddings",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
        "attention_norm": f"{layer}.ln_attn" if s.separate_norms else f"{layer}.input_layernorm",
        "feed_norm": f"{layer}.ln_mlp" if s.separate_norms else f"{layer}.post_attention_layernorm",
        "attention_output": f"{layer}.self_attention.dense",
        "up": f"{layer}.mlp.dense_h_to_4h",
        "down": f"{layer}.mlp.dense_4h_to_h",
    }
    return [*copy_rules(modules), qkv_by_key_head_rule(f"{layer}.self_attention.query_key_value")]


FALCON_FIELDS = (
    "new_decoder_architecture",
    "num_kv_heads",
    "multi_query",
    "parallel_attn",
    "num_ln_in_parallel_attn",
    "bias",
)
FALCON = Architecture(
    "falcon",
    "Falcon",
    (
        size_fields(num_key_heads=None, head_dim=None, feedforward_size="ffn_hidden_size"),
        activation_field("activation"),
        copied_fields(norm_eps="layer_norm_epsilon"),
        TIED_EMBEDDINGS,
        rope_field(),
        FieldGroup(FALCON_FIELDS, _read_falcon_block, _write_falcon_block),
    ),
    _list_falcon_tensor_rules,
    fixed_structure={"is_gated": False, **LAYER_NORM},
    required_fields={"alibi": False},  # transformers rounds its biases to bfloat16
)
