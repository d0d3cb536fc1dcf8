"""Rescore sampled rows with the live model after changes that must not affect their losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headtohead.audit.tolerance import find_coarsest_precision
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

MAX_LOSS_CHANGE = 1e-3
"""largest permitted change in a scored token's loss, in nats"""
NOISE_MULTIPLE = 100
"""limit for untrained models, as a multiple of their rounding noise"""
PRECISION_MULTIPLE = 8
"""smallest limit between different batches, as a multiple of the coarsest precision of the computation"""
NUM_SAMPLED_ROWS = 64
MAX_MASKED_LABELS = 4
"""scored tokens per row of a masked language model, each of which needs a forward pass"""


@dataclass(frozen=True)
class ScoredRows:
    """Rows of a split that have been scored, padded to equal length: token ids and labels (rows, length)."""

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None

    def __len__(self) -> int:
        return len(self.input_ids)

    def select(self, indices: Sequence[int] | Tensor) -> Batch:
        """Return the rows at `indices` as a batch."""
        index = torch.as_tensor(indices)
        mask = None if self.attention_mask is None else self.attention_mask[index]
        return Batch(self.input_ids[index], self.labels[index], mask)


class ModelRescorer:
    """The live model, a sample of the rows it has scored, and their losses.

    Args:
        model, objective, device: As in the final scoring.
        batches: Scored batches; batches with padding are excluded if others have none.
        target: What the model predicts.
        recorded_losses: Losses of the examples in these batches that the final scoring recorded, if known.
        is_trained: Whether the limit is fixed; otherwise it is a multiple of the model's rounding noise.
        seed: Seed for all random draws.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: TaskObjective,
        batches: Sequence[Batch],
        *,
        target: Target,
        device: torch.device,
        recorded_losses: Tensor | None = None,
        is_trained: bool = True,
        seed: int = 0,
    ) -> None:
        """Stack the rows of the batches to rescore; nothing is scored yet."""
        self.model, self.objective, self.target, self.device = model.eval(), objective, target, device
        self.recorded_losses, self.is_trained, self.seed = recorded_losses, is_trained, seed
        self.generator = torch.Generator().manual_seed(seed)
        unpadded_batches = [batch for batch in batches if batch.attention_mask is None]
        self.batches = [self._limit_labels(batch) for batch in unpadded_batches or batches]
        self.batch_size = max(len(batch.input_ids) for batch in self.batches)
        self.rows = _stack_rows(self.batches)
        self.num_rows = len(self.rows)
        self.content_token_ids = self.rows.input_ids[self._get_content_mask(self.rows.input_ids)].unique()
        self.row_noise = torch.zeros(self.num_rows, dtype=torch.float64)
        """largest change in a token's loss in each row when scored in different batches"""

    def _limit_labels(self, batch: Batch) -> Batch:
        """Remove all but MAX_MASKED_LABELS labels per row of a masked language model, so that rescoring stays cheap."""
        if self.target is not Target.MASKED_TOKEN:
            return batch
        draws = torch.rand(batch.labels.shape, generator=self.generator).masked_fill(batch.labels == IGNORE_INDEX, 2)
        is_selected = draws.argsort(1).argsort(1) < MAX_MASKED_LABELS
        return Batch(
            batch.input_ids,
            batch.labels.masked_fill(~is_selected, IGNORE_INDEX),
            batch.attention_mask,
            batch.example_indices,
        )

    def _get_content_mask(self, input_ids: Tensor) -> Tensor:
        """Return which positions of the sampled rows are not padding, (rows, length)."""
        mask = self.rows.attention_mask
        return torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask

    @torch.no_grad()
    def compute_losses(self, batch: Batch, draw_index: int = 0, model: nn.Module | None = None) -> Tensor:
        """Return the losses of a batch, (rows, positions), or (rows, 1) unless the target is causal.

        `draw_index` selects the RNG state. Uses the audited model unless a different one is given.
        """
        model = model or self.model
        with fork_seeded_rng(self.seed, "scoring audit", draw_index):
            if self.target.is_causal:
                assert isinstance(self.objective, LanguageModelObjective)
                return self.objective.score_tokens(model, batch.to(self.device))[0].double().cpu()
            scores = self.objective.score_batch(model, batch.to(self.device))
            return (scores["losses"] / scores["counts"].clamp_min(1)).double().cpu()[:, None]

    def compute_row_losses(self, rows: Tensor, batch_size: int) -> Tensor:
        """Return the losses of `rows`, scored in batches of `batch_size`, (rows, positions)."""
        return torch.cat([self.compute_losses(self.rows.select(indices)) for indices in rows.split(batch_size)])

    @cached_property
    def reference_losses(self) -> Tensor:
        """Return the losses of the rows, (rows, positions), scored in the same batches as in the final scoring."""
        length = self.rows.input_ids.shape[1] if self.target.is_causal else 1
        batch_losses = [self.compute_losses(batch) for batch in self.batches]
        return torch.cat([torch.nn.functional.pad(losses, (0, length - losses.shape[1])) for losses in batch_losses])

    @property
    def first_batch_losses(self) -> Tensor:
        """Return the losses of the first batch, as scored for `reference`."""
        ids = self.batches[0].input_ids
        return self.reference_losses[: len(ids), : ids.shape[1]]

    @cached_property
    def _losses_from_different_rng_state(self) -> tuple[Tensor, float]:
        """Return the first batch's losses from a different RNG state, and the precision of that pass."""
        losses: list[Tensor] = []
        precision = find_coarsest_precision(lambda: losses.append(self.compute_losses(self.batches[0], 1)))
        return losses[0], precision

    @property
    def is_noisy(self) -> bool:
        """Return whether the model draws random numbers while it scores."""
        return bool(measure_loss_changes(self._losses_from_different_rng_state[0], self.first_batch_losses).max() > 0)

    @property
    def precision(self) -> float:
        """Return the coarsest machine epsilon among the operations of a pass."""
        return self._losses_from_different_rng_state[1]

    @cached_property
    def token_change_limit(self) -> float:
        """Return the largest change in a token's loss, in nats, that is not a violation."""
        if self.is_trained:
            return MAX_LOSS_CHANGE
        rows = torch.arange(self.num_rows)
        losses, reversed_losses = (self.compute_row_losses(order, self.num_rows) for order in (rows, rows.flip(0)))
        rounding_noise = measure_loss_changes(reversed_losses.flip(0), losses).max()
        floor = self.precision * max(1.0, float(self.reference_losses.nan_to_num(0.0, 0.0, 0.0).max()))
        return min(MAX_LOSS_CHANGE, NOISE_MULTIPLE * max(float(rounding_noise), floor))

    @property
    def batch_change_limit(self) -> float:
        """Return the limit for scores from different batches, whose sums are taken in a different order."""
        return max(self.token_change_limit, PRECISION_MULTIPLE * self.precision)

    def count_predictions(self, rows: Tensor | slice) -> int:
        """Return the number of predictions in `rows`: scored tokens for causal targets, otherwise rows."""
        labels = self.rows.labels[rows]
        return int((labels != IGNORE_INDEX).sum()) if self.target.is_causal else len(labels)

    def draw_replacement_tokens(self, original: Tensor) -> Tensor:
        """Return tokens drawn from the sampled rows, different from the original ones if there are at least two."""
        num_tokens = len(self.content_token_ids)
        original_index = torch.searchsorted(self.content_token_ids, original.contiguous()).clamp_max(num_tokens - 1)
        offset = torch.randint(1, max(2, num_tokens), original.shape, generator=self.generator)
        new_tokens: Tensor = self.content_token_ids[(original_index + offset) % num_tokens]
        return new_tokens

    def replace_all_tokens(self, batch: Batch) -> Batch:
        """Return the batch with different tokens everywhere except at padding."""
        ids = self.draw_replacement_tokens(batch.input_ids)
        if batch.attention_mask is not None:
            ids = torch.where(batch.attention_mask, ids, batch.input_ids)
        return Batch(ids, batch.labels, batch.attention_mask)

    def draw_cut_positions(self, round_index: int) -> Tensor:
        """Return a scored position in each row that is followed by content, or -1 if there is none.

        The first round picks the token with the lowest loss, because a leak lowers the loss of the tokens it affects.
        Later rounds draw uniformly.
        """
        is_content = self._get_content_mask(self.rows.input_ids)
        is_valid = (self.rows.labels != IGNORE_INDEX)[:, :-1] & is_content[:, 1:]
        if round_index == 0:
            keys = self.reference_losses[:, :-1].nan_to_num(math.inf)
        else:
            keys = torch.rand(is_valid.shape, generator=self.generator, dtype=torch.float64)
        cuts = keys.masked_fill(~is_valid, math.inf).argmin(1)
        return torch.where(is_valid.any(1), cuts, -1)

    def replace_future(self, indices: Tensor, cuts: Tensor, *, end_sequence: bool = False) -> Batch:
        """Return the rows with the tokens after the cut replaced, or padded if the sequence is to end there."""
        batch = self.rows.select(indices)
        is_later = torch.arange(batch.input_ids.shape[1]) > cuts[:, None]
        is_later &= (cuts >= 0)[:, None]
        if end_sequence and batch.attention_mask is not None:
            padding = self.rows.input_ids[~self._get_content_mask(self.rows.input_ids)]
            padding_id = int(padding[0]) if len(padding) else 0
            ids = batch.input_ids.masked_fill(is_later, padding_id)
            return Batch(ids, batch.labels, batch.attention_mask & ~is_later)
        is_later &= torch.ones_like(is_later) if batch.attention_mask is None else batch.attention_mask
        return Batch(
            torch.where(is_later, self.draw_replacement_tokens(batch.input_ids), batch.input_ids),
            batch.labels,
            batch.attention_mask,
        )


