"""Convert a transformers model to a transformer of parts with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headtohead.exchange.architectures.registry import get_architecture
from headtohead.exchange.conversion.state_dict import convert_state_dict_to_parts
from headtohead.exchange.conversion.structure_to_parts import build_parts_config
from headtohead.exchange.model_structure import ModelStructure
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer


def read_model_structure(transformers_model: Any) -> ModelStructure:
    """Return the structure of a transformers model to convert; raise ModelError if a field of it has no match."""
    config, config_class = transformers_model.config, type(transformers_model.config)
    architecture = get_architecture(config.model_type)
    has_output = transformers_model.get_output_embeddings() is not None
    return architecture.read_structure(
        config.to_dict(), config_class().to_dict(), output_head=None if has_output else "none"
    )


@torch.no_grad()
def convert_to_parts(transformers_model: nn.Module) -> tuple[Transformer, ModelStructure]:
    """Convert from transformers: return a transformer of parts with the same weights, in evaluation mode."""
    source: Any = transformers_model
    structure = read_model_structure(source)
    architecture = get_architecture(source.config.model_type)
    model = build_model(build_parts_config(structure), structure.vocab_size, is_causal=structure.is_causal)
    assert isinstance(model, Transformer)
    prefix = "" if source.get_output_embeddings() is not None else architecture.base_prefix
    model.load_state_dict(
        convert_state_dict_to_parts(
            {prefix + name: tensor for name, tensor in transformers_model.state_dict().items()},
            list(model.state_dict()),
            architecture.list_tensor_rules(structure),
            structure,
            architecture.unused_tensors,
        )
    )
    return model.eval(), structure
