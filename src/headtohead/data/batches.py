"""Draw training batches from an encoded split. Each batch is a pure function of (seed, step).

No state is carried over between batches: a resumed run draws the same batches as an uninterrupted one, and two variants
with the same seed see the same batches. Up to rounding, a row does not depend on the other rows of its batch, because
every row is padded to the context length. Pretrained encoders are an exception: they mask padding, so their batches are
only padded to the longest row.
"""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from headtohead import rng
from headtohead.config.base import ComponentConfig
from headtohead.config.tables.data import DataConfig, RareWordsConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream, count_tokens, gather_token_ids
from headtohead.data.order import Order, OrderContext, TrainingItems
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.errors import DataError
from headtohead.nn.parts import registry
from headtohead.nn.parts.context import TrainingContext

MAX_SAMPLED_STEPS = 200
"""steps at which the mean number of tokens is measured"""
IGNORE_INDEX = -100
"""label of positions that are excluded from the loss"""


@dataclass(frozen=True)
class Batch:
    """Input ids and labels of one training step, or of some evaluation examples."""

    input_ids: Int64[Tensor, "batch length"]
    labels: Int64[Tensor, "batch length"] | Int64[Tensor, "batch"]
    """token ids to predict, -100 where excluded from the loss; or the class of each row"""
    attention_mask: Bool[Tensor, "batch length"] | None = None
    """False on padding; None without padding"""
    example_indices: Int64[Tensor, "batch"] | None = None
    """index of each evaluation example; None in training"""
    segment_ids: Int64[Tensor, "batch length"] | None = None
    """segment of each label, named by the segment's first label, if blocks are scored in segments"""

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        attention_mask, segment_ids = (
            None if tensor is None else tensor.to(device) for tensor in (self.attention_mask, self.segment_ids)
        )
        return Batch(
            self.input_ids.to(device), self.labels.to(device), attention_mask, self.example_indices, segment_ids
        )

    @property
    def score_indices(self) -> Int64[Tensor, "scores"] | None:
        """Indices of this batch's scores in the evaluation: those of its examples, or of their segments."""
        if self.segment_ids is None:
            return self.example_indices
        unique_ids: Int64[Tensor, "scores"] = self.segment_ids[self.labels != IGNORE_INDEX].unique()
        return unique_ids

    def slice_rows(self, start: int, end: int) -> Batch:
        """Return a batch of the rows from `start` to `end` (exclusive), at the same width."""
        attention_mask, example_indices = (
            None if tensor is None else tensor[start:end] for tensor in (self.attention_mask, self.example_indices)
        )
        return Batch(self.input_ids[start:end], self.labels[start:end], attention_mask, example_indices)

    @property
    def num_predictions(self) -> int:
        """The number of labels that contribute to the loss."""
        return int((self.labels != IGNORE_INDEX).sum())


