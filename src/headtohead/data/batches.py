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
from headtohead.config.data import Data, Once
from headtohead.config.training import Training
from headtohead.data.splits import Split, Task
from headtohead.data.tokenizers import Tokens
from headtohead.errors import CorpusError

IGNORED = -100
"""the label of a position outside the loss"""
WINDOW = 32
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

    def rows(self, first: int, end: int) -> Batch:
        """Some of its rows, as wide as before."""
        mask, at = (None if one is None else one[first:end] for one in (self.attention_mask, self.at))
        return Batch(self.input_ids[first:end], self.labels[first:end], mask, at)

    @property
    def predictions(self) -> int:
        """How many labels count."""
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True)
class Stream:
    """A split as one run of tokens."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    counts: Int64[Tensor, "vocab"] | None = None
    """how often each token stands there, where that is known already"""

    def __len__(self) -> int:
        return self.tokens.numel()


@dataclass(frozen=True)
class Rows:
    """A split as rows of tokens, laid end to end. A language model's rows carry their start and stop."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    offsets: Int64[Tensor, "rows_and_one"]
    labels: Int64[Tensor, "rows"] | None = None
    to_longest: bool = False
    """a batch is as wide as its longest row, and not as the context"""
    cut_before: int = 0
    """rows that have lost their end already, by a tokenizer that keeps its frame around what is left"""
    counts: Int64[Tensor, "vocab"] | None = None
    """how often each token stands there, where that is known already"""

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Int64[Tensor, "rows"]:
        return self.offsets.diff()

    @property
    def alike_by(self) -> Int64[Tensor, "rows"]:
        """The length by which rows are put side by side."""
        return self.lengths

    def cut(self, context: int) -> int:
        """How many rows are longer than a model of this context can read."""
        limit = context if self.labels is not None else context + 1
        return self.cut_before + int((self.lengths > limit).sum())

    def width(self, at: Int64[Tensor, "batch"], context: int) -> int:
        """How wide a batch of these rows is."""
        longest = int((self.offsets[at + 1] - self.offsets[at]).max())
        return min(context, longest) if self.to_longest else context

    def padded(
        self, at: Int64[Tensor, "batch"], width: int, pad_id: int
    ) -> tuple[Int64[Tensor, "batch width"], Bool[Tensor, "batch width"]]:
        """Those rows, cut or padded on the right to the width, and where they are not padding."""
        start, lengths = self.offsets[at], (self.offsets[at + 1] - self.offsets[at])
        column = torch.arange(width)
        real = column < lengths[:, None]
        index = (start[:, None] + column).clamp_(max=self.tokens.numel() - 1)
        return self.tokens[index].long().masked_fill_(~real, pad_id), real


Encoded = Stream | Rows


def encode(split: Split, tokenizer: Tokens, task: Task, data: Data) -> Encoded:
    """The split as numbers, in the form that task and data.rows ask for."""
    ids = encode_some(split, split.rows, 0, tokenizer, task, data)
    if is_stream(task, data):
        return Stream(split.name, _flat(ids))
    return rows_of(split, ids, labelled=task == "classify")


def is_stream(task: Task, data: Data) -> bool:
    return task == "language-model" and data.rows == "stream"


def encode_some(
    split: Split, rows: Sequence[str], first: int, tokenizer: Tokens, task: Task, data: Data
) -> list[list[int]]:
    """Some rows of a split, from number `first` on, as numbers: with what stands between them in a stream, or with
    start and stop."""
    if is_stream(task, data):
        joint = "" if tokenizer.kind == "words" else split.joint  # words know no white space
        joined = [row + joint for row in rows]
        if joined and first + len(rows) == len(split.rows):
            joined[-1] = rows[-1]
        return tokenizer.encode_rows(joined)
    if task == "language-model" and (tokenizer.start_id is None or tokenizer.stop_id is None):
        raise CorpusError('rows = "sentences" needs a start and a stop token, and the tokenizer has none')
    ids = tokenizer.encode_rows(rows)
    if tokenizer.start_id is not None and tokenizer.stop_id is not None:
        ids = [[tokenizer.start_id, *row, tokenizer.stop_id] for row in ids]
    if empty := [i for i, row in enumerate(ids) if not row]:
        raise CorpusError(f"{split.name}: row {first + empty[0] + 1} has no tokens: {rows[empty[0]]!r}")
    return ids


