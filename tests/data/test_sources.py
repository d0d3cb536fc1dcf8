"""Corpus sources: every layout is read correctly, and missing splits are held out by hash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.raw_corpus import RawSplit
from headtohead.data.sources.loading import load_corpus
from headtohead.data.splits import Corpus, hold_out_rows
from headtohead.errors import DataError

Write = Callable[..., Path]
MANY = "".join(f"{i % 2}\trow number {i}\n" for i in range(200))


def read_corpus(
    source: Path | str | list[Path], task: str = "language-model", base: Path | None = None, **data: object
) -> Corpus:
    source = [str(path) for path in source] if isinstance(source, list) else str(source)
    data_config = DataConfig.model_validate({"source": source, **data})
    return load_corpus(data_config, has_labels=task == "classify", base_folder=base or Path())


@pytest.fixture
def speeches(write: Write, tmp_path: Path) -> Path:
    write("train_CLS.tsv", MANY)
    write("test_CLS.tsv", "0\ta test\n1\tanother\n")
    write("train_LM.txt", "".join(f"line {i}\n" for i in range(100)))
    write("test_LM_obama.txt", "one\ntwo\n")
    write("test_LM_wbush.txt", "three\n")
    return tmp_path


def test_speeches_folder_gives_the_classifier_its_tsv(speeches: Path) -> None:
    corpus = read_corpus(speeches, "classify", validation_fraction=0.0)
    assert [(s.name, s.role, len(s.rows)) for s in corpus.splits.values()] == [
        ("train", "train", 200),
        ("test", "test", 2),
    ]
    assert corpus.label_names == ("0", "1")
    assert (corpus.splits["test"].rows, corpus.splits["test"].labels) == (("a test", "another"), (0, 1))


def test_speeches_folder_names_held_out_texts_by_their_files(speeches: Path) -> None:
    corpus = read_corpus(speeches, validation_fraction=0.0)
    assert {s.name: s.rows for s in corpus.get_test_splits()} == {"obama": ("one", "two"), "wbush": ("three",)}
    assert corpus.train.rows[:2] == ("line 0", "line 1")


def test_vocabulary_is_of_train_alone_or_of_every_training_file(speeches: Path) -> None:
    alone = read_corpus(speeches, "classify")
    assert alone.vocabulary_rows == alone.train.rows
    assert len(alone.vocabulary_rows) < 200
    course = read_corpus(speeches, "classify", vocabulary="folder")
    assert len(course.vocabulary_rows) == 300
    assert course.vocabulary_rows[0] == "0\trow number 0"


def test_folder_of_train_dev_and_test(write: Write, tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        write(f"{name}.txt", f"{name} a\n{name} b\n")
    corpus = read_corpus(tmp_path)
    assert {s.name: (s.role, s.rows[0]) for s in corpus.splits.values()} == {
        "train": ("train", "train a"),
        "validation": ("validation", "dev a"),
        "test": ("test", "test a"),
    }


def test_folder_may_have_many_named_tests(write: Write, tmp_path: Path) -> None:
    for name in ("train", "test_near", "test_far"):
        write(f"{name}.txt", "some\ntext\n" * 5)
    assert [s.name for s in read_corpus(tmp_path, validation_fraction=0.0).get_test_splits()] == ["far", "near"]


def test_a_relative_source_is_taken_from_base(write: Write, tmp_path: Path) -> None:
    write("inner/train.txt", "a\nb\n" * 20)
    write("inner/test.txt", "c\n")
    assert read_corpus("inner", base=tmp_path).splits["test"].rows == ("c",)


def test_plain_file_is_split_by_hash(write: Write) -> None:
    corpus = read_corpus(write("text.txt", "".join(f"line {i}\n" for i in range(1000))))
    sizes = {name: len(split.rows) for name, split in corpus.splits.items()}
    assert sum(sizes.values()) == 1000
    assert 70 < sizes["test"] < 130
    assert 60 < sizes["validation"] < 120
    assert "by hash of the text" in corpus.origin


def test_blank_lines_make_paragraphs(write: Write) -> None:
    text = "".join(f"FIRST {i}:\nspeaks\n\n" for i in range(50))
    corpus = read_corpus(write("play.txt", text), validation_fraction=0.0)
    assert sum(len(s.rows) for s in corpus.splits.values()) == 50
    assert corpus.train.rows[0].endswith(":\nspeaks")
    assert corpus.train.separator == "\n\n"


def test_a_stray_blank_line_makes_no_paragraphs(write: Write) -> None:
    corpus = read_corpus(write("text.txt", "line\n" * 50 + "\n" + "other\n" * 50), validation_fraction=0.0)
    assert sum(len(s.rows) for s in corpus.splits.values()) == 100
    assert corpus.train.separator == "\n"


def test_held_out_text_is_cut_into_rows_as_train_is(write: Write, tmp_path: Path) -> None:
    write("train.txt", "a\nb\n\n" * 20)
    write("test.txt", "c\nd\ne\nf\n")
    assert read_corpus(tmp_path, validation_fraction=0.0).splits["test"].rows == ("c\nd\ne\nf",)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("t.tsv", 'label\ttext\npos\tgood "one\ncold\tbad, one\n', None),
        ("t.tsv", 'pos\tgood "one\ncold\tbad, one\n', {"label": 0, "text": 1}),
        ("t.csv", 'said,id,who\n"good ""one",1,pos\n"bad, one",2,cold\n', {"text": "said", "label": "who"}),
        ("t.csv", '"good ""one",pos\r\n"bad, one",cold\r\n', {"text": 0, "label": 1}),
        ("t.jsonl", '{"label":"pos","text":"good \\"one"}\n\n{"text":"bad, one","label":"cold"}\n', None),
        ("t.json", '[{"label":"pos","text":"good \\"one"},{"text":"bad, one","label":"cold"}]', None),
    ],
)
def test_tables_with_names_and_with_numbers(
    write: Write, tmp_path: Path, name: str, text: str, columns: object
) -> None:
    write(name, text)
    files = {"train": name, "test": {"same": name}}
    corpus = read_corpus(
        tmp_path, "classify", files=files, validation_fraction=0.0, **({"columns": columns} if columns else {})
    )
    assert corpus.train.rows == ('good "one', "bad, one")
    assert corpus.label_names == ("cold", "pos")
    assert corpus.splits["same"].labels == (1, 0)


def test_labels_that_are_numbers_are_ordered_as_numbers(write: Write, tmp_path: Path) -> None:
    write("train.jsonl", "".join(json.dumps({"text": f"t{i}", "label": i}) + "\n" for i in (10, 9, 2)))
    write("test.jsonl", '{"text": "t", "label": "9"}\n')
    corpus = read_corpus(tmp_path, "classify", validation_fraction=0.0)
    assert corpus.label_names == ("2", "9", "10")
    assert corpus.splits["test"].labels == (1,)


def test_a_language_model_reads_the_text_column_only(write: Write, tmp_path: Path) -> None:
    write("train.tsv", MANY)
    corpus = read_corpus(tmp_path, columns={"text": 1})
    assert all(row.startswith("row number") for row in corpus.train.rows)


def test_files_of_any_name_are_read_as_text(write: Write, tmp_path: Path) -> None:
    write("b.dev.tokens", "a b\nc d\n")
    write("b.test.tokens", "e f\n" * 3)
    corpus = read_corpus(
        tmp_path, files={"train": "b.test.tokens", "validation": "b.dev.tokens", "test": {"x": "b.dev.tokens"}}
    )
    assert corpus.train.rows == ("e f",) * 3
    assert corpus.validation is not None
    assert corpus.validation.rows == corpus.splits["x"].rows == ("a b", "c d")


def test_equal_rows_fall_on_the_same_side() -> None:
    remaining, held_out = hold_out_rows(RawSplit(tuple(f"row {i % 40}" for i in range(400))), 0.2, "validation")
    assert not set(remaining.rows) & set(held_out.rows)
    assert len(remaining.rows) + len(held_out.rows) == 400


def test_a_row_keeps_its_side_when_others_come_and_go() -> None:
    rows = tuple(f"row {i}" for i in range(300))
    _, all_held_out = hold_out_rows(RawSplit(rows), 0.2, "validation")
    _, some_held_out = hold_out_rows(RawSplit(rows[100:][::-1]), 0.2, "validation")
    assert set(some_held_out.rows) == set(all_held_out.rows) & set(rows[100:])


def test_some_text_is_always_held_back() -> None:
    remaining, held_out = hold_out_rows(RawSplit(("a", "b", "c")), 1e-9, "validation")
    assert (len(remaining.rows), len(held_out.rows)) == (2, 1)


def test_no_validation_when_its_share_is_zero(write: Write) -> None:
    assert read_corpus(write("a.txt", "a\nb\nc\nd\n"), validation_fraction=0.0).validation is None


def test_digest_depends_on_content_and_splits(write: Write) -> None:
    path = write("a.txt", "".join(f"line {i}\n" for i in range(100)))
    corpus = read_corpus(path)
    assert corpus.digest == read_corpus(path).digest
    assert corpus.digest != read_corpus(path, validation_fraction=0.3).digest
    write("a.txt", "".join(f"line {i}\n" for i in range(99)) + "line!\n")
    assert corpus.digest != read_corpus(path).digest


def test_byte_order_mark_and_foreign_line_ends_are_not_text(write: Write, tmp_path: Path) -> None:
    write("train.txt", b"\xef\xbb\xbfone\r\ntwo\rthree")
    write("test.txt", "x")
    assert read_corpus(tmp_path, validation_fraction=0.0).train.rows == ("one", "two", "three")


def test_a_line_end_of_unicode_does_not_end_a_row(write: Write, tmp_path: Path) -> None:
    write("train.txt", "one\u2028still one\ntwo")
    write("test.txt", "x")
    assert len(read_corpus(tmp_path, validation_fraction=0.0).train.rows) == 2


def test_a_test_text_cannot_take_the_name_of_a_split(write: Write, tmp_path: Path) -> None:
    write("a.txt", "a\nb\nc\n")
    with pytest.raises(DataError, match="cannot be named 'train'"):
        read_corpus(tmp_path, files={"train": "a.txt", "test": {"train": "a.txt"}})


def test_parquet_is_read_by_named_columns(write: Write, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    parquet.write_table(pa.table({"said": ["one", "two"], "who": [1, 0]}), tmp_path / "a.parquet")
    write("b.parquet", b"PAR1")
    files = {"train": "a.parquet", "test": {"same": "a.parquet"}}
    corpus = read_corpus(
        tmp_path, "classify", files=files, columns={"text": "said", "label": "who"}, validation_fraction=0.0
    )
    assert (corpus.train.rows, corpus.train.labels) == (("one", "two"), (1, 0))
    with pytest.raises(DataError, match=r"a.parquet: 2 errors\n  columns: no column 'text'"):
        read_corpus(tmp_path, "classify", files=files)
    with pytest.raises(DataError, match=r"b.parquet: 1 error\n  file: is not a readable Parquet file"):
        read_corpus(tmp_path, "classify", files={"train": "b.parquet"})


def test_a_folder_of_text_files_holds_out_whole_files(write: Write, tmp_path: Path) -> None:
    for i in range(20):
        write(f"books/chapter {i:02}.txt", "".join(f"line {j} of chapter {i}\n" for j in range(5)))
    write("books/README.txt", "about these books\n")
    corpus = read_corpus(tmp_path / "books")
    documents = {split.name: set(split.documents) for split in corpus.splits.values()}
    assert sum(map(len, documents.values())) == 20
    assert len(set.union(*documents.values())) == 20
    assert all(documents.values())
    assert sum(len(split.rows) for split in corpus.splits.values()) == 100


def test_a_few_text_files_are_one_text_from_which_rows_are_held_out(write: Write, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(f"{name}.txt", "".join(f"line {i} of {name}\n" for i in range(100)))
    corpus = read_corpus(tmp_path)
    assert sum(len(split.rows) for split in corpus.splits.values()) == 200
    assert {row[-1] for row in corpus.train.rows} == {"a", "b"}
    assert corpus.splits["test"].documents == ()
    assert (
        corpus.digest
        == read_corpus([tmp_path / "a.txt", tmp_path / "b.txt"]).digest
        == read_corpus(tmp_path / "*.txt").digest
    )


def test_patterns_and_lists_may_name_splits_and_include_subfolders(write: Write, tmp_path: Path) -> None:
    write("one/train.txt", "a\nb\n")
    write("one/test.txt", "c\n")
    assert read_corpus(tmp_path / "one" / "*.txt", validation_fraction=0.0).splits["test"].rows == ("c",)
    write("many/x/1.txt", "".join(f"x {i}\n" for i in range(50)))
    write("many/y/1.txt", "".join(f"y {i}\n" for i in range(50)))
    write("many/test.txt", "held out\n")
    corpus = read_corpus(tmp_path / "many" / "**" / "*.txt", validation_fraction=0.0)
    assert len(corpus.train.rows) == 100
    assert corpus.splits["test"].rows == ("held out",)
    assert len(read_corpus(tmp_path / "many" / "x").splits) == 3
    assert len(read_corpus([tmp_path / "many" / "x", tmp_path / "many" / "y"], validation_fraction=0.0).train.rows) > 70
    assert sum(len(split.rows) for split in read_corpus("many/*/*.txt", base=tmp_path).splits.values()) == 100


def test_subfolders_of_text_files_are_classes(write: Write, tmp_path: Path) -> None:
    for i in range(30):
        write(f"reviews/positive/{i}.txt", f"good film\nnumber {i}\n")
        write(f"reviews/negative/{i}.txt", f"bad film\nnumber {i}\n")
    corpus = read_corpus(tmp_path / "reviews", "classify")
    assert corpus.label_names == ("negative", "positive")
    assert sum(len(split.rows) for split in corpus.splits.values()) == 60
    assert all(
        ("good" in row) == (label == 1) for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)
    )


def test_a_table_of_any_name_in_a_folder_is_read(write: Write, tmp_path: Path) -> None:
    write("reviews.csv", "text,label\n" + "".join(f"review {i},{i % 2}\n" for i in range(50)))
    assert sum(len(split.rows) for split in read_corpus(tmp_path, "classify").splits.values()) == 50


def test_files_that_do_not_belong_together_are_an_error(write: Write, tmp_path: Path) -> None:
    write("notes.txt", "a\nb\n")
    write("reviews.csv", "text,label\na,0\n")
    with pytest.raises(DataError, match=r"both text files and tables: notes\.txt, reviews\.csv"):
        read_corpus(tmp_path)
    with pytest.raises(DataError, match=r"no data file matches"):
        read_corpus(tmp_path / "*.md")
    with pytest.raises(DataError, match=r"did you mean .notes\.txt."):
        read_corpus([tmp_path / "note.txt"])
