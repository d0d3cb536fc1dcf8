"""Fine-tuning: classification with a pretrained encoder and its tokenizer."""

from __future__ import annotations

from headtohead.config.tables.data import DataConfig
from headtohead.config.tasks import FINETUNE
from headtohead.data.sources import loading
from headtohead.pretrained import corpus_encoding
from headtohead.tasks.classification import ClassificationTask
from headtohead.tasks.dataset import Dataset


class FinetuningTask(ClassificationTask):
    """Predict the class of labeled rows with a pretrained encoder; report accuracy."""

    spec = FINETUNE

    def load_dataset(self, data: DataConfig) -> Dataset:
        corpus = loading.load_corpus(data, has_labels=True)
        tokenizer = corpus_encoding.load_encoder_tokenizer(data.tokenizer)
        encoded = corpus_encoding.encode_splits_for_encoder(corpus, tokenizer, data.tokenizer)
        return Dataset(corpus, tokenizer, encoded, corpus.label_names)
