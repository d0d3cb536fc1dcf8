"""Encoders of the BERT family: BERT, DistilBERT, RoBERTa and ELECTRA.

Input texts are single segments, so the embedding of token type 0 is added to the position embeddings."""

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
from headtohead.exchange.architectures.config_fields import TIED_EMBEDDINGS, activation_field, size_fields
from headtohead.exchange.architectures.tensor_rules import (
    TYPE_VOCAB_SIZE,
    TensorRule,
    copy_rule,
    copy_rules,
    position_and_type_rule,
)
from headtohead.exchange.model_structure import ModelStructure

BERT_FIXED: StructureFields = {
    "is_causal": False,
    "output_head": "mlm-head",
    "position": "learned",
    "embedding_norm": True,
    "norm": "layer",
    "norm_bias": True,
    "block": "post",
    "final_norm": False,
    "query_bias": True,
    "attention_output_bias": True,
    "is_gated": False,
    "feedforward_bias": True,
    "output_bias": True,
}


def _read_bert_eps(config: Config) -> StructureFields:
    return {"norm_eps": config["layer_norm_eps"], "mlm_head_eps": config["layer_norm_eps"]}


BERT_EPS = FieldGroup(("layer_norm_eps",), _read_bert_eps, lambda s: {"layer_norm_eps": s.norm_eps})
BERT_REQUIRED = {"is_decoder": False, "add_cross_attention": False}


def mlm_head_activation_field(config_name: str = "hidden_act") -> FieldGroup:
    """Return the configuration field of the activation in the MLM head of BERT, which is that of the layers."""
    read = activation_field(config_name, "mlm_head_activation").read
    return FieldGroup((config_name,), read, lambda _: {})


def _name_bert_layer_modules(prefix: str) -> dict[str, str]:
    """Return the modules in a layer of BERT, RoBERTa or ELECTRA, by role."""
    layer = f"{prefix}.encoder.layer.{{i}}"
    return {
        "attention_norm": f"{layer}.attention.output.LayerNorm",
        "feed_norm": f"{layer}.output.LayerNorm",
        "query": f"{layer}.attention.self.query",
        "key": f"{layer}.attention.self.key",
        "value": f"{layer}.attention.self.value",
        "attention_output": f"{layer}.attention.output.dense",
        "up": f"{layer}.intermediate.dense",
        "down": f"{layer}.output.dense",
    }


def _list_bert_embedding_rules(prefix: str, *, offset: int = 0) -> list[TensorRule]:
    """Return the tensor rules of the embeddings of BERT, RoBERTa or ELECTRA."""
    modules = {"embedding": f"{prefix}.embeddings.word_embeddings", "embedding_norm": f"{prefix}.embeddings.LayerNorm"}
    type_module = f"{prefix}.embeddings.token_type_embeddings"
    return [
        *copy_rules(modules),
        position_and_type_rule(f"{prefix}.embeddings.position_embeddings", type_module, offset=offset),
    ]


def _list_bert_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of BERT."""
    head_modules = {
        "head_hidden": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "output": "cls.predictions.decoder",
    }
    return [*_list_bert_embedding_rules("bert"), *copy_rules(_name_bert_layer_modules("bert") | head_modules)]


BERT_UNUSED = ("*pooler*", "*position_ids", "*token_type_ids", "cls.predictions.bias", "lm_head.bias")
BERT = Architecture(
    "bert",
    "BERT",
    (
        size_fields(num_key_heads=None, head_dim=None),
        activation_field(),
        mlm_head_activation_field(),
        BERT_EPS,
        TIED_EMBEDDINGS,
    ),
    _list_bert_tensor_rules,
    fixed_structure=BERT_FIXED,
    required_fields=BERT_REQUIRED,
    ignored_fields=frozenset({"type_vocab_size"}),
    unused_tensors=BERT_UNUSED,
    build_extra_fields=lambda _: {"type_vocab_size": TYPE_VOCAB_SIZE},
    base_prefix="bert.",
)


def _list_distilbert_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of DistilBERT."""
    layer = "distilbert.transformer.layer.{i}"
    return copy_rules(
        {
            "embedding": "distilbert.embeddings.word_embeddings",
            "position": "distilbert.embeddings.position_embeddings",
            "embedding_norm": "distilbert.embeddings.LayerNorm",
            "attention_norm": f"{layer}.sa_layer_norm",
            "feed_norm": f"{layer}.output_layer_norm",
            "query": f"{layer}.attention.q_lin",
            "key": f"{layer}.attention.k_lin",
            "value": f"{layer}.attention.v_lin",
            "attention_output": f"{layer}.attention.out_lin",
            "up": f"{layer}.ffn.lin1",
            "down": f"{layer}.ffn.lin2",
            "head_hidden": "vocab_transform",
            "head_norm": "vocab_layer_norm",
            "output": "vocab_projector",
        }
    )


