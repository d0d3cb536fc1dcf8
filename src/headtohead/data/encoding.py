"""Encode splits as token ids: either one stream, or separate rows.

Token ids may be memory-mapped in a small integer type (see `token_cache`); batches convert them to int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

from headtohead.config.tables.data import DataConfig
from headtohead.data.splits import Split
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.errors import DataError

SIGNED_DTYPES = {torch.uint16: torch.int16, torch.uint32: torch.int32}


@dataclass(frozen=True)
class TokenStream:
    """A split as one sequence of tokens. Its length is the number of tokens."""

    name: str
    token_ids: Integer[Tensor, "tokens"]
    token_counts: Int64[Tensor, "vocab"] | None = None
    """number of occurrences of each vocabulary token, if already known"""
    row_offsets: Int64[Tensor, "rows_and_one"] | None = None
    """where each row starts, and where the last one ends, if known"""
    row_documents: Int64[Tensor, "rows"] | None = None
    """document index of each row; None if each row is its own document"""

    def __len__(self) -> int:
        return self.token_ids.numel()

    def find_document_indices(self, positions: Int64[Tensor, "positions"]) -> Int64[Tensor, "positions"]:
        """Return the document index of the encoded token at each position; 0 if row boundaries are unknown."""
        if self.row_offsets is None:
            return torch.zeros_like(positions)
        row_indices = torch.searchsorted(self.row_offsets, positions, right=True) - 1
        return row_indices if self.row_documents is None else self.row_documents[row_indices]


@dataclass(frozen=True)
class TokenRows:
    """A split as rows of tokens, stored concatenated. Language-model rows include start and stop tokens."""

    name: str
    token_ids: Integer[Tensor, "tokens"]
    row_offsets: Int64[Tensor, "rows_and_one"]
    """where each row starts, and where the last one ends"""
    labels: Int64[Tensor, "rows"] | None = None
    """class index of each row, for classification"""
    pad_to_longest: bool = False
    """pad batches to their longest row instead of to the context length"""
    num_pretruncated: int = 0
    """number of rows already truncated by a tokenizer that keeps its special tokens around the remaining text"""
    token_counts: Int64[Tensor, "vocab"] | None = None
    """number of occurrences of each vocabulary token, if already known"""
    row_documents: Int64[Tensor, "rows"] | None = None
    """document index of each row; None if each row is its own document"""

    def __len__(self) -> int:
        return self.row_offsets.numel() - 1

    @property
    def row_lengths(self) -> Int64[Tensor, "rows"]:
        """The number of tokens in each row."""
        return self.row_offsets.diff()

    @property
    def grouping_lengths(self) -> Int64[Tensor, "rows"]:
        """The lengths by which rows are sorted, so that rows of similar length share a batch."""
        return self.row_lengths

    def count_truncated_rows(self, context: int) -> int:
        """Return the number of rows that exceed this context length and are truncated."""
        max_tokens = context if self.labels is not None else context + 1
        return self.num_pretruncated + int((self.row_lengths > max_tokens).sum())

    def compute_batch_width(self, row_indices: Int64[Tensor, "batch"], max_width: int) -> int:
        """Return the width to which the rows of a batch are padded: `max_width`, or the length of the longest row if
        it is shorter and padding is to the longest row.
        """
        longest = int((self.row_offsets[row_indices + 1] - self.row_offsets[row_indices]).max())
        return min(max_width, longest) if self.pad_to_longest else max_width

    def pad_rows(
        self, row_indices: Int64[Tensor, "batch"], width: int, pad_id: int
    ) -> tuple[Int64[Tensor, "batch width"], Bool[Tensor, "batch width"]]:
        """Return the token ids of encoded rows, truncated or right-padded to `width`, and their attention mask."""
        row_starts, row_ends = self.row_offsets[row_indices], self.row_offsets[row_indices + 1]
        columns = torch.arange(width)
        attention_mask = columns < (row_ends - row_starts)[:, None]
        positions = (row_starts[:, None] + columns).clamp_(max=self.token_ids.numel() - 1)
        token_ids = gather_token_ids(self.token_ids, positions)
        return token_ids.masked_fill_(~attention_mask, pad_id), attention_mask


EncodedSplit = TokenStream | TokenRows


def encode_split(split: Split, tokenizer: TokenizerProtocol, data: DataConfig, *, has_labels: bool) -> EncodedSplit:
    """Encode a split as a stream or as rows, according to `data.rows` and the task."""
    ids_by_row = encode_row_range(split, split.rows, 0, tokenizer, data, has_labels=has_labels)
    if uses_token_stream(data, has_labels=has_labels):
        return TokenStream(
            split.name,
            flatten_token_ids(ids_by_row),
            row_offsets=compute_row_offsets(ids_by_row),
            row_documents=get_row_documents(split),
        )
    return build_token_rows(split, ids_by_row, has_labels=has_labels)


def uses_token_stream(data: DataConfig, *, has_labels: bool) -> bool:
    """Return whether each split is encoded as one stream of tokens."""
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
    """Return the token ids of consecutive rows of a split.

    In a stream, a separator follows each row except the last row of the split. Otherwise rows are enclosed in start and
    stop tokens, if the tokenizer has them.

    Args:
        split: The split to which the rows belong.
        rows: The rows to encode.
        first_row: Index of `rows[0]` in the split.
        tokenizer: Tokenizer of the corpus.
        data: Settings of the corpus.
        has_labels: Whether the task uses labels.
    """
    if uses_token_stream(data, has_labels=has_labels):
        separator = "" if tokenizer.kind == "words" else split.separator  # word tokenizers ignore whitespace
        separated_rows = [row + separator for row in rows]
        if separated_rows and first_row + len(rows) == len(split.rows):
            separated_rows[-1] = rows[-1]
        return tokenizer.encode_batch(separated_rows)
    if not has_labels and (tokenizer.bos_id is None or tokenizer.eos_id is None):
        raise DataError('rows = "sentences" requires start and stop tokens, but the tokenizer has none')
    ids_by_row = tokenizer.encode_batch(rows)
    if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
        ids_by_row = [[tokenizer.bos_id, *row_ids, tokenizer.eos_id] for row_ids in ids_by_row]
    if empty_rows := [i for i, row_ids in enumerate(ids_by_row) if not row_ids]:
        raise DataError(f"{split.name}: row {first_row + empty_rows[0] + 1} has no tokens: {rows[empty_rows[0]]!r}")
    return ids_by_row


def build_token_rows(
    split: Split,
    ids_by_row: Sequence[Sequence[int]],
    *,
    has_labels: bool,
    pad_to_longest: bool = False,
    num_pretruncated: int = 0,
) -> TokenRows:
    """Build the encoded split `TokenRows` from the token ids of each row.

    Args:
        split: The split to which the rows belong.
        ids_by_row: Token ids of each row.
        has_labels: Whether the task uses labels.
        pad_to_longest: Pad batches to their longest row instead of the context length.
        num_pretruncated: Number of rows that the tokenizer has already truncated.
    """
    labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
    return TokenRows(
        split.name,
        flatten_token_ids(ids_by_row),
        compute_row_offsets(ids_by_row),
        labels,
        pad_to_longest,
        num_pretruncated,
        row_documents=get_row_documents(split),
    )


def gather_token_ids(token_ids: Tensor, positions: Tensor) -> Int64[Tensor, "..."]:
    """Return the token ids of an encoded split at these positions, as int64.

    Splits are stored in unsigned types, which versions of torch up to 2.9 cannot index.
    """
    if token_ids.dtype not in SIGNED_DTYPES:
        return token_ids[positions].long()
    num_values: int = 2 ** (8 * token_ids.element_size())
    return token_ids.view(SIGNED_DTYPES[token_ids.dtype])[positions].long() & (num_values - 1)


def get_row_documents(split: Split) -> Int64[Tensor, "rows"] | None:
    """Return the document indices for an encoded split: one per row, or None if each row is its own document."""
    if not split.documents:
        return None
    if len(split.document_ids):
        return torch.as_tensor(split.document_ids, dtype=torch.int64)
    return torch.zeros(1, dtype=torch.int64).expand(len(split.rows))  # takes no memory


def compute_row_offsets(ids_by_row: Sequence[Sequence[int]]) -> Int64[Tensor, "rows_and_one"]:
    """Return where each row starts in the concatenated token ids, followed by the end of the last row."""
    return torch.tensor([0, *map(len, ids_by_row)]).cumsum(0)


def flatten_token_ids(ids_by_row: Sequence[Sequence[int]]) -> Int64[Tensor, "tokens"]:
    """Return the token ids of all rows, concatenated."""
    return torch.tensor([token_id for row_ids in ids_by_row for token_id in row_ids], dtype=torch.int64)


def count_tokens(encoded: EncodedSplit, vocab_size: int) -> Int64[Tensor, "vocab"]:
    """Return the number of occurrences of each vocabulary token in an encoded split."""
    if encoded.token_counts is not None and encoded.token_counts.numel() == vocab_size:
        return encoded.token_counts
    return torch.bincount(encoded.token_ids.long(), minlength=vocab_size)
