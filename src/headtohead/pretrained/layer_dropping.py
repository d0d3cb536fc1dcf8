"""Copy a pretrained decoder with fewer layers, as the initial student of a distillation.

Initialized as in DistilBERT, Sanh et al. 2019, arXiv:1910.01108. The embeddings, the final norm and the output layer
are copied from the teacher, as are some of its layers, in order: the first n, or n spread evenly from first to last.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

from torch import nn

from headtohead.errors import ModelError
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.pretrained.pretrained_model import PretrainedModel

LayerSelection = Literal["evenly", "first"]


def select_layer_indices(num_available: int, num_kept: int, selection: LayerSelection = "evenly") -> tuple[int, ...]:
    """Return the indices of the layers that a student keeps: the first ones, or evenly spaced from first to last."""
    if not 1 <= num_kept <= num_available:
        raise ModelError(f"layers must be between 1 and {num_available}, got {num_kept}")
    if selection == "first" or num_kept == 1:
        return tuple(range(num_kept))
    return tuple(round(i * (num_available - 1) / (num_kept - 1)) for i in range(num_kept))


def drop_layers(model: PretrainedModel, num_layers: int, selection: LayerSelection = "evenly") -> PretrainedModel:
    """Return a copy of the model with `num_layers` of its layers. It shares no tensors with the original."""
    inner = model.inner
    prefix, num_available = _find_layer_list(model)
    kept_indices = select_layer_indices(num_available, num_layers, selection)
    config = copy.deepcopy(inner.config)
    shorten_config(config.get_text_config(), num_available, kept_indices)
    with fork_seeded_rng(0, "student"):  # the random weights are overwritten below
        student = type(inner)(config)
    state_dict = {}
    for name, tensor in inner.state_dict().items():
        if not name.startswith(f"{prefix}."):
            state_dict[name] = tensor.clone()
            continue
        index, _, suffix = name.removeprefix(f"{prefix}.").partition(".")
        state_dict |= {
            f"{prefix}.{new_index}.{suffix}": tensor.clone()
            for new_index, old_index in enumerate(kept_indices)
            if old_index == int(index)
        }
    student.load_state_dict(state_dict)
    student.to(dtype=next(inner.parameters()).dtype)
    if getattr(inner, "generation_config", None) is not None:
        student.generation_config = copy.deepcopy(inner.generation_config)
    return PretrainedModel(student.eval(), f"{model.name}, {num_layers} of {num_available} layers")


def _find_layer_list(model: PretrainedModel) -> tuple[str, int]:
    """Return the name of the module list that contains the layers to drop, and their number."""
    num_layers = int(model.inner.config.get_text_config().num_hidden_layers)
    for name, module in model.inner.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return name, num_layers
    raise ModelError(f"{model.name} has no list of {num_layers} layers to choose from")


def shorten_config(config: Any, num_available: int, kept_indices: tuple[int, ...]) -> None:
    """Reduce the configuration of a decoder to the kept layers, including lists with one entry per layer."""
    list_names = [
        name for name, value in vars(config).items() if name.startswith("layer") and isinstance(value, list | tuple)
    ]
    for name in list_names:
        values_by_layer = getattr(config, name)
        if len(values_by_layer) == num_available:
            setattr(config, name, [values_by_layer[index] for index in kept_indices])
    config.num_hidden_layers = len(kept_indices)
