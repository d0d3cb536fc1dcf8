"""Describe the text that an evaluation predicts. Two runs are comparable only if they predict the same text.

Every score is stored with the size in bytes and a digest of the predicted text, after truncation and after replacing
out-of-vocabulary words. Equal digests therefore mean equal predicted text. Both are also stored per document:
tokenizers split a stream into different blocks, but every document starts with a new token.

Digests ignore whitespace, which word tokenizers do not predict, and normalize Penn Treebank quotes to plain quotes.
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
from headtohead.data.evaluation_examples import EvaluationExamples
from headtohead.data.sft import PromptedRows
from headtohead.data.splits import Split
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, TokenizerProtocol, list_byte_characters

UNKNOWN_MARK = b"\0unknown\0"
"""what an unknown token contributes to a digest"""
STOP_MARK = b"\0stop\0"
"""what a stop token contributes to a digest"""

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
        """Return the arrays by their column name in scores.safetensors."""
        return dict(vars(self))


def describe_scored_text(
    examples: EvaluationExamples, split: Split, tokenizer: TokenizerProtocol, batch_size: int
) -> ScoredText:
    """Compute sizes and digests of the text that is predicted when evaluation examples are scored.

    Args:
        examples: Evaluation examples of a split.
        split: The split as text.
        tokenizer: Tokenizer of the corpus.
        batch_size: Number of examples per batch.
    """
    if examples.target.is_class_label:
        return _describe_classified_text(examples, split, tokenizer)
    predicted_ids, label_scores = _collect_predicted_ids(examples, batch_size)
    score_indices, score_positions, counts = np.unique(label_scores, return_inverse=True, return_counts=True)
    bytes_by_token = _list_token_bytes(tokenizer)
    num_bytes_by_token = [0 if token in (UNKNOWN_MARK, STOP_MARK) else len(token) for token in bytes_by_token]
    num_bytes = np.bincount(score_positions, np.array(num_bytes_by_token)[predicted_ids]).astype(np.int64)
    is_unknown = predicted_ids == (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
    predicted_texts = [
        b"".join([bytes_by_token[token_id] for token_id in score_ids])
        for score_ids in np.split(predicted_ids, np.cumsum(counts)[:-1])
    ]
    documents = examples.find_document_indices().numpy()
    documents = documents if examples.segment_starts is not None else documents[score_indices]
    first_row = (score_indices < _find_first_row_end(examples)).astype(np.int64)
    texts_by_document: dict[int, list[bytes]] = {int(document): [] for document in np.unique(documents)}
    for document, is_first_row, text in zip(documents.tolist(), first_row, predicted_texts, strict=True):
        texts_by_document[document] += [] if is_first_row else [text]
    document_texts = [b"".join(texts) for texts in texts_by_document.values()]
    return ScoredText(
        counts=counts,
        bytes=_count_score_bytes(examples, split, num_bytes),
        digests=_compute_text_digests(predicted_texts),
        unknown=np.bincount(score_positions, is_unknown).astype(np.int64),
        truncated=_find_truncated_rows(examples, score_indices),
        documents=documents,
        first_row=first_row,
        document_bytes=_count_document_bytes(examples, split, document_texts),
        document_digests=_compute_text_digests(document_texts),
        **_build_split_columns(split),
    )


def _describe_classified_text(examples: EvaluationExamples, split: Split, tokenizer: TokenizerProtocol) -> ScoredText:
    """Describe a classification split: one example per row, with its label included in the digest."""
    encoded_rows, labels = examples.encoded, split.labels or ()
    assert isinstance(encoded_rows, TokenRows)
    labeled_texts = [f"{row}\0{label}".encode() for row, label in zip(split.rows, labels, strict=True)]
    row_bytes = np.array([len(row.encode()) for row in split.rows])
    is_unknown = encoded_rows.token_ids.long() == (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
    token_rows = torch.repeat_interleave(torch.arange(len(encoded_rows)), encoded_rows.row_lengths)
    documents = examples.find_document_indices().numpy()
    unique_documents, document_positions = np.unique(documents, return_inverse=True)
    texts_by_document: list[list[bytes]] = [[] for _ in unique_documents]
    for position, text in zip(document_positions, labeled_texts, strict=True):
        texts_by_document[position].append(text)
    return ScoredText(
        counts=np.ones(len(labeled_texts), np.int64),
        bytes=row_bytes,
        digests=_compute_text_digests(labeled_texts),
        unknown=torch.bincount(token_rows[is_unknown], minlength=len(encoded_rows)).numpy(),
        truncated=_find_truncated_rows(examples, np.arange(len(encoded_rows))),
        documents=documents,
        first_row=np.zeros(len(labeled_texts), np.int64),
        document_bytes=np.bincount(document_positions, row_bytes).astype(np.int64),
        document_digests=_compute_text_digests(b"".join(texts) for texts in texts_by_document),
        **_build_split_columns(split),
    )


def _build_split_columns(split: Split) -> dict[str, IntArray]:
    """Return the columns of `ScoredText` that describe the split as a whole: its digest and its number of rows."""
    digest = hashlib.sha256()
    for row in split.rows:
        digest.update(row.encode() + b"\0")
    text_digest = int.from_bytes(digest.digest()[:8], "big", signed=True)
    return {"text_digest": np.array([text_digest]), "text_rows": np.array([len(split.rows)])}


def _count_score_bytes(examples: EvaluationExamples, split: Split, predicted_bytes: IntArray) -> IntArray:
    """Return the size in bytes of the scored text behind each score: a whole row, or only its predicted tokens.
    Word tokenizers do not predict whitespace, but the size of a text in bytes does not depend on the tokenizer.
    """
    encoded_rows = examples.encoded
    if not isinstance(encoded_rows, TokenRows) or not _predicts_whole_rows(examples):
        return predicted_bytes
    row_bytes = np.array([len(row.encode()) for row in split.rows])
    return np.where(_find_truncated_rows(examples, np.arange(len(encoded_rows))), predicted_bytes, row_bytes)


def _find_truncated_rows(examples: EvaluationExamples, row_indices: IntArray) -> IntArray:
    """Return 1 for each scored row that is truncated to the context length, otherwise 0; always 0 for a stream."""
    if not isinstance(examples.encoded, TokenRows):
        return np.zeros(len(row_indices), np.int64)
    max_tokens = examples.context + examples.target.is_causal
    return (examples.encoded.row_lengths.numpy()[row_indices] > max_tokens).astype(np.int64)


def _predicts_whole_rows(examples: EvaluationExamples) -> bool:
    """Return whether the split's rows are predicted in full, without prompts, masks or sampling."""
    return examples.target is Target.NEXT_TOKEN and not isinstance(examples.encoded, PromptedRows)


