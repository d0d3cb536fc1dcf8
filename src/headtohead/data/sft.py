"""Rows whose prompts are excluded from the loss, for supervised fine-tuning (SFT) and distillation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import TokenRows, compute_row_offsets, flatten_token_ids
from headtohead.data.evaluation_examples import EvaluationExamples


@dataclass(frozen=True)
class PromptedRows(TokenRows):
    """Rows that start with a prompt. Prompt tokens are inputs but are not predicted."""

    prompt_lengths: Int64[Tensor, "rows"] | None = None
    """number of prompt tokens per row; None if only the first token is a prompt"""

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """The prompt lengths of SFT rows, by which they are sorted so that rows of similar length share a batch.

        Completions may differ between students, but all students must see the same documents in a batch, so the lengths
        of completions have no influence.
        """
        return self.row_lengths if self.prompt_lengths is None else self.prompt_lengths

    def to_lists(self) -> list[list[int]]:
        """Return the token ids of each row."""
        return [row.tolist() for row in self.token_ids.tensor_split(self.row_offsets[1:-1])]

    def exclude_prompts_from_loss(self, batch: Batch, row_indices: Int64[Tensor, "batch"]) -> Batch:
        """Return a batch of the rows `row_indices` in which labels of prompt tokens are `IGNORE_INDEX`, as in SFT."""
        if self.prompt_lengths is None:
            return batch
        columns = torch.arange(batch.labels.shape[1])
        is_prompt = columns < self.prompt_lengths[row_indices][:, None] - 1
        return replace(batch, labels=batch.labels.masked_fill(is_prompt, IGNORE_INDEX))


def build_prompted_rows(
    name: str,
    ids_by_row: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int] | None = None,
    *,
    num_truncated_rows: int = 0,
) -> PromptedRows:
    """Build `PromptedRows`, the rows of SFT, from the token ids of each row.

    Args:
        name: Name of the split.
        ids_by_row: Token ids of each row, prompt included.
        prompt_lengths: Number of prompt tokens of each row.
        num_truncated_rows: Number of rows whose prompt has been truncated.
    """
    return PromptedRows(
        name,
        flatten_token_ids(ids_by_row),
        compute_row_offsets(ids_by_row),
        pad_to_longest=prompt_lengths is not None,
        num_pretruncated=num_truncated_rows,
        prompt_lengths=None if prompt_lengths is None else torch.tensor(list(prompt_lengths), dtype=torch.int64),
    )


class PromptedBatchSchedule(BatchSchedule):
    """Training batches of prompted rows."""

    def get_batch(self, step: int) -> Batch:
        """Return the batch of a step, with prompts excluded from the loss."""
        batch = super().get_batch(step)
        assert isinstance(self.encoded, PromptedRows)
        return self.encoded.exclude_prompts_from_loss(batch, self.get_example_indices(step))


@dataclass(frozen=True)
class PromptedEvaluationExamples(EvaluationExamples):
    """Held-out prompted rows, scored only on the tokens after the prompt."""

    @cached_property
    def prediction_counts(self) -> Int64[Tensor, "examples"]:
        """The number of predicted tokens per SFT example, without its prompt."""
        rows = self.encoded
        assert isinstance(rows, PromptedRows)
        num_labels = (rows.row_lengths - 1).clamp(max=self.context)
        num_prompt_labels = torch.zeros_like(num_labels) if rows.prompt_lengths is None else rows.prompt_lengths - 1
        return (num_labels - num_prompt_labels).clamp_min(0)

    def _iter_row_batches(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        """Yield batches of padded SFT rows, with prompts excluded from the loss."""
        assert isinstance(rows, PromptedRows)
        for batch in super()._iter_row_batches(rows, batch_size):
            assert batch.example_indices is not None
            yield rows.exclude_prompts_from_loss(batch, batch.example_indices)


def build_prompted_examples(rows: PromptedRows, context: int, pad_id: int) -> PromptedEvaluationExamples:
    """Build the evaluation examples for prompted rows; only completions are scored."""
    return PromptedEvaluationExamples(rows, Target.NEXT_TOKEN, context, pad_id)