def _stack_rows(batches: Sequence[Batch]) -> ScoredRows:
    """Return the rows to rescore from all batches, right-padded to the longest row."""
    length = max(batch.input_ids.shape[1] for batch in batches)
    padded_ids, labels, masks = [], [], []
    for batch in batches:
        num_added = length - batch.input_ids.shape[1]
        padding_id = 0
        if batch.attention_mask is not None and not bool(batch.attention_mask.all()):
            padding_id = int(batch.input_ids[~batch.attention_mask][0])
        padded_ids.append(torch.nn.functional.pad(batch.input_ids, (0, num_added), value=padding_id))
        has_token_labels = batch.labels.dim() == 2
        labels.append(
            torch.nn.functional.pad(batch.labels, (0, num_added), value=IGNORE_INDEX)
            if has_token_labels
            else batch.labels
        )
        mask = torch.ones_like(batch.input_ids, dtype=torch.bool)
        mask = mask if batch.attention_mask is None else batch.attention_mask
        masks.append(torch.nn.functional.pad(mask, (0, num_added)))
    has_mask = any(batch.attention_mask is not None for batch in batches)
    return ScoredRows(torch.cat(padded_ids), torch.cat(labels), torch.cat(masks) if has_mask else None)


def measure_loss_changes(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the absolute change in each loss. Equal infinities count as unchanged, and NaN as an infinite change."""
    is_equal = (actual == expected) | (actual.isnan() & expected.isnan())
    return torch.where(is_equal, 0.0, (actual - expected).abs()).nan_to_num(math.inf, math.inf)
