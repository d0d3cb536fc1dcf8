"""Parameters, FLOPs and memory of a model, counted on the meta device without allocating its weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headtohead.config import model, pretrained
from headtohead.model_factory import BYTES_PER_PARAMETER, build_model
from headtohead.pretrained import classifier, layer_dropping


@dataclass(frozen=True)
class ModelCost:
    """Size and cost of a model."""

    parameters: int
    flops_per_token: int
    """Forward pass at full context, with a multiply-add counted as two. Training takes about three times as many."""
    weights_bytes: int
    training_bytes: int
    """Weights, gradients, two optimizer moments, and the logits of one batch with their gradients."""


def compute_model_cost(
    model: model.ModelConfig,
    vocab_size: int,
    num_classes: int | None = None,
    *,
    is_causal: bool | None = None,
    batch_size: int = 16,
    base_folder: Path = Path("."),
) -> ModelCost:
    """Return the cost of a model of any size, without allocating it."""
    with torch.device("meta"):
        network = _build_on_meta_device(model, vocab_size, num_classes, is_causal, base_folder)
        ids = torch.zeros(1, model.context, dtype=torch.long)
    parameters = sum(p.numel() for p in network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        # The default implementation, as in training, so that blocked attention counts as such. Decoders of transformers
        # need a mask here: without one they inspect the token ids, which have no values on the meta device.
        network(ids, torch.ones_like(ids)) if isinstance(network, layer_dropping.StudentModel) else network(ids)
    logits = batch_size * (model.context * vocab_size if num_classes is None else num_classes)
    return ModelCost(
        parameters=parameters,
        flops_per_token=counter.get_total_flops() // model.context,
        weights_bytes=BYTES_PER_PARAMETER * parameters,
        training_bytes=BYTES_PER_PARAMETER * (4 * parameters + 2 * logits),
    )


def _build_on_meta_device(
    model: model.ModelConfig, vocab_size: int, num_classes: int | None, is_causal: bool | None, base_folder: Path
) -> nn.Module:
    if not isinstance(model, pretrained.PretrainedModelConfig):
        return build_model(model, vocab_size, num_classes, is_causal=is_causal, base_folder=base_folder)
    if num_classes is None:
        return layer_dropping.build_student_on_meta_device(model)
    return classifier.build_classifier_on_meta_device(model, num_classes)
