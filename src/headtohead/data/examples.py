"""Fixed evaluation examples from held-out text, identical for every variant and scored individually.

A stream is split into consecutive blocks of the context length, so every token but the first is predicted exactly once.
A block may contain the end of one document and the start of the next. The model processes it as one input, so that
documents need not be long, but it is scored in segments: one document's labels within one block. The segment losses add
up to the loss over whole blocks, and every score belongs to one document. A stream's first row is a separate segment
because its first token is not predicted; only the text after that row is predicted in full by every tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, split_inputs_and_labels
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream
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
    """predictions per example: tokens for a language model, 1 for a classifier"""
    stride: int = 1
    """yield every n-th batch; 1 yields all"""
    has_segments: bool = True
    """whether a stream's blocks are scored in segments"""

    def sample(self, max_examples: int) -> EvaluationExamples:
        """Return about `max_examples` examples, as evenly spaced whole batches with one score per block."""
        return replace(self, stride=max(1, self.count // max_examples), has_segments=False)

    @cached_property
    def segment_starts(self) -> Int64[Tensor, "segments"] | None:
        """The first label of each segment in a stream; None if examples are scored as a whole.

        Label i is token i + 1.
        """
        stream = self.encoded
        if not isinstance(stream, TokenStream) or stream.offsets is None or not self.has_segments:
            return None
        row_starts = stream.offsets[1:-1]
        if stream.documents is not None:
            row_starts = row_starts[stream.documents.diff() != 0]
        starts = torch.cat((torch.arange(0, len(stream) - 1, self.context), row_starts - 1, stream.offsets[1:2] - 1))
        starts = starts[(starts >= 0) & (starts < len(stream) - 1)]
        unique: Int64[Tensor, "segments"] = torch.unique(starts)
        return unique

    def find_documents(self) -> Int64[Tensor, "scores"]:
        """Return the document that each score belongs to."""
        if isinstance(self.encoded, TokenRows):
            return torch.arange(self.count) if self.encoded.documents is None else self.encoded.documents
        starts = self.segment_starts
        return self.encoded.find_documents((torch.arange(self.count) * self.context if starts is None else starts) + 1)

    def sum_by_example(self, values: Tensor) -> Tensor:
        """Return each example's total score, given one score per segment."""
        if self.segment_starts is None:
            return values
        return values.new_zeros(self.count).index_add(0, self.segment_starts // self.context, values)

    @property
    def count(self) -> int:
        """The number of examples."""
        return self.tokens.numel()

    @property
    def num_truncated(self) -> int:
        """The number of rows truncated to the context length; 0 for a stream."""
        return self.encoded.count_truncated(self.context) if isinstance(self.encoded, TokenRows) else 0

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield all examples in batches of `batch_size`.

        A stream's incomplete last block forms a separate batch, the only one with padding. Examples are in order,
        except for rows padded to the longest row in their batch: those are sorted by decreasing length, because
        otherwise half of the computation would be spent on padding.
        """
        return (
            self._blocks(self.encoded, batch_size)
            if isinstance(self.encoded, TokenStream)
            else self._rows(self.encoded, batch_size)
        )

    def _blocks(self, stream: TokenStream, batch_size: int) -> Iterator[Batch]:
        """Yield batches of consecutive blocks from a stream."""
        num_full = (len(stream) - 1) // self.context
        if num_full:
            windows = stream.tokens.unfold(0, self.context + 1, self.context)
            for start in range(0, num_full, batch_size * self.stride):
                blocks = windows[start : start + batch_size].long()
                indices = torch.arange(start, start + len(blocks))
                segments = self._find_segments(start, len(blocks))
                yield Batch(*split_inputs_and_labels(blocks, None), example_indices=indices, segments=segments)
        remainder = stream.tokens[num_full * self.context :].long()
        if remainder.numel() > 1 and -(-num_full // batch_size) % self.stride == 0:
            inputs = torch.full((1, self.context), self.pad_id)
            labels = torch.full((1, self.context), IGNORE_INDEX)
            inputs[0, : remainder.numel() - 1], labels[0, : remainder.numel() - 1] = remainder[:-1], remainder[1:]
            attention_mask = torch.arange(self.context)[None] < remainder.numel() - 1
            yield Batch(
                inputs, labels, attention_mask, torch.tensor([num_full]), self._find_segments(num_full, num_blocks=1)
            )

    def _find_segments(self, first_block: int, num_blocks: int) -> Int64[Tensor, "blocks context"] | None:
        """Return the segment that each label in consecutive blocks belongs to."""
        if self.segment_starts is None:
            return None
        labels = torch.arange(first_block * self.context, (first_block + num_blocks) * self.context)
        indices = torch.searchsorted(self.segment_starts, labels, right=True) - 1
        return self.segment_starts[indices].view(num_blocks, self.context)

    def _iter_row_indices(self, batch_size: int) -> Iterator[Int64[Tensor, "batch"]]:
        """Yield the row indices of each batch."""
        assert isinstance(self.encoded, TokenRows)
        by_length = self.encoded.pad_to_longest
        order = self.encoded.lengths.argsort(descending=True, stable=True) if by_length else torch.arange(self.count)
        for start in range(0, self.count, batch_size * self.stride):
            yield order[start : start + batch_size]

    def _rows(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        """Yield batches of rows."""
        max_width = self.context + self.target.is_causal
        for indices in self._iter_row_indices(batch_size):
            token_ids, attention_mask = rows.pad_rows(indices, rows.width(indices, max_width), self.pad_id)
            if self.target.is_causal:
                yield replace(Batch(*split_inputs_and_labels(token_ids, attention_mask)), example_indices=indices)
            else:
                assert rows.labels is not None
                yield Batch(token_ids, rows.labels[indices], attention_mask, indices)


def build_evaluation_examples(
    encoded: EncodedSplit, target: Target, context: int, tokenizer: TokenizerProtocol
) -> EvaluationExamples:
    """Build a split's evaluation examples for a model with this context length."""
    if isinstance(encoded, TokenRows):
        num_predicted = (encoded.lengths - 1).clamp(max=context)
        tokens = torch.ones_like(num_predicted) if target.is_class else num_predicted
    else:
        total_predicted = len(encoded) - 1
        if total_predicted < 1:
            raise DataError(f"{encoded.name}: the text has {len(encoded)} tokens, and a score needs at least 2")
        tokens = torch.full((-(-total_predicted // context),), context)
        tokens[-1] = total_predicted - context * (len(tokens) - 1)
    return EvaluationExamples(encoded, target, context, tokenizer.pad_id or 0, tokens)
