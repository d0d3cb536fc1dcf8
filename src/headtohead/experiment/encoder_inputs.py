"""Texts for a pretrained encoder: its own tokens, in its own frame, cut at model.max_length and counted."""

from __future__ import annotations

import statistics
from typing import Any

from headtohead.config import base
from headtohead.config import data as config_data
from headtohead.data import batches, tokenizers
from headtohead.data.batches import Encoded
from headtohead.data.splits import Corpus
from headtohead.errors import CorpusError
from headtohead.pretrained.loading import library, quiet
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import find


def read_tokenizer(tokens: base.Choice) -> PretrainedTokenizer:
    """The tokenizer that lies beside the weights."""
    weights = find(tokens.options["model"])
    with quiet(library(weights)):
        return PretrainedTokenizer.load(weights, None)


def encode(texts: Corpus, tokenizer: PretrainedTokenizer, tokens: base.Choice) -> dict[str, Any]:
    """Every split as rows, each padded to the longest of its batch only: the encoder masks padding."""
    limit = int(tokens.options["max_length"])
    found = {}
    for name, split in texts.splits.items():
        ids, cut = tokenizer.framed_rows(split.rows, limit)
        if cut == len(ids):
            whole = [len(tokenizer.framed(row)) for row in split.rows]
            raise CorpusError(
                f"model.max_length: {limit} tokens cut every one of the {cut:,} texts of {name} (the shortest has "
                f"{min(whole)}, half of them have more than {statistics.median(whole):.0f}); take a larger one"
            )
        found[name] = batches.rows_of(split, ids, labelled=True, to_longest=True, cut=cut)
    return found


def as_words(texts: Corpus) -> tuple[dict[str, Encoded], int]:
    """The same texts as words, and how many words there are: for what a count can do."""
    data = config_data.Data()
    tokenizer = tokenizers.train_tokenizer(data, texts)
    rows = {name: batches.encode(split, tokenizer, "classify", data) for name, split in texts.splits.items()}
    return rows, tokenizer.vocab_size
