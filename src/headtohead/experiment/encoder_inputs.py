"""Texts for a pretrained encoder: its own tokens, in its own frame, cut at model.max_length and counted."""

from __future__ import annotations

import statistics
from typing import Any

from headtohead.config import base
from headtohead.config import data as config_data
from headtohead.data import batches, tokenizers
from headtohead.data.batches import EncodedSplit
from headtohead.data.splits import Corpus
from headtohead.errors import DataError
from headtohead.pretrained.loading import import_transformers, silence_transformers
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import locate_weights


def load_tokenizer(tokenizer_choice: base.ComponentConfig) -> PretrainedTokenizer:
    """The tokenizer that lies beside the weights."""
    weights = locate_weights(tokenizer_choice.options["model"])
    with silence_transformers(import_transformers(weights)):
        return PretrainedTokenizer.load(weights, None)


def encode_splits(
    text_corpus: Corpus, tokenizer: PretrainedTokenizer, tokenizer_choice: base.ComponentConfig
) -> dict[str, Any]:
    """Every split as rows, each padded to the longest of its batch only: the encoder masks padding."""
    limit = int(tokenizer_choice.options["max_length"])
    found = {}
    for name, split in text_corpus.splits.items():
        ids, cut = tokenizer.encode_batch_with_special_tokens(split.rows, limit)
        if cut == len(ids):
            whole = [len(tokenizer.encode_with_special_tokens(row)) for row in split.rows]
            raise DataError(
                f"model.max_length: {limit} tokens cut every one of the {cut:,} texts of {name} (the shortest has "
                f"{min(whole)}, half of them have more than {statistics.median(whole):.0f}); take a larger one"
            )
        found[name] = batches.build_token_rows(split, ids, has_labels=True, pad_to_longest=True, num_pretruncated=cut)
    return found


def encode_as_words(texts: Corpus) -> tuple[dict[str, EncodedSplit], int]:
    """The same texts as words, and how many words there are: for what a count can do."""
    data = config_data.DataConfig()
    tokenizer = tokenizers.train_tokenizer(data, texts)
    rows = {name: batches.encode_split(split, tokenizer, data, has_labels=True) for name, split in texts.splits.items()}
    return rows, tokenizer.vocab_size
