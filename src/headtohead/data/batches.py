"""Rows to batches: an encoded split is one tensor, a batch is an index into it and a function of (seed, step) alone.

The tensor may lie on disk, mapped, in a small type (`store`); what a batch takes from it becomes int64 there and then.

Nothing here remembers what was drawn before: a run that was killed draws what it would have drawn, two variants with
the same seed see the same batches, and no row depends on the others of its batch (all are padded to the context; those
of a pretrained encoder, which masks padding, to the longest of the batch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

from headtohead import rng
from headtohead.config.data import DataConfig, RareWordsConfig
from headtohead.config.tasks import Target
from headtohead.config.training import TrainingConfig
from headtohead.data.splits import Split
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import DataError

IGNORE_INDEX = -100
"""the label of a position outside the loss"""
LENGTH_GROUPING_BATCHES = 32
"""batches that are sorted by length together: enough for little padding, few enough for a batch to be a mixture"""


@dataclass(frozen=True)
class Batch:
    """What a model is given and what it should say."""

    input_ids: Int64[Tensor, "batch length"]
    labels: Int64[Tensor, "batch length"] | Int64[Tensor, "batch"]
    """language model: the next token, -100 outside the loss; classifier: the class"""
    attention_mask: Bool[Tensor, "batch length"] | None = None
    """false on padding; None when there is none"""
    at: Int64[Tensor, "batch"] | None = None
    """the number of each example, where they are not scored in their order"""

    def to(self, device: torch.device | str) -> Batch:
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        return Batch(self.input_ids.to(device), self.labels.to(device), mask, self.at)

    def rows(self, start: int, end: int) -> Batch:
        """Some of its rows, as wide as before."""
        mask, at = (None if one is None else one[start:end] for one in (self.attention_mask, self.at))
        return Batch(self.input_ids[start:end], self.labels[start:end], mask, at)

    @property
    def num_predictions(self) -> int:
        """How many labels count."""
        return int((self.labels != IGNORE_INDEX).sum())


@dataclass(frozen=True)
class TokenStream:
    """A split as one run of tokens."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    counts: Int64[Tensor, "vocab"] | None = None
    """how often each token stands there, where that is known already"""

    def __len__(self) -> int:
        return self.tokens.numel()


