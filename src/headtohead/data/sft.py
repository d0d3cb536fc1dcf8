"""Rows of which only the end is to be said: a prompt, then what is learned. And text cut into rows that stay the same.

A teacher's work is done once for each row, so a text that is taught is cut at fixed places: batches draw from these
rows, and not from anywhere in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule, EncodedSplit, TokenRows, TokenStream
from headtohead.data.examples import EvaluationExamples


@dataclass(frozen=True)
class PromptedRows(TokenRows):
    """Rows with a prompt at their beginning, whose tokens are read and not predicted."""

    prompt_lengths: Int64[Tensor, "rows"] | None = None
    """tokens of the prompt of each row; None: the first token only"""

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """By their prompts: what is learned differs from student to student, and all must see the same documents."""
        return self.lengths if self.prompt_lengths is None else self.prompt_lengths

    def to_lists(self) -> list[list[int]]:
        """Return the token ids of each row."""
        return [part.tolist() for part in self.tokens.tensor_split(self.offsets[1:-1])]

    def masked(self, batch: Batch, row_indices: Int64[Tensor, "batch"]) -> Batch:
        """The batch of these rows, with the prompts outside the loss."""
        if self.prompt_lengths is None:
            return batch
        column = torch.arange(batch.labels.shape[1])
        prompt = column < self.prompt_lengths[row_indices][:, None] - 1
        return replace(batch, labels=batch.labels.masked_fill(prompt, IGNORE_INDEX))


def build_prompted_rows(
    name: str, rows: Sequence[Sequence[int]], prompt_lengths: Sequence[int] | None = None, *, num_truncated: int = 0
) -> PromptedRows:
    """Rows of tokens, end to end; `cut` of them have lost the end of their prompt."""
    tokens = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    where = None if prompt_lengths is None else torch.tensor(list(prompt_lengths), dtype=torch.int64)
    return PromptedRows(
        name,
        tokens,
        offsets,
        pad_to_longest=prompt_lengths is not None,
        num_pretruncated=num_truncated,
        prompt_lengths=where,
    )


def split_into_fixed_rows(encoded: EncodedSplit, context: int, max_rows: int | None = None) -> list[list[int]]:
    """A split as rows that stay the same: of a stream, blocks of the context end to end, each token but the first
    predicted once. Of more than `limit`, so many spread evenly."""
    if isinstance(encoded, TokenStream):
        windows = encoded.tokens.unfold(0, context + 1, context)
        found = [windows[i].tolist() for i in select_evenly_spaced(len(windows), max_rows)]
    else:
        starts = encoded.offsets.tolist()
        found = [
            encoded.tokens[starts[i] : min(starts[i + 1], starts[i] + context + 1)].tolist()
            for i in select_evenly_spaced(len(encoded), max_rows)
        ]
    return found


def select_evenly_spaced(count: int, limit: int | None) -> list[int]:
    """So many of the places from 0 to count, evenly; all of them where there are no more."""
    if limit is None or limit >= count:
        return list(range(count))
    return [at * count // limit for at in range(limit)]


class PromptedBatchSchedule(BatchSchedule):
    """Batches of rows with prompts."""

    def batch(self, step: int) -> Batch:
        plain = super().batch(step)
        assert isinstance(self.encoded, PromptedRows)
        return self.encoded.masked(plain, self.indices(step))


@dataclass(frozen=True)
class PromptedEvaluationExamples(EvaluationExamples):
    """Held-out rows with prompts: only what follows a prompt is scored."""

    def _rows(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        assert isinstance(rows, PromptedRows)
        for batch in super()._rows(rows, batch_size):
            assert batch.at is not None
            yield rows.masked(batch, batch.at)


def build_prompted_examples(rows: PromptedRows, context: int, pad_id: int) -> PromptedEvaluationExamples:
    """The rows as evaluation examples of a language model."""
    last = (rows.lengths - 1).clamp(max=context)
    first = torch.zeros_like(last) if rows.prompt_lengths is None else rows.prompt_lengths - 1
    return PromptedEvaluationExamples(rows, Target.NEXT_TOKEN, context, pad_id, (last - first).clamp_min(0))
