"""The dataset of a trial: corpus, tokenizer and encoded splits, cached per process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headtohead.config import data as config_data
from headtohead.config.tasks import TaskName
from headtohead.data import token_cache
from headtohead.data.sources import loading
from headtohead.data.sources.documents import SummarizationCorpus
from headtohead.data.splits import Corpus
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.distillation import summarization
from headtohead.experiment import encoder_inputs
from headtohead.pretrained.tokenizer import PretrainedTokenizer


@dataclass(frozen=True)
class Dataset:
    """A corpus as tokens: what all trials with the same data share."""

    corpus: Corpus
    tokenizer: CorpusTokenizer | PretrainedTokenizer
    encoded: dict[str, Any]
    documents: SummarizationCorpus | None = None
    """with people's summaries, where that is what the texts are"""

    @property
    def classes(self) -> int | None:
        return len(self.corpus.label_names) if self.corpus.has_labels else None


def prepare_dataset(data: config_data.DataConfig, task: TaskName) -> Dataset:
    """Read, split and tokenise, or map what was tokenised before; once a process for the same data."""
    return _prepare_dataset_cached(data.model_dump_json(), task)


@lru_cache(maxsize=4)
def _prepare_dataset_cached(data_json: str, task: TaskName) -> Dataset:
    data = config_data.DataConfig.model_validate(json.loads(data_json))
    if task == "finetune":
        texts = loading.load_corpus(data, has_labels=True)
        pretrained = encoder_inputs.load_tokenizer(data.tokens)
        return Dataset(texts, pretrained, encoder_inputs.encode_splits(texts, pretrained, data.tokens))
    if task == "distil" and data.tokens.kind == "pretrained":
        return Dataset(*summarization.prepare_documents(data))
    found = token_cache.load_tokenized_corpus(data, has_labels=task == "classify")
    return Dataset(found.corpus, found.tokenizer, found.encoded)