def _collect_predicted_ids(examples: EvaluationExamples, batch_size: int) -> tuple[IntArray, IntArray]:
    """Return all predicted token ids of a scored text and the index of the score of each, ordered by score."""
    predicted_ids, label_scores = [], []
    for batch in examples.iter_batches(batch_size):
        is_predicted = batch.labels != IGNORE_INDEX
        assert batch.example_indices is not None
        score_indices = (
            batch.example_indices[:, None].expand_as(batch.labels) if batch.segment_ids is None else batch.segment_ids
        )
        predicted_ids.append(batch.labels[is_predicted])
        label_scores.append(score_indices[is_predicted])
    order = torch.cat(label_scores).argsort(stable=True)
    return torch.cat(predicted_ids)[order].numpy(), torch.cat(label_scores)[order].numpy()


def _find_first_row_end(examples: EvaluationExamples) -> int:
    """Return the first label after a stream's first row, which is not part of any document's scored text; 0 if none."""
    if not isinstance(examples.encoded, TokenStream) or examples.encoded.row_offsets is None:
        return 0
    end = int(examples.encoded.row_offsets[1]) - 1
    return end if 0 < end < len(examples.encoded) - 1 else 0


def _count_document_bytes(examples: EvaluationExamples, split: Split, document_texts: list[bytes]) -> IntArray:
    """Return the size of each document's scored text in bytes: without prompts and tokens that are not predicted."""
    if not _predicts_whole_rows(examples):
        return np.array([len(text) for text in document_texts])
    is_stream = isinstance(examples.encoded, TokenStream)
    separator_bytes = len(split.separator.encode()) if is_stream else 0
    row_bytes = np.array([len(row.encode()) + separator_bytes for row in split.rows])
    row_bytes[: int(_find_first_row_end(examples) > 0)] = 0
    row_documents = examples.encoded.row_documents
    return row_bytes if row_documents is None else np.bincount(row_documents.numpy(), row_bytes).astype(np.int64)


def _list_token_bytes(tokenizer: TokenizerProtocol) -> list[bytes]:
    """Return the bytes that each vocabulary token contributes to a scored text and its digest."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    decoder = json.loads(tokenizer.backend.to_str())["decoder"] if isinstance(tokenizer, CorpusTokenizer) else None
    if decoder and decoder["type"] == "ByteLevel":
        byte_by_character = {character: byte for byte, character in list_byte_characters().items()}
        bytes_by_token = [
            bytes(byte_by_character[character] for character in token if character in byte_by_character)
            for token in tokens
        ]
    else:
        bytes_by_token = [token.encode() for token in tokens]
    special_token_bytes = {
        tokenizer.pad_id: b"",
        tokenizer.bos_id: b"",
        tokenizer.eos_id: STOP_MARK,
        tokenizer.unk_id: UNKNOWN_MARK,
    }
    for token_id, mark in special_token_bytes.items():
        if token_id is not None:
            bytes_by_token[token_id] = mark
    return bytes_by_token


def _compute_text_digests(texts: Iterable[bytes]) -> IntArray:
    return np.array([_compute_text_digest(text) for text in texts], np.int64)


def _compute_text_digest(text: bytes) -> int:
    """Return a digest of predicted text that ignores whitespace and the style of quotes."""
    characters = "".join(text.decode("utf-8", "surrogateescape").split()).replace("``", '"').replace("''", '"')
    digest = hashlib.sha256(characters.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
