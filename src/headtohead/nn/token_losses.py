"""Losses of single predictions, summed in float64.

`F.cross_entropy` adds the exponentials of a vocabulary in float32. With 150,000 tokens that is biased: by -1.2e-5 nats
per token over contiguous logits, and by -2.1e-4 over transposed ones, where the kernel adds them one after the other.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_SIZE = 128
"""predictions that are converted to float64 at a time"""


def compute_token_losses(
    logits: Float[Tensor, "*shape vocab"], labels: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return the cross entropy of each prediction in nats, in float64, with the shape of `labels`."""
    losses = [
        chunk.double().logsumexp(-1) - chunk.gather(-1, chunk_labels[:, None])[:, 0].double()
        for chunk, chunk_labels in zip(
            logits.reshape(-1, logits.shape[-1]).split(CHUNK_SIZE), labels.reshape(-1).split(CHUNK_SIZE), strict=True
        )
    ]
    return torch.cat(losses).reshape(labels.shape)
