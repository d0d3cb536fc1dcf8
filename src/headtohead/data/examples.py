"""Held-out text as fixed examples: the same for every variant, each scored on its own.

A stream is cut into blocks of the context, end to end; every token but the first is predicted exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.data.batches import IGNORED, Batch, Encoded, Rows, Stream, shifted
from headtohead.data.splits import Task
from headtohead.data.tokenizers import Tokens
from headtohead.errors import CorpusError


@dataclass(frozen=True)
class Examples:
    """Evaluation examples in a fixed order."""

    encoded: Encoded
    task: Task
    context: int
    pad_id: int
    tokens: Int64[Tensor, "examples"]
    """how many predictions each example counts: tokens of a language model, one class of a classifier"""
    stride: int = 1
    """of the batches, every so many is given; 1: all of them"""

    def sample(self, limit: int) -> Examples:
        """About so many of the examples, whole batches spread evenly."""
        return replace(self, stride=max(1, self.count // limit))

    @property
    def count(self) -> int:
        return self.tokens.numel()

    @property
    def cut(self) -> int:
        """How many rows lose their end to the context; a stream loses nothing."""
        return self.encoded.cut(self.context) if isinstance(self.encoded, Rows) else 0

    def batches(self, size: int) -> Iterator[Batch]:
        """All examples, so many at a time. A short last block of a stream comes alone, the only one padded.

        They come in their order, but for rows that are padded to the longest of their batch: those come by length, the
        longest first, since half of what is computed would otherwise be padding."""
        return self._blocks(self.encoded, size) if isinstance(self.encoded, Stream) else self._rows(self.encoded, size)

    def _blocks(self, stream: Stream, size: int) -> Iterator[Batch]:
        full = (len(stream) - 1) // self.context
        if full:
            windows = stream.tokens.unfold(0, self.context + 1, self.context)
            for start in range(0, full, size * self.stride):
                yield Batch(*shifted(windows[start : start + size].long(), None))
        left = stream.tokens[full * self.context :].long()
        if left.numel() > 1 and -(-full // size) % self.stride == 0:
            inputs = torch.full((1, self.context), self.pad_id)
            labels = torch.full((1, self.context), IGNORED)
            inputs[0, : left.numel() - 1], labels[0, : left.numel() - 1] = left[:-1], left[1:]
            yield Batch(inputs, labels, torch.arange(self.context)[None] < left.numel() - 1)

    def _places(self, size: int) -> Iterator[Int64[Tensor, "batch"]]:
        """Which rows each batch has."""
        assert isinstance(self.encoded, Rows)
        by_length = self.encoded.to_longest
        order = self.encoded.lengths.argsort(descending=True, stable=True) if by_length else torch.arange(self.count)
        for start in range(0, self.count, size * self.stride):
            yield order[start : start + size]

    def _rows(self, rows: Rows, size: int) -> Iterator[Batch]:
        context = self.context + (self.task == "language-model")
        for at in self._places(size):
            block, real = rows.padded(at, rows.width(at, context), self.pad_id)
            if self.task == "language-model":
                yield replace(Batch(*shifted(block, real)), at=at)
            else:
                assert rows.labels is not None
                yield Batch(block, rows.labels[at], real, at)


def examples(encoded: Encoded, task: Task, context: int, tokenizer: Tokens) -> Examples:
    """The split as evaluation examples for a model of this context."""
    if isinstance(encoded, Rows):
        limited = (encoded.lengths - 1).clamp(max=context)
        tokens = torch.ones_like(limited) if task == "classify" else limited
    else:
        predicted = len(encoded) - 1
        if predicted < 1:
            raise CorpusError(f"{encoded.name}: the text has {len(encoded)} tokens, and a score needs at least 2")
        tokens = torch.full((-(-predicted // context),), context)
        tokens[-1] = predicted - context * (len(tokens) - 1)
    return Examples(encoded, task, context, tokenizer.pad_id or 0, tokens)