@dataclass(frozen=True)
class TokenRows:
    """A split as rows of tokens, laid end to end. A language model's rows carry their start and stop."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    offsets: Int64[Tensor, "rows_and_one"]
    labels: Int64[Tensor, "rows"] | None = None
    pad_to_longest: bool = False
    """a batch is as wide as its longest row, and not as the context"""
    num_pretruncated: int = 0
    """rows that have lost their end already, by a tokenizer that keeps its frame around what is left"""
    counts: Int64[Tensor, "vocab"] | None = None
    """how often each token stands there, where that is known already"""

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Int64[Tensor, "rows"]:
        return self.offsets.diff()

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """The length by which rows are put side by side."""
        return self.lengths

    def cut(self, context: int) -> int:
        """How many rows are longer than a model of this context can read."""
        limit = context if self.labels is not None else context + 1
        return self.num_pretruncated + int((self.lengths > limit).sum())

    def width(self, row_indices: Int64[Tensor, "batch"], context: int) -> int:
        """How wide a batch of these rows is."""
        longest = int((self.offsets[row_indices + 1] - self.offsets[row_indices]).max())
        return min(context, longest) if self.pad_to_longest else context

    def pad_rows(
        self, row_indices: Int64[Tensor, "batch"], width: int, pad_id: int
    ) -> tuple[Int64[Tensor, "batch width"], Bool[Tensor, "batch width"]]:
        """Those rows, cut or padded on the right to the width, and where they are not padding."""
        start, lengths = self.offsets[row_indices], (self.offsets[row_indices + 1] - self.offsets[row_indices])
        column = torch.arange(width)
        real = column < lengths[:, None]
        index = (start[:, None] + column).clamp_(max=self.tokens.numel() - 1)
        return self.tokens[index].long().masked_fill_(~real, pad_id), real


EncodedSplit = TokenStream | TokenRows


def encode_split(split: Split, tokenizer: TokenizerProtocol, data: DataConfig, *, has_labels: bool) -> EncodedSplit:
    """The split as numbers, in the form that task and data.rows ask for."""
    ids = encode_row_range(split, split.rows, 0, tokenizer, data, has_labels=has_labels)
    if is_stream(data, has_labels=has_labels):
        return TokenStream(split.name, _flatten_token_ids(ids))
    return build_token_rows(split, ids, has_labels=has_labels)


def is_stream(data: DataConfig, *, has_labels: bool) -> bool:
    return not has_labels and data.rows == "stream"


def encode_row_range(
    split: Split,
    rows: Sequence[str],
    first_row: int,
    tokenizer: TokenizerProtocol,
    data: DataConfig,
    *,
    has_labels: bool,
) -> list[list[int]]:
    """Some rows of a split, from number `first` on, as numbers: with what stands between them in a stream, or with
    start and stop."""
    if is_stream(data, has_labels=has_labels):
        joint = "" if tokenizer.kind == "words" else split.separator  # words know no white space
        joined = [row + joint for row in rows]
        if joined and first_row + len(rows) == len(split.rows):
            joined[-1] = rows[-1]
        return tokenizer.encode_batch(joined)
    if not has_labels and (tokenizer.bos_id is None or tokenizer.eos_id is None):
        raise DataError('rows = "sentences" needs a start and a stop token, and the tokenizer has none')
    ids = tokenizer.encode_batch(rows)
    if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
        ids = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in ids]
    if empty := [i for i, row in enumerate(ids) if not row]:
        raise DataError(f"{split.name}: row {first_row + empty[0] + 1} has no tokens: {rows[empty[0]]!r}")
    return ids


def build_token_rows(
    split: Split,
    token_ids: Sequence[Sequence[int]],
    *,
    has_labels: bool,
    pad_to_longest: bool = False,
    num_pretruncated: int = 0,
) -> TokenRows:
    """Rows that are numbers already."""
    offsets = torch.tensor([0, *(len(row) for row in token_ids)]).cumsum(0)
    labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
    return TokenRows(split.name, _flatten_token_ids(token_ids), offsets, labels, pad_to_longest, num_pretruncated)


def _flatten_token_ids(rows: Sequence[Sequence[int]]) -> Int64[Tensor, "tokens"]:
    return torch.tensor([i for row in rows for i in row], dtype=torch.int64)


def split_inputs_and_labels(
    token_ids: Int64[Tensor, "batch width"], attention_mask: Bool[Tensor, "batch width"] | None
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
    """Inputs, labels and mask of a language model: each position is to say the next token, none is to say padding."""
    inputs, labels = token_ids[:, :-1].contiguous(), token_ids[:, 1:].contiguous()
    if attention_mask is None:
        return inputs, labels, None
    said = attention_mask[:, 1:].contiguous()
    return inputs, labels.masked_fill_(~said, IGNORE_INDEX), said


class BatchSchedule:
    """Training batches as a pure function of (seed, step); the first step is 0.

    stream, random     blocks that start anywhere
    stream, shuffled   blocks end to end from a random phase, every one once an epoch, in a random order
    rows               every row once an epoch, in a random order
    rows, by length    the same, with rows of like length in one batch
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
        self.unknown, self.once = data.word_dropout, data.rare_words
        self.unk_id, self.pad_id = tokenizer.unk_id, tokenizer.pad_id or 0
        self._special_ids = _collect_special_ids(tokenizer)
        for setting, asked in (
            ("word_dropout", self.unknown),
            ("rare_words", self.once.unknown or self.once.unknown_input),
        ):
            if asked and self.unk_id is None:
                raise DataError(f"data.{setting}: the tokenizer ({tokenizer.kind}) has no unknown token")
        self._shown = count_tokens(encoded, tokenizer.vocab_size) if self.once != RareWordsConfig() else None
        self._unseen_ids = self._find_unseen_ids()
        self._generator = torch.Generator()
        self._epoch_order: tuple[int, Int64[Tensor, "items"]] | None = None
        if isinstance(encoded, TokenStream):
            _check_stream_length(encoded, context)
            # Every window of context + 1 tokens, as a view: a block is one row of it.
            self._windows = encoded.tokens.unfold(0, context + 1, 1)
            self.items = max(1, (len(encoded) - context) // context)
        else:
            self.items = len(encoded)
        self.steps_per_epoch = -(-self._blocks() // self.size)

    def _find_unseen_ids(self) -> Int64[Tensor, "words"]:
        """Words of the vocabulary that the split never shows; padding, unknown and the like are no words."""
        if self._shown is None:
            return self._special_ids
        never = torch.nonzero(self._shown == 0).squeeze(1)
        return never[(never != self.unk_id) & ~torch.isin(never, self._special_ids)]

    def _blocks(self) -> int:
        """How many examples an epoch has."""
        if self.random:
            return max(1, -(-(len(self._windows) + self.context - 1) // self.context))
        return self.items

    def indices(self, step: int) -> Int64[Tensor, "batch"]:
        """Which blocks (by where they start) or rows the step sees."""
        if self.random:
            generator = self._seed_generator("batches", step)
            return torch.randint(len(self._windows), (self.size,), generator=generator)
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            self._epoch_order = epoch, self._compute_epoch_order(epoch)  # a memo of a pure function
        return self._epoch_order[1][at * self.size : (at + 1) * self.size]

    def batch(self, step: int) -> Batch:
        at = self.indices(step)
        if isinstance(self.encoded, TokenStream):
            block, real = self._windows[at].long(), None
        else:
            width = self.encoded.width(at, self.context + self.target.is_causal)
            block, real = self.encoded.pad_rows(at, width, self.pad_id)
        if self.unknown:
            block = self._replace_with_unknown(block, step)
        if self.target.is_causal:
            if self._shown is None:
                return Batch(*split_inputs_and_labels(block, real))
            return Batch(*self._apply_rare_word_treatment(block, real, step))
        assert isinstance(self.encoded, TokenRows)
        assert self.encoded.labels is not None
        return Batch(block, self.encoded.labels[at], real)

    def digest(self, num_steps: int) -> str:
        """SHA-256 of which examples each of so many steps sees, and of how they are cut."""
        head = (
            f"{type(self.encoded).__name__} {len(self.encoded)} {self.context} {self.size} {self.unknown} {num_steps}"
        )
        if self.is_grouped_by_length:
            head += " by length"
        if self.once != RareWordsConfig():
            head += f" {self.once.model_dump_json()}"
        made = hashlib.sha256(head.encode())
        for step in range(num_steps):
            made.update(self.indices(step).numpy().tobytes())
        return made.hexdigest()

    def _compute_epoch_order(self, epoch: int) -> Int64[Tensor, "items"]:
        order = torch.randperm(self.items, generator=self._seed_generator("order", epoch))
        if isinstance(self.encoded, TokenRows):
            return self._group_by_length(order, self.encoded, epoch) if self.is_grouped_by_length else order
        phases = min(self.context, len(self.encoded) - self.items * self.context)
        phase = torch.randint(phases, (1,), generator=self._seed_generator("phase", epoch))
        return order * self.context + phase

    def _group_by_length(self, order: Int64[Tensor, "items"], rows: TokenRows, epoch: int) -> Int64[Tensor, "items"]:
        """Within windows of a random order, rows of like length side by side; then the batches in a random order. Only
        the last may be short, and stays last."""
        alike = rows.grouping_lengths
        windows = [
            window[alike[window].argsort(stable=True)] for window in order.split(LENGTH_GROUPING_BATCHES * self.size)
        ]
        full = self.items // self.size * self.size
        order = torch.cat(windows)
        batches = order[:full].view(-1, self.size)
        shuffled = torch.randperm(len(batches), generator=self._seed_generator("batches by length", epoch))
        return torch.cat((batches[shuffled].flatten(), order[full:]))

    def _replace_with_unknown(self, block: Int64[Tensor, "batch width"], step: int) -> Int64[Tensor, "batch width"]:
        """A share of the words made unknown, before inputs and labels part: both see it."""
        chosen = torch.rand(block.shape, generator=self._seed_generator("unknown", step)) < self.unknown
        if self._special_ids.numel():
            chosen &= ~torch.isin(block, self._special_ids)
        assert self.unk_id is not None
        return block.masked_fill(chosen, self.unk_id)

    def _apply_rare_word_treatment(
        self, block: Int64[Tensor, "batch width"], real: Bool[Tensor, "batch width"] | None, step: int
    ) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
        """Inputs, labels and mask, with words that train shows once treated as data.rare_words asks."""
        assert self._shown is not None
        once = self._shown[block] == 1
        both = once & self._sample_mask(block, self.once.unknown, "once unknown", step)
        block = block.masked_fill(both, self.unk_id) if self.unk_id is not None else block
        inputs, labels, mask = split_inputs_and_labels(block, real)
        left = once & ~both
        hidden = (left & self._sample_mask(block, self.once.unknown_input, "once hidden", step))[:, :-1]
        if self.unk_id is not None:
            inputs = inputs.masked_fill(hidden, self.unk_id)
        never = self._unseen_ids
        if self.once.unseen_target and never.numel():
            given = (left & self._sample_mask(block, self.once.unseen_target, "once unseen", step))[:, 1:] & (
                labels != IGNORE_INDEX
            )
            words = never[
                torch.randint(never.numel(), labels.shape, generator=self._seed_generator("unseen words", step))
            ]
            labels = torch.where(given, words, labels)
        return inputs, labels, mask

    def _sample_mask(self, block: Tensor, probability: float, purpose: str, step: int) -> Bool[Tensor, "batch width"]:
        return torch.rand(block.shape, generator=self._seed_generator(purpose, step)) < probability

    def _seed_generator(self, purpose: str, index: int) -> torch.Generator:
        return self._generator.manual_seed(rng.derive_seed(self.seed, purpose, index))


def count_tokens(encoded: EncodedSplit, vocab_size: int) -> Int64[Tensor, "vocab"]:
    """How often the split shows each word of the vocabulary."""
    if encoded.counts is not None and encoded.counts.numel() == vocab_size:
        return encoded.counts
    return torch.bincount(encoded.tokens.long(), minlength=vocab_size)


def _collect_special_ids(tokenizer: TokenizerProtocol) -> Int64[Tensor, "kept"]:
    """Padding, start and stop are not words."""
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    return torch.tensor(sorted({one for one in ids if one is not None}), dtype=torch.int64)


def _check_stream_length(stream: TokenStream, context: int) -> None:
    if len(stream) <= context:
        raise DataError(
            f"{stream.name}: the text has {len(stream)} tokens, and one block of context {context} needs "
            f"{context + 1}; give more text or set model.context below {max(len(stream), 2)}"
        )
