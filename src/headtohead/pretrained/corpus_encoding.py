"""Encode the corpus of a fine-tuning: for its pretrained encoder, and as words for count-based baselines."""

from __future__ import annotations

import statistics
from typing import Any

from headtohead.config import base
from headtohead.config.tables import data as config_data
from headtohead.data import encoding
from headtohead.data.encoding import EncodedSplit
from headtohead.data.splits import Corpus
from headtohead.data.tokenization import tokenizers
from headtohead.errors import DataError
from headtohead.pretrained.loading import import_transformers_for, silence_transformers
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import locate_weights


def load_encoder_tokenizer(tokenizer_choice: base.ComponentConfig) -> PretrainedTokenizer:
    """Load the tokenizer that is stored with the weights of a pretrained encoder."""
    weights = locate_weights(tokenizer_choice.options["model"])
    with silence_transformers(import_transformers_for(weights)):
        return PretrainedTokenizer.load(weights, None)


def encode_splits_for_encoder(
    corpus: Corpus, tokenizer: PretrainedTokenizer, tokenizer_choice: base.ComponentConfig
) -> dict[str, Any]:
    """Return every split as token rows with the special tokens of a pretrained encoder.

    Each batch is padded to its longest row, because the encoder masks padding. Raise DataError if `max_length`
    truncates every text in a split.
    """
    max_length = int(tokenizer_choice.options["max_length"])
    encoded_splits = {}
    for name, split in corpus.splits.items():
        token_ids, num_truncated = tokenizer.encode_batch_with_special_tokens(split.rows, max_length)
        if num_truncated == len(token_ids):
            lengths = [len(tokenizer.encode_with_special_tokens(row)) for row in split.rows]
            raise DataError(
                f"model.max_length: {max_length} tokens truncate every one of the {num_truncated:,} texts of {name} "
                f"(the shortest has {min(lengths)}, half of them have more than {statistics.median(lengths):.0f}); "
                "increase it"
            )
        encoded_splits[name] = encoding.build_token_rows(
            split, token_ids, has_labels=True, pad_to_longest=True, num_pretruncated=num_truncated
        )
    return encoded_splits


def encode_splits_as_words(corpus: Corpus) -> tuple[dict[str, EncodedSplit], tokenizers.CorpusTokenizer]:
    """Return the splits of a fine-tuning corpus encoded as words, and the tokenizer, for count-based baselines."""
    data_config = config_data.DataConfig()
    tokenizer = tokenizers.train_tokenizer(data_config, corpus)
    encoded_splits = {
        name: encoding.encode_split(split, tokenizer, data_config, has_labels=True)
        for name, split in corpus.splits.items()
    }
    return encoded_splits, tokenizer
