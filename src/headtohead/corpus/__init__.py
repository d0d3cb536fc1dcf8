"""Texts to batches: sources with their splits, tokenizers saved as tokenizer.json, batches by (seed, step)."""

from .batches import IGNORED, Batch, Encoded, Rows, Schedule, Stream, encode, rows_of, word_counts
from .examples import Examples, examples
from .sources import load
from .splits import Corpus, Split, Task
from .store import Tokenised, tokenised
from .tokenizers import Tokenizer, Tokens, check_tokens, train_tokenizer

__all__ = [
    "IGNORED",
    "Batch",
    "Corpus",
    "Encoded",
    "Examples",
    "Rows",
    "Schedule",
    "Split",
    "Stream",
    "Task",
    "Tokenised",
    "Tokenizer",
    "Tokens",
    "check_tokens",
    "encode",
    "examples",
    "load",
    "rows_of",
    "tokenised",
    "train_tokenizer",
    "word_counts",
]
