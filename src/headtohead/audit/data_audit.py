"""Every audit of a corpus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import audit_label_conflicts, audit_train_overlap
from headtohead.audit.data_checks.truncation import audit_truncation
from headtohead.audit.data_checks.vocabulary import audit_unknown_tokens, audit_vocabulary
from headtohead.audit.result import CheckResult
from headtohead.data.batches import EncodedSplit, count_tokens
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import TokenizerProtocol


def audit_data(
    corpus: Corpus,
    tokenizer: TokenizerProtocol | None = None,
    *,
    encoded_splits: Mapping[str, EncodedSplit] | None = None,
    unknown_rate: float = 0.0,
) -> list[CheckResult]:
    """Audit a corpus, and with a tokenizer its vocabulary.

    `encoded` are the splits as tokens, if they are at hand already: cutting texts takes most of the time. `unknown` is
    the share of training words that are made unknown while training (data.word_dropout).
    """
    found = [audit_train_overlap(corpus, split) for split in corpus.splits.values() if split.role != "train"]
    found.append(audit_label_conflicts(corpus))
    if tokenizer is not None:
        counts = {name: _count_tokens(split, tokenizer, encoded_splits or {}) for name, split in corpus.splits.items()}
        found.append(audit_vocabulary(corpus, tokenizer, counts))
        found.append(audit_unknown_tokens(corpus, tokenizer, counts, unknown_rate))
    if tokenizer is not None and tokenizer.kind == "pretrained" and encoded_splits:
        found.append(audit_truncation(encoded_splits))
    return found


def _count_tokens(
    split: Split, tokenizer: TokenizerProtocol, encoded_splits: Mapping[str, EncodedSplit]
) -> NDArray[np.int64]:
    """How often each token stands in the split."""
    if split.name in encoded_splits:
        found: NDArray[np.int64] = count_tokens(encoded_splits[split.name], tokenizer.vocab_size).numpy()
        return found
    ids = np.array([i for row in tokenizer.encode_batch(split.rows) for i in row], dtype=np.int64)
    return np.bincount(ids, minlength=tokenizer.vocab_size)
