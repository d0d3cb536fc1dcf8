"""Rules for how a tensor of transformers corresponds to a tensor of the parts: names and layouts, in both directions.

Each `*_rule` function returns one kind of rule, such as a transposed matrix or stacked queries, keys and values.
`exchange.conversion.state_dict` applies the rules of an architecture to all tensors of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headtohead.exchange.model_structure import ModelStructure

Layout = Callable[[Sequence[Tensor], ModelStructure], Sequence[Tensor]]
"""maps the tensors of one rule from one library to the other"""
TYPE_VOCAB_SIZE = 2
"""number of token types (segments) of exported encoders"""

MODULE_NAMES = {
    "embedding": "embedding",
    "position": "positions.0.table",
    "embedding_norm": "embedding_norm.inner",
    "embedding_projection": "embedding_projection",
    "final_norm": "final_norm.inner",
    "output": "output",
    "head_hidden": "output.hidden",
    "head_norm": "output.norm",
    "attention_norm": "layers.{i}.block.attention_norm.inner",
    "feed_norm": "layers.{i}.block.feed_norm.inner",
    "attention_output_norm": "layers.{i}.block.attention_output_norm.inner",
    "feed_output_norm": "layers.{i}.block.feed_output_norm.inner",
    "query": "layers.{i}.attention.projection.query",
    "key": "layers.{i}.attention.projection.key",
    "value": "layers.{i}.attention.projection.value",
    "attention_output": "layers.{i}.attention.output",
    "router": "layers.{i}.feedforward.router",
    "gate": "layers.{i}.feedforward.gate",
    "up": "layers.{i}.feedforward.up",
    "down": "layers.{i}.feedforward.down",
}
"""modules of a transformer of parts, by role"""
PARAMETER_NAMES = {
    "sinks": "layers.{i}.attention.sink",
    "vectors": "layers.{i}.attention.vectors",
    "expert_gate_up": "layers.{i}.feedforward.gate_up",
    "expert_gate_up_bias": "layers.{i}.feedforward.gate_up_bias",
    "expert_down": "layers.{i}.feedforward.down",
    "expert_down_bias": "layers.{i}.feedforward.down_bias",
}
"""parameters of a transformer of parts that are no weights or biases of a module, by role"""
PARALLEL_NORM_NAME = "layers.{i}.block.norm.inner"
QK_NORM_NAME = "layers.{i}.attention.projection_steps.qk-norm"


def get_parts_tensor_name(role: str, suffix: str, structure: ModelStructure) -> str:
    """Return the name of the tensor with this role in a transformer of parts; `suffix` is weight or bias."""
    if role in PARAMETER_NAMES:
        return PARAMETER_NAMES[role]
    if role in ("query_norm", "key_norm"):
        kind = "scale" if suffix == "weight" else "bias"
        return f"{QK_NORM_NAME}.{role.removesuffix('_norm')}_{kind}"
    if role == "attention_norm" and structure.block == "parallel":
        return f"{PARALLEL_NORM_NAME}.{suffix}"
    return f"{MODULE_NAMES[role]}.{suffix}"


@dataclass(frozen=True)
class TensorRule:
    """Tensors of the parts with certain roles, and the modules of transformers that hold the same weights."""

    roles: tuple[str, ...]
    modules: tuple[str, ...]
    """names of the modules of transformers, with {i} for the layer"""
    to_parts: Layout
    """maps the tensors of transformers to those of the parts"""
    to_transformers: Layout
    """maps the tensors of the parts to those of transformers"""
    suffixes: tuple[str, ...] = ("weight", "bias")
    """names that the modules of transformers give their weight and bias"""


def map_single_tensor(
    role: str,
    module: str,
    to_parts: Callable[[Tensor, ModelStructure], Tensor],
    to_transformers: Callable[[Tensor, ModelStructure], Tensor],
) -> TensorRule:
    """Return the rule for one tensor that has a single counterpart."""
    return TensorRule(
        (role,),
        (module,),
        lambda tensors, structure: [to_parts(tensors[0], structure)],
        lambda tensors, structure: [to_transformers(tensors[0], structure)],
    )


def copy_rule(role: str, module: str) -> TensorRule:
    """Return the rule for a tensor with a different name and the same values."""
    return map_single_tensor(role, module, lambda x, _: x, lambda x, _: x)


def copy_rules(module_by_role: Mapping[str, str]) -> list[TensorRule]:
    """Return a `copy_rule` for each role and module."""
    return [copy_rule(role, module) for role, module in module_by_role.items()]


def _transpose_matrix(x: Tensor) -> Tensor:
    """Return a weight matrix transposed, or a bias unchanged."""
    return x.T if x.dim() == 2 else x


def transpose_rule(role: str, module: str) -> TensorRule:
    """Return the rule for a weight matrix that transformers stores as (inputs, outputs)."""
    return map_single_tensor(role, module, lambda x, _: _transpose_matrix(x), lambda x, _: _transpose_matrix(x))


def residual_scale_rule(role: str, module: str) -> TensorRule:
    """Return the rule for an output matrix that is multiplied by `residual_scale`."""
    return map_single_tensor(role, module, lambda x, s: x * s.residual_scale, lambda x, s: x / s.residual_scale)


def norm_offset_rule(role: str, module: str) -> TensorRule:
    """Return the rule for the scale of a norm that transformers stores as its difference from 1."""
    return map_single_tensor(role, module, lambda x, _: x + 1, lambda x, _: x - 1)


def stack_rule(roles: Sequence[str], module: str, *, is_transposed: bool = False) -> TensorRule:
    """Return the rule for queries, keys and values, or gate and up, stacked along the outputs of one matrix."""

    def split(stacked: Sequence[Tensor], s: ModelStructure) -> Sequence[Tensor]:
        key_size = s.num_key_heads * s.head_dim
        sizes = {"query": s.num_heads * s.head_dim, "key": key_size, "value": key_size}
        matrix = _transpose_matrix(stacked[0]) if is_transposed else stacked[0]
        matrices: Sequence[Tensor] = matrix.split([sizes.get(role, s.feedforward_size) for role in roles])
        return matrices

    def join(matrices: Sequence[Tensor], _: ModelStructure) -> Sequence[Tensor]:
        matrix = torch.cat(tuple(matrices))
        return [_transpose_matrix(matrix) if is_transposed else matrix]

    return TensorRule(tuple(roles), (module,), split, join)


def qkv_by_key_head_rule(module: str) -> TensorRule:
    """Return the rule for one matrix with, for each key head, the queries that use it, then its key and its value."""

    def split(stacked: Sequence[Tensor], s: ModelStructure) -> Sequence[Tensor]:
        by_key_head = stacked[0].unflatten(0, (s.num_key_heads, -1, s.head_dim))
        queries, keys, values = by_key_head[:, :-2], by_key_head[:, -2], by_key_head[:, -1]
        return queries.flatten(0, 2), keys.flatten(0, 1), values.flatten(0, 1)

    def join(matrices: Sequence[Tensor], s: ModelStructure) -> Sequence[Tensor]:
        by_key_head = [matrix.unflatten(0, (s.num_key_heads, -1, s.head_dim)) for matrix in matrices]
        return [torch.cat(by_key_head, dim=1).flatten(0, 2)]

    return TensorRule(("query", "key", "value"), (module,), split, join)


def interleaved_rope_rule(role: str, module: str) -> TensorRule:
    """Return the rule for queries or keys in which RoPE rotates adjacent dimensions.

    The parts rotate dimensions that are half the rotary dimension apart.
    """

    def permute(x: Tensor, permutation: Tensor, head_dim: int) -> Tensor:
        if x.shape[-1] == head_dim and role.endswith("_norm"):  # (heads, head_dim)
            return x[:, permutation]
        by_head: Tensor = x.unflatten(0, (-1, head_dim))
        return by_head[:, permutation].flatten(0, 1)

    def get_permutation(s: ModelStructure) -> Tensor:
        index = torch.arange(s.head_dim)
        rotated = index[: s.rotary_dim]
        return torch.cat((rotated[::2], rotated[1::2], index[s.rotary_dim :]))

    return map_single_tensor(
        role,
        module,
        lambda x, s: permute(x, get_permutation(s), s.head_dim),
        lambda x, s: permute(x, get_permutation(s).argsort(), s.head_dim),
    )


def flat_norm_scale_rule(role: str, module: str) -> TensorRule:
    """Return the rule for the scale of a QK norm: a vector in transformers, (heads or 1, head_dim) in the parts."""
    return map_single_tensor(role, module, lambda x, s: x.unflatten(0, (-1, s.head_dim)), lambda x, _: x.flatten())


def norm_scale_per_head_rule(role: str, module: str, num_heads: int) -> TensorRule:
    """Return the rule for the scale of a QK norm that transformers stores as one module for each head."""
    modules = tuple(module.replace("{head}", str(head)) for head in range(num_heads))
    return TensorRule(
        (role,), modules, lambda scales, _: [torch.stack(tuple(scales))], lambda scales, _: list(scales[0])
    )


def parameter_rule(
    role: str,
    parameter_names: Sequence[str],
    to_parts: Layout = lambda tensors, _: tensors,
    to_transformers: Layout = lambda tensors, _: tensors,
) -> TensorRule:
    """Return the rule for a parameter that is no weight or bias of a module, and its counterparts in transformers."""
    return TensorRule((role,), tuple(parameter_names), to_parts, to_transformers, suffixes=("",))


def position_and_type_rule(position_module: str, type_module: str, *, offset: int = 0) -> TensorRule:
    """Return the rule for learned position embeddings to which the embedding of token type 0 is added.

    Args:
        position_module: Position embeddings of transformers.
        type_module: Token type (segment) embeddings of transformers.
        offset: Number of rows of the position table before that of the first position.
    """

    def add_type_embedding(tables: Sequence[Tensor], _: ModelStructure) -> Sequence[Tensor]:
        positions, token_types = tables
        return [positions[offset:] + token_types[0]]

    def build_tables(tables: Sequence[Tensor], _: ModelStructure) -> Sequence[Tensor]:
        positions, width = tables[0], tables[0].shape[1]
        padded_positions = torch.cat((positions.new_zeros(offset, width), positions))
        return padded_positions, positions.new_zeros(TYPE_VOCAB_SIZE, width)

    return TensorRule(("position",), (position_module, type_module), add_type_embedding, build_tables)
