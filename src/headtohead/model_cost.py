"""Parameters, FLOPs and memory of a model.

Our own models are counted on the meta device, without allocating their weights. Code of users may need real values, as
`.item()` does, so their networks and parts are counted in a real pass over one row.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headtohead.config import model as config_model
from headtohead.config.base import ComponentConfig
from headtohead.model_factory import BYTES_PER_PARAMETER, build_model
from headtohead.nn.parts import registry
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.pretrained import classifier, layer_dropping


@dataclass(frozen=True)
class ModelCost:
    """Size and cost of a model."""

    parameters: int
    flops_per_token: int | None
    """Forward pass at full context, with a multiply-add counted as two. Training takes about three times as many. None
    if a pass over one or two rows fails."""
    weights_bytes: int
    training_bytes: int
    """Weights, gradients, two optimizer moments, and the logits of one batch with their gradients."""


def compute_model_cost(
    model: config_model.ModelConfig,
    vocab_size: int,
    num_classes: int | None = None,
    *,
    is_causal: bool | None = None,
    batch_size: int = 16,
    base_folder: Path = Path("."),
) -> ModelCost:
    """Return the cost of a model. Models without code of users may have any size, because they are not allocated."""
    with torch.device("cpu" if has_user_code(model) else "meta"):
        network = _build(model, vocab_size, num_classes, is_causal, base_folder).eval()
        ids = torch.arange(2 * model.context).reshape(2, -1) % vocab_size
    parameters = sum(p.numel() for p in network.parameters())
    logits = batch_size * (model.context * vocab_size if num_classes is None else num_classes)
    return ModelCost(
        parameters=parameters,
        flops_per_token=_count_flops_per_token(network, ids),
        weights_bytes=BYTES_PER_PARAMETER * parameters,
        training_bytes=BYTES_PER_PARAMETER * (4 * parameters + 2 * logits),
    )


def has_user_code(model: config_model.ModelConfig) -> bool:
    """Return whether the model is a custom network, or has a part that is not built in."""
    if isinstance(model, config_model.PretrainedModelConfig):
        return False
    if not isinstance(model, config_model.TransformerConfig):
        return True
    pattern = model.pattern or ()
    patterns = sum(pattern.layers, ()) if isinstance(pattern, config_model.PerLayerPattern) else pattern
    choices = [("pattern", choice) for choice in patterns] + [("position", choice) for choice in model.position]
    choices += [(slot, choice) for slot, choice in model if isinstance(choice, ComponentConfig)]
    return not all(
        registry.get_part_class(slot, choice.kind).__module__.startswith("headtohead.") for slot, choice in choices
    )


@torch.no_grad()
def _count_flops_per_token(network: nn.Module, ids: torch.Tensor) -> int | None:
    """Return the FLOPs of a pass over one row, or over two if the network rejects a single one; None if both fail."""
    for num_rows in (1, 2):
        rows = ids[:num_rows]
        # Decoders of transformers need a mask on the meta device: without one they inspect the values of the ids.
        arguments = (rows, torch.ones_like(rows)) if isinstance(network, layer_dropping.StudentModel) else (rows,)
        # The counter knows the operations of the math backend only.
        with FlopCounterMode(display=False) as counter, fork_seeded_rng("FLOPs"), sdpa_kernel(SDPBackend.MATH):
            try:
                network(*arguments)
            except Exception:  # noqa: BLE001  (a user's network may raise anything)
                continue
        return int(counter.get_total_flops()) // rows.numel()
    return None


def _build(
    model: config_model.ModelConfig, vocab_size: int, num_classes: int | None, is_causal: bool | None, base_folder: Path
) -> nn.Module:
    """Build a model without loading pretrained weights."""
    if not isinstance(model, config_model.PretrainedModelConfig):
        return build_model(model, vocab_size, num_classes, is_causal=is_causal, base_folder=base_folder)
    if num_classes is None:
        return layer_dropping.build_student_on_meta_device(model)
    return classifier.build_classifier_on_meta_device(model, num_classes)
