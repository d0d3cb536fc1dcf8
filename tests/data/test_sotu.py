"""The default corpus: whole addresses in one split, sizes like the course's, nothing of the transcribers."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from headtohead.config.data import DataConfig
from headtohead.data.sources.loading import load_corpus
from headtohead.data.sources.sotu import (
    MAX_CLASSIFIER_WORDS,
    MIN_SENTENCE_WORDS,
    PRESIDENTS,
    _assign_roles,
    _find_data_folder,
    _read_speeches,
    split_sentences,
)
from headtohead.data.splits import Corpus


@cache
def corpus(task: str, validation: float = 0.1, vocabulary: str = "train") -> Corpus:
    data = DataConfig.model_validate({"validation_fraction": validation, "vocabulary": vocabulary})
    return load_corpus(data, has_labels=task == "classify")


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_no_address_is_in_two_splits(task: str) -> None:
    # A sentence that one address alone has says which address a row is from.
    addresses = [address for one in PRESIDENTS for address in _read_speeches(_find_data_folder(), one)]
    cut = MAX_CLASSIFIER_WORDS if task == "classify" else None
    where: dict[str, set[str]] = {}
    for address in addresses:
        for sentence in address.sentences:
            where.setdefault(" ".join(sentence.split()[:cut]), set()).add(address.name)
    of = {
        split.name: {name for row in split.rows if len(where[row]) == 1 for name in where[row]}
        for split in corpus(task).splits.values()
    }
    names = [name for found in of.values() for name in found]
    assert len(names) == len(set(names)) == len(addresses) == 17
    assert all(of.values())


def test_classifier_has_the_sizes_of_the_course() -> None:
    found = corpus("classify")
    assert found.label_names == ("Barack Obama", "George H.W. Bush", "George W. Bush")
    assert 1800 <= len(found.train.rows) <= 2200
    assert Counter(found.splits["test"].labels) == {0: 250, 1: 250, 2: 250}
    lengths = [len(row.split()) for split in found.splits.values() for row in split.rows]
    assert min(lengths) >= MIN_SENTENCE_WORDS
    assert max(lengths) == MAX_CLASSIFIER_WORDS
    assert 15 < sum(lengths) / len(lengths) < 18


def test_language_model_has_a_held_out_text_of_each_president() -> None:
    found = corpus("language-model")
    assert [split.name for split in found.get_test_splits()] == ["hbush", "obama", "wbush"]
    assert {split.name: len(split.documents) for split in found.get_test_splits()} == {
        "hbush": 1,
        "obama": 3,
        "wbush": 3,
    }
    assert all(len(" ".join(split.rows).split()) > 4500 * len(split.documents) for split in found.get_test_splits())
    assert len(" ".join(found.train.rows).split()) > 27_880  # words of the course's train_LM.txt


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_every_row_knows_its_address(task: str) -> None:
    cut = MAX_CLASSIFIER_WORDS if task == "classify" else None
    addresses = {
        address.name: {" ".join(sentence.split()[:cut]) for sentence in address.sentences}
        for president in PRESIDENTS
        for address in _read_speeches(_find_data_folder(), president)
    }
    for split in corpus(task).splits.values():
        ids = split.document_ids or [0] * len(split.rows)
        assert all(row in addresses[split.documents[i]] for row, i in zip(split.rows, ids, strict=True))


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_nothing_of_the_transcribers_is_left(task: str) -> None:
    text = "\n".join(row for split in corpus(task).splits.values() for row in split.rows)
    assert not set("[]—") & set(text)
    assert " -- " in text


def test_validation_is_whole_addresses_or_none() -> None:
    assert corpus("classify", 0.0).validation is None
    for president in PRESIDENTS:
        addresses = _read_speeches(_find_data_folder(), president)
        roles = Counter(role for _, role in _assign_roles(addresses, 0.1))
        assert roles["validation"] == 1
        assert 1 <= roles["test"] == (len(addresses) - 1) // 2
        assert Counter(role for _, role in _assign_roles(addresses, 0.99))["train"] == 1


def test_course_vocabulary_is_of_both_tasks() -> None:
    rows = corpus("classify", vocabulary="folder").vocabulary_rows
    assert set(corpus("classify").train.rows) < set(rows)
    assert set(corpus("language-model").train.rows) < set(rows)


def test_origin_names_source_and_licence() -> None:
    assert "American Presidency Project" in corpus("classify").origin
    assert "public domain" in corpus("classify").origin


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
