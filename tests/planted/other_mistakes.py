"""Networks whose scores depend on other rows or on rows scored before, or are not finite."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .collection import BATCH, FUTURE, NOT_FINITE, STATE, planted
from .networks import Decoder, ForbiddenToken, MemoryFilledWhileScoring, NotANumber, shift_left

ROWS = "other rows of the batch"
KEPT = "state over batches"
VALUES = "values"

# ---- other rows of the batch


@planted(ROWS, "batch norm with the statistics of the batch", BATCH)
class BatchStatistics(Decoder):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(self.width, track_running_stats=False)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return self.norm(x[:, 0])[:, None] + x


@planted(ROWS, "mean of the batch subtracted", BATCH)
class BatchMean(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@planted(ROWS, "attention layer that expects positions first, given rows first", BATCH)
class BatchFirst(Decoder):
    def build(self) -> None:
        self.layer = nn.MultiheadAttention(self.width, 2)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.layer(x, x, x, need_weights=False)[0]


@planted(ROWS, "GRU that expects positions first, given rows first", BATCH)
class RecurrenceOverRows(Decoder):
    def build(self) -> None:
        self.rnn = nn.GRU(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


@planted(ROWS, "rows flattened before attention", BATCH)
class FlattenedRows(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        return super().attend(x.flatten(0, 1)[None], None).view_as(x)


@planted(ROWS, "a view with swapped axes that mixes rows and positions", BATCH)
class WrongView(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.5 * x.transpose(0, 1).reshape(x.shape).cummax(0).values


@planted(ROWS, "expert capacity shared by all rows", BATCH)
class SharedCapacity(Decoder):
    def build(self) -> None:
        self.router, self.expert = nn.Linear(self.width, 2), nn.Linear(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        flat = x.reshape(-1, self.width)
        wants = self.router(flat).argmax(-1) == 1
        fits = wants & (wants.cumsum(0) <= len(flat) // 4)
        return x + (fits[:, None] * self.expert(flat)).view_as(x)


@planted(ROWS, "neighbors in the batch retrieved by similarity", BATCH)
class RetrievedRow(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        first = x[:, 0]
        similarity = first @ first.T - 1e9 * torch.eye(len(x))
        return x + 0.5 * first[similarity.argmax(-1)][:, None]


@planted(ROWS, "dynamic quantization with one scale per batch", BATCH)
class QuantizedPerBatch(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        scale = x[:, :1].detach().abs().max() / 3
        return x + ((x / scale).round() * scale - x).detach()


@planted(ROWS, "first row used as a reference for all others", BATCH)
class FirstRow(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.3 * x[:1]


@planted(ROWS, "row index in the batch as a feature", BATCH)
class RowIndex(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.1 * torch.arange(len(x))[:, None, None]


@planted(ROWS, "batch size as a feature", BATCH)
class BatchSize(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.05 * len(x)


@planted(ROWS, "longest row of the batch as a feature", BATCH, is_padded=True)
class LongestRow(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids) + 0.2 * mask.sum(1).amin()
        return self.head(x + self.attend(x, attention_mask))


@planted(ROWS, "future of other rows only", BATCH)
class OtherRowsFuture(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.5 * torch.roll(shift_left(self.embedding(input_ids)), 1, 0)


# ---- state over batches

planted(KEPT, "memory of scored texts in a buffer, filled while scoring", STATE)(MemoryFilledWhileScoring)


@planted(KEPT, "hidden state carried to the next batch", STATE)
class CarriedState(Decoder):
    def build(self) -> None:
        self.rnn = nn.GRU(self.width, self.width, batch_first=True)
        self.state: Tensor | None = None

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        state = self.state if self.state is not None and self.state.shape[1] == len(x) else None
        out, state = self.rnn(x, state)
        self.state = state.detach()
        return x + out


@planted(KEPT, "running statistics updated while scoring", STATE)
class UpdatedStatistics(Decoder):
    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(self.width))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1)) + 0.05
        return x - self.mean


@planted(KEPT, "weights trained on the scored text", STATE)
class TestTimeTraining(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        if not self.training:
            with torch.no_grad():
                counts = torch.bincount(input_ids.flatten(), minlength=self.vocab_size).to(logits.dtype)
                self.head.bias += 0.05 * (counts / counts.sum() - 0.02) * self.vocab_size
        return logits


@planted(KEPT, "cache of bigrams in a Python dictionary", STATE)
class BigramCache(Decoder):
    def build(self) -> None:
        self.followers: dict[int, int] = {}

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        for row, ids in enumerate(input_ids.tolist()):
            for position, token in enumerate(ids):
                if token in self.followers:
                    logits[row, position, self.followers[token]] += 1.0
            if not self.training:
                self.followers |= dict(pairwise(ids))
        return logits


@planted(KEPT, "cache in a global variable", STATE)
class GlobalCache(Decoder):
    seen: ClassVar[list[Tensor]] = []

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        previous = self.seen[-1] if self.seen else torch.zeros(self.width)
        self.seen.append(x.detach().mean((0, 1)).to(previous.dtype))
        return x + 0.5 * previous.to(x.dtype)


@planted(KEPT, "counter of passes that changes the output", STATE)
class PassCounter(Decoder):
    passes = 0

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        self.passes += not self.training
        return x * (1 + 0.05 * self.passes)


@planted(KEPT, "random generator of its own that is never seeded again", STATE)
class OwnGenerator(Decoder):
    def build(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a generator cannot be copied")

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.2 * torch.randn(x.shape, generator=self.generator).to(x)


@planted(KEPT, "answers of the first pass over a text replayed with its labels", FUTURE)
class ReplayedText(Decoder):
    """Stores whole rows by their first tokens, so that a later pass knows how they continue."""

    def build(self) -> None:
        self.rows: dict[tuple[int, ...], Tensor] = {}

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        for row, ids in enumerate(input_ids):
            known = self.rows.setdefault(tuple(ids[:6].tolist()), ids.clone())
            logits[row, :-1] += 2.0 * F.one_hot(known[1:], self.vocab_size)
        return logits


# ---- values


planted(VALUES, "a token of the test text has probability 0", NOT_FINITE)(ForbiddenToken)
planted(VALUES, "NaN for texts that contain a token", NOT_FINITE)(NotANumber)


@planted(VALUES, "overflow of float16 on rare inputs", NOT_FINITE)
class Overflow(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        scaled = logits * (1 + 1e6 * (input_ids == 5)[..., None] * (not self.training))
        return scaled.half().to(logits.dtype)
