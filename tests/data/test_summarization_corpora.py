"""Documents with summaries: both entry formats, every error with its line, and splits that do not leak."""

import json
from pathlib import Path

import pytest

from headtohead.data.sources.summarization import load_summarization_corpus, read_documents
from headtohead.errors import DataError


def _write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_one_summary_or_several(tmp_path):
    file = _write(
        tmp_path / "a.jsonl",
        {"document": "A long text.", "summary": "Short."},
        "",
        {"id": "x", "document": "Another.", "summaries": ["One.", "Two."]},
    )
    first, second = read_documents(file)
    assert (first.text, first.summaries, first.id) == ("A long text.", ("Short.",), "1")
    assert (second.summaries, second.id) == (("One.", "Two."), "x")


def test_every_error_is_reported_with_its_line(tmp_path):
    file = _write(
        tmp_path / "a.jsonl",
        {"document": "Fine.", "summary": "Fine."},
        {"documant": "A text.", "summary": "Short."},
        {"document": "A text.", "summary": "  "},
        {"document": "A text.", "summaries": ["Short.", ""]},
        {"document": "", "summary": "Short."},
        {"document": "A text."},
        {"document": "A text.", "summaries": []},
        {"document": "A text.", "summaries": [3]},
        ["a list"],
        "{broken",
    )
    with pytest.raises(DataError, match="9 errors") as caught:
        read_documents(file)
    text = str(caught.value)
    for line in (
        "line 2: has no 'document'; it has documant, summary",
        "did you mean 'documant'?",
        "line 3: has an empty summary",
        "line 4: has an empty summary (number 2 of 2)",
        "line 5: has an empty document",
        "line 6: has no 'summary' and no 'summaries'; it has document",
        "line 7: has an empty list of summaries",
        "line 8: summary 1 is a int, not text",
        "line 9: is a list",
        "line 10: is not JSON",
    ):
        assert line in text


def test_a_folder_has_its_splits_and_no_held_out_document_of_train(tmp_path):
    rows = [{"document": f"Text {i}.", "summary": f"{i}."} for i in range(10)]
    _write(tmp_path / "train.jsonl", *rows[:6])
    _write(tmp_path / "dev.jsonl", *rows[6:8])
    _write(tmp_path / "test.jsonl", rows[0], *rows[8:])
    summarization_corpus = load_summarization_corpus(tmp_path)
    assert {name: len(split) for name, split in summarization_corpus.splits.items()} == {
        "train": 6,
        "validation": 2,
        "test": 2,
    }
    assert summarization_corpus.num_overlapping == {"validation": 0, "test": 1}
    few = load_summarization_corpus(tmp_path, row_limits={"validation": 1, "test": 1}).splits
    assert (len(few["train"]), len(few["validation"]), len(few["test"])) == (6, 1, 1)
    assert (
        load_summarization_corpus(tmp_path).digest
        == summarization_corpus.digest
        != load_summarization_corpus(tmp_path, row_limits={"validation": 1, "test": 1}).digest
    )


def test_one_file_is_split_by_hash_of_the_document(tmp_path):
    rows = [{"document": f"Text {i}.", "summary": f"{i}."} for i in range(200)]
    first = load_summarization_corpus(_write(tmp_path / "a.jsonl", *rows))
    summarization_corpus = load_summarization_corpus(_write(tmp_path / "b.jsonl", *reversed(rows)))
    assert {d.text for d in first.splits["test"]} == {d.text for d in summarization_corpus.splits["test"]}
    assert 5 <= len(first.splits["test"]) <= 40
    assert sum(map(len, first.splits.values())) == 200
    assert "no test split: 10%" in first.origin


def test_what_does_not_exist_is_reported(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        load_summarization_corpus(tmp_path / "nothing")
    _write(tmp_path / "other.txt", "text")
    with pytest.raises(DataError, match=r"expected train\.jsonl"):
        load_summarization_corpus(tmp_path)


def test_the_real_sets_can_be_read(shared):
    dialogues = load_summarization_corpus(shared("summaries/dialogsum"))
    assert {name: len(split) for name, split in dialogues.splits.items()} == {
        "train": 3000,
        "validation": 200,
        "test": 199,
    }
    assert all(len(document.summaries) == 3 for document in dialogues.splits["test"])
    papers = load_summarization_corpus(shared("summaries/scitldr"))
    assert papers.num_overlapping["test"] >= 2
