"""Sizes before training: parameters, multiplications and memory, without making the weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headtohead.config import model, pretrained
from headtohead.nn.init import create
from headtohead.pretrained import classifier, layer_dropping

BYTES = 4


@dataclass(frozen=True)
class Count:
    """What a model is and costs."""

    parameters: int
    flops_per_token: int
    """one forward pass at full context, a multiplication and an addition counted as two; training takes about three"""
    weights_bytes: int
    training_bytes: int
    """weights, gradients, two moments of the optimizer, and the logits of one batch twice"""


def count(
    model: model.Model, vocab: int, classes: int | None = None, *, batch: int = 16, base: Path = Path(".")
) -> Count:
    """Counted on the meta device: no memory is touched, whatever the size."""
    with torch.device("meta"):
        made = _outline(model, vocab, classes, base)
        ids = torch.zeros(1, model.context, dtype=torch.long)
    parameters = sum(p.numel() for p in made.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        # On the road that training takes: a window costs what it costs there. A decoder of the library looks for packed
        # texts unless it is given a mask, and there are no numbers to look at.
        made(ids, torch.ones_like(ids)) if isinstance(made, layer_dropping.Learner) else made(ids)
    logits = batch * (model.context * vocab if classes is None else classes)
    return Count(
        parameters=parameters,
        flops_per_token=counter.get_total_flops() // model.context,
        weights_bytes=BYTES * parameters,
        training_bytes=BYTES * (4 * parameters + 2 * logits),
    )


def _outline(model: model.Model, vocab: int, classes: int | None, base: Path) -> nn.Module:
    if isinstance(model, pretrained.Pretrained):  # its weights are not needed to count it
        return layer_dropping.outline(model) if classes is None else classifier.outline(model, classes)
    return create(model, vocab, classes, base=base)
