"""The text that an evaluation predicts: what two runs must have in common to be compared.

Every score has the size in bytes and a digest of the text that was predicted, after truncation and with
out-of-vocabulary words replaced, so equal digests mean that the same text was predicted. Documents have both as well,
because tokenizers split a stream into different blocks, but every document starts with a new token.

Whitespace is not part of a digest, since word tokenizers do not predict it, and Penn Treebank quotes count as plain
quotes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX
from headtohead.data.encoding import TokenRows, TokenStream
from headtohead.data.examples import EvaluationExamples
from headtohead.data.sft import PromptedRows
from headtohead.data.splits import Split
from headtohead.data.tokenizers import CorpusTokenizer, TokenizerProtocol

UNKNOWN_MARK, STOP_MARK = b"\0unknown\0", b"\0stop\0"
"""what the unknown token and stop tokens contribute to a digest"""

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ScoredText:
    """The text that an evaluation predicts. Digests are the first 8 bytes of a SHA-256."""

    counts: IntArray
    """predictions, by score"""
    bytes: IntArray
    """bytes of predicted text, per score: the whole row if all of it is predicted, otherwise its predicted tokens"""
    digests: IntArray
    """digest of the predicted text, per score; for a classifier, of the text and its class"""
    unknown: IntArray
    """out-of-vocabulary tokens among the predictions, per score; for a classifier, in the text"""
    truncated: IntArray
    """1 for rows truncated to the context length, otherwise 0, per score"""
    documents: IntArray
    """document of each score: an index into the split's documents, or into its rows if each is a document"""
    first_row: IntArray
    """1 for scores from a stream's first row, whose first token is not predicted, otherwise 0"""
    document_bytes: IntArray
    """bytes of text per document, without a stream's first row"""
    document_digests: IntArray
    """digest of the predicted text per document, without a stream's first row"""
    text_digest: IntArray
    """digest of the split's text, before truncation and tokenization, (1,)"""
    text_rows: IntArray
    """number of rows in the split, (1,)"""

    def to_columns(self) -> dict[str, IntArray]:
        """Return the arrays by name."""
        return dict(vars(self))


