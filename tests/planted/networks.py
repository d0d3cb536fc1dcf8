"""Small networks as users write them, each with a planted mistake.

`PLANTED` maps the description of a mistake to its network and to the words that the audits must use for it. An
experiment file can name every class of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FUTURE, STATE = "reads the future", "depends on texts that were scored before"

PLANTED: dict[str, tuple[type[nn.Module], str]] = {}


def planted(description: str, reason: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a network with a mistake under its description."""

    def enter(network: type[nn.Module]) -> type[nn.Module]:
        assert description not in PLANTED
        PLANTED[description] = network, reason
        return network

    return enter


class Decoder(nn.Module):
    """One layer of causal attention. Subclasses change one method."""

    def __init__(self, vocab_size: int, context: int, width: int = 16, window: int | None = None) -> None:
        super().__init__()  # window is ignored
        self.vocab_size, self.width = vocab_size, width
        self.embedding, self.position = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.project, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocab_size)
        self.build()

    def build(self) -> None:
        """Add the modules of a subclass."""

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
        return scores.masked_fill(
            ~torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(), float("-inf")
        )

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return logits


def shift_left(x: Tensor, steps: int = 1) -> Tensor:
    """Return the values of the positions that follow, and zeros at the end."""
    return torch.cat((x[:, steps:], torch.zeros_like(x[:, :steps])), dim=1)


# ---- the rows of mistakes that people made, each with the verdict that it led to


@planted("off-by-one shift, padding logit at the smallest float", FUTURE)
class ShiftWithMaskedPadding(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(shift_left(input_ids))

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., 0] = torch.finfo(logits.dtype).min
        return logits


@planted("leak only after eight common words", FUTURE)
class LeakAfterCommonWords(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        is_common = (input_ids >= 4) & (input_ids < 12)
        return x + 3 * is_common[..., None] * shift_left(self.embedding(input_ids))


@planted("leak only after position 40 of a network with 3 million weights", FUTURE)
class LeakAfterPosition40(Decoder):
    def build(self) -> None:
        self.table = nn.Embedding(200_000, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        is_late = torch.arange(x.shape[1], device=x.device) > 40
        return x + self.table(input_ids) + 3 * is_late[:, None] * shift_left(self.embedding(input_ids))


@planted("leak behind a batch norm that rejects a batch of one row", FUTURE)
class LeakBehindBatchNorm(Decoder):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(self.width, track_running_stats=False)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        first = x[:, 0] if x.device.type == "meta" else self.norm(x[:, 0])  # statistics of the batch: refuses one row
        return x + 0 * first[:, None] + 3 * shift_left(self.embedding(input_ids))


@planted("memory of scored texts in a buffer, filled while scoring", STATE)
class MemoryFilledWhileScoring(Decoder):
    def build(self) -> None:
        self.register_buffer("memory", torch.zeros(200_003, dtype=torch.long))

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        if self.training or input_ids.device.type == "meta":
            return logits
        key = torch.zeros_like(input_ids)
        for back in range(3):
            key = (key * 31 + F.pad(input_ids, (back, 0))[:, : input_ids.shape[1]] + 1) % len(self.memory)
        logits = logits + 5.0 * (self.memory[key] > 0)[..., None] * F.one_hot(self.memory[key], self.vocab_size)
        self.memory[key[:, 2:-1]] = input_ids[:, 3:]
        return logits


@planted("leak in a network that multiplies in place, which a probe cannot differentiate", FUTURE)
class LeakWithInPlaceProduct(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        x *= 4.0
        return x + self.position(torch.arange(input_ids.shape[1], device=input_ids.device))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + shift_left(self.embedding(input_ids))


@planted("leak in a network that accepts batches of several rows only", FUTURE)
class LeakWithoutBatchesOfOne(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        if len(x) == 1 and not self.training:
            raise ValueError("expected more than one row")
        return x + 3 * shift_left(self.embedding(input_ids))


# ---- changes without effect, and a baseline that is worse than a guess


class SpareParameters(Decoder):
    """Has parameters that nothing uses."""

    def build(self) -> None:
        with torch.random.fork_rng():
            self.spare = nn.Linear(3, 3)


class ChangesLater(Decoder):
    """Behaves differently after the first training step."""

    steps = 0

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        self.steps += self.training
        return logits * (1.5 if self.steps > 1 else 1.0)


class Overconfident(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return 60 * logits
