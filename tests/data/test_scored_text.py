"""The text predicted in an evaluation: documents, bytes and digests of every score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headtohead.config.tables.data import DataConfig
from headtohead.data.encoding import TokenStream
from headtohead.data.evaluation_examples import build_evaluation_examples
from headtohead.data.raw_corpus import RawSplit
from headtohead.data.scored_text import ScoredText, describe_scored_text
from headtohead.data.sources.loading import load_corpus
from headtohead.data.splits import Corpus, hold_out_rows
from headtohead.data.token_cache import load_tokenized_corpus, tokenize_in_memory
from headtohead.errors import DataError
from headtohead.tasks.registry import get_task, prepare_dataset

LINES = [f'Line {i} says: "we can\'t stop; go on -- {i % 7} times."' for i in range(40)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a corpus whose test words all occur in train."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(LINES if name == "train" else LINES[5:30]) + "\n")
    return tmp_path


def describe(source: Path, split: str = "test", context: int = 8, **data: Any) -> ScoredText:
    config = DataConfig.model_validate({"source": str(source), "validation_fraction": 0, **data})
    corpus = tokenize_in_memory(config, has_labels=False)
    examples = get_task("language-model").build_examples(
        prepare_dataset(config, "language-model"), corpus.encoded[split], context
    )
    return describe_scored_text(examples, corpus.corpus.splits[split], corpus.tokenizer, 16)


TOKENIZERS = ["words", "characters", "bytes", {"kind": "bpe", "vocab_size": 300}]


@pytest.mark.parametrize("rows", ["stream", "sentences"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS[1:])
def test_tokenizers_agree_on_the_text_and_bytes_of_a_document(text: Path, rows: str, tokenizer: Any) -> None:
    by_words, by_tokenizer = (describe(text, context=400, rows=rows, tokenizer=kind) for kind in ("words", tokenizer))
    np.testing.assert_array_equal(by_words.document_digests, by_tokenizer.document_digests)
    np.testing.assert_array_equal(by_words.document_bytes, by_tokenizer.document_bytes)
    num_bytes = sum(len(line) + (rows == "stream") for line in LINES[5:30][rows == "stream" :])
    assert by_words.document_bytes.sum() == num_bytes


def test_context_does_not_change_the_text_of_a_stream_but_truncates_sentences(text: Path) -> None:
    short, long = (describe(text, context=context) for context in (4, 16))
    np.testing.assert_array_equal(short.document_digests, long.document_digests)
    assert len(short.digests) > len(long.digests)
    truncated, complete = (describe(text, context=context, rows="sentences") for context in (4, 40))
    assert not (truncated.digests == complete.digests).any()
    assert (truncated.bytes < complete.bytes).all()


@pytest.mark.parametrize("tokenizer", [{"kind": "words", "vocab_size": 20}, {"kind": "words", "lowercase": True}])
def test_unknown_and_lowercase_words_are_another_text(text: Path, tokenizer: Any) -> None:
    plain, other = (describe(text, rows="sentences", context=40, tokenizer=kind) for kind in ("words", tokenizer))
    assert not (plain.digests == other.digests).any()
    assert not plain.unknown.any()
    assert bool(other.unknown.all()) == ("vocab_size" in tokenizer)


def test_segments_add_up_to_blocks_and_belong_to_one_document() -> None:
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, 5, 6, 19, 40, 41, 77])
    stream = TokenStream(
        "test", torch.randint(9, (77,), generator=generator), None, offsets, torch.tensor([0, 0, 1, 1, 2, 0])
    )
    tokenizer = prepare_dataset(DataConfig(), "language-model").tokenizer
    examples = build_evaluation_examples(stream, get_task("language-model").spec.target, 8, tokenizer)
    assert examples.segment_starts is not None
    # Documents start at tokens 6, 40 and 41; blocks every 8 labels; the first row ends before token 5.
    assert examples.segment_starts.tolist() == sorted({*range(0, 76, 8), 4, 5, 39, 40})
    assert examples.find_document_indices().tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0]
    counts = torch.zeros(77, dtype=torch.int64)
    for batch in examples.iter_batches(3):
        assert batch.segment_ids is not None
        counts += torch.bincount(batch.segment_ids[batch.labels != -100], minlength=77)
    starts = examples.segment_starts
    assert counts[starts].tolist() == torch.cat((starts, torch.tensor([76]))).diff().tolist()
    assert examples.sum_scores_by_example(counts[starts]).tolist() == examples.prediction_counts.tolist()


def load(source: Path, **data: Any) -> Corpus:
    return load_corpus(DataConfig.model_validate({"source": str(source), **data}), has_labels=False)


@pytest.mark.parametrize(
    ("settings", "paragraphs", "expected"),
    [
        ({}, False, ("test.txt",)),
        ({}, True, ()),
        ({"rows": "sentences"}, False, ()),
        ({"documents": "rows"}, False, ()),
        ({"documents": "files", "rows": "sentences"}, True, ("test.txt",)),
    ],
)
def test_plain_text_is_one_document_per_file_or_row(
    tmp_path: Path, settings: dict[str, Any], paragraphs: bool, expected: tuple[str, ...]
) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text(("\n\n" if paragraphs else "\n").join(LINES))
    assert load(tmp_path, **settings).splits["test"].documents == expected


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "json"])
def test_document_column_names_the_document_of_each_row(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": f"text number {i}", "document": f"article-{i // 3}"} for i in range(12)]
    content = {
        "jsonl": "\n".join(map(json.dumps, rows)),
        "json": json.dumps(rows),
        "csv": "document,text\n" + "\n".join(f"{row['document']},{row['text']}" for row in rows),
        "tsv": "text\tdocument\n" + "\n".join(f"{row['text']}\t{row['document']}" for row in rows),
    }[suffix]
    for name in ("train", "test"):
        (tmp_path / f"{name}.{suffix}").write_text(content)
    split = load(tmp_path).splits["test"]
    assert split.documents == ("article-0", "article-1", "article-2", "article-3")
    assert list(split.document_ids) == [i // 3 for i in range(12)]


def test_missing_document_column_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,article\n" + "\n".join(f"row {i},a" for i in range(9)))
    with pytest.raises(DataError, match="no column 'play' for the document"):
        load(tmp_path / "rows.csv", columns={"document": "play"})
    assert load(tmp_path / "rows.csv").splits["test"].documents == ()


def test_documents_are_held_out_as_a_whole_and_rows_of_one_file_are_not_one_document() -> None:
    rows = tuple(f"row {i}" for i in range(60))
    raw_split = RawSplit(rows, documents=tuple(f"play {i // 6}" for i in range(60)))
    train, test = hold_out_rows(raw_split, 0.3, "test")
    assert test.rows and not set(train.documents) & set(test.documents)
    assert hold_out_rows(RawSplit(rows, documents=("all.txt",)), 0.3, "test")[1].documents == ()
    with pytest.raises(DataError, match="60 rows \\(of one document\\) cannot be split"):
        hold_out_rows(RawSplit(rows, documents=("play",) * 60), 0.3, "test")


def test_cache_keeps_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": line, "document": i // 4}) for i, line in enumerate(LINES)))
    for rows in ("stream", "sentences"):
        data = DataConfig.model_validate({"source": str(path), "rows": rows})
        for _ in range(2):  # built, then opened
            cached, plain = load_tokenized_corpus(data, has_labels=False), tokenize_in_memory(data, has_labels=False)
            for name, split in plain.corpus.splits.items():
                assert cached.corpus.splits[name].documents == split.documents
                assert cached.encoded[name].row_documents.tolist() == plain.encoded[name].row_documents.tolist()
                assert cached.encoded[name].row_offsets.tolist() == plain.encoded[name].row_offsets.tolist()