DISTILBERT = Architecture(
    "distilbert",
    "DistilBERT",
    (
        size_fields(
            width="dim",
            num_layers="n_layers",
            num_heads="n_heads",
            num_key_heads=None,
            head_dim=None,
            feedforward_size="hidden_dim",
        ),
        activation_field("activation"),
        mlm_head_activation_field("activation"),
        TIED_EMBEDDINGS,
    ),
    _list_distilbert_tensor_rules,
    fixed_structure={**BERT_FIXED, "norm_eps": 1e-12, "mlm_head_eps": 1e-12},
    # The sinusoidal embeddings are stored as weights, like learned ones.
    ignored_fields=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"}),
    unused_tensors=("*position_ids",),
    base_prefix="distilbert.",
)


# ---- RoBERTa: the first position follows the id of the padding token

ROBERTA_PAD_ID = 1
ROBERTA_POSITION_OFFSET = ROBERTA_PAD_ID + 1


def _read_roberta_context(config: Config) -> StructureFields:
    if config["pad_token_id"] != ROBERTA_PAD_ID:
        raise NoMatchError(f"roberta: pad_token_id = {config['pad_token_id']!r} has no match (supported: 1)")
    return {"context": config["max_position_embeddings"] - ROBERTA_POSITION_OFFSET}


def _write_roberta_context(structure: ModelStructure) -> ConfigFields:
    return {"max_position_embeddings": structure.context + ROBERTA_POSITION_OFFSET, "pad_token_id": ROBERTA_PAD_ID}


def _list_roberta_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of RoBERTa."""
    head_modules = {"head_hidden": "lm_head.dense", "head_norm": "lm_head.layer_norm", "output": "lm_head.decoder"}
    return [
        *_list_bert_embedding_rules("roberta", offset=ROBERTA_POSITION_OFFSET),
        *copy_rules(_name_bert_layer_modules("roberta") | head_modules),
    ]


ROBERTA = Architecture(
    "roberta",
    "RoBERTa",
    (
        size_fields(num_key_heads=None, head_dim=None, context=None),
        FieldGroup(("max_position_embeddings", "pad_token_id"), _read_roberta_context, _write_roberta_context),
        activation_field(),
        BERT_EPS,
        TIED_EMBEDDINGS,
    ),
    _list_roberta_tensor_rules,
    fixed_structure={**BERT_FIXED, "mlm_head_activation": "gelu"},
    required_fields=BERT_REQUIRED,
    ignored_fields=frozenset({"type_vocab_size"}),
    unused_tensors=BERT_UNUSED,
    build_extra_fields=lambda _: {"type_vocab_size": TYPE_VOCAB_SIZE},
    base_prefix="roberta.",
)


# ---- ELECTRA: the embedding size differs from the hidden size


def _read_electra_embedding_size(config: Config) -> StructureFields:
    size = config["embedding_size"]
    return {"embedding_width": None if size == config["hidden_size"] else size}


def _write_electra_embedding_size(structure: ModelStructure) -> ConfigFields:
    return {"embedding_size": structure.embedding_width or structure.width}


def _list_electra_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of ELECTRA."""
    head_modules = {
        "head_hidden": "generator_predictions.dense",
        "head_norm": "generator_predictions.LayerNorm",
        "output": "generator_lm_head",
    }
    return [
        *_list_bert_embedding_rules("electra"),
        copy_rule("embedding_projection", "electra.embeddings_project"),
        *copy_rules(_name_bert_layer_modules("electra") | head_modules),
    ]


ELECTRA = Architecture(
    "electra",
    "ELECTRA",
    (
        size_fields(num_key_heads=None, head_dim=None),
        activation_field(),
        BERT_EPS,
        TIED_EMBEDDINGS,
        FieldGroup(("embedding_size",), _read_electra_embedding_size, _write_electra_embedding_size),
    ),
    _list_electra_tensor_rules,
    # The epsilon of the head's norm is a constant of transformers' class.
    fixed_structure={**BERT_FIXED, "mlm_head_activation": "gelu"},
    required_fields=BERT_REQUIRED,
    ignored_fields=frozenset(
        "type_vocab_size summary_type summary_use_proj summary_activation summary_last_dropout".split()
    ),
    unused_tensors=(*BERT_UNUSED, "discriminator_predictions.*"),
    build_extra_fields=lambda _: {"type_vocab_size": TYPE_VOCAB_SIZE},
    base_prefix="electra.",
)
