"""Real datasets: row counts as stated in their READMEs, and exactly the vocabulary of the course."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from nltk.tokenize import NLTKWordTokenizer

from headtohead.config.tables.data import DataConfig
from headtohead.config.tasks import Target
from headtohead.data.encoding import encode_split
from headtohead.data.evaluation_examples import build_evaluation_examples
from headtohead.data.sources.loading import load_corpus
from headtohead.data.splits import Corpus
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, train_tokenizer

Shared = Callable[[str], Path]
COURSE_VOCABULARY = 5755


@cache
def speeches(folder: Path, task: str) -> tuple[DataConfig, Corpus, CorpusTokenizer]:
    data = DataConfig(source=str(folder), vocabulary="folder", validation_fraction=0.0)
    corpus = load_corpus(data, has_labels=task == "classify")
    return data, corpus, train_tokenizer(data, corpus)


def test_speeches_have_the_rows_of_their_readme(shared: Shared) -> None:
    folder = shared("speeches/speechesdataset")
    _, classified, _ = speeches(folder, "classify")
    assert Counter(classified.train.labels) == {0: 934, 1: 539, 2: 619}
    assert Counter(classified.splits["test"].labels) == {0: 250, 1: 250, 2: 250}
    _, language, _ = speeches(folder, "language-model")
    assert {split.name: len(split.rows) for split in language.splits.values()} == {
        "train": 1553,
        "hbush": 250,
        "obama": 250,
        "wbush": 250,
    }


@pytest.mark.parametrize("task", ["classify", "language-model"])
def test_vocabulary_of_the_course_is_hit_exactly(shared: Shared, task: str) -> None:
    _, _, tokenizer = speeches(shared("speeches/speechesdataset"), task)
    assert tokenizer.vocab_size == COURSE_VOCABULARY


def test_every_row_of_the_speeches_is_cut_as_nltk_cuts_it(shared: Shared) -> None:
    """Except for the final period of abbreviations at the end of a row: the course tokenized running text, in which
    punkt found no sentence end after "U.S.".
    """
    _, corpus, tokenizer = speeches(shared("speeches/speechesdataset"), "language-model")
    rows = [row for split in corpus.splits.values() for row in split.rows if "—" not in row]
    nltk = NLTKWordTokenizer()
    normalizer = tokenizer.backend.normalizer
    assert normalizer is not None
    different = [row for row in rows if normalizer.normalize_str(row).split() != nltk.tokenize(row)]
    assert len(rows) > 2000
    assert {row.split()[-1] for row in different} == {"D.", "U.S."}
    assert len(different) == 2


def test_about_two_words_in_a_hundred_are_unknown(shared: Shared) -> None:
    data, corpus, tokenizer = speeches(shared("speeches/speechesdataset"), "language-model")
    for split in corpus.get_test_splits():
        token_ids = encode_split(split, tokenizer, data, has_labels=False).token_ids
        assert 0.01 < (token_ids == tokenizer.unk_id).float().mean() < 0.04
    train_ids = encode_split(corpus.train, tokenizer, data, has_labels=False).token_ids
    assert (train_ids != tokenizer.unk_id).all()
    assert 25_000 < len(train_ids) < 35_000


def test_held_out_speeches_are_scored_to_the_last_word(shared: Shared) -> None:
    data, corpus, tokenizer = speeches(shared("speeches/speechesdataset"), "language-model")
    for split in corpus.get_test_splits():
        encoded = encode_split(split, tokenizer, data, has_labels=False)
        assert (
            int(build_evaluation_examples(encoded, Target.NEXT_TOKEN, 32, tokenizer).prediction_counts.sum())
            == len(encoded) - 1
        )


def test_sst2_is_read_by_numbered_columns(shared: Shared) -> None:
    spec = {"source": str(shared("sst2")), "columns": {"label": 0, "text": 1}}
    corpus = load_corpus(DataConfig.model_validate(spec), has_labels=True)
    assert {name: len(split.rows) for name, split in corpus.splits.items()} == {
        "train": 6920,
        "validation": 872,
        "test": 1457,
    }
    assert Counter(corpus.train.labels) == {1: 3610, 0: 3310}


def test_shakespeare_is_read_speech_by_speech(shared: Shared) -> None:
    corpus = load_corpus(DataConfig(source=str(shared("shakespeare-words"))), has_labels=False)
    assert {name: len(split.rows) for name, split in corpus.splits.items()} == {
        "train": 5534,
        "validation": 745,
        "test": 943,
    }
    text = (shared("shakespeare-words") / "dev.txt").read_text(encoding="utf-8").strip()
    validation = corpus.splits["validation"]
    assert validation.separator.join(validation.rows) == re.sub(r"\n{3,}", "\n\n", text)


def test_one_billion_words_sample_is_read_by_data_files(shared: Shared) -> None:
    files = {"train": "1b_benchmark.test.tokens", "test": {"dev": "1b_benchmark.dev.tokens"}}
    data = DataConfig.model_validate(
        {"source": str(shared("1b-benchmark")), "files": files, "validation_fraction": 0.0}
    )
    corpus = load_corpus(data, has_labels=False)
    assert {name: len(split.rows) for name, split in corpus.splits.items()} == {"train": 12105, "dev": 12216}


def test_summaries_and_stories_are_read_by_named_columns(shared: Shared) -> None:
    for folder, column, rows in (("summaries/dialogsum", "document", 3000), ("summaries/scitldr", "document", 1992)):
        spec = {"source": str(shared(folder)), "columns": {"text": column}}
        assert len(load_corpus(DataConfig.model_validate(spec), has_labels=False).train.rows) == rows
    spec = {
        "source": str(shared("rocstories") / "stories.jsonl"),
        "columns": {"text": "prompt"},
        "validation_fraction": 0.0,
    }
    corpus = load_corpus(DataConfig.model_validate(spec), has_labels=False)
    assert sum(len(split.rows) for split in corpus.splits.values()) == 3742
