"""The default corpus: addresses are never split, sizes are similar to the course's, and transcription notes are
removed.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.sources.loading import load_corpus
from headtohead.data.sources.sotu import (
    MAX_CLASSIFICATION_WORDS,
    MIN_SENTENCE_WORDS,
    PRESIDENTS,
    _assign_split_roles,
    _find_data_folder,
    _read_addresses,
    split_sentences,
)
from headtohead.data.splits import Corpus


@cache
def load_default_corpus(task: str, validation: float = 0.1, vocabulary: str = "train") -> Corpus:
    data = DataConfig.model_validate({"validation_fraction": validation, "vocabulary": vocabulary})
    return load_corpus(data, has_labels=task == "classify")


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_no_address_is_in_two_splits(task: str) -> None:
    # A sentence that one address alone has says which address a row is from.
    addresses = [address for president in PRESIDENTS for address in _read_addresses(_find_data_folder(), president)]
    max_words = MAX_CLASSIFICATION_WORDS if task == "classify" else None
    addresses_by_row: dict[str, set[str]] = {}
    for address in addresses:
        for sentence in address.sentences:
            addresses_by_row.setdefault(" ".join(sentence.split()[:max_words]), set()).add(address.name)
    addresses_by_split = {
        split.name: {name for row in split.rows if len(addresses_by_row[row]) == 1 for name in addresses_by_row[row]}
        for split in load_default_corpus(task).splits.values()
    }
    names = [name for addresses_of_split in addresses_by_split.values() for name in addresses_of_split]
    assert len(names) == len(set(names)) == len(addresses) == 17
    assert all(addresses_by_split.values())


def test_classifier_has_the_sizes_of_the_course() -> None:
    corpus = load_default_corpus("classify")
    assert corpus.label_names == ("Barack Obama", "George H.W. Bush", "George W. Bush")
    assert 1800 <= len(corpus.train.rows) <= 2200
    assert Counter(corpus.splits["test"].labels) == {0: 250, 1: 250, 2: 250}
    lengths = [len(row.split()) for split in corpus.splits.values() for row in split.rows]
    assert min(lengths) >= MIN_SENTENCE_WORDS
    assert max(lengths) == MAX_CLASSIFICATION_WORDS
    assert 15 < sum(lengths) / len(lengths) < 18


def test_language_model_has_a_held_out_text_of_each_president() -> None:
    corpus = load_default_corpus("language-model")
    assert [split.name for split in corpus.get_test_splits()] == ["hbush", "obama", "wbush"]
    assert {split.name: len(split.documents) for split in corpus.get_test_splits()} == {
        "hbush": 1,
        "obama": 3,
        "wbush": 3,
    }
    assert all(len(" ".join(split.rows).split()) > 4500 * len(split.documents) for split in corpus.get_test_splits())
    assert len(" ".join(corpus.train.rows).split()) > 27_880  # words of the course's train_LM.txt


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_every_row_knows_its_address(task: str) -> None:
    max_words = MAX_CLASSIFICATION_WORDS if task == "classify" else None
    addresses = {
        address.name: {" ".join(sentence.split()[:max_words]) for sentence in address.sentences}
        for president in PRESIDENTS
        for address in _read_addresses(_find_data_folder(), president)
    }
    for split in load_default_corpus(task).splits.values():
        document_ids = split.document_ids or [0] * len(split.rows)
        assert all(row in addresses[split.documents[i]] for row, i in zip(split.rows, document_ids, strict=True))


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_nothing_of_the_transcribers_is_left(task: str) -> None:
    text = "\n".join(row for split in load_default_corpus(task).splits.values() for row in split.rows)
    assert not set("[]—") & set(text)
    assert " -- " in text


def test_validation_is_whole_addresses_or_none() -> None:
    assert load_default_corpus("classify", 0.0).validation is None
    for president in PRESIDENTS:
        addresses = _read_addresses(_find_data_folder(), president)
        roles = Counter(role for _, role in _assign_split_roles(addresses, 0.1))
        assert roles["validation"] == 1
        assert 1 <= roles["test"] == (len(addresses) - 1) // 2
        assert Counter(role for _, role in _assign_split_roles(addresses, 0.99))["train"] == 1


def test_course_vocabulary_is_of_both_tasks() -> None:
    rows = load_default_corpus("classify", vocabulary="folder").vocabulary_rows
    assert set(load_default_corpus("classify").train.rows) < set(rows)
    assert set(load_default_corpus("language-model").train.rows) < set(rows)


def test_origin_names_source_and_license() -> None:
    assert "American Presidency Project" in load_default_corpus("classify").origin
    assert "public domain" in load_default_corpus("classify").origin


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ("Mr. Speaker met John F. Kennedy in the U.S. Senate.", 1),
        ('He said, "Go." Then he went. (Applause.) 100 came.', 4),
        ("It is 3.5 percent.", 1),
    ],
)
def test_sentences_end_where_they_do(text: str, count: int) -> None:
    assert len(split_sentences(text)) == count
    assert " ".join(split_sentences(text)) == text