def describe_scored_text(
    examples: EvaluationExamples, split: Split, tokenizer: TokenizerProtocol, batch_size: int
) -> ScoredText:
    """Describe the text that is predicted when these examples are scored in batches of this size."""
    if examples.target.is_class:
        return _describe_classified_text(examples, split, tokenizer)
    ids, owners = _collect_predictions(examples, batch_size)
    scores, positions, lengths = np.unique(owners, return_inverse=True, return_counts=True)
    table = _build_byte_table(tokenizer)
    token_bytes = np.array([0 if token in (UNKNOWN_MARK, STOP_MARK) else len(token) for token in table])[ids]
    is_unknown = ids == (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
    texts = [b"".join([table[i] for i in part]) for part in np.split(ids, np.cumsum(lengths)[:-1])]
    documents = examples.find_documents().numpy()
    documents = documents if examples.segment_starts is not None else documents[scores]
    first_row = (scores < _find_first_row_end(examples)).astype(np.int64)
    texts_by_document: dict[int, list[bytes]] = {int(document): [] for document in np.unique(documents)}
    for document, is_first, text in zip(documents.tolist(), first_row, texts, strict=True):
        texts_by_document[document] += [] if is_first else [text]
    joined = [b"".join(parts) for parts in texts_by_document.values()]
    return ScoredText(
        counts=lengths,
        bytes=_count_bytes(examples, split, np.bincount(positions, token_bytes).astype(np.int64)),
        digests=_compute_digests(texts),
        unknown=np.bincount(positions, is_unknown).astype(np.int64),
        truncated=_find_truncated_rows(examples, scores),
        documents=documents,
        first_row=first_row,
        document_bytes=_count_document_bytes(examples, split, joined),
        document_digests=_compute_digests(joined),
        **_describe_split(split),
    )


def _describe_classified_text(examples: EvaluationExamples, split: Split, tokenizer: TokenizerProtocol) -> ScoredText:
    """Describe the rows of a classification split: one example per row, with its label in the digest."""
    rows, labels = examples.encoded, split.labels or ()
    assert isinstance(rows, TokenRows)
    texts = [f"{row}\0{label}".encode() for row, label in zip(split.rows, labels, strict=True)]
    sizes = np.array([len(row.encode()) for row in split.rows])
    is_unknown = rows.tokens.long() == (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
    row_indices = torch.repeat_interleave(torch.arange(len(rows)), rows.lengths)
    documents = examples.find_documents().numpy()
    names, positions = np.unique(documents, return_inverse=True)
    texts_by_document: list[list[bytes]] = [[] for _ in names]
    for position, text in zip(positions, texts, strict=True):
        texts_by_document[position].append(text)
    return ScoredText(
        counts=np.ones(len(texts), np.int64),
        bytes=sizes,
        digests=_compute_digests(texts),
        unknown=torch.bincount(row_indices[is_unknown], minlength=len(rows)).numpy(),
        truncated=_find_truncated_rows(examples, np.arange(len(rows))),
        documents=documents,
        first_row=np.zeros(len(texts), np.int64),
        document_bytes=np.bincount(positions, sizes).astype(np.int64),
        document_digests=_compute_digests(b"".join(parts) for parts in texts_by_document),
        **_describe_split(split),
    )


def _describe_split(split: Split) -> dict[str, IntArray]:
    """Return a digest of a split's scored rows, and how many there are."""
    digest = hashlib.sha256()
    for row in split.rows:
        digest.update(row.encode() + b"\0")
    value = int.from_bytes(digest.digest()[:8], "big", signed=True)
    return {"text_digest": np.array([value]), "text_rows": np.array([len(split.rows)])}


def _count_bytes(examples: EvaluationExamples, split: Split, predicted: IntArray) -> IntArray:
    """Return the bytes of each row that is predicted as a whole, otherwise the bytes of its predicted tokens.

    Word tokenizers do not predict whitespace, but a text's size in bytes does not depend on the tokenizer.
    """
    rows = examples.encoded
    if not isinstance(rows, TokenRows) or not _has_text_rows(examples):
        return predicted
    sizes = np.array([len(row.encode()) for row in split.rows])
    return np.where(_find_truncated_rows(examples, np.arange(len(rows))), predicted, sizes)


def _find_truncated_rows(examples: EvaluationExamples, scores: IntArray) -> IntArray:
    if not isinstance(examples.encoded, TokenRows):
        return np.zeros(len(scores), np.int64)
    limit = examples.context + examples.target.is_causal
    return (examples.encoded.lengths.numpy()[scores] > limit).astype(np.int64)


def _has_text_rows(examples: EvaluationExamples) -> bool:
    """Return whether the split's rows are predicted in full, without prompts, masks or sampling."""
    return examples.target is Target.NEXT_TOKEN and not isinstance(examples.encoded, PromptedRows)


def _collect_predictions(examples: EvaluationExamples, batch_size: int) -> tuple[IntArray, IntArray]:
    """Return all predicted tokens and the score that each contributes to, ordered by score."""
    ids, owners = [], []
    for batch in examples.batches(batch_size):
        is_predicted = batch.labels != IGNORE_INDEX
        assert batch.example_indices is not None
        owner = batch.example_indices[:, None].expand_as(batch.labels) if batch.segments is None else batch.segments
        ids.append(batch.labels[is_predicted])
        owners.append(owner[is_predicted])
    order = torch.cat(owners).argsort(stable=True)
    return torch.cat(ids)[order].numpy(), torch.cat(owners)[order].numpy()


def _find_first_row_end(examples: EvaluationExamples) -> int:
    """Return the first label after a stream's first row; 0 if nothing is excluded."""
    if not isinstance(examples.encoded, TokenStream) or examples.encoded.offsets is None:
        return 0
    end = int(examples.encoded.offsets[1]) - 1
    return end if 0 < end < len(examples.encoded) - 1 else 0


def _count_document_bytes(examples: EvaluationExamples, split: Split, texts: list[bytes]) -> IntArray:
    """Return each document's size in bytes. Prompts and tokens that are not predicted do not count."""
    if not _has_text_rows(examples):
        return np.array([len(text) for text in texts])
    is_stream = isinstance(examples.encoded, TokenStream)
    separator_bytes = len(split.separator.encode()) if is_stream else 0
    sizes = np.array([len(row.encode()) + separator_bytes for row in split.rows])
    sizes[: int(_find_first_row_end(examples) > 0)] = 0
    documents = examples.encoded.documents
    return sizes if documents is None else np.bincount(documents.numpy(), sizes).astype(np.int64)


def _build_byte_table(tokenizer: TokenizerProtocol) -> list[bytes]:
    """Return the bytes of each vocabulary token."""
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
    decoder = json.loads(tokenizer.backend.to_str())["decoder"] if isinstance(tokenizer, CorpusTokenizer) else None
    if decoder and decoder["type"] == "ByteLevel":
        byte_of = {character: byte for byte, character in _list_byte_characters().items()}
        table = [bytes(byte_of[c] for c in token if c in byte_of) for token in tokens]
    else:
        table = [token.encode() for token in tokens]
    marks = {
        tokenizer.pad_id: b"",
        tokenizer.bos_id: b"",
        tokenizer.eos_id: STOP_MARK,
        tokenizer.unk_id: UNKNOWN_MARK,
    }
    for token_id, mark in marks.items():
        if token_id is not None:
            table[token_id] = mark
    return table


def _list_byte_characters() -> dict[int, str]:
    """Return the character that represents each byte of scored text in byte-level vocabularies.

    Printable bytes represent themselves; the others are numbered from 256. Radford et al. 2019, GPT-2.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unprintable = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(unprintable)}


def _compute_digests(texts: Iterable[bytes]) -> IntArray:
    return np.array([_compute_digest(text) for text in texts], np.int64)


def _compute_digest(text: bytes) -> int:
    characters = "".join(text.decode("utf-8", "surrogateescape").split()).replace("``", '"').replace("''", '"')
    digest = hashlib.sha256(characters.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
