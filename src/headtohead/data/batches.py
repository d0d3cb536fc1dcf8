"""Draw training batches from encoded splits, each batch a pure function of (seed, step).

No state is carried from batch to batch: a resumed run draws the same batches as an uninterrupted one, and two variants
with the same seed see the same batches. A row does not depend on the rest of its batch, because every row is padded to
the context length; the exception is a pretrained encoder, which masks padding and pads to the batch's longest row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from headtohead import rng
from headtohead.config.data import DataConfig, RareWordsConfig
from headtohead.config.tasks import Target
from headtohead.config.training import TrainingConfig
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream, count_tokens
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import DataError

IGNORE_INDEX = -100
"""label of positions that are excluded from the loss"""
LENGTH_GROUPING_BATCHES = 32
"""batches per sorting window: large enough to reduce padding, small enough that batches stay random"""


@dataclass(frozen=True)
class Batch:
    """The inputs and labels for one step."""

    input_ids: Int64[Tensor, "batch length"]
    labels: Int64[Tensor, "batch length"] | Int64[Tensor, "batch"]
    """next tokens, with -100 where excluded from the loss, or each row's class"""
    attention_mask: Bool[Tensor, "batch length"] | None = None
    """False on padding; None without padding"""
    example_indices: Int64[Tensor, "batch"] | None = None
    """index of each example; None in training"""
    segments: Int64[Tensor, "batch length"] | None = None
    """for each label, the first label of its segment, if blocks are scored in segments"""

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        mask, segments = (
            None if tensor is None else tensor.to(device) for tensor in (self.attention_mask, self.segments)
        )
        return Batch(self.input_ids.to(device), self.labels.to(device), mask, self.example_indices, segments)

    @property
    def score_indices(self) -> Int64[Tensor, "scores"] | None:
        """The indices of this batch's scores: those of its examples, or of their segments."""
        return self.example_indices if self.segments is None else self.segments[self.labels != IGNORE_INDEX].unique()

    def rows(self, start: int, end: int) -> Batch:
        """Return the rows from `start` up to, but not including, `end`, without changing their width."""
        mask, example_indices = (
            None if tensor is None else tensor[start:end] for tensor in (self.attention_mask, self.example_indices)
        )
        return Batch(self.input_ids[start:end], self.labels[start:end], mask, example_indices)

    @property
    def num_predictions(self) -> int:
        """The number of labels that count towards the loss."""
        return int((self.labels != IGNORE_INDEX).sum())


