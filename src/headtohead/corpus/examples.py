"""Held-out text as fixed examples: the same for every variant, each scored on its own.

A stream is cut into blocks of the context, end to end; every token but the first is predicted exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.errors import CorpusError

from .batches import IGNORED, Batch, Encoded, Rows, Stream, shifted
from .splits import Task
from .tokenizers import Tokens


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
        """All examples in order, so many at a time. A short last block of a stream comes alone, the only one padded."""
        every = self._blocks(self.encoded, size) if isinstance(self.encoded, Stream) else self._rows(self.encoded, size)
        yield from islice(every, 0, None, self.stride)

    def _blocks(self, stream: Stream, size: int) -> Iterator[Batch]:
        full = (len(stream) - 1) // self.context
        if full:
            windows = stream.tokens.unfold(0, self.context + 1, self.context)
            for start in range(0, full, size):
                yield Batch(*shifted(windows[start : start + size], None))
        left = stream.tokens[full * self.context :]
        if left.numel() > 1:
            inputs = torch.full((1, self.context), self.pad_id)
            labels = torch.full((1, self.context), IGNORED)
            inputs[0, : left.numel() - 1], labels[0, : left.numel() - 1] = left[:-1], left[1:]
            yield Batch(inputs, labels, torch.arange(self.context)[None] < left.numel() - 1)

    def _rows(self, rows: Rows, size: int) -> Iterator[Batch]:
        context = self.context + (self.task == "language-model")
        for at in torch.arange(len(rows)).split(size):
            block, real = rows.padded(at, rows.width(at, context), self.pad_id)
            if self.task == "language-model":
                yield Batch(*shifted(block, real))
            else:
                assert rows.labels is not None
                yield Batch(block, rows.labels[at], real)


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
