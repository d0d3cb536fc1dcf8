"""Convert a transformer of parts to a model of the first architecture of transformers that has its parts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from headtohead.exchange.architectures.architecture import Architecture, ConfigFields, NoMatchError
from headtohead.exchange.architectures.registry import ARCHITECTURES, get_architecture
from headtohead.exchange.conversion.parts_to_structure import describe_parts_config
from headtohead.exchange.conversion.state_dict import StateDict, convert_state_dict_to_transformers
from headtohead.exchange.conversion.structure_to_parts import build_parts_config
from headtohead.exchange.model_structure import ModelStructure
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import import_transformers

EXPORT_PURPOSE = "export to transformers"
MISSING_BIAS = re.compile(r"_bias = True, but the model has False$")
"""Matches mismatches that zero biases resolve. The other reason for which an architecture does not match is shown."""


def find_architecture(
    model: Transformer, model_type: str | None = None
) -> tuple[Architecture, ModelStructure, ConfigFields]:
    """Return the architecture of transformers to convert a model of parts to, the structure and the configuration.

    Where an architecture has biases that the model does not have, they are zeros. Raise NoMatchError with the reason of
    each architecture if there is none.
    """
    if model.num_classes is not None:
        raise NoMatchError("a classifier of parts has no match in transformers")
    structure = describe_parts_config(model.model_config, model.sizes.vocab_size, is_causal=model.is_causal)
    with_query_bias = replace(structure, query_bias=True)
    with_all_biases = replace(
        with_query_bias, attention_output_bias=True, feedforward_bias=True, norm_bias=structure.norm == "layer"
    )
    architectures = [get_architecture(model_type)] if model_type is not None else ARCHITECTURES
    mismatches: dict[str, str] = {}
    for candidate in (structure, with_query_bias, with_all_biases):
        for architecture in architectures:
            try:
                return architecture, candidate, architecture.write_config(candidate)
            except NoMatchError as error:
                known_reason = mismatches.get(architecture.model_type)
                if known_reason is None or MISSING_BIAS.search(known_reason):
                    mismatches[architecture.model_type] = str(error)
    reasons = "\n  ".join(mismatches.values())
    raise NoMatchError(f"no architecture of transformers has the parts of this model:\n  {reasons}")


@torch.no_grad()
def convert_to_transformers(
    model: Transformer,
    architecture: Architecture,
    structure: ModelStructure,
    config: ConfigFields,
    tokenizer: Any = None,
) -> Any:
    """Return a transformers model with the weights of a transformer of parts, in evaluation mode."""
    transformers = import_transformers(EXPORT_PURPOSE)
    special_ids = get_special_token_ids(tokenizer)
    required_pad_id = config.get("pad_token_id", special_ids["pad_token_id"])
    if special_ids["pad_token_id"] not in (None, required_pad_id):
        raise NoMatchError(f"{architecture.model_type}: pad_token_id must be {required_pad_id}")
    config_class = transformers.CONFIG_MAPPING[architecture.model_type]
    transformers_model: Any = select_model_class(transformers, structure, architecture)._from_config(
        config_class(**{**special_ids, **config}), dtype=torch.float32
    )
    prefix = architecture.base_prefix if structure.output_head == "none" else ""
    tensors = convert_state_dict_to_transformers(
        _add_zero_biases(model, structure), architecture.list_tensor_rules(structure), structure
    )
    transformers_model.load_state_dict(
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, strict=False
    )
    transformers_model.tie_weights()
    return transformers_model.eval()


def get_special_token_ids(tokenizer: Any) -> ConfigFields:
    """Return a tokenizer's ids of start, stop and padding tokens as fields of a transformers configuration."""
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_id", None) for name in ("bos", "eos", "pad")}


def select_model_class(transformers: Any, structure: ModelStructure, architecture: Architecture) -> Any:
    """Return the class of transformers to convert to, with the output head of the model."""
    if architecture.model_type == "t5":
        return transformers.T5EncoderModel
    model_class_by_config_class = {
        "linear": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        "mlm-head": transformers.MODEL_FOR_MASKED_LM_MAPPING,
        "none": transformers.MODEL_MAPPING,
    }[structure.output_head]
    return model_class_by_config_class[transformers.CONFIG_MAPPING[architecture.model_type]]


def _add_zero_biases(model: Transformer, structure: ModelStructure) -> StateDict:
    """Return the tensors to convert to transformers: those of the model, and zeros for biases that it does not have."""
    with torch.device("meta"):
        outline = Transformer(build_parts_config(structure), structure.vocab_size, is_causal=structure.is_causal)
    tensors = dict(model.state_dict())
    shapes = {name: tensor.shape for name, tensor in outline.state_dict().items()}
    return {name: tensors[name] if name in tensors else torch.zeros(shape) for name, shape in shapes.items()}
