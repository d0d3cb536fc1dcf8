"""Splits as token tensors: one stream of tokens, or rows.

Tokens may be memory-mapped in a small integer type (`token_cache`); batches convert them to int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

from headtohead.config.data import DataConfig
from headtohead.data.splits import Split
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import DataError


@dataclass(frozen=True)
class TokenStream:
    """A split as one sequence of tokens."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    counts: Int64[Tensor, "vocab"] | None = None
    """number of occurrences of each token, if already known"""
    offsets: Int64[Tensor, "rows_and_one"] | None = None
    """where each row starts, and where the last one ends, if known"""
    documents: Int64[Tensor, "rows"] | None = None
    """the document of each row; None if each row is its own document"""

    def __len__(self) -> int:
        return self.tokens.numel()

    def find_documents(self, positions: Int64[Tensor, "positions"]) -> Int64[Tensor, "positions"]:
        """Return the documents that the tokens at these positions belong to; 0 if the rows are not known."""
        if self.offsets is None:
            return torch.zeros_like(positions)
        rows = torch.searchsorted(self.offsets, positions, right=True) - 1
        return rows if self.documents is None else self.documents[rows]


@dataclass(frozen=True)
class TokenRows:
    """A split as rows of tokens, concatenated. Language-model rows include their start and stop tokens."""

    name: str
    tokens: Integer[Tensor, "tokens"]
    offsets: Int64[Tensor, "rows_and_one"]
    labels: Int64[Tensor, "rows"] | None = None
    pad_to_longest: bool = False
    """pad batches to their longest row instead of to the context length"""
    num_pretruncated: int = 0
    """the number of rows already truncated by a tokenizer that keeps its special tokens around the remaining text"""
    counts: Int64[Tensor, "vocab"] | None = None
    """number of occurrences of each token, if already known"""
    documents: Int64[Tensor, "rows"] | None = None
    """the document of each row; None if each row is its own document"""

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Int64[Tensor, "rows"]:
        """The number of tokens in each row."""
        return self.offsets.diff()

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """The length by which similar rows are grouped into batches."""
        return self.lengths

    def count_truncated(self, context: int) -> int:
        """Return the number of rows that are truncated for a model with this context length."""
        limit = context if self.labels is not None else context + 1
        return self.num_pretruncated + int((self.lengths > limit).sum())

    def width(self, row_indices: Int64[Tensor, "batch"], context: int) -> int:
        """Return the width of a batch of these rows: the context length or, if allowed and shorter, the longest row."""
        longest = int((self.offsets[row_indices + 1] - self.offsets[row_indices]).max())
        return min(context, longest) if self.pad_to_longest else context

    def pad_rows(
        self, row_indices: Int64[Tensor, "batch"], width: int, pad_id: int
    ) -> tuple[Int64[Tensor, "batch width"], Bool[Tensor, "batch width"]]:
        """Return rows truncated or right-padded to `width`, and their attention mask, both (batch, width)."""
        starts, lengths = self.offsets[row_indices], (self.offsets[row_indices + 1] - self.offsets[row_indices])
        columns = torch.arange(width)
        attention_mask = columns < lengths[:, None]
        token_indices = (starts[:, None] + columns).clamp_(max=self.tokens.numel() - 1)
        return self.tokens[token_indices].long().masked_fill_(~attention_mask, pad_id), attention_mask


EncodedSplit = TokenStream | TokenRows


def encode_split(split: Split, tokenizer: TokenizerProtocol, data: DataConfig, *, has_labels: bool) -> EncodedSplit:
    """Encode a split as a stream or as rows, according to `data.rows` and the task."""
    ids = encode_row_range(split, split.rows, 0, tokenizer, data, has_labels=has_labels)
    if is_stream(data, has_labels=has_labels):
        return TokenStream(
            split.name, flatten_token_ids(ids), offsets=compute_offsets(ids), documents=number_documents(split)
        )
    return build_token_rows(split, ids, has_labels=has_labels)


def is_stream(data: DataConfig, *, has_labels: bool) -> bool:
    """Return whether splits are encoded as one stream of tokens."""
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
    """Encode consecutive rows of a split.

    In a stream, the separator follows each row but the last one in the split. Otherwise rows are enclosed in start and
    stop tokens, if the tokenizer has them. `first_row` is the index of `rows[0]` in the split.
    """
    if is_stream(data, has_labels=has_labels):
        separator = "" if tokenizer.kind == "words" else split.separator  # word tokenizers ignore whitespace
        separated = [row + separator for row in rows]
        if separated and first_row + len(rows) == len(split.rows):
            separated[-1] = rows[-1]
        return tokenizer.encode_batch(separated)
    if not has_labels and (tokenizer.bos_id is None or tokenizer.eos_id is None):
        raise DataError('rows = "sentences" needs a start and a stop token, and the tokenizer has none')
    ids = tokenizer.encode_batch(rows)
    if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
        ids = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in ids]
    if empty_rows := [i for i, row in enumerate(ids) if not row]:
        raise DataError(f"{split.name}: row {first_row + empty_rows[0] + 1} has no tokens: {rows[empty_rows[0]]!r}")
    return ids


def build_token_rows(
    split: Split,
    token_ids: Sequence[Sequence[int]],
    *,
    has_labels: bool,
    pad_to_longest: bool = False,
    num_pretruncated: int = 0,
) -> TokenRows:
    """Build `TokenRows` from the token ids of each row in a split.

    `num_pretruncated` is the number of rows that the tokenizer has already truncated.
    """
    labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
    return TokenRows(
        split.name,
        flatten_token_ids(token_ids),
        compute_offsets(token_ids),
        labels,
        pad_to_longest,
        num_pretruncated,
        documents=number_documents(split),
    )


def number_documents(split: Split) -> Int64[Tensor, "rows"] | None:
    """Return the index of each row's document; None if each row is its own document."""
    if not split.documents:
        return None
    if len(split.document_ids):
        return torch.as_tensor(split.document_ids, dtype=torch.int64)
    return torch.zeros(len(split.rows), dtype=torch.int64)


def compute_offsets(rows: Sequence[Sequence[int]]) -> Int64[Tensor, "rows_and_one"]:
    """Return where each row starts, and where the last one ends, (rows + 1,)."""
    return torch.tensor([0, *map(len, rows)]).cumsum(0)


def flatten_token_ids(rows: Sequence[Sequence[int]]) -> Int64[Tensor, "tokens"]:
    """Return the token ids of all rows, concatenated."""
    return torch.tensor([token_id for row in rows for token_id in row], dtype=torch.int64)


def count_tokens(encoded: EncodedSplit, vocab_size: int) -> Int64[Tensor, "vocab"]:
    """Return the number of occurrences of each token in a split, (vocab,)."""
    if encoded.counts is not None and encoded.counts.numel() == vocab_size:
        return encoded.counts
    return torch.bincount(encoded.tokens.long(), minlength=vocab_size)
