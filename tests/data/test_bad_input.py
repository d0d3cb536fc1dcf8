"""Errors about invalid data state the file, the line, the value found and the value expected."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.sources.loading import load_corpus
from headtohead.errors import DataError

Write = Callable[..., Path]
NUMBERS = {"label": 0, "text": 1}
GOOD = "0\tone\n1\ttwo\n"


def assert_refused(source: Path, task: str, match: str, **data: object) -> str:
    with pytest.raises(DataError, match=match) as caught:
        load_corpus(DataConfig.model_validate({"source": str(source), **data}), has_labels=task == "classify")
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "  \n\n"])
@pytest.mark.parametrize("name", ["train.txt", "train.tsv", "train.csv", "train.jsonl"])
def test_empty_file(write: Write, name: str, text: str) -> None:
    task = "language-model" if name.endswith("txt") else "classify"
    assert_refused(write(name, text), task, rf"{name}: 1 error\n  file: is empty; expected text")


def test_header_without_rows(write: Write) -> None:
    assert_refused(write("a.csv", "text,label\n"), "classify", "a.csv: 1 error\n  file: has a header but no rows")


def test_tsv_with_a_missing_column_names_every_line(write: Write) -> None:
    path = write("a.tsv", "0\tone\nno label here\n1\ttwo\n2\n")
    message = assert_refused(
        path, "classify", r"a.tsv: 2 errors\n  line 2: has 1 column, line 1 has 2: 'no label here'", columns=NUMBERS
    )
    assert "line 4: has 1 column, line 1 has 2: '2'" in message


def test_tsv_with_a_column_too_many(write: Write) -> None:
    assert_refused(
        write("a.tsv", "0\tone\n1\ttwo\tthree\n"), "classify", r"line 2: has 3 columns, line 1 has 2", columns=NUMBERS
    )


def test_column_number_that_does_not_exist(write: Write) -> None:
    columns = {"label": 0, "text": 2}
    assert_refused(
        write("a.tsv", GOOD),
        "classify",
        r"line 1: has 2 columns \(numbered from 0\), so there is no column 2",
        columns=columns,
    )


def test_not_more_than_ten_faults_are_shown(write: Write) -> None:
    message = assert_refused(write("a.tsv", GOOD + "x\n" * 25), "classify", "a.tsv: 25 errors", columns=NUMBERS)
    assert message.endswith("and 15 more")
    assert message.count("line ") == 20  # each of the ten names its own line and the first


def test_unknown_label_in_test(write: Write, tmp_path: Path) -> None:
    write("train_CLS.tsv", "obama\tone\nbush\ttwo\n")
    write("test_CLS.tsv", "bush\tone\nobamma\ttwo\n")
    message = assert_refused(
        tmp_path, "classify", r"test_CLS.tsv: 1 error\n  line 2: label 'obamma' does not occur in train"
    )
    assert "did you mean 'obama'?" in message
    assert "allowed: bush, obama" in message


def test_a_label_of_train_is_known_wherever_its_row_falls(write: Write, tmp_path: Path) -> None:
    write("train_CLS.tsv", GOOD + "".join(f"{i}\trow {i}\n" for i in range(2, 30)))
    write("test_CLS.tsv", "".join(f"{i}\tx\n" for i in range(30)))
    corpus = load_corpus(DataConfig(source=str(tmp_path), validation_fraction=0.5), has_labels=True)
    assert len(corpus.label_names) == 30


def test_one_label_is_none(write: Write, tmp_path: Path) -> None:
    write("train_CLS.tsv", "0\tone\n0\ttwo\n")
    write("test_CLS.tsv", "0\tone\n")
    assert_refused(
        tmp_path, "classify", r"train_CLS.tsv: every row has the label '0'; classification needs at least two"
    )


def test_bytes_that_are_not_utf8(write: Write) -> None:
    raw = "naïve\ncafé\n".encode() + b"caf\xe9 ol\xe9\n"
    message = assert_refused(
        write("a.txt", raw), "language-model", r"a.txt: 2 errors\n  byte 16 \(line 3\): e9 is not UTF-8"
    )
    assert "byte 20 (line 3)" in message
    assert raw[16] == raw[20] == 0xE9


def test_folder_without_the_expected_files(write: Write, tmp_path: Path) -> None:
    write("notes.md", "x")
    assert_refused(
        tmp_path, "language-model", r"expected the speeches layout .*train.txt.*found notes.md\. .*data.files"
    )


def test_half_a_speeches_folder(write: Write, tmp_path: Path) -> None:
    write("train_LM.txt", "x\n")
    assert_refused(tmp_path, "language-model", r"expected train_LM.txt and test_LM_NAME.txt, found train_LM.txt")
    assert_refused(tmp_path, "classify", r"expected train_CLS.tsv and test_CLS.tsv, found train_LM.txt")


def test_the_folder_above_points_to_the_one_inside(write: Write, tmp_path: Path) -> None:
    write("data/train_LM.txt", "x\n")
    assert_refused(tmp_path, "language-model", r"did you mean its subfolder 'data'\?")


def test_missing_path_names_the_nearest(write: Write) -> None:
    path = write("speeches.txt", "x")
    assert_refused(
        path.with_name("speches.txt"),
        "language-model",
        r"speches.txt: no such file or folder; did you mean 'speeches.txt'\?",
    )
    assert_refused(
        path.parent / "no" / "way.txt", "language-model", r"no such file; the folder .* does not exist either"
    )


def test_missing_file_of_data_files(write: Write, tmp_path: Path) -> None:
    write("a.txt", "x\n")
    assert_refused(tmp_path, "language-model", r"b.txt: no such file", files={"train": "b.txt"})


def test_csv_with_the_wrong_header(write: Write) -> None:
    message = assert_refused(
        write("a.csv", "txt,label\nx,1\n"), "classify", r"line 1: the header has no column 'text' for the text"
    )
    assert "did you mean 'txt'?" in message
    assert "columns = { label = 0, text = 1 }" in message


def test_csv_that_is_not_csv(write: Write) -> None:
    assert_refused(write("a.csv", 'text,label\n"open,1\n'), "classify", r"a.csv: 1 error\n  line \d: is not CSV")


def test_names_and_numbers_do_not_mix(write: Write) -> None:
    assert_refused(write("a.tsv", GOOD), "classify", "mixes names and numbers", columns={"text": 1})


def test_json_lines_with_every_kind_of_fault(write: Write) -> None:
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{oops\n[1]\n{"txet": "a", "label": 1}\n')
    message = assert_refused(path, "classify", r"a.jsonl: 3 errors\n  line 2: is not JSON")
    assert "line 3: is [1]; expected an object with text = 'text', label = 'label'" in message
    assert "line 4: has no 'text'; it has txet, label" in message
    assert "did you mean 'txet'?" in message


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ('{"text": ["a"], "label": 1}', r"line 2: the text is \['a'\]; expected a string"),
        ('{"text": " ", "label": 1}', r"line 2: the text is empty"),
        ('{"text": "\\ud800", "label": 1}', r"line 2: the text contains a lone surrogate"),
        ('{"text": "a", "label": null}', r"line 2: the label is None; expected a string or integer"),
    ],
)
def test_cells_that_are_not_text(write: Write, entry: str, match: str) -> None:
    assert_refused(write("a.jsonl", '{"text": "a", "label": 1}\n' + entry), "classify", match)


def test_json_has_no_numbered_columns(write: Write) -> None:
    assert_refused(
        write("a.jsonl", '{"text": "a"}'), "language-model", "columns of this format have names", columns={"text": 0}
    )


def test_a_classifier_needs_labels(write: Write) -> None:
    assert_refused(write("a.txt", "some text\n"), "classify", r"a.txt: classification needs labeled rows .*plain text")


def test_two_files_for_one_split(write: Write, tmp_path: Path) -> None:
    write("train.txt", "x")
    write("train.tsv", GOOD)
    assert_refused(
        tmp_path, "language-model", "several files match train: train.tsv, train.txt; choose with data.files"
    )


def test_too_little_to_split(write: Write) -> None:
    assert_refused(
        write("a.txt", "same\nsame\n"), "language-model", r"2 rows \(equal rows count once\) cannot be split"
    )


def test_files_go_with_a_folder(write: Write) -> None:
    assert_refused(write("a.txt", "x"), "language-model", "data.files requires a folder", files={"train": "a.txt"})


def test_parquet_without_pyarrow_says_how_to_install_it(write: Write) -> None:
    if importlib.util.find_spec("pyarrow"):
        pytest.skip("pyarrow is installed")
    assert_refused(write("a.parquet", b"PAR1"), "classify", "need pyarrow; install it with: pip install pyarrow")
