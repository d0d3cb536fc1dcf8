"""A character-level GPT in plain PyTorch, as nanoGPT defines and trains it, with our initial weights.

Written from the published definition: GPT-2 without biases, one matrix for queries, keys and values, GELU, an output
layer tied to the embedding; AdamW with weight decay for matrices, and gradients clipped at a norm of 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .peer_models import Weights, concatenate_projections
from .workload import TensorBatch, WorkloadShape

BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0


class Layer(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm."""

    def __init__(self, shape: WorkloadShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width, bias=False)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_output = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_norm = nn.LayerNorm(shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch_size, length, width = x.shape
        q, k, v = (
            heads.view(batch_size, length, self.heads, -1).transpose(1, 2)
            for heads in self.qkv(self.attention_norm(x)).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_output(attended.transpose(1, 2).reshape(batch_size, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.feed_norm(x))))
        return out


class NanoGPT(nn.Module):
    """The model, whose output layer is the embedding table."""

    def __init__(self, shape: WorkloadShape, weights: Weights) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.width, bias=False)
        self._load_weights(weights)

    @torch.no_grad()
    def _load_weights(self, weights: Weights) -> None:
        self.embedding.weight.copy_(weights["embedding.weight"])
        self.positions.weight.copy_(weights["positions.0.table.weight"])
        self.final_norm.weight.copy_(weights["final_norm.inner.weight"])
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            name = f"layers.{index}"
            layer.qkv.weight.copy_(concatenate_projections(weights, name))
            for module, our_name in (
                (layer.attention_norm, "block.attention_norm.inner"),
                (layer.feed_norm, "block.feed_norm.inner"),
                (layer.attention_output, "attention.output"),
                (layer.up, "feedforward.up"),
                (layer.down, "feedforward.down"),
            ):
                module.weight.copy_(weights[f"{name}.{our_name}.weight"])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.final_norm(x), self.embedding.weight)


class NanoGPTLoop:
    """The training loop."""

    def __init__(self, shape: WorkloadShape, weights: Weights) -> None:
        self.model = NanoGPT(shape, weights).train()
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=shape.lr, betas=BETAS, fused=True)

    def train_step(self, batch: TensorBatch) -> Tensor:
        """Train on one batch and return its loss."""
        input_ids, labels, _ = batch
        loss = F.cross_entropy(self.model(input_ids).flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