def split_inputs_and_labels(
    token_ids: Int64[Tensor, "batch width"], attention_mask: Bool[Tensor, "batch width"] | None
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
    """Return inputs, labels and mask for next-token prediction, each (batch, width - 1).

    Labels are the inputs shifted by one. Padding is excluded from the loss.
    """
    inputs, labels = token_ids[:, :-1].contiguous(), token_ids[:, 1:].contiguous()
    if attention_mask is None:
        return inputs, labels, None
    label_mask = attention_mask[:, 1:].contiguous()
    return inputs, labels.masked_fill_(~label_mask, IGNORE_INDEX), label_mask


class BatchSchedule:
    """Training batches as a pure function of (seed, step); the first step is 0.

    stream, random     blocks with random starts
    stream, shuffled   consecutive blocks from a random phase; each once per epoch, in random order
    rows               each row once per epoch, in random order
    rows, by length    the same, with rows of similar length in one batch
    """

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
        self.size = training.batch_size
        self.is_grouped_by_length = training.group_by_length
        self.random = isinstance(encoded, TokenStream) and training.sampling == "random"
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
            # A view of every window of context + 1 tokens; a block is one row.
            self._windows = encoded.tokens.unfold(0, context + 1, 1)
            self.items = max(1, (len(encoded) - context) // context)
        else:
            self.items = len(encoded)
        self.steps_per_epoch = -(-self._blocks() // self.size)

    def _find_unseen_ids(self) -> Int64[Tensor, "words"]:
        """Return the vocabulary words that do not occur in the split, excluding special tokens."""
        if self._token_counts is None:
            return self._special_ids
        unseen_ids = torch.nonzero(self._token_counts == 0).squeeze(1)
        return unseen_ids[(unseen_ids != self.unk_id) & ~torch.isin(unseen_ids, self._special_ids)]

    def _blocks(self) -> int:
        """Return the number of examples per epoch."""
        if self.random:
            return max(1, -(-(len(self._windows) + self.context - 1) // self.context))
        return self.items

    def indices(self, step: int) -> Int64[Tensor, "batch"]:
        """Return a step's examples: row indices, or the first token of each block in a stream."""
        if self.random:
            generator = self._seed_generator("batches", step)
            return torch.randint(len(self._windows), (self.size,), generator=generator)
        epoch, epoch_step = divmod(step, self.steps_per_epoch)
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            self._epoch_order = epoch, self._compute_epoch_order(epoch)  # caches a pure function
        return self._epoch_order[1][epoch_step * self.size : (epoch_step + 1) * self.size]

    def batch(self, step: int) -> Batch:
        """Return the batch for a step."""
        indices = self.indices(step)
        if isinstance(self.encoded, TokenStream):
            block, attention_mask = self._windows[indices].long(), None
        else:
            width = self.encoded.width(indices, self.context + self.target.is_causal)
            block, attention_mask = self.encoded.pad_rows(indices, width, self.pad_id)
        if self.word_dropout:
            block = self._replace_with_unknown(block, step)
        if self.target.is_causal:
            if self._token_counts is None:
                return Batch(*split_inputs_and_labels(block, attention_mask))
            return Batch(*self._apply_rare_word_treatment(block, attention_mask, step))
        assert isinstance(self.encoded, TokenRows)
        assert self.encoded.labels is not None
        return Batch(block, self.encoded.labels[indices], attention_mask)

    def digest(self, num_steps: int) -> str:
        """Return a SHA-256 over the examples in the first `num_steps` steps and the settings that shape them."""
        values = (len(self.encoded), self.context, self.size, self.word_dropout, num_steps)
        settings = " ".join([type(self.encoded).__name__, *map(str, values)])
        if self.is_grouped_by_length:
            settings += " by length"
        if self.rare_words != RareWordsConfig():
            settings += f" {self.rare_words.model_dump_json()}"
        digest = hashlib.sha256(settings.encode())
        for step in range(num_steps):
            digest.update(self.indices(step).numpy().tobytes())
        return digest.hexdigest()

    def _compute_epoch_order(self, epoch: int) -> Int64[Tensor, "items"]:
        """Return an epoch's examples in random order; a stream's blocks are given as token offsets."""
        order = torch.randperm(self.items, generator=self._seed_generator("order", epoch))
        if isinstance(self.encoded, TokenRows):
            return self._group_by_length(order, self.encoded, epoch) if self.is_grouped_by_length else order
        num_phases = min(self.context, len(self.encoded) - self.items * self.context)
        phase = torch.randint(num_phases, (1,), generator=self._seed_generator("phase", epoch))
        return order * self.context + phase

    def _group_by_length(self, order: Int64[Tensor, "items"], rows: TokenRows, epoch: int) -> Int64[Tensor, "items"]:
        """Reorder an epoch's examples so that each batch has rows of similar length.

        Sorts by length within large windows of the random order, then shuffles the batches. An incomplete batch stays
        last.
        """
        lengths = rows.grouping_lengths
        windows = [
            window[lengths[window].argsort(stable=True)] for window in order.split(LENGTH_GROUPING_BATCHES * self.size)
        ]
        num_full = self.items // self.size * self.size
        order = torch.cat(windows)
        batches = order[:num_full].view(-1, self.size)
        batch_order = torch.randperm(len(batches), generator=self._seed_generator("batches by length", epoch))
        return torch.cat((batches[batch_order].flatten(), order[num_full:]))

    def _replace_with_unknown(self, block: Int64[Tensor, "batch width"], step: int) -> Int64[Tensor, "batch width"]:
        """Replace random words with the unknown token, (batch, width).

        This happens before inputs and labels are separated, so both see the replacement.
        """
        is_replaced = torch.rand(block.shape, generator=self._seed_generator("unknown", step)) < self.word_dropout
        if self._special_ids.numel():
            is_replaced &= ~torch.isin(block, self._special_ids)
        assert self.unk_id is not None
        return block.masked_fill(is_replaced, self.unk_id)

    def _apply_rare_word_treatment(
        self, block: Int64[Tensor, "batch width"], attention_mask: Bool[Tensor, "batch width"] | None, step: int
    ) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
        """Return inputs, labels and mask; apply `data.rare_words` to words that occur once in train."""
        assert self._token_counts is not None
        occurs_once = self._token_counts[block] == 1
        is_replaced = occurs_once & self._sample_mask(block, self.rare_words.unknown, "once unknown", step)
        block = block.masked_fill(is_replaced, self.unk_id) if self.unk_id is not None else block
        inputs, labels, mask = split_inputs_and_labels(block, attention_mask)
        is_remaining = occurs_once & ~is_replaced
        is_hidden = is_remaining & self._sample_mask(block, self.rare_words.unknown_input, "once hidden", step)
        if self.unk_id is not None:
            inputs = inputs.masked_fill(is_hidden[:, :-1], self.unk_id)
        unseen_ids = self._unseen_ids
        if self.rare_words.unseen_target and unseen_ids.numel():
            is_retargeted = is_remaining & self._sample_mask(block, self.rare_words.unseen_target, "once unseen", step)
            random_ids = unseen_ids[
                torch.randint(unseen_ids.numel(), labels.shape, generator=self._seed_generator("unseen words", step))
            ]
            labels = torch.where(is_retargeted[:, 1:] & (labels != IGNORE_INDEX), random_ids, labels)
        return inputs, labels, mask

    def _sample_mask(self, block: Tensor, probability: float, purpose: str, step: int) -> Bool[Tensor, "batch width"]:
        """Return a random mask with the same shape as `block`, True with this probability."""
        return torch.rand(block.shape, generator=self._seed_generator(purpose, step)) < probability

    def _seed_generator(self, purpose: str, index: int) -> torch.Generator:
        """Return the generator, seeded for this purpose and this step or epoch."""
        return self._generator.manual_seed(rng.derive_seed(self.seed, purpose, index))


def _collect_special_ids(tokenizer: TokenizerProtocol) -> Int64[Tensor, "kept"]:
    """Return the ids of the padding, start and stop tokens."""
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    return torch.tensor(sorted({token_id for token_id in ids if token_id is not None}), dtype=torch.int64)


def _check_stream_length(stream: TokenStream, context: int) -> None:
    """Raise `DataError` if the stream is too short for one block."""
    if len(stream) <= context:
        raise DataError(
            f"{stream.name}: the text has {len(stream)} tokens, and one block of context {context} needs "
            f"{context + 1}; give more text or set model.context below {max(len(stream), 2)}"
        )
