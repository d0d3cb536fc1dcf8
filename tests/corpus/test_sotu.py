"""The default corpus: whole addresses in one split, sizes like the course's, nothing of the transcribers."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from headtohead.config.data import Data
from headtohead.data.sources.loading import load
from headtohead.data.sources.sotu import LONGEST, PRESIDENTS, SHORTEST, _addresses, _folder, _roles, sentences
from headtohead.data.splits import Corpus


@cache
def corpus(task: str, validation: float = 0.1, vocabulary: str = "train") -> Corpus:
    data = Data.model_validate({"validation": validation, "vocabulary": vocabulary})
    return load(data, task)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_no_address_is_in_two_splits(task: str) -> None:
    # A sentence that one address alone has says which address a row is from.
    addresses = [address for one in PRESIDENTS for address in _addresses(_folder(), one)]
    cut = LONGEST if task == "classify" else None
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
    assert min(lengths) >= SHORTEST
    assert max(lengths) == LONGEST
    assert 15 < sum(lengths) / len(lengths) < 18


def test_language_model_has_a_held_out_text_of_each_president() -> None:
    found = corpus("language-model")
    assert [split.name for split in found.held_out()] == ["hbush", "obama", "wbush"]
    assert all(4500 < len(" ".join(split.rows).split()) < 7500 for split in found.held_out())
    assert len(" ".join(found.train.rows).split()) > 27_880  # words of the course's train_LM.txt


@pytest.mark.parametrize("task", ["language-model", "classify"])
def test_nothing_of_the_transcribers_is_left(task: str) -> None:
    text = "\n".join(row for split in corpus(task).splits.values() for row in split.rows)
    assert not set("[]—") & set(text)
    assert " -- " in text


def test_validation_is_whole_addresses_or_none() -> None:
    assert corpus("classify", 0.0).validation is None
    for president in PRESIDENTS:
        addresses = _addresses(_folder(), president)
        roles = Counter(role for _, role in _roles(addresses, 0.1))
        assert (roles["test"], roles["validation"]) == (1, 1)
        assert Counter(role for _, role in _roles(addresses, 0.99))["train"] == 1


def test_course_vocabulary_is_of_both_tasks() -> None:
    rows = corpus("classify", vocabulary="course").vocabulary_rows
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
    assert len(sentences(text)) == count
    assert " ".join(sentences(text)) == text
