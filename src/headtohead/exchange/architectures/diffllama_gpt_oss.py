"""Decoders with differential attention (DiffLlama), or with attention sinks and experts (gpt-oss)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headtohead.exchange.architectures.architecture import (
    Architecture,
    Config,
    ConfigFields,
    FieldGroup,
    NoMatchError,
    StructureFields,
)
from headtohead.exchange.architectures.config_fields import TIED_EMBEDDINGS, rope_field, size_fields, window_fields
from headtohead.exchange.architectures.llama_family import (
    ATTENTION_BIAS,
    ATTENTION_MODULES,
    EMBEDDING_AND_OUTPUT_MODULES,
    LLAMA_FIELDS,
    LLAMA_MODULES,
    NORM_MODULES,
    RMS_EPS,
)
from headtohead.exchange.architectures.tensor_rules import TensorRule, copy_rules, map_single_tensor, parameter_rule
from headtohead.exchange.model_structure import ExpertOptions, ModelStructure

EXPERT_FIELDS = ("num_local_experts", "num_experts_per_tok", "swiglu_alpha", "swiglu_limit")
"""in the order of `ExpertOptions`"""


def _list_diffllama_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of DiffLlama."""
    copied_modules = {role: module for role, module in LLAMA_MODULES.items() if role != "attention_output"}
    lambda_names = [f"model.layers.{{i}}.self_attn.lambda_{name}" for name in ("q1", "k1", "q2", "k2")]

    def sort_heads_by_half(x: Tensor, s: ModelStructure) -> Tensor:
        """Return an output matrix whose inputs are ordered by half, then by pair of heads; a bias is unchanged."""
        if x.dim() == 1:
            return x
        by_pair: Tensor = x.unflatten(1, (s.num_heads // 2, 2, s.head_dim))
        return by_pair.transpose(1, 2).flatten(1)

    def sort_heads_by_pair(x: Tensor, s: ModelStructure) -> Tensor:
        """Undo `sort_heads_by_half`."""
        if x.dim() == 1:
            return x
        by_half: Tensor = x.unflatten(1, (2, s.num_heads // 2, s.head_dim))
        return by_half.transpose(1, 2).flatten(1)

    return [
        *copy_rules(copied_modules),
        map_single_tensor(
            "attention_output", LLAMA_MODULES["attention_output"], sort_heads_by_half, sort_heads_by_pair
        ),
        parameter_rule(
            "vectors",
            lambda_names,
            lambda vectors, _: [torch.stack(tuple(vectors))],
            lambda stacked, _: list(stacked[0]),
        ),
    ]


DIFFLLAMA = Architecture(
    "diffllama",
    "DiffLlama",
    (
        *LLAMA_FIELDS,
        ATTENTION_BIAS,
        FieldGroup((), lambda config: {"attention_norm_eps": config["rms_norm_eps"]}, lambda _: {}),
    ),
    _list_diffllama_tensor_rules,
    fixed_structure={"attention": "differential"},
    ignored_fields=frozenset({"lambda_std_dev"}),
)


def _read_experts(config: Config) -> StructureFields:
    return {"experts": ExpertOptions(*(config[name] for name in EXPERT_FIELDS))}


def _write_experts(structure: ModelStructure) -> ConfigFields:
    if structure.experts is None:
        raise NoMatchError("gpt_oss has experts, but the model does not")
    return dict(zip(EXPERT_FIELDS, structure.experts, strict=True))


def _list_gpt_oss_tensor_rules(_: ModelStructure) -> Sequence[TensorRule]:
    """Return the tensor rules of gpt-oss."""

    def separate_gate_and_up(interleaved: Sequence[Tensor], _: ModelStructure) -> Sequence[Tensor]:
        """Return the columns of the gate, then those of up; in transformers they alternate."""
        return [torch.cat((interleaved[0][..., ::2], interleaved[0][..., 1::2]), dim=-1)]

    def interleave_gate_and_up(separate: Sequence[Tensor], _: ModelStructure) -> Sequence[Tensor]:
        return [torch.stack(separate[0].chunk(2, dim=-1), dim=-1).flatten(-2)]

    experts = "model.layers.{i}.mlp.experts"
    return [
        *copy_rules(
            ATTENTION_MODULES | NORM_MODULES | EMBEDDING_AND_OUTPUT_MODULES | {"router": "model.layers.{i}.mlp.router"}
        ),
        parameter_rule(
            "sinks",
            ["model.layers.{i}.self_attn.sinks"],
            lambda sinks, _: [sinks[0][:, None, None]],
            lambda sinks, _: [sinks[0].flatten()],
        ),
        parameter_rule("expert_gate_up", [f"{experts}.gate_up_proj"], separate_gate_and_up, interleave_gate_and_up),
        parameter_rule(
            "expert_gate_up_bias", [f"{experts}.gate_up_proj_bias"], separate_gate_and_up, interleave_gate_and_up
        ),
        parameter_rule("expert_down", [f"{experts}.down_proj"]),
        parameter_rule("expert_down_bias", [f"{experts}.down_proj_bias"]),
    ]


GPT_OSS = Architecture(
    "gpt_oss",
    "gpt-oss",
    (
        size_fields(),
        RMS_EPS,
        TIED_EMBEDDINGS,
        rope_field(),
        ATTENTION_BIAS,
        window_fields(),
        FieldGroup(EXPERT_FIELDS, _read_experts, _write_experts),
    ),
    _list_gpt_oss_tensor_rules,
    fixed_structure={"attention": "sinks"},
    # Experts do not use `hidden_act`.
    ignored_fields=frozenset({"hidden_act", "router_aux_loss_coef", "output_router_logits"}),
)
