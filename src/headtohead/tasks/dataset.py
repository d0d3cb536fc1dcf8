"""A trial's dataset: the corpus, its tokenizer and its encoded splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headtohead.data.sources.summarization import SummarizationCorpus
from headtohead.data.splits import Corpus
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.pretrained.tokenizer import PretrainedTokenizer


@dataclass(frozen=True)
class Dataset:
    """An encoded corpus, shared by all trials with the same data."""

    corpus: Corpus
    tokenizer: CorpusTokenizer | PretrainedTokenizer
    encoded: dict[str, Any]
    """encoded splits by name, each a TokenStream or TokenRows"""
    label_names: tuple[str, ...] = ()
    """the classes to predict; empty if the task predicts tokens"""
    documents: SummarizationCorpus | None = None
    """the documents with reference summaries, if the corpus has them"""

    @property
    def num_classes(self) -> int | None:
        """Size of the classification head, or None for a vocabulary head."""
        return len(self.label_names) or None
