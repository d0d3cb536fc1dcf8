"""Every audit of a corpus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import audit_labels, audit_rows
from headtohead.audit.data_checks.truncation import audit_length
from headtohead.audit.data_checks.vocabulary import audit_unknown, audit_vocabulary
from headtohead.audit.result import Finding
from headtohead.data.batches import Encoded, word_counts
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import Tokens


def audit_data(
    corpus: Corpus,
    tokenizer: Tokens | None = None,
    *,
    encoded: Mapping[str, Encoded] | None = None,
    unknown: float = 0.0,
) -> list[Finding]:
    """Audit a corpus, and with a tokenizer its vocabulary.

    `encoded` are the splits as tokens, if they are at hand already: cutting texts takes most of the time. `unknown` is
    the share of training words that are made unknown while training (data.unknown).
    """
    found = [audit_rows(corpus, split) for split in corpus.splits.values() if split.role != "train"]
    found.append(audit_labels(corpus))
    if tokenizer is not None:
        counts = {name: _counts(split, tokenizer, encoded or {}) for name, split in corpus.splits.items()}
        found.append(audit_vocabulary(corpus, tokenizer, counts))
        found.append(audit_unknown(corpus, tokenizer, counts, unknown))
    if tokenizer is not None and tokenizer.kind == "pretrained" and encoded:
        found.append(audit_length(encoded))
    return found


def _counts(split: Split, tokenizer: Tokens, encoded: Mapping[str, Encoded]) -> NDArray[np.int64]:
    """How often each token stands in the split."""
    if split.name in encoded:
        found: NDArray[np.int64] = word_counts(encoded[split.name], tokenizer.vocab_size).numpy()
        return found
    ids = np.array([i for row in tokenizer.encode_rows(split.rows) for i in row], dtype=np.int64)
    return np.bincount(ids, minlength=tokenizer.vocab_size)
