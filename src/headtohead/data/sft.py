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

from headtohead.data.batches import IGNORED, Batch, Encoded, Rows, Schedule, Stream
from headtohead.data.examples import Examples


@dataclass(frozen=True)
class Prompted(Rows):
    """Rows with a prompt at their beginning, whose tokens are read and not predicted."""

    begins: Int64[Tensor, "rows"] | None = None
    """tokens of the prompt of each row; None: the first token only"""

    @property
    def alike_by(self) -> Int64[Tensor, "rows"]:
        """By their prompts: what is learned differs from student to student, and all must see the same documents."""
        return self.lengths if self.begins is None else self.begins

    def masked(self, batch: Batch, at: Int64[Tensor, "batch"]) -> Batch:
        """The batch of these rows, with the prompts outside the loss."""
        if self.begins is None:
            return batch
        column = torch.arange(batch.labels.shape[1])
        prompt = column < self.begins[at][:, None] - 1
        return replace(batch, labels=batch.labels.masked_fill(prompt, IGNORED))


def prompted(
    name: str, rows: Sequence[Sequence[int]], begins: Sequence[int] | None = None, *, cut: int = 0
) -> Prompted:
    """Rows of tokens, end to end; `cut` of them have lost the end of their prompt."""
    tokens = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    where = None if begins is None else torch.tensor(list(begins), dtype=torch.int64)
    return Prompted(name, tokens, offsets, to_longest=begins is not None, cut_before=cut, begins=where)


def fixed_rows(encoded: Encoded, context: int, limit: int | None = None) -> list[list[int]]:
    """A split as rows that stay the same: of a stream, blocks of the context end to end, each token but the first
    predicted once. Of more than `limit`, so many spread evenly."""
    if isinstance(encoded, Stream):
        windows = encoded.tokens.unfold(0, context + 1, context)
        found = [windows[i].tolist() for i in spread(len(windows), limit)]
    else:
        starts = encoded.offsets.tolist()
        found = [
            encoded.tokens[starts[i] : min(starts[i + 1], starts[i] + context + 1)].tolist()
            for i in spread(len(encoded), limit)
        ]
    return found


def spread(count: int, limit: int | None) -> list[int]:
    """So many of the places from 0 to count, evenly; all of them where there are no more."""
    if limit is None or limit >= count:
        return list(range(count))
    return [at * count // limit for at in range(limit)]


class PromptedSchedule(Schedule):
    """Batches of rows with prompts."""

    def batch(self, step: int) -> Batch:
        plain = super().batch(step)
        assert isinstance(self.encoded, Prompted)
        return self.encoded.masked(plain, self.indices(step))


@dataclass(frozen=True)
class PromptedExamples(Examples):
    """Held-out rows with prompts: only what follows a prompt is scored."""

    def _rows(self, rows: Rows, size: int) -> Iterator[Batch]:
        assert isinstance(rows, Prompted)
        for batch in super()._rows(rows, size):
            assert batch.at is not None
            yield rows.masked(batch, batch.at)


def prompted_examples(rows: Prompted, context: int, pad_id: int) -> PromptedExamples:
    """The rows as evaluation examples of a language model."""
    last = (rows.lengths - 1).clamp(max=context)
    first = torch.zeros_like(last) if rows.begins is None else rows.begins - 1
    return PromptedExamples(rows, "language-model", context, pad_id, (last - first).clamp_min(0))
