"""Held-out text as fixed examples: the same for every variant, each scored on its own.

A stream is cut into blocks of the context, end to end; every token but the first is predicted exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, EncodedSplit, TokenRows, TokenStream, split_inputs_and_labels
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import DataError


@dataclass(frozen=True)
class EvaluationExamples:
    """Evaluation examples in a fixed order."""

    encoded: EncodedSplit
    target: Target
    context: int
    pad_id: int
    tokens: Int64[Tensor, "examples"]
    """how many predictions each example counts: tokens of a language model, one class of a classifier"""
    stride: int = 1
    """of the batches, every so many is given; 1: all of them"""

    def sample(self, max_examples: int) -> EvaluationExamples:
        """About so many of the examples, whole batches spread evenly."""
        return replace(self, stride=max(1, self.count // max_examples))

    @property
    def count(self) -> int:
        return self.tokens.numel()

    @property
    def cut(self) -> int:
        """How many rows lose their end to the context; a stream loses nothing."""
        return self.encoded.cut(self.context) if isinstance(self.encoded, TokenRows) else 0

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All examples, so many at a time. A short last block of a stream comes alone, the only one padded.

        They come in their order, but for rows that are padded to the longest of their batch: those come by length, the
        longest first, since half of what is computed would otherwise be padding."""
        return (
            self._blocks(self.encoded, batch_size)
            if isinstance(self.encoded, TokenStream)
            else self._rows(self.encoded, batch_size)
        )

    def _blocks(self, stream: TokenStream, batch_size: int) -> Iterator[Batch]:
        full = (len(stream) - 1) // self.context
        if full:
            windows = stream.tokens.unfold(0, self.context + 1, self.context)
            for start in range(0, full, batch_size * self.stride):
                yield Batch(*split_inputs_and_labels(windows[start : start + batch_size].long(), None))
        left = stream.tokens[full * self.context :].long()
        if left.numel() > 1 and -(-full // batch_size) % self.stride == 0:
            inputs = torch.full((1, self.context), self.pad_id)
            labels = torch.full((1, self.context), IGNORE_INDEX)
            inputs[0, : left.numel() - 1], labels[0, : left.numel() - 1] = left[:-1], left[1:]
            yield Batch(inputs, labels, torch.arange(self.context)[None] < left.numel() - 1)

    def _places(self, batch_size: int) -> Iterator[Int64[Tensor, "batch"]]:
        """Which rows each batch has."""
        assert isinstance(self.encoded, TokenRows)
        by_length = self.encoded.pad_to_longest
        order = self.encoded.lengths.argsort(descending=True, stable=True) if by_length else torch.arange(self.count)
        for start in range(0, self.count, batch_size * self.stride):
            yield order[start : start + batch_size]

    def _rows(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        context = self.context + self.target.is_causal
        for at in self._places(batch_size):
            block, real = rows.pad_rows(at, rows.width(at, context), self.pad_id)
            if self.target.is_causal:
                yield replace(Batch(*split_inputs_and_labels(block, real)), at=at)
            else:
                assert rows.labels is not None
                yield Batch(block, rows.labels[at], real, at)


def build_evaluation_examples(
    encoded: EncodedSplit, target: Target, context: int, tokenizer: TokenizerProtocol
) -> EvaluationExamples:
    """The split as evaluation examples for a model of this context."""
    if isinstance(encoded, TokenRows):
        limited = (encoded.lengths - 1).clamp(max=context)
        tokens = torch.ones_like(limited) if target.is_class else limited
    else:
        predicted = len(encoded) - 1
        if predicted < 1:
            raise DataError(f"{encoded.name}: the text has {len(encoded)} tokens, and a score needs at least 2")
        tokens = torch.full((-(-predicted // context),), context)
        tokens[-1] = predicted - context * (len(tokens) - 1)
    return EvaluationExamples(encoded, target, context, tokenizer.pad_id or 0, tokens)
