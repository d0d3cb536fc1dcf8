"""Training rows whose prompts are excluded from the loss, as in supervised fine-tuning and distillation.

Text used for distillation is split into fixed rows, so that teacher outputs can be cached per row and reused across
trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream, compute_offsets, flatten_token_ids
from headtohead.data.examples import EvaluationExamples
from headtohead.data.splits import select_evenly_spaced


@dataclass(frozen=True)
class PromptedRows(TokenRows):
    """Rows that start with a prompt, whose tokens are inputs but are not predicted."""

    prompt_lengths: Int64[Tensor, "rows"] | None = None
    """prompt tokens per row; None if only the first token is a prompt"""

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """The prompt lengths.

        Completions may differ between students, but the grouping must not, so that all students see the same documents.
        """
        return self.lengths if self.prompt_lengths is None else self.prompt_lengths

    def to_lists(self) -> list[list[int]]:
        """Return the token ids of each row."""
        return [row.tolist() for row in self.tokens.tensor_split(self.offsets[1:-1])]

    def masked(self, batch: Batch, row_indices: Int64[Tensor, "batch"]) -> Batch:
        """Return a batch of these rows with the prompt labels excluded from the loss."""
        if self.prompt_lengths is None:
            return batch
        columns = torch.arange(batch.labels.shape[1])
        is_prompt = columns < self.prompt_lengths[row_indices][:, None] - 1
        return replace(batch, labels=batch.labels.masked_fill(is_prompt, IGNORE_INDEX))


def build_prompted_rows(
    name: str, rows: Sequence[Sequence[int]], prompt_lengths: Sequence[int] | None = None, *, num_truncated: int = 0
) -> PromptedRows:
    """Build `PromptedRows` from the token ids of each row.

    `num_truncated` is the number of rows whose prompt has been truncated.
    """
    return PromptedRows(
        name,
        flatten_token_ids(rows),
        compute_offsets(rows),
        pad_to_longest=prompt_lengths is not None,
        num_pretruncated=num_truncated,
        prompt_lengths=None if prompt_lengths is None else torch.tensor(list(prompt_lengths), dtype=torch.int64),
    )


def split_into_fixed_rows(encoded: EncodedSplit, context: int, max_rows: int | None = None) -> list[list[int]]:
    """Split an encoded split into rows of at most `context` + 1 tokens, identical in every trial.

    A stream becomes consecutive blocks in which every token but the first is predicted once. At most `max_rows` rows
    are returned, evenly spaced.
    """
    if isinstance(encoded, TokenStream):
        windows = encoded.tokens.unfold(0, context + 1, context)
        rows = [windows[i].tolist() for i in select_evenly_spaced(len(windows), max_rows)]
    else:
        starts = encoded.offsets.tolist()
        rows = [
            encoded.tokens[starts[i] : min(starts[i + 1], starts[i] + context + 1)].tolist()
            for i in select_evenly_spaced(len(encoded), max_rows)
        ]
    return rows


class PromptedBatchSchedule(BatchSchedule):
    """Training batches of prompted rows."""

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        assert isinstance(self.encoded, PromptedRows)
        return self.encoded.masked(batch, self.indices(step))


@dataclass(frozen=True)
class PromptedEvaluationExamples(EvaluationExamples):
    """Held-out prompted rows, scored only on the tokens after the prompt."""

    def _rows(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        assert isinstance(rows, PromptedRows)
        for batch in super()._rows(rows, batch_size):
            assert batch.example_indices is not None
            yield rows.masked(batch, batch.example_indices)


def build_prompted_examples(rows: PromptedRows, context: int, pad_id: int) -> PromptedEvaluationExamples:
    """Build the evaluation examples for prompted rows; only completions are scored."""
    num_predictable = (rows.lengths - 1).clamp(max=context)
    num_prompt = torch.zeros_like(num_predictable) if rows.prompt_lengths is None else rows.prompt_lengths - 1
    return PromptedEvaluationExamples(
        rows, Target.NEXT_TOKEN, context, pad_id, (num_predictable - num_prompt).clamp_min(0)
    )
