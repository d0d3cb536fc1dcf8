"""Data leaks are counted (rows, labels, vocabulary), on small handwritten corpora and on the speeches."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.audit.data_audit import audit_data
from headtohead.audit.data_checks.split_leakage import DataUse, compute_unseen_mask
from headtohead.audit.data_checks.vocabulary import contains_word
from headtohead.audit.data_checks.word_hashing import normalize_text
from headtohead.audit.result import CheckResult, format_blocking_reasons
from headtohead.config.tables.data import DataConfig
from headtohead.data.encoding import encode_split
from headtohead.data.sources.loading import load_corpus
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, train_tokenizer
from headtohead.errors import DataError

Shared = Callable[[str], Path]
TRAIN = ("The cat sat.", "A dog ran!", "Birds fly south", "We shall see")


def corpus(
    test: tuple[str, ...],
    *,
    train: tuple[str, ...] = TRAIN,
    labels: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    more: tuple[str, ...] = (),
) -> Corpus:
    """Build a corpus from rows. `more` is text outside train that the vocabulary also covers."""
    own, held_out = labels or (None, None)
    splits = {"train": Split("train", "train", train, own), "test": Split("test", "test", test, held_out)}
    names = ("no", "yes") if labels else ()
    return Corpus(bool(labels), splits, names, train + more, "by hand", "")


def audited(texts: Corpus, **settings: Any) -> dict[str, CheckResult]:
    data = DataConfig.model_validate({"validation_fraction": 0.0, **settings})
    use = DataUse(unknown_rate=data.word_dropout)
    return {f.name: f for f in audit_data(texts, train_tokenizer(data, texts), use=use)}


@pytest.mark.parametrize(
    "near",
    [
        "the cat sat.",
        "The cat sat",
        "The  cat\tsat.",
        "“The cat sat.”",
        "THE CAT, SAT...",
        "The cat-sat.",
        "\uff34he cat sat.",
    ],
)
def test_row_that_differs_in_case_punctuation_or_spaces_is_not_unseen(near: str) -> None:
    texts = corpus((near, "The cat sat.", "The cats sat."))
    assert compute_unseen_mask(texts, "test").tolist() == [False, False, True]
    result = audited(texts)["lines of test in train"]
    assert result.passed is False
    assert result.observation.startswith(
        "1 of 3 lines of test occur verbatim in train (33.3%), "
        "1 more up to case, punctuation and whitespace; 1 are unseen"
    )


def test_rows_of_signs_alone_are_compared_as_they_stand() -> None:
    texts = corpus(("...", "!!!"), train=(*TRAIN, "!!!"))
    assert compute_unseen_mask(texts, "test").tolist() == [True, False]


def test_marks_that_are_part_of_letters_are_kept() -> None:
    """Hindi vowel signs are combining marks, neither letters nor punctuation."""
    assert normalize_text("की") != normalize_text("का")
    assert normalize_text("Straße") == normalize_text("STRASSE")
    assert normalize_text("cost: $5") != normalize_text("cost: 5")


def test_clean_split_passes() -> None:
    result = audited(corpus(("Nothing of this kind",)))["lines of test in train"]
    assert result.passed is True
    assert result.observation == "none of 1 lines occurs in train; 0.0% of the words are copied"


def test_meaning_grows_with_the_share() -> None:
    many = audited(corpus(TRAIN))["lines of test in train"]
    assert "mostly measure memorization" in many.interpretation
    few = audited(corpus((*(f"new line {i}" for i in range(99)), "The cat sat.")))["lines of test in train"]
    assert "Too few" in few.interpretation


def test_every_split_but_train_is_looked_at() -> None:
    splits = {
        "train": Split("train", "train", TRAIN),
        "validation": Split("validation", "validation", TRAIN[:1]),
        "one": Split("one", "test", ("x y",)),
    }
    data = audit_data(Corpus(False, splits, (), TRAIN, "by hand", ""))
    assert [(f.name, f.passed) for f in data] == [
        ("lines of validation in train", False),
        ("lines of one in train", True),
        ("lines of one in validation", True),
        ("repeated lines of one", True),
        ("documents of one in train", None),
        ("held-out splits", True),
        ("conflicting labels", None),
    ]


def test_split_that_does_not_exist_is_reported_with_the_nearest() -> None:
    with pytest.raises(DataError, match=re.escape("no split 'tset', did you mean 'test'? (available: train, test)")):
        compute_unseen_mask(corpus(("a b",)), "tset")


def test_labels_that_agree_pass() -> None:
    texts = corpus(("the cat sat",), labels=((0, 1, 0, 1), (0,)))
    assert audited(texts)["conflicting labels"].passed is True


def test_labels_that_contradict_within_train_are_counted() -> None:
    train = (*TRAIN, "the CAT sat")
    result = audited(corpus(("x y",), train=train, labels=((0, 1, 0, 1, 1), (0,))))["conflicting labels"]
    assert result.passed is False
    assert result.observation == "1 text of train with more than one label (for example 'The cat sat.': no, yes)"


def test_labels_that_contradict_between_train_and_test_are_counted() -> None:
    result = audited(corpus(("a dog ran", "x y"), labels=((0, 1, 0, 1), (0, 0))))["conflicting labels"]
    assert result.passed is False
    assert (
        "1 text of test with a label that it does not have in train (for example 'a dog ran': no, yes)"
        in result.observation
    )


def test_vocabulary_of_train_alone_passes() -> None:
    assert audited(corpus(("The zebra sat.",)))["vocabulary"].passed is True


def test_vocabulary_from_a_file_that_holds_test_rows_is_measured() -> None:
    test = ("The zebra sat", "A dog ran")
    vocabulary = audited(corpus(test, more=("1\tThe zebra sat", "quagga")))["vocabulary"]
    assert vocabulary.passed is False
    assert vocabulary.failure_reason == "vocabulary from held-out text"
    assert "16.7% of 6 tokens are known only through text outside train" in vocabulary.observation
    assert "which contains 1 of its 2 lines (16.7% occur there in held-out lines only)" in vocabulary.observation


def test_words_that_other_training_text_holds_too_are_no_leak() -> None:
    vocabulary = audited(corpus(("The zebra sat",), more=("The zebra sat", "Every zebra runs")))["vocabulary"]
    assert vocabulary.passed is True
    assert "(0.0% occur there in held-out lines only)" in vocabulary.observation


def test_vocabulary_made_from_test_itself_is_detected() -> None:
    """An existing tokenizer contains a word that does not occur in the training text."""
    texts = corpus(("The zebra sat",))
    brought = train_tokenizer(DataConfig(), corpus(("x",), more=("zebra",)))
    vocabulary = {f.name: f for f in audit_data(texts, brought)}["vocabulary"]
    assert vocabulary.passed is False
    assert "1 of them occur in no training text" in vocabulary.observation


def test_word_inside_a_longer_word_does_not_count() -> None:
    assert not contains_word("art", "parts and starts", match_whole_word=True)
    assert contains_word("art", "parts and art", match_whole_word=True)
    assert contains_word("art", "parts", match_whole_word=False)
    assert contains_word("``", "anything", match_whole_word=True)


@pytest.mark.parametrize("tokens", ["bytes", "characters", {"kind": "bpe", "vocab_size": 300}])
def test_other_kinds_of_tokens_are_audited_too(tokens: Any) -> None:
    result = audited(corpus(("The cat sat.", "The zebra")), tokenizer=tokens)
    assert result["vocabulary"].passed is (None if tokens == "bytes" else True)
    assert format_blocking_reasons(result.values()) == ""


def test_piece_of_a_word_from_a_file_that_holds_test_rows_is_measured() -> None:
    texts = corpus(("quagga quagga quagga",), more=("quagga quagga quagga", "quagga"))
    assert audited(texts, tokenizer={"kind": "bpe", "vocab_size": 300})["vocabulary"].passed is True
    texts = corpus(("quagga quagga quagga",), more=("quagga quagga quagga",))
    assert audited(texts, tokenizer={"kind": "bpe", "vocab_size": 300})["vocabulary"].passed is False


def test_unknown_words_that_training_never_shows_are_reported() -> None:
    texts = corpus(("The zebra sat here",))
    result = audited(texts)["unknown tokens"]
    assert result.passed is False
    assert result.observation == "train 0.0%, test 50.0%"
    assert audited(texts, word_dropout=0.02)["unknown tokens"].passed is True
    assert audited(texts, tokenizer={"kind": "words", "min_count": 2})["unknown tokens"].passed is True


def test_tokens_at_hand_give_the_same_findings() -> None:
    texts = corpus(("The zebra sat",), more=("The zebra sat",))
    data = DataConfig(validation_fraction=0.0)
    tokenizer = train_tokenizer(data, texts)
    encoded = {name: encode_split(split, tokenizer, data, has_labels=False) for name, split in texts.splits.items()}
    assert audit_data(texts, tokenizer, encoded_splits=encoded) == audit_data(texts, tokenizer)


def test_only_a_test_split_without_unseen_rows_withholds_the_verdict() -> None:
    result = audited(corpus(TRAIN, labels=((0, 1, 0, 1), (1, 0, 1, 0)), more=("x y",)))
    assert [f.name for f in result.values() if f.is_blocking] == ["rows of test in train"]
    assert format_blocking_reasons(result.values()) == "was trained on 4 of 4 rows of test"
    partial = audited(corpus((*TRAIN, "x z"), labels=((0, 1, 0, 1), (1, 0, 1, 0, 1)), more=("x y",)))
    assert sum(f.passed is False for f in partial.values()) > 1
    assert not any(f.is_blocking for f in partial.values())


# ---- the real speeches


def speeches(folder: Path, task: Any) -> tuple[Corpus, CorpusTokenizer]:
    data = DataConfig(source=str(folder), vocabulary="folder", validation_fraction=0.0)
    texts = load_corpus(data, has_labels=task == "classify")
    return texts, train_tokenizer(data, texts)


def test_speeches_hold_551_of_750_test_rows_in_train(shared: Shared, unchecked: None) -> None:
    texts, tokenizer = speeches(shared("speeches/speechesdataset"), "classify")
    result = {f.name: f for f in audit_data(texts, tokenizer)}
    rows = result["rows of test in train"]
    assert rows.passed is False
    assert rows.observation == (
        "551 of 750 rows of test occur verbatim in train (73.5%), "
        "0 more up to case, punctuation and whitespace (2 nearly do, as in ordinary text); 199 are unseen; "
        "72.6% of the words are copied"
    )
    assert "mostly measure memorization" in rows.interpretation
    unseen = compute_unseen_mask(texts, "test")
    assert unseen.sum() == 199
    labels = np.array(texts.splits["test"].labels)
    assert np.bincount(labels[unseen]).tolist() == [53, 84, 62]
    assert "(Laughter and applause.)" in result["conflicting labels"].observation
    assert "0, 1" in result["conflicting labels"].observation


def test_speeches_know_held_out_words_through_the_other_training_file(shared: Shared, unchecked: None) -> None:
    """5.4 to 7.3 % according to an independent count with words tokenized by NLTK."""
    texts, tokenizer = speeches(shared("speeches/speechesdataset"), "language-model")
    result = {f.name: f for f in audit_data(texts, tokenizer)}
    visited = {
        split.name: len(split.rows) - int(compute_unseen_mask(texts, split.name).sum())
        for split in texts.get_test_splits()
    }
    assert visited == {"hbush": 3, "obama": 2, "wbush": 0}
    vocabulary = result["vocabulary"]
    assert vocabulary.passed is False
    shares = [float(share) for share in re.findall(r"([\d.]+)% of [\d,]+ tokens", vocabulary.observation)]
    assert len(shares) == 3
    assert all(5.3 < share < 7.4 for share in shares)
    assert "which contains 151 of its 250 lines" in vocabulary.observation
