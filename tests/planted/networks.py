"""Small networks as users write them, with mistakes that once led to a wrong verdict.

The file imports nothing from its folder, so that an experiment file can refer to every class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """One layer of causal attention. Subclasses change one method."""

    def __init__(self, vocab_size: int, context: int, width: int = 16, window: int | None = None) -> None:
        super().__init__()  # window is ignored
        self.vocab_size, self.context, self.width = vocab_size, context, width
        self.embedding, self.position = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.project, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocab_size)
        self.build()

    def build(self) -> None:
        """Create the modules of a subclass."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.embed(input_ids)
        x = x + self.attend(x, attention_mask)
        x = self.transform(x, input_ids)
        return self.finish(self.head(x), input_ids)

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.embedding(input_ids) + self.position(torch.arange(input_ids.shape[1], device=input_ids.device))

    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)) * self.width**-0.5
        return self.weigh(self.mask(scores)) @ value

    def mask(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.visible(scores), float("-inf"))

    def visible(self, scores: Tensor) -> Tensor:
        """Return a mask of the keys (columns) visible to each query (row)."""
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return logits


def shift_left(x: Tensor, num_positions: int = 1) -> Tensor:
    """Shift values (batch, length, ...) to the left, with zeros at the end."""
    return torch.cat((x[:, num_positions:], torch.zeros_like(x[:, :num_positions])), dim=1)


# ---- the rows of mistakes that people made, each with the verdict that it led to


class ShiftWithMaskedPadding(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(shift_left(input_ids))

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., 0] = torch.finfo(logits.dtype).min
        return logits


class LeakAfterCommonWords(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        is_common = (input_ids >= 4) & (input_ids < 12)
        return x + 3 * is_common[..., None] * shift_left(self.embedding(input_ids))


class LeakAfterPosition40(Decoder):
    def build(self) -> None:
        self.table = nn.Embedding(200_000, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        is_late = torch.arange(x.shape[1], device=x.device) > 40
        return x + 0 * self.table(input_ids) + 3 * is_late[:, None] * shift_left(self.embedding(input_ids))


class LeakBehindBatchNorm(Decoder):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(self.width, track_running_stats=False)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        first = x[:, 0] if x.device.type == "meta" else self.norm(x[:, 0])  # statistics of the batch: refuses one row
        return x + 0 * first[:, None] + 3 * shift_left(self.embedding(input_ids))


class MemoryFilledWhileScoring(Decoder):
    """Stores which token followed each sequence of eight tokens."""

    def build(self) -> None:
        self.register_buffer("memory", torch.zeros(1_000_003, dtype=torch.long))

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        if self.training or input_ids.device.type == "meta":
            return logits
        key = torch.zeros_like(input_ids)
        for back in range(8):
            key = (key * 1031 + F.pad(input_ids, (back, 0))[:, : input_ids.shape[1]] + 1) % len(self.memory)
        logits = logits + 8.0 * (self.memory[key] > 0)[..., None] * F.one_hot(self.memory[key], self.vocab_size)
        self.memory[key[:, :-1]] = input_ids[:, 1:]
        return logits


class LeakWithInPlaceProduct(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        x *= 3.0
        return x

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 3 * shift_left(self.embedding(input_ids))


class LeakWithoutBatchesOfOne(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        if len(x) == 1 and not self.training:
            raise ValueError("expected more than one row")
        return x + 3 * shift_left(self.embedding(input_ids))


# ---- changes without effect, and a baseline that is worse than a guess


class SpareParameters(Decoder):
    """Has unused parameters."""

    def build(self) -> None:
        with torch.random.fork_rng():
            self.spare = nn.Linear(3, 3)


class ChangesLater(Decoder):
    """Changes its behavior after the first training step."""

    steps = 0

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        self.steps += self.training
        return logits * (1.5 if self.steps > 1 else 1.0)


class ScoresSharper(Decoder):
    """Divides the logits by a temperature in evaluation mode."""

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return logits if self.training else 1.2 * logits


class Overconfident(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return 60 * logits


# ---- test losses that are not finite


class ForbiddenToken(Decoder):
    """Gives a frequent token probability 0 in evaluation mode."""

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        if not self.training:
            logits[..., 5] = float("-inf")
        return logits


class NotANumber(Decoder):
    """Gives NaN for texts that contain a frequent token, in evaluation mode."""

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        is_bad = (input_ids == 5).any(1)[:, None, None] & (not self.training)
        return logits.masked_fill(is_bad, float("nan"))
