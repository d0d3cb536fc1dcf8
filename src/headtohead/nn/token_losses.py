"""Per-prediction losses, accumulated in float64.

`F.cross_entropy` sums exponentials over the vocabulary in float32. With 150,000 tokens, this biases the loss by -1.2e-5
nats per token for contiguous logits, and by -2.1e-4 for transposed ones, which the kernel adds sequentially.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_SIZE = 128
"""Number of predictions that are converted to float64 at a time."""


def compute_token_losses(
    logits: Float[Tensor, "*shape vocab"], labels: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return each prediction's cross entropy in nats, as float64, with the same shape as `labels`."""
    losses = [
        chunk.double().logsumexp(-1) - chunk.gather(-1, chunk_labels[:, None])[:, 0].double()
        for chunk, chunk_labels in zip(
            logits.reshape(-1, logits.shape[-1]).split(CHUNK_SIZE), labels.reshape(-1).split(CHUNK_SIZE), strict=True
        )
    ]
    return torch.cat(losses).reshape(labels.shape)
