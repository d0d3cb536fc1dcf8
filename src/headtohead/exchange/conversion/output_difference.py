"""Compare the outputs of a transformers model with those of its conversion, on random tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.nn.transformer import Transformer

MAX_EXPORT_DIFFERENCE = 1e-3
"""difference of logits above which an export is refused; it is about 1e-6 for small models"""
INPUT_LENGTH = 32


@torch.no_grad()
def measure_output_difference(transformers_model: Any, parts_model: Transformer) -> float:
    """Return the largest difference between the outputs of both models, logits or hidden states, on random tokens."""
    input_ids = draw_input_ids(parts_model)
    output = transformers_model(input_ids=input_ids)
    expected: Tensor = output.logits if "logits" in output else output.last_hidden_state
    return float((parts_model(input_ids).logits - expected).abs().max())


def check_export_difference(exported_model: Any, parts_model: Transformer) -> float:
    """Return the largest difference between the outputs; raise ModelError if it exceeds rounding errors."""
    return check_difference(measure_output_difference(exported_model, parts_model))


def check_difference(difference: float) -> float:
    """Return the difference between outputs after an export; raise ModelError if it exceeds rounding errors."""
    if not difference <= MAX_EXPORT_DIFFERENCE:
        raise ModelError(f"export failed: outputs differ by {difference:.1e}")
    return difference


def draw_input_ids(model: Transformer) -> Tensor:
    """Return random token ids, (2, length), without the first ids of the vocabulary, which may be padding."""
    vocab_size, length = model.sizes.vocab_size, min(INPUT_LENGTH, model.context)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(min(3, vocab_size - 1), vocab_size, (2, length), generator=generator)
