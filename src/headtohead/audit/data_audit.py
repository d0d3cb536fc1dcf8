"""Run all data checks on a corpus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.label_conflicts import audit_label_conflicts
from headtohead.audit.data_checks.split_leakage import (
    DataUse,
    audit_held_out_splits,
    audit_repeats,
    audit_shared_documents,
    audit_train_overlap,
    audit_validation_overlap,
)
from headtohead.audit.data_checks.truncation import audit_truncation
from headtohead.audit.data_checks.vocabulary import audit_unknown_tokens, audit_vocabulary
from headtohead.audit.result import CheckResult
from headtohead.data.encoding import EncodedSplit, count_tokens
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import TokenizerProtocol

DEFAULT_USE = DataUse()


def audit_data(
    corpus: Corpus,
    tokenizer: TokenizerProtocol | None = None,
    *,
    encoded_splits: Mapping[str, EncodedSplit] | None = None,
    use: DataUse = DEFAULT_USE,
) -> list[CheckResult]:
    """Audit a corpus and, if a tokenizer is given, its vocabulary.

    `encoded_splits` avoids tokenizing the splits again. `use` describes how an experiment uses the corpus.
    """
    results = [audit_train_overlap(corpus, split, use) for split in corpus.splits.values() if split.role != "train"]
    for split in corpus.get_test_splits():
        if corpus.validation is not None:
            results.append(audit_validation_overlap(corpus, split, use))
        results += [audit_repeats(corpus, split, use), audit_shared_documents(corpus, split)]
    results += [audit_held_out_splits(corpus), audit_label_conflicts(corpus)]
    if tokenizer is not None:
        token_counts = {
            name: _count_vocabulary_tokens(split, tokenizer, encoded_splits or {})
            for name, split in corpus.splits.items()
        }
        results.append(audit_vocabulary(corpus, tokenizer, token_counts, is_given=use.is_tokenizer_given))
        results.append(audit_unknown_tokens(corpus, tokenizer, token_counts, use.unknown_rate))
    if tokenizer is not None and tokenizer.kind == "pretrained" and encoded_splits:
        results.append(audit_truncation(encoded_splits))
    return results


def _count_vocabulary_tokens(
    split: Split, tokenizer: TokenizerProtocol, encoded_splits: Mapping[str, EncodedSplit]
) -> NDArray[np.int64]:
    """Return how often each token of the vocabulary occurs in a split, shape (vocab_size,), for the vocabulary audits.

    The split is encoded unless `encoded_splits` has it.
    """
    if split.name in encoded_splits:
        counts: NDArray[np.int64] = count_tokens(encoded_splits[split.name], tokenizer.vocab_size).numpy()
        return counts
    encoded_rows = tokenizer.encode_batch(split.rows)
    token_ids = np.array([token_id for row in encoded_rows for token_id in row], dtype=np.int64)
    return np.bincount(token_ids, minlength=tokenizer.vocab_size)
