"""Fixed evaluation examples from held-out text, identical for every variant and scored individually.

A stream is split into consecutive blocks of the context length, so every token except the first is predicted exactly
once. A block may contain the end of one document and the start of the next. The model processes it as a single input,
but each segment (the labels of one document within one block) is scored separately, so that every score belongs to one
document. The segment losses add up to the loss over whole blocks. The first row of a stream is a separate segment
because its first token is not predicted; only the text after that row is predicted in full with every tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, split_inputs_and_labels
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.errors import DataError


@dataclass(frozen=True)
class EvaluationExamples:
    """Evaluation examples in a fixed order."""

    encoded: EncodedSplit
    target: Target
    context: int
    pad_id: int
    stride: int = 1
    """score every n-th batch; 1 scores all of them"""
    has_segments: bool = True
    """whether a stream's blocks are scored in segments, so that every score belongs to one document"""

    def sample(self, max_examples: int) -> EvaluationExamples:
        """Return a sample of about `max_examples` examples: evenly spaced whole batches with one score per block."""
        return replace(self, stride=max(1, self.num_examples // max_examples), has_segments=False)

    @property
    def passes_per_example(self) -> float:
        """The number of forward passes required to score an example."""
        return 1.0

    @property
    def num_passes(self) -> float:
        """The approximate number of forward passes, counted per row, required to score all sampled examples."""
        return self.num_examples / self.stride * self.passes_per_example

    def limit_passes(self, max_passes: float) -> EvaluationExamples:
        """Return these examples, or a sample of at least one batch if scoring all of them takes more than `max_passes`
        forward passes.
        """
        if self.num_passes <= max_passes:
            return self
        return replace(
            self, stride=math.ceil(self.num_examples * self.passes_per_example / max_passes), has_segments=False
        )

    @cached_property
    def segment_starts(self) -> Int64[Tensor, "segments"] | None:
        """The index of the first label of each segment in a stream; None if examples are scored as a whole.

        Label i is token i + 1.
        """
        stream = self.encoded
        if not isinstance(stream, TokenStream) or stream.row_offsets is None or not self.has_segments:
            return None
        document_starts = stream.row_offsets[1:-1]
        if stream.row_documents is not None:
            document_starts = document_starts[stream.row_documents.diff() != 0]
        block_starts = torch.arange(0, len(stream) - 1, self.context)
        first_row_end = stream.row_offsets[1:2]
        label_indices = torch.cat((block_starts, document_starts - 1, first_row_end - 1))
        label_indices = label_indices[(label_indices >= 0) & (label_indices < len(stream) - 1)]
        segment_starts: Int64[Tensor, "segments"] = torch.unique(label_indices)
        return segment_starts

    def find_document_indices(self) -> Int64[Tensor, "scores"]:
        """Return the document index of each score."""
        if isinstance(self.encoded, TokenRows):
            row_documents = self.encoded.row_documents
            return torch.arange(self.num_examples) if row_documents is None else row_documents
        starts = self.segment_starts
        first_labels = torch.arange(self.num_examples) * self.context if starts is None else starts
        return self.encoded.find_document_indices(first_labels + 1)

    def sum_scores_by_example(self, scores: Tensor) -> Tensor:
        """Return one score per example, the sum over its segments."""
        if self.segment_starts is None:
            return scores
        return scores.new_zeros(self.num_examples).index_add(0, self.segment_starts // self.context, scores)

    @property
    def num_examples(self) -> int:
        """The number of examples before sampling: rows, or blocks of a stream."""
        return len(self.encoded) if isinstance(self.encoded, TokenRows) else -(-(len(self.encoded) - 1) // self.context)

    @cached_property
    def prediction_counts(self) -> Int64[Tensor, "examples"]:
        """The number of predictions per example: its tokens for a language model, 1 for a classifier."""
        if isinstance(self.encoded, TokenRows):
            num_predictions = (self.encoded.row_lengths - 1).clamp(max=self.context)
            return torch.ones_like(num_predictions) if self.target.is_class_label else num_predictions
        num_predictions = torch.full((self.num_examples,), self.context)
        num_predictions[-1] = len(self.encoded) - 1 - self.context * (self.num_examples - 1)
        return num_predictions

    @property
    def num_truncated_rows(self) -> int:
        """The number of rows truncated to the context length; 0 for a stream."""
        return self.encoded.count_truncated_rows(self.context) if isinstance(self.encoded, TokenRows) else 0

    def iter_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield the sampled examples in batches of `batch_size`.

        The incomplete last block of a stream forms a separate batch, the only one with padding. Examples are in order,
        except for rows that are padded to the longest row of their batch: these are sorted by decreasing length, which
        avoids spending half of the computation on padding.
        """
        return (
            self._iter_block_batches(self.encoded, batch_size)
            if isinstance(self.encoded, TokenStream)
            else self._iter_row_batches(self.encoded, batch_size)
        )

    def _iter_block_batches(self, stream: TokenStream, batch_size: int) -> Iterator[Batch]:
        """Yield batches of consecutive blocks from a stream."""
        num_complete = (len(stream) - 1) // self.context
        if num_complete:
            windows = stream.token_ids.unfold(0, self.context + 1, self.context)
            for start in range(0, num_complete, batch_size * self.stride):
                blocks = windows[start : start + batch_size].long()
                indices = torch.arange(start, start + len(blocks))
                segment_ids = self._find_segment_ids(start, len(blocks))
                yield Batch(*split_inputs_and_labels(blocks, None), example_indices=indices, segment_ids=segment_ids)
        remainder = stream.token_ids[num_complete * self.context :].long()
        num_labels = remainder.numel() - 1
        if num_labels > 0 and -(-num_complete // batch_size) % self.stride == 0:
            input_ids = torch.full((1, self.context), self.pad_id)
            labels = torch.full((1, self.context), IGNORE_INDEX)
            input_ids[0, :num_labels], labels[0, :num_labels] = remainder[:-1], remainder[1:]
            attention_mask = torch.arange(self.context)[None] < num_labels
            segment_ids = self._find_segment_ids(num_complete, num_blocks=1)
            yield Batch(input_ids, labels, attention_mask, torch.tensor([num_complete]), segment_ids)

    def _find_segment_ids(self, first_block: int, num_blocks: int) -> Int64[Tensor, "blocks context"] | None:
        """Return the first label of the segment to which each label in consecutive blocks belongs."""
        if self.segment_starts is None:
            return None
        label_indices = torch.arange(first_block * self.context, (first_block + num_blocks) * self.context)
        segment_numbers = torch.searchsorted(self.segment_starts, label_indices, right=True) - 1
        return self.segment_starts[segment_numbers].view(num_blocks, self.context)

    def find_score_positions(self, row_indices: Int64[Tensor, "wanted"], batch_size: int) -> Int64[Tensor, "found"]:
        """Return the positions of `row_indices` in the score arrays of the sampled rows."""
        sampled_rows = torch.cat(list(self._iter_row_indices(batch_size))).sort().values
        return torch.nonzero(torch.isin(sampled_rows, row_indices)).squeeze(1)

    def _iter_row_indices(self, batch_size: int) -> Iterator[Int64[Tensor, "batch"]]:
        """Yield the row indices of each batch of evaluation examples."""
        assert isinstance(self.encoded, TokenRows)
        is_sorted_by_length = self.encoded.pad_to_longest
        row_order = (
            self.encoded.row_lengths.argsort(descending=True, stable=True)
            if is_sorted_by_length
            else torch.arange(self.num_examples)
        )
        for start in range(0, self.num_examples, batch_size * self.stride):
            yield row_order[start : start + batch_size]

    def _iter_row_batches(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        """Yield batches of padded rows."""
        max_width = self.context + self.target.is_causal
        for indices in self._iter_row_indices(batch_size):
            width = rows.compute_batch_width(indices, max_width)
            token_ids, attention_mask = rows.pad_rows(indices, width, self.pad_id)
            if self.target.is_causal:
                yield replace(Batch(*split_inputs_and_labels(token_ids, attention_mask)), example_indices=indices)
            else:
                assert rows.labels is not None
                yield Batch(token_ids, rows.labels[indices], attention_mask, indices)


def build_evaluation_examples(
    encoded: EncodedSplit, target: Target, context: int, tokenizer: TokenizerProtocol
) -> EvaluationExamples:
    """Build a split's evaluation examples for a model with this context length."""
    if isinstance(encoded, TokenStream) and len(encoded) < 2:
        raise DataError(f"{encoded.name}: the text must have at least 2 tokens, got {len(encoded)}")
    return EvaluationExamples(encoded, target, context, tokenizer.pad_id or 0)


def sample_within_pass_limit(
    examples_by_split: Mapping[str, EvaluationExamples], max_passes: float
) -> dict[str, EvaluationExamples]:
    """Sample the evaluation examples of every split such that scoring all splits takes at most `max_passes` forward
    passes, counted per row.

    Every split receives an equal part of the budget; what small splits do not use is distributed among the larger ones.
    """
    limited_examples = dict(examples_by_split)
    names_by_size = sorted(examples_by_split, key=lambda name: examples_by_split[name].num_passes)
    for index, name in enumerate(names_by_size):
        limited_examples[name] = limited_examples[name].limit_passes(max_passes / (len(names_by_size) - index))
        max_passes -= limited_examples[name].num_passes
    return limited_examples
