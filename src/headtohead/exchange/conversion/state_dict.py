"""Convert the tensors of a model with the rules of its architecture, between transformers and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from headtohead.errors import ModelError
from headtohead.exchange.architectures.tensor_rules import TensorRule, get_parts_tensor_name
from headtohead.exchange.model_structure import ModelStructure

StateDict = dict[str, Tensor]
"""tensors by name"""


def convert_state_dict_to_parts(
    transformers_tensors: Mapping[str, Tensor],
    parts_names: Sequence[str],
    rules: Sequence[TensorRule],
    structure: ModelStructure,
    unused_patterns: Sequence[str] = (),
) -> StateDict:
    """Return the tensors of a transformer of parts.

    Raise ModelError if one of `parts_names` is missing, or if a tensor of transformers has no match.
    """
    parts_tensors: StateDict = {}
    used_names: set[str] = set()
    for rule, names, transformers_names in _expand_rules(rules, structure):
        if set(names) <= set(parts_names) and set(transformers_names) <= set(transformers_tensors):
            used_names |= set(transformers_names)
            converted = rule.to_parts([transformers_tensors[name] for name in transformers_names], structure)
            parts_tensors |= zip(names, converted, strict=True)
    if missing := [name for name in parts_names if name not in parts_tensors]:
        raise ModelError(f"the weights have no tensor for {missing[0]}")
    unmatched = [name for name in transformers_tensors if name not in used_names]
    if extra := [name for name in unmatched if not any(fnmatchcase(name, pattern) for pattern in unused_patterns)]:
        raise ModelError(f"tensor {extra[0]} has no match in our parts")
    return parts_tensors


def convert_state_dict_to_transformers(
    parts_tensors: Mapping[str, Tensor], rules: Sequence[TensorRule], structure: ModelStructure
) -> StateDict:
    """Return the tensors of a transformers model. Raise ModelError if a tensor of the parts has no match."""
    transformers_tensors: StateDict = {}
    used_names: set[str] = set()
    for rule, names, transformers_names in _expand_rules(rules, structure):
        if set(names) <= set(parts_tensors):
            used_names |= set(names)
            converted = rule.to_transformers([parts_tensors[name] for name in names], structure)
            tensors = [tensor.contiguous() for tensor in converted]
            transformers_tensors |= zip(transformers_names, tensors, strict=True)
    if extra := [name for name in parts_tensors if name not in used_names]:
        raise ModelError(f"tensor {extra[0]} has no match in transformers")
    return transformers_tensors


def _expand_rules(
    rules: Sequence[TensorRule], structure: ModelStructure
) -> Iterator[tuple[TensorRule, list[str], list[str]]]:
    """Yield (rule, tensor names of parts, tensor names of transformers) for all tensors of a state dict."""
    for rule in rules:
        is_per_layer = any("{i}" in module for module in rule.modules)
        for layer in range(structure.num_layers if is_per_layer else 1):
            for suffix, transformers_suffix in zip(("weight", "bias"), rule.suffixes, strict=False):
                names = [
                    get_parts_tensor_name(role, suffix, structure).replace("{i}", str(layer)) for role in rule.roles
                ]
                modules = [module.replace("{i}", str(layer)) for module in rule.modules]
                yield rule, names, [f"{module}.{transformers_suffix}".rstrip(".") for module in modules]
