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
    """What a model is and costs."""

    parameters: int
    flops_per_token: int
    """one forward pass at full context, a multiplication and an addition counted as two; training takes about three"""
    weights_bytes: int
    training_bytes: int
    """weights, gradients, two moments of the optimizer, and the logits of one batch twice"""


def compute_model_cost(
    model: model.ModelConfig,
    vocab_size: int,
    num_classes: int | None = None,
    *,
    batch_size: int = 16,
    base_folder: Path = Path("."),
) -> ModelCost:
    """Counted on the meta device: no memory is touched, whatever the size."""
    with torch.device("meta"):
        made = _build_on_meta_device(model, vocab_size, num_classes, base_folder)
        ids = torch.zeros(1, model.context, dtype=torch.long)
    parameters = sum(p.numel() for p in made.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        # On the road that training takes: a window costs what it costs there. A decoder of the library looks for packed
        # texts unless it is given a mask, and there are no numbers to look at.
        made(ids, torch.ones_like(ids)) if isinstance(made, layer_dropping.StudentModel) else made(ids)
    logits = batch_size * (model.context * vocab_size if num_classes is None else num_classes)
    return ModelCost(
        parameters=parameters,
        flops_per_token=counter.get_total_flops() // model.context,
        weights_bytes=BYTES_PER_PARAMETER * parameters,
        training_bytes=BYTES_PER_PARAMETER * (4 * parameters + 2 * logits),
    )


def _build_on_meta_device(model: model.ModelConfig, vocab: int, classes: int | None, base: Path) -> nn.Module:
    if isinstance(model, pretrained.PretrainedModelConfig):  # its weights are not needed to count it
        return (
            layer_dropping.build_student_on_meta_device(model)
            if classes is None
            else classifier.build_classifier_on_meta_device(model, classes)
        )
    return build_model(model, vocab, classes, base_folder=base)
