"""Data orders: which rows or blocks of the training split make up each batch.

A batch is a function of (seed, step): an order draws random numbers only from the generators of its context.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from headtohead.errors import DataError
from headtohead.nn.parts.base import Component
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.parts.registry import register_part

LENGTH_GROUPING_BATCHES = 32
"""batches per sorting window: large enough to reduce padding, small enough that batches stay random"""


@dataclass(frozen=True)
class TrainingItems:
    """What an order may know about the training split: rows, or a stream of tokens that is split into blocks."""

    count: int
    """number of rows, or of blocks in an epoch"""
    batch_size: int
    context: int
    """maximum number of input tokens per row or block"""
    num_tokens: int
    """number of tokens in the split"""
    row_starts: Int64[Tensor, "rows_and_one"] | None
    """position of the first token of each row, and the end of the last one; None for a stream without known rows"""
    row_documents: Int64[Tensor, "rows"] | None
    """document index of each row; None if each row is a document"""
    grouping_lengths: Int64[Tensor, "rows"] | None
    """length by which rows may be sorted or grouped; None for a stream"""

    @property
    def is_stream(self) -> bool:
        return self.grouping_lengths is None

    @property
    def num_windows(self) -> int:
        """The number of positions in a stream at which a block can start."""
        return self.num_tokens - self.context

    def require_lengths(self, kind: str) -> Int64[Tensor, "rows"]:
        """Return the row lengths that an order sorts by; raise DataError for a stream."""
        if self.grouping_lengths is None:
            raise DataError(
                f"training.order: {kind} sorts rows by length, but all blocks of a stream have equal length; "
                'set data.rows = "sentences"'
            )
        return self.grouping_lengths


@dataclass(frozen=True)
class OrderContext(TrainingContext):
    """The step for which a batch is drawn. `step` counts from the start of the epoch or, without epochs, from 0."""

    epoch: int
    seed_generator: Callable[[str], torch.Generator]
    """callable that returns the random generator for a purpose, seeded from (seed, purpose, epoch or step)"""


class Order(Component):
    """Base class of orders. Override `order_epoch`, or `draw_batch` for batches without epochs."""

    has_epochs = True

    def check(self, items: TrainingItems) -> None:
        """Raise DataError if this order cannot be applied to the split."""

    def count_items(self, items: TrainingItems) -> int:
        """Return the number of rows or blocks that count as one epoch."""
        return items.count

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Tensor:
        """Return the rows or blocks of an epoch in order.

        Returns:
            For rows, their indices, (items,). For a stream, the first token of each block, (items,), or the positions
            of all tokens of each block, (items, context + 1).
        """
        raise NotImplementedError

    def draw_batch(self, items: TrainingItems, context: OrderContext) -> Int64[Tensor, " batch"]:
        """Return the blocks of one batch, for orders without epochs."""
        raise NotImplementedError

    def get_length(self, items: TrainingItems, context: TrainingContext) -> int:
        """Return the maximum number of input tokens at this step; longer rows and blocks are truncated."""
        return items.context


@register_part("order", "shuffled")
class ShuffledOrder(Order):
    """Each row, or each block from a random offset, once per epoch in random order."""

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Int64[Tensor, " items"]:
        """Return the rows or blocks of an epoch in random order."""
        order = torch.randperm(items.count, generator=context.seed_generator("order"))
        if not items.is_stream:
            return order
        num_phases = min(items.context, items.num_tokens - items.count * items.context)
        phase = torch.randint(num_phases, (1,), generator=context.seed_generator("phase"))
        return order * items.context + phase


@register_part("order", "random")
class RandomOrder(ShuffledOrder):
    """Blocks of a stream at random offsets; rows as in `shuffled`."""

    has_epochs = False

    def count_items(self, items: TrainingItems) -> int:
        if not items.is_stream:
            return items.count
        return max(1, -(-(items.num_windows + items.context - 1) // items.context))

    def draw_batch(self, items: TrainingItems, context: OrderContext) -> Int64[Tensor, " batch"]:
        return torch.randint(items.num_windows, (items.batch_size,), generator=context.seed_generator("batches"))


@register_part("order", "by-length")
class ByLengthOrder(ShuffledOrder):
    """Batches of rows of similar length, which reduces padding, in random order."""

    def check(self, items: TrainingItems) -> None:
        items.require_lengths("by-length")

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Int64[Tensor, " items"]:
        """Sort by length within large windows of a random order, then shuffle the batches. An incomplete batch remains
        last.
        """
        row_lengths, order = items.require_lengths("by-length"), super().order_epoch(items, context)
        sorted_windows = [
            window[row_lengths[window].argsort(stable=True)]
            for window in order.split(LENGTH_GROUPING_BATCHES * items.batch_size)
        ]
        num_batched_rows = items.count // items.batch_size * items.batch_size
        order = torch.cat(sorted_windows)
        batches = order[:num_batched_rows].view(-1, items.batch_size)
        batch_order = torch.randperm(len(batches), generator=context.seed_generator("batches by length"))
        return torch.cat((batches[batch_order].flatten(), order[num_batched_rows:]))


@register_part("order", "documents")
class DocumentOrder(Order):
    """Documents in a new random order in every epoch, split into blocks; rows as in `shuffled`."""

    def check(self, items: TrainingItems) -> None:
        if items.row_starts is None:
            raise DataError("training.order: cannot reorder documents: the corpus has no document boundaries")

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Tensor:
        """Return the rows of an epoch grouped by document, or the blocks of a stream whose documents are reordered."""
        assert items.row_starts is not None
        num_rows = len(items.row_starts) - 1
        documents = torch.arange(num_rows) if items.row_documents is None else items.row_documents
        num_documents = int(documents.max()) + 1
        document_ranks = torch.randperm(num_documents, generator=context.seed_generator("documents"))
        row_order = document_ranks[documents].argsort(stable=True)  # the rows of a document stay in their order
        if not items.is_stream:
            return row_order
        row_lengths = items.row_starts.diff()[row_order]
        row_ends = row_lengths.cumsum(0)  # in the reordered stream
        shifts = (items.row_starts[row_order] - row_ends + row_lengths).repeat_interleave(row_lengths)
        positions = torch.arange(int(row_ends[-1])) + shifts
        blocks = positions.unfold(0, items.context + 1, items.context)[: items.count]
        return blocks[torch.randperm(len(blocks), generator=context.seed_generator("order"))]


@register_part("order", "curriculum")
class CurriculumOrder(ShuffledOrder):
    """Rows from short to long in the first `epochs` epochs, then as in `shuffled`. After Bengio et al. 2009."""

    def __init__(self, *, epochs: int = 1) -> None:
        self.epochs = epochs

    def check(self, items: TrainingItems) -> None:
        items.require_lengths("curriculum")

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Int64[Tensor, " items"]:
        order = super().order_epoch(items, context)
        if context.epoch >= self.epochs:
            return order
        return order[items.require_lengths("curriculum")[order].argsort(stable=True)]


@register_part("order", "length-warmup")
class LengthWarmupOrder(RandomOrder):
    """Sequences grow from `start` tokens to the context in `steps` steps. After Li et al. 2021, arXiv:2108.06084."""

    def __init__(self, *, steps: int, start: int = 8) -> None:
        if steps < 1 or start < 1:
            raise DataError(f"length-warmup: steps and start must be at least 1, got {steps} and {start}")
        self.steps, self.start = steps, start

    def get_length(self, items: TrainingItems, context: TrainingContext) -> int:
        if context.step >= self.steps or self.start >= items.context:
            return items.context
        return self.start + (items.context - self.start) * context.step // self.steps
