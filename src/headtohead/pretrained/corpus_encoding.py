"""Encode a corpus with a pretrained model's tokenizer, truncated to `model.max_length`."""

from __future__ import annotations

import statistics
from typing import Any

from headtohead.config import base
from headtohead.config import data as config_data
from headtohead.data import encoding, tokenizers
from headtohead.data.encoding import EncodedSplit
from headtohead.data.splits import Corpus
from headtohead.errors import DataError
from headtohead.pretrained.loading import import_transformers, silence_transformers
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import locate_weights


def load_tokenizer(tokenizer_choice: base.ComponentConfig) -> PretrainedTokenizer:
    """Load the tokenizer stored with the pretrained weights."""
    weights = locate_weights(tokenizer_choice.options["model"])
    with silence_transformers(import_transformers(weights)):
        return PretrainedTokenizer.load(weights, None)


def encode_splits(
    text_corpus: Corpus, tokenizer: PretrainedTokenizer, tokenizer_choice: base.ComponentConfig
) -> dict[str, Any]:
    """Return every split as token rows. Each batch is padded to its longest row, because the encoder masks padding.

    Raise DataError if `max_length` truncates every text in a split.
    """
    max_length = int(tokenizer_choice.options["max_length"])
    encoded_splits = {}
    for name, split in text_corpus.splits.items():
        ids, num_truncated = tokenizer.encode_batch_with_special_tokens(split.rows, max_length)
        if num_truncated == len(ids):
            lengths = [len(tokenizer.encode_with_special_tokens(row)) for row in split.rows]
            raise DataError(
                f"model.max_length: {max_length} tokens truncate every one of the {num_truncated:,} texts of {name} "
                f"(the shortest has {min(lengths)}, half of them have more than {statistics.median(lengths):.0f}); "
                "increase it"
            )
        encoded_splits[name] = encoding.build_token_rows(
            split, ids, has_labels=True, pad_to_longest=True, num_pretruncated=num_truncated
        )
    return encoded_splits


def encode_as_words(texts: Corpus) -> tuple[dict[str, EncodedSplit], tokenizers.CorpusTokenizer]:
    """Return the splits encoded as words, and their tokenizer. Count-based baselines use them."""
    data = config_data.DataConfig()
    tokenizer = tokenizers.train_tokenizer(data, texts)
    encoded_splits = {
        name: encoding.encode_split(split, tokenizer, data, has_labels=True) for name, split in texts.splits.items()
    }
    return encoded_splits, tokenizer
