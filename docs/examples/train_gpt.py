"""Train a small character-level GPT on text files, in one file.

    python train_gpt.py --data input.txt --seed 0

It knows nothing about Head to Head: it takes a seed and prints its validation loss. Use it to try `h2h versus`:

    h2h versus "python train_gpt.py --data input.txt --seed {seed}" \
               "python train_gpt.py --data input.txt --seed {seed} --learned-positions" --metric val_loss
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import Tensor, nn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small character-level GPT.")
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="text files")
    parser.add_argument("--seed", type=int, default=1337, help="seed of initial weights, batches and dropout")
    parser.add_argument("--out", type=Path, help="write the trained model to this file")
    parser.add_argument("--sample", type=int, default=0, help="characters to generate after training")
    # model
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--learned-positions", action="store_true", help="instead of rotary embeddings")
    # training
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--min-lr", type=float, default=1e-3)
    parser.add_argument("--warmup-steps", type=int, default=6)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    # evaluation
    parser.add_argument("--eval-interval", type=int, default=20)
    parser.add_argument("--eval-batches", type=int, default=8)
    return parser.parse_args()


# ----------------------------------------------------------------------------------------------------------------------
# Data


class CharacterDataset:
    """Text files as characters; the last tenth is for validation."""

    def __init__(self, paths: list[Path]) -> None:
        text = "\n".join(path.read_text() for path in paths)
        self.characters = sorted(set(text))
        ids = {character: index for index, character in enumerate(self.characters)}
        data = torch.tensor([ids[character] for character in text])
        split = int(0.9 * len(data))
        self.splits = {"train": data[:split], "val": data[split:]}

    def draw_batch(
        self, split: str, batch_size: int, context: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return random windows and the same windows shifted by one, each [batch, context]."""
        data = self.splits[split]
        starts = torch.randint(len(data) - context - 1, (batch_size,), generator=generator).tolist()
        input_ids = torch.stack([data[start : start + context] for start in starts])
        labels = torch.stack([data[start + 1 : start + 1 + context] for start in starts])
        return input_ids, labels

    def decode(self, ids: list[int]) -> str:
        return "".join(self.characters[index] for index in ids)


# ----------------------------------------------------------------------------------------------------------------------
# Model


class RotaryEmbedding(nn.Module):
    """Rotary position embeddings (Su et al., 2021)."""

    def __init__(self, head_dim: int, context: int) -> None:
        super().__init__()
        frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(context)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate queries or keys, [batch, heads, length, head_dim]."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class CausalSelfAttention(nn.Module):
    """Multi-head attention to earlier characters."""

    def __init__(self, width: int, heads: int, dropout: float, rotary: RotaryEmbedding | None) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two linear layers with GELU in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.output = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.gelu(self.hidden(x)))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float, rotary: RotaryEmbedding | None) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, dropout, rotary)
        self.feed_forward = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, vocab: int, arguments: argparse.Namespace) -> None:
        super().__init__()
        width, heads, self.context = arguments.width, arguments.heads, arguments.context
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(self.context, width) if arguments.learned_positions else None
        rotary = None if arguments.learned_positions else RotaryEmbedding(width // heads, self.context)
        self.blocks = nn.ModuleList(Block(width, heads, arguments.dropout, rotary) for _ in range(arguments.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("output.weight"):  # scaled by depth, as in GPT-2
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * arguments.layers))

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits, [batch, length, vocab]."""
        x = self.embedding(input_ids)
        if self.positions is not None:
            x = x + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def compute_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(input_ids).flatten(0, 1), labels.flatten())

    @torch.no_grad()
    def generate(self, input_ids: list[int], length: int, generator: torch.Generator) -> list[int]:
        """Sample `length` characters after a prompt."""
        for _ in range(length):
            logits = self(torch.tensor([input_ids[-self.context :]]))[0, -1]
            input_ids = [*input_ids, int(torch.multinomial(logits.softmax(-1), 1, generator=generator))]
        return input_ids


# ----------------------------------------------------------------------------------------------------------------------
# Training


def build_optimizer(model: nn.Module, arguments: argparse.Namespace) -> torch.optim.Optimizer:
    """Return AdamW with weight decay on matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": arguments.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.95))


def compute_lr(step: int, arguments: argparse.Namespace) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine decay to the minimum."""
    if step < arguments.warmup_steps:
        return arguments.lr * (step + 1) / arguments.warmup_steps
    progress = (step - arguments.warmup_steps) / (arguments.steps - arguments.warmup_steps)
    return arguments.min_lr + 0.5 * (1 + math.cos(math.pi * min(1.0, progress))) * (arguments.lr - arguments.min_lr)


@torch.no_grad()
def estimate_loss(model: GPT, dataset: CharacterDataset, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the mean loss on batches of each split, which are the same at every evaluation and with every seed."""
    model.eval()
    losses = {}
    for split in ("train", "val"):
        generator = torch.Generator().manual_seed(0)
        batches = [
            dataset.draw_batch(split, arguments.batch_size, arguments.context, generator)
            for _ in range(arguments.eval_batches)
        ]
        losses[split] = sum(model.compute_loss(*batch).item() for batch in batches) / len(batches)
    model.train()
    return losses


def report_losses(step: int, model: GPT, dataset: CharacterDataset, arguments: argparse.Namespace) -> None:
    losses = estimate_loss(model, dataset, arguments)
    print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)


def train(model: GPT, dataset: CharacterDataset, arguments: argparse.Namespace) -> None:
    optimizer = build_optimizer(model, arguments)
    generator = torch.Generator().manual_seed(arguments.seed)
    start_time = time.perf_counter()
    for step in range(arguments.steps):
        if step % arguments.eval_interval == 0:
            report_losses(step, model, dataset, arguments)
        for group in optimizer.param_groups:
            group["lr"] = compute_lr(step, arguments)
        batch = dataset.draw_batch("train", arguments.batch_size, arguments.context, generator)
        loss = model.compute_loss(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), arguments.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    report_losses(arguments.steps, model, dataset, arguments)
    print(f"trained {arguments.steps} steps in {time.perf_counter() - start_time:.1f} s")


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    dataset = CharacterDataset(arguments.data)
    model = GPT(len(dataset.characters), arguments)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    train(model, dataset, arguments)
    if arguments.out:
        save_model(model, arguments.out)
    if arguments.sample:
        generator = torch.Generator().manual_seed(arguments.seed)
        print(dataset.decode(model.generate([0], arguments.sample, generator)))


if __name__ == "__main__":
    main()