def rows_of(
    split: Split, ids: Sequence[Sequence[int]], *, labelled: bool, to_longest: bool = False, cut: int = 0
) -> Rows:
    """Rows that are numbers already."""
    offsets = torch.tensor([0, *(len(row) for row in ids)]).cumsum(0)
    labels = torch.tensor(split.labels) if labelled and split.labels is not None else None
    return Rows(split.name, _flat(ids), offsets, labels, to_longest, cut)


def _flat(rows: Sequence[Sequence[int]]) -> Int64[Tensor, "tokens"]:
    return torch.tensor([i for row in rows for i in row], dtype=torch.int64)


def shifted(
    block: Int64[Tensor, "batch width"], real: Bool[Tensor, "batch width"] | None
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
    """Inputs, labels and mask of a language model: each position is to say the next token, none is to say padding."""
    inputs, labels = block[:, :-1].contiguous(), block[:, 1:].contiguous()
    if real is None:
        return inputs, labels, None
    said = real[:, 1:].contiguous()
    return inputs, labels.masked_fill_(~said, IGNORED), said


class Schedule:
    """Training batches as a pure function of (seed, step); the first step is 0.

    stream, random     blocks that start anywhere
    stream, shuffled   blocks end to end from a random phase, every one once an epoch, in a random order
    rows               every row once an epoch, in a random order
    rows, by length    the same, with rows of like length in one batch
    """

    def __init__(
        self,
        encoded: Encoded,
        task: Task,
        training: Training,
        data: Data,
        context: int,
        seed: int,
        tokenizer: Tokens,
    ) -> None:
        self.encoded, self.task, self.context, self.seed = encoded, task, context, seed
        self.size = training.batch
        self.by_length = training.batching == "by length"
        self.random = isinstance(encoded, Stream) and training.sampling == "random"
        self.unknown, self.once = data.unknown, data.once
        self.unknown_id, self.pad_id = tokenizer.unknown_id, tokenizer.pad_id or 0
        self._kept = _kept_ids(tokenizer)
        for setting, asked in (("unknown", self.unknown), ("once", self.once.unknown or self.once.hidden)):
            if asked and self.unknown_id is None:
                raise CorpusError(f"data.{setting}: the tokenizer ({tokenizer.kind}) has no unknown token")
        self._shown = word_counts(encoded, tokenizer.vocab_size) if self.once != Once() else None
        self._never = self._never_shown()
        self._generator = torch.Generator()
        self._epoch: tuple[int, Int64[Tensor, "items"]] | None = None
        if isinstance(encoded, Stream):
            _long_enough(encoded, context)
            # Every window of context + 1 tokens, as a view: a block is one row of it.
            self._windows = encoded.tokens.unfold(0, context + 1, 1)
            self.items = max(1, (len(encoded) - context) // context)
        else:
            self.items = len(encoded)
        self.steps_per_epoch = -(-self._blocks() // self.size)

    def _never_shown(self) -> Int64[Tensor, "words"]:
        """Words of the vocabulary that the split never shows; padding, unknown and the like are no words."""
        if self._shown is None:
            return self._kept
        never = torch.nonzero(self._shown == 0).squeeze(1)
        return never[(never != self.unknown_id) & ~torch.isin(never, self._kept)]

    def _blocks(self) -> int:
        """How many examples an epoch has."""
        if self.random:
            return max(1, -(-(len(self._windows) + self.context - 1) // self.context))
        return self.items

    def indices(self, step: int) -> Int64[Tensor, "batch"]:
        """Which blocks (by where they start) or rows the step sees."""
        if self.random:
            generator = self._seeded("batches", step)
            return torch.randint(len(self._windows), (self.size,), generator=generator)
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)  # a memo of a pure function
        return self._epoch[1][at * self.size : (at + 1) * self.size]

    def batch(self, step: int) -> Batch:
        at = self.indices(step)
        if isinstance(self.encoded, Stream):
            block, real = self._windows[at].long(), None
        else:
            width = self.encoded.width(at, self.context + (self.task == "language-model"))
            block, real = self.encoded.padded(at, width, self.pad_id)
        if self.unknown:
            block = self._with_unknown(block, step)
        if self.task == "language-model":
            if self._shown is None:
                return Batch(*shifted(block, real))
            return Batch(*self._with_once(block, real, step))
        assert isinstance(self.encoded, Rows)
        assert self.encoded.labels is not None
        return Batch(block, self.encoded.labels[at], real)

    def digest(self, steps: int) -> str:
        """SHA-256 of which examples each of so many steps sees, and of how they are cut."""
        head = f"{type(self.encoded).__name__} {len(self.encoded)} {self.context} {self.size} {self.unknown} {steps}"
        if self.by_length:
            head += " by length"
        if self.once != Once():
            head += f" {self.once.model_dump_json()}"
        made = hashlib.sha256(head.encode())
        for step in range(steps):
            made.update(self.indices(step).numpy().tobytes())
        return made.hexdigest()

    def _order(self, epoch: int) -> Int64[Tensor, "items"]:
        order = torch.randperm(self.items, generator=self._seeded("order", epoch))
        if isinstance(self.encoded, Rows):
            return self._by_length(order, self.encoded, epoch) if self.by_length else order
        phases = min(self.context, len(self.encoded) - self.items * self.context)
        phase = torch.randint(phases, (1,), generator=self._seeded("phase", epoch))
        return order * self.context + phase

    def _by_length(self, order: Int64[Tensor, "items"], rows: Rows, epoch: int) -> Int64[Tensor, "items"]:
        """Within windows of a random order, rows of like length side by side; then the batches in a random order. Only
        the last may be short, and stays last."""
        alike = rows.alike_by
        windows = [window[alike[window].argsort(stable=True)] for window in order.split(WINDOW * self.size)]
        full = self.items // self.size * self.size
        order = torch.cat(windows)
        batches = order[:full].view(-1, self.size)
        shuffled = torch.randperm(len(batches), generator=self._seeded("batches by length", epoch))
        return torch.cat((batches[shuffled].flatten(), order[full:]))

    def _with_unknown(self, block: Int64[Tensor, "batch width"], step: int) -> Int64[Tensor, "batch width"]:
        """A share of the words made unknown, before inputs and labels part: both see it."""
        chosen = torch.rand(block.shape, generator=self._seeded("unknown", step)) < self.unknown
        if self._kept.numel():
            chosen &= ~torch.isin(block, self._kept)
        assert self.unknown_id is not None
        return block.masked_fill(chosen, self.unknown_id)

    def _with_once(
        self, block: Int64[Tensor, "batch width"], real: Bool[Tensor, "batch width"] | None, step: int
    ) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
        """Inputs, labels and mask, with words that train shows once treated as data.once asks."""
        assert self._shown is not None
        once = self._shown[block] == 1
        both = once & self._drawn(block, self.once.unknown, "once unknown", step)
        block = block.masked_fill(both, self.unknown_id) if self.unknown_id is not None else block
        inputs, labels, mask = shifted(block, real)
        left = once & ~both
        hidden = (left & self._drawn(block, self.once.hidden, "once hidden", step))[:, :-1]
        if self.unknown_id is not None:
            inputs = inputs.masked_fill(hidden, self.unknown_id)
        never = self._never
        if self.once.unseen and never.numel():
            given = (left & self._drawn(block, self.once.unseen, "once unseen", step))[:, 1:] & (labels != IGNORED)
            words = never[torch.randint(never.numel(), labels.shape, generator=self._seeded("unseen words", step))]
            labels = torch.where(given, words, labels)
        return inputs, labels, mask

    def _drawn(self, block: Tensor, share: float, purpose: str, step: int) -> Bool[Tensor, "batch width"]:
        return torch.rand(block.shape, generator=self._seeded(purpose, step)) < share

    def _seeded(self, purpose: str, where: int) -> torch.Generator:
        return self._generator.manual_seed(rng.key(self.seed, purpose, where))


def word_counts(encoded: Encoded, vocab: int) -> Int64[Tensor, "vocab"]:
    """How often the split shows each word of the vocabulary."""
    if encoded.counts is not None and encoded.counts.numel() == vocab:
        return encoded.counts
    return torch.bincount(encoded.tokens.long(), minlength=vocab)


def _kept_ids(tokenizer: Tokens) -> Int64[Tensor, "kept"]:
    """Padding, start and stop are not words."""
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.stop_id)
    return torch.tensor(sorted({one for one in ids if one is not None}), dtype=torch.int64)


def _long_enough(stream: Stream, context: int) -> None:
    if len(stream) <= context:
        raise CorpusError(
            f"{stream.name}: the text has {len(stream)} tokens, and one block of context {context} needs "
            f"{context + 1}; give more text or set model.context below {max(len(stream), 2)}"
        )