def split_inputs_and_labels(
    token_ids: Int64[Tensor, "batch width"], attention_mask: Bool[Tensor, "batch width"] | None
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
    """Return the input ids, labels and attention mask of a batch for next-token prediction, each (batch, width - 1).

    Labels are the inputs shifted by one. Padding is excluded from the loss.
    """
    input_ids, labels = token_ids[:, :-1].contiguous(), token_ids[:, 1:].contiguous()
    if attention_mask is None:
        return input_ids, labels, None
    label_mask = attention_mask[:, 1:].contiguous()
    return input_ids, labels.masked_fill_(~label_mask, IGNORE_INDEX), label_mask


class BatchSchedule:
    """Training batches as a pure function of (seed, step); the first step is 0."""

    def __init__(
        self,
        encoded: EncodedSplit,
        target: Target,
        training: TrainingConfig,
        data: DataConfig,
        context: int,
        seed: int,
        tokenizer: TokenizerProtocol,
    ) -> None:
        self.encoded, self.target, self.context, self.seed = encoded, target, context, seed
        self.batch_size = training.batch_size
        is_stream = isinstance(encoded, TokenStream)
        self.order_config = training.order or ComponentConfig(kind="random" if is_stream else "shuffled")
        self.order: Order = registry.build_part("order", self.order_config)
        self.word_dropout, self.rare_words = data.word_dropout, data.rare_words
        self.unk_id, self.pad_id = tokenizer.unk_id, tokenizer.pad_id or 0
        self._special_ids = _collect_special_ids(tokenizer)
        for setting, is_enabled in (
            ("word_dropout", self.word_dropout),
            ("rare_words", self.rare_words.unknown or self.rare_words.unknown_input),
        ):
            if is_enabled and self.unk_id is None:
                raise DataError(f"data.{setting}: the tokenizer ({tokenizer.kind}) has no unknown token")
        self._token_counts = (
            count_tokens(encoded, tokenizer.vocab_size) if self.rare_words != RareWordsConfig() else None
        )
        self._unseen_ids = self._find_unseen_ids()
        self._generator = torch.Generator()
        self._epoch_order: tuple[int, Int64[Tensor, "items"]] | None = None
        if isinstance(encoded, TokenStream):
            _check_stream_length(encoded, context)
            # A view of all windows of context + 1 tokens; each row is one block.
            self._windows = encoded.token_ids.unfold(0, context + 1, 1)
        self.training_items = _describe_training_items(encoded, self.batch_size, context)
        self.order.check(self.training_items)
        self.steps_per_epoch: int = -(-self.order.count_items(self.training_items) // self.batch_size)
        self._training = training

    @cached_property
    def total_steps(self) -> int:
        """The total number of training steps; 1 if the budget has not been resolved yet."""
        return self._training.compute_total_steps(self.steps_per_epoch) if self._training.has_step_budget else 1

    @property
    def tokens_per_step(self) -> float:
        """The mean number of input tokens per step, excluding padding."""
        sampled_steps = range(0, self.total_steps, max(1, self.total_steps // MAX_SAMPLED_STEPS))
        max_lengths = [self._get_max_length(step) for step in sampled_steps]
        tokens_by_length: dict[int, float] = {
            length: self._count_tokens_per_step(length) for length in set(max_lengths)
        }
        return float(statistics.fmean(tokens_by_length[length] for length in max_lengths))

    def _get_max_length(self, step: int) -> int:
        """Return the maximum number of input tokens of a row or block at a step."""
        return self.order.get_length(self.training_items, TrainingContext(step, self.total_steps))

    def _count_tokens_per_step(self, max_length: int) -> float:
        """Return the mean number of input tokens per step if rows and blocks are truncated to `max_length`."""
        if isinstance(self.encoded, TokenStream):
            return float(self.batch_size * max_length)
        input_lengths = (self.encoded.row_lengths - int(self.target.is_causal)).clamp(max=max_length)
        num_tokens = int(input_lengths.sum())
        return num_tokens / self.steps_per_epoch

    def _find_unseen_ids(self) -> Int64[Tensor, "words"]:
        """Return the ids of vocabulary words that do not occur in the split, excluding special tokens."""
        if self._token_counts is None:
            return self._special_ids
        unseen_ids = torch.nonzero(self._token_counts == 0).squeeze(1)
        return unseen_ids[(unseen_ids != self.unk_id) & ~torch.isin(unseen_ids, self._special_ids)]

    def get_example_indices(self, step: int) -> Tensor:
        """Return the examples of a step.

        Returns:
            For rows, their indices, (batch,). For a stream, the position of the first token of each block, (batch,), or
            the positions of all tokens of each block, (batch, context + 1).
        """
        if isinstance(self.encoded, TokenStream) and not self.order.has_epochs:
            return self.order.draw_batch(self.training_items, self._build_order_context(step, 0, step))
        epoch, epoch_step = divmod(step, self.steps_per_epoch)
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            context = self._build_order_context(epoch_step, epoch, epoch)
            indices = torch.as_tensor(self.order.order_epoch(self.training_items, context), dtype=torch.int64)
            self._epoch_order = epoch, indices  # caches a pure function
        indices = self._epoch_order[1][epoch_step * self.batch_size : (epoch_step + 1) * self.batch_size]
        if not len(indices):
            raise DataError(
                f"training.order: {self.order_config.kind} returned {len(self._epoch_order[1]):,} of "
                f"{self.order.count_items(self.training_items):,} rows or blocks, so step {step + 1} has no batch; "
                "override count_items() to train on fewer"
            )
        return indices

    def _build_order_context(self, step: int, epoch: int, seed_index: int) -> OrderContext:
        """Return the context of an order. Its generators are seeded with `seed_index`, an epoch or a step."""
        return OrderContext(step, self.total_steps, epoch, lambda purpose: self._seed_generator(purpose, seed_index))

    def get_token_ids(self, step: int) -> tuple[Int64[Tensor, "batch width"], Bool[Tensor, "batch width"] | None]:
        """Return the token ids and attention mask of a step. For next-token prediction, rows have one extra token."""
        indices = self.get_example_indices(step)
        max_width = self._get_max_length(step) + self.target.is_causal
        if isinstance(self.encoded, TokenStream):
            # Indices of blocks select windows; positions of all their tokens select single tokens.
            token_ids = gather_token_ids(self._windows if indices.dim() == 1 else self.encoded.token_ids, indices)
            return token_ids[:, :max_width], None
        width = self.encoded.compute_batch_width(indices, max_width)
        return self.encoded.pad_rows(indices, width, self.pad_id)

    def get_batch(self, step: int) -> Batch:
        """Return the batch of a step, with the treatment of rare and unknown words that `[data]` configures."""
        token_ids, attention_mask = self.get_token_ids(step)
        if self.word_dropout:
            token_ids = self._replace_with_unknown(token_ids, step)
        if self.target.is_causal:
            if self._token_counts is None:
                return Batch(*split_inputs_and_labels(token_ids, attention_mask))
            return Batch(*self._apply_rare_word_treatment(token_ids, attention_mask, step))
        assert isinstance(self.encoded, TokenRows)
        assert self.encoded.labels is not None
        return Batch(token_ids, self.encoded.labels[self.get_example_indices(step)], attention_mask)

    def compute_digest(self, num_steps: int) -> str:
        """Return a SHA-256 of the examples in the first `num_steps` steps and of the settings that shape them."""
        settings = (len(self.encoded), self.context, self.batch_size, self.word_dropout, num_steps)
        settings_text = " ".join([type(self.encoded).__name__, *map(str, settings)])
        if self.order_config.kind == "by-length":
            settings_text += " by length"
        elif self.order_config.kind not in ("random", "shuffled"):
            settings_text += f" {self.order_config}"
        if self.rare_words != RareWordsConfig():
            settings_text += f" {self.rare_words.model_dump_json()}"
        digest = hashlib.sha256(settings_text.encode())
        for step in range(num_steps):
            digest.update(self.get_example_indices(step).numpy().tobytes())
        return digest.hexdigest()

    def _replace_with_unknown(self, token_ids: Int64[Tensor, "batch width"], step: int) -> Int64[Tensor, "batch width"]:
        """Replace random words with the unknown token, as `data.word_dropout` configures.

        Inputs and labels are split afterwards, so the replacement affects both.
        """
        is_replaced = torch.rand(token_ids.shape, generator=self._seed_generator("unknown", step)) < self.word_dropout
        if self._special_ids.numel():
            is_replaced &= ~torch.isin(token_ids, self._special_ids)
        assert self.unk_id is not None
        return token_ids.masked_fill(is_replaced, self.unk_id)

    def _apply_rare_word_treatment(
        self, token_ids: Int64[Tensor, "batch width"], attention_mask: Bool[Tensor, "batch width"] | None, step: int
    ) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
        """Return input ids, labels and mask; apply `data.rare_words` to words that occur once in train."""
        assert self._token_counts is not None
        shape, rare_words = token_ids.shape, self.rare_words
        occurs_once = self._token_counts[token_ids] == 1
        is_replaced = occurs_once & self._sample_mask(shape, rare_words.unknown, "once unknown", step)
        token_ids = token_ids.masked_fill(is_replaced, self.unk_id) if self.unk_id is not None else token_ids
        input_ids, labels, label_mask = split_inputs_and_labels(token_ids, attention_mask)
        is_remaining = occurs_once & ~is_replaced
        is_hidden = is_remaining & self._sample_mask(shape, rare_words.unknown_input, "once hidden", step)
        if self.unk_id is not None:
            input_ids = input_ids.masked_fill(is_hidden[:, :-1], self.unk_id)
        unseen_ids = self._unseen_ids
        if rare_words.unseen_target and unseen_ids.numel():
            is_retargeted = is_remaining & self._sample_mask(shape, rare_words.unseen_target, "once unseen", step)
            random_ids = unseen_ids[
                torch.randint(unseen_ids.numel(), labels.shape, generator=self._seed_generator("unseen words", step))
            ]
            labels = torch.where(is_retargeted[:, 1:] & (labels != IGNORE_INDEX), random_ids, labels)
        return input_ids, labels, label_mask

    def _sample_mask(
        self, shape: torch.Size, probability: float, purpose: str, step: int
    ) -> Bool[Tensor, "batch width"]:
        """Return a random mask of this shape, True with this probability at each position."""
        return torch.rand(shape, generator=self._seed_generator(purpose, step)) < probability

    def _seed_generator(self, purpose: str, epoch_or_step: int) -> torch.Generator:
        """Return the generator, seeded for a purpose and an epoch or step."""
        return self._generator.manual_seed(rng.derive_seed(self.seed, purpose, epoch_or_step))


def _describe_training_items(encoded: EncodedSplit, batch_size: int, context: int) -> TrainingItems:
    """Return what an order of batches may know about the training split."""
    is_stream = isinstance(encoded, TokenStream)
    return TrainingItems(
        count=max(1, (len(encoded) - context) // context) if is_stream else len(encoded),
        batch_size=batch_size,
        context=context,
        num_tokens=encoded.token_ids.numel(),
        row_starts=encoded.row_offsets,
        row_documents=encoded.row_documents,
        grouping_lengths=None if isinstance(encoded, TokenStream) else encoded.grouping_lengths,
    )


def _collect_special_ids(tokenizer: TokenizerProtocol) -> Int64[Tensor, "special_tokens"]:
    """Return the ids of the padding, start and stop tokens."""
    special_ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    return torch.tensor(sorted({token_id for token_id in special_ids if token_id is not None}), dtype=torch.int64)


def _check_stream_length(stream: TokenStream, context: int) -> None:
    """Raise `DataError` if a stream is too short for a batch of one block."""
    if len(stream) <= context:
        raise DataError(
            f"{stream.name}: the text has only {len(stream)} tokens, but a block of context {context} requires "
            f"{context + 1}; add text or set model.context below {max(len(stream), 2)}"
        )
