"""Sources `folder`, `file` and `files`: plain text and tables on disk.

A folder, or a list of files, has one of these layouts:

    train.*, validation.* (or valid.*, dev.*), test.* or test_NAME.*    plain text or tables
    train_CLS.tsv, test_CLS.tsv, train_LM.txt, test_LM_NAME.txt         the speeches layout, folders only
    files with any other names                                          train; missing splits are held out
    any other, if data.files assigns the files to splits
"""

from __future__ import annotations

import glob
import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headtohead.config.tables.data import ColumnsConfig, DataConfig, SplitFilesConfig
from headtohead.data.file_errors import build_missing_path_error, format_name_list, list_folder_entries
from headtohead.data.raw_corpus import RawCorpus, RawSplit
from headtohead.data.sources.file_formats import TABLE_SUFFIXES, is_table_file, read_plain_text, read_table, read_text
from headtohead.data.sources.registry import CorpusSource, SourceRequest, source
from headtohead.data.sources.streaming import StreamedRows
from headtohead.errors import DataError

DATA_SUFFIXES = (".txt", *TABLE_SUFFIXES)
METADATA_FILES = (
    "dataset_infos.json",
    "dataset_info.json",
    "requirements.txt",
    "LICENSE.txt",
    "license.txt",
    "README.txt",
    "readme.txt",
)
"""files that describe a dataset but are not part of it"""
SPEECHES_COLUMNS = ColumnsConfig(label=0, text=1)
"""columns of the tables in the speeches layout, which have no header"""
MIN_HELD_OUT_FILES = 10
"""number of text files at which whole files are held out instead of rows"""
SPLIT_FILE_STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}


@source("file")
class FileSource(CorpusSource):
    """One file, from which validation and test rows are held out."""

    def read(self, request: SourceRequest) -> RawCorpus:
        """Read a single file as the training split."""
        if not request.path.is_file():
            raise build_missing_path_error(request.path)
        if request.data.files is not None:
            raise DataError(f"{request.path}: data.files requires a folder, and this is a file")
        return RawCorpus(_read_split([request.path], request.data, request.has_labels), f"file {request.argument}")

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        if not request.path.is_file():
            raise build_missing_path_error(request.path)
        return super().list_files(request)


@source("files")
class FilesSource(CorpusSource):
    """A list of files, folders and glob patterns such as `books/**/*.txt`."""

    def read(self, request: SourceRequest) -> RawCorpus:
        """Read a list of files, or those that match a pattern, by the layout that fits."""
        paths = _expand_patterns(request)
        if request.data.files is not None:
            raise DataError("data.files requires a folder, and data.source is a list of files or a pattern")
        return _read_files_by_split_name(
            _find_common_folder(paths), paths, request.data, request.has_labels, request.argument
        )

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        return {str(path): path for path in _expand_patterns(request)}


def _expand_patterns(request: SourceRequest) -> list[Path]:
    """Return the files selected by `data.source`, without duplicates, in list order and sorted within a pattern."""
    source = request.data.source
    paths: list[Path] = []
    for pattern in (source,) if isinstance(source, str) else source:
        path = request.base_folder / Path(pattern).expanduser()
        if path.is_dir():
            matches = _list_data_files(path, is_recursive=True)
        elif path.is_file() or not glob.has_magic(pattern):
            matches = [path]
        else:
            folder = path if path.is_absolute() else Path.cwd() / path
            matches = sorted(match for match in Path("/").glob(str(folder).lstrip("/")) if match.is_file())
        if not matches:
            raise DataError(f"{path}: no data file matches ({', '.join(f'*{suffix}' for suffix in DATA_SUFFIXES)})")
        if not matches[0].exists():
            raise build_missing_path_error(path)
        paths += matches
    return list(dict.fromkeys(paths))


def _find_common_folder(paths: Sequence[Path]) -> Path:
    """Return the folder that contains all data files, to which their names are relative."""
    return Path(os.path.commonpath([path.parent for path in paths]))


@source("folder")
class FolderSource(CorpusSource):
    """A folder with one file per split, or with arbitrarily named text files."""

    def read(self, request: SourceRequest) -> RawCorpus:
        if not request.path.is_dir():
            raise build_missing_path_error(request.path)
        return read_folder(request.path, request.data, request.has_labels, display_name=request.argument)

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        if not request.path.is_dir():
            raise build_missing_path_error(request.path)
        return list_folder_files(request.path, request.data)


def list_folder_files(folder: Path, data: DataConfig, *, is_recursive: bool = False) -> dict[str, Path]:
    """Return a folder's data files and those selected by data.files, by path relative to the folder."""
    assigned_files = [] if data.files is None else [data.files.train, data.files.validation, *data.files.test.values()]
    paths = _list_data_files(folder, is_recursive=is_recursive) or _list_data_files(folder, is_recursive=True)
    paths += [folder / name for name in assigned_files if name and (folder / name).is_file()]
    return {str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path): path for path in paths}


def read_folder(
    folder: Path, data: DataConfig, has_labels: bool, *, display_name: str, is_recursive: bool = False
) -> RawCorpus:
    """Return the splits of a folder, read with the first layout that fits. `is_recursive` includes subfolders."""
    origin = f"{'data set' if is_recursive else 'folder'} {display_name}"
    if data.files is not None:
        return _read_assigned_files(folder, data.files, data, has_labels, origin)
    if any((folder / name).is_file() for name in ("train_CLS.tsv", "train_LM.txt")):
        return _read_speeches_folder(folder, data, has_labels, origin)
    paths = _list_data_files(folder, is_recursive=is_recursive)
    if not paths and not _find_corpus_subfolders(folder):
        paths, is_recursive = _list_data_files(folder, is_recursive=True), True
    if not paths:
        train_names = " ".join(f"train{suffix}" for suffix in DATA_SUFFIXES)
        expected = (
            f"the speeches layout (train_LM.txt, train_CLS.tsv), one of {train_names}, or text files of any names"
        )
        raise _build_missing_files_error(folder, expected)
    return _read_files_by_split_name(folder, paths, data, has_labels, origin, is_recursive=is_recursive)


def _read_assigned_files(
    folder: Path, files: SplitFilesConfig, data: DataConfig, has_labels: bool, origin: str
) -> RawCorpus:
    """Read the files that `data.files` assigns to the splits."""
    train = _read_split([folder / files.train], data, has_labels)
    validation = (
        _read_split([folder / files.validation], data, has_labels, train.separator) if files.validation else None
    )
    tests = {name: _read_split([folder / path], data, has_labels, train.separator) for name, path in files.test.items()}
    return RawCorpus(train, origin, validation, tests)


def _read_speeches_folder(folder: Path, data: DataConfig, has_labels: bool, origin: str) -> RawCorpus:
    """Read the speeches layout. Its vocabulary was built from whole lines in both training files, labels included."""
    labeled_path, plain_path = folder / "train_CLS.tsv", folder / "train_LM.txt"
    test_paths = sorted(folder.glob("test_LM_*.txt"))
    if has_labels:
        _require_speeches_files(folder, ["train_CLS.tsv", "test_CLS.tsv"], [labeled_path, folder / "test_CLS.tsv"])
        columns = data.columns if isinstance(data.columns.text, int) else SPEECHES_COLUMNS
        train = read_table(labeled_path, columns, has_labels=True)
        tests = {"test": read_table(folder / "test_CLS.tsv", columns, has_labels=True)}
    else:
        _require_speeches_files(
            folder, ["train_LM.txt", "test_LM_NAME.txt"], [plain_path, *(test_paths or [folder / "test_LM_NAME.txt"])]
        )
        train = read_plain_text(plain_path, has_paragraphs=False)
        tests = {
            path.stem.removeprefix("test_LM_"): _add_document_name(
                read_plain_text(path, has_paragraphs=False), path.name, data
            )
            for path in test_paths
        }
    vocabulary_paths = (
        [path for path in (labeled_path, plain_path) if path.is_file()] if data.vocabulary == "folder" else []
    )
    course_rows = tuple(line for path in vocabulary_paths for line in read_text(path).split("\n") if line.strip())
    return RawCorpus(train, origin, None, tests, course_rows)


def _require_speeches_files(folder: Path, expected: Sequence[str], paths: Sequence[Path]) -> None:
    """Raise DataError if a file of the speeches layout is missing; `expected` names the files in the message."""
    if not all(path.is_file() for path in paths):
        raise _build_missing_files_error(folder, " and ".join(expected))


def _build_missing_files_error(folder: Path, expected: str) -> DataError:
    """Return an error with the folder's entries and, if one looks like a corpus, the subfolder to use instead."""
    subfolders = _find_corpus_subfolders(folder)
    hint = f"; did you mean its subfolder {subfolders[0]!r}?" if subfolders else ""
    entry_names = format_name_list(list_folder_entries(folder))
    return DataError(
        f"{folder}: expected {expected}, found {entry_names}{hint}. For any other layout, assign the files to splits "
        'with data.files, as in files = { train = "a.txt", test = { name = "b.txt" } }'
    )


def _find_corpus_subfolders(folder: Path) -> list[str]:
    """Return the names of the subfolders that have a training file."""
    return [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_dir() and any(_infer_split_name(file) == "train" for file in _list_data_files(path))
    ]


def _read_files_by_split_name(
    folder: Path,
    paths: Sequence[Path],
    data: DataConfig,
    has_labels: bool,
    origin: str,
    *,
    is_recursive: bool = True,
) -> RawCorpus:
    """Read train.*, validation.* and test.*. If no file is named train, the files of any other names are the training
    split.
    """
    paths_by_split: dict[str, list[Path]] = {}
    for path in paths:
        paths_by_split.setdefault(_infer_split_name(path) or "", []).append(path)
    unnamed_paths = paths_by_split.pop("", [])
    if "train" in paths_by_split:
        _check_files_unambiguous(folder, paths_by_split, is_recursive)
        train = _read_split(paths_by_split.pop("train"), data, has_labels)
    elif unnamed_paths:
        train = _read_unnamed_files(folder, unnamed_paths, data, has_labels)
    else:
        raise _build_missing_files_error(folder, "train.* beside the files of other splits")
    validation_paths = paths_by_split.pop("validation", None)
    validation = _read_split(validation_paths, data, has_labels, train.separator) if validation_paths else None
    tests = {
        name.removeprefix("test_"): _read_split(paths, data, has_labels, train.separator)
        for name, paths in paths_by_split.items()
    }
    return RawCorpus(train, origin, validation, tests)


def _read_unnamed_files(folder: Path, paths: Sequence[Path], data: DataConfig, has_labels: bool) -> RawSplit:
    """Read files of any names as the training split. Each text file is a document if whole files can be held out.

    For classification, text files in several subfolders are rows whose label is the name of the subfolder.
    """
    text_paths = [path for path in paths if not is_table_file(path)]
    if text_paths and len(text_paths) < len(paths):
        file_names = format_name_list([str(path.relative_to(folder)) for path in paths])
        raise DataError(
            f"{folder}: both text files and tables: {file_names}; choose with data.files, or a pattern as source"
        )
    if has_labels and len({path.parent for path in text_paths}) > 1:
        labels = tuple(path.parent.name for path in text_paths)
        return RawSplit(tuple(map(read_text, text_paths)), labels, (), str(folder))
    if data.documents is None and len(paths) > 1:
        documents = "files" if len(text_paths) >= MIN_HELD_OUT_FILES else "rows"
        data = data.model_copy(update={"documents": documents})
    return _read_split(paths, data, has_labels)


def _list_data_files(folder: Path, *, is_recursive: bool = False) -> list[Path]:
    """Return a folder's data files in alphabetical order."""
    paths = folder.glob("**/*" if is_recursive else "*")
    return sorted(
        path
        for path in paths
        if path.is_file() and path.suffix.lower() in DATA_SUFFIXES and path.name not in METADATA_FILES
    )


def _infer_split_name(path: Path) -> str | None:
    """Return the split of a file by its name: train, validation, test or test_NAME; None for other names."""
    stem = re.sub(r"-\d+-of-\d+.*$", "", path.stem)  # shards of a hub dataset
    if stem.startswith("train_"):
        return "train" if stem in ("train_CLS", "train_LM") else None
    if stem.startswith("test_"):
        return stem
    return next((split for split, stems in SPLIT_FILE_STEMS.items() if stem in stems), None)


def _check_files_unambiguous(folder: Path, paths_by_split: Mapping[str, Sequence[Path]], is_recursive: bool) -> None:
    """Raise DataError if several files match a split, unless they are shards in one subfolder."""
    for split, paths in paths_by_split.items():
        if len(paths) > 1 and (not is_recursive or len({(path.parent, path.suffix) for path in paths}) > 1):
            matches = format_name_list([str(path.relative_to(folder)) for path in paths])
            raise DataError(f"{folder}: several files match {split}: {matches}; choose with data.files")


def _read_split(paths: Sequence[Path], data: DataConfig, has_labels: bool, separator: str | None = None) -> RawSplit:
    """Read the files of one split in a folder and concatenate their rows.

    `separator` is that of the training split, so that held-out text is split into rows the same way.
    """
    folder = _find_common_folder(paths)
    splits: list[RawSplit] = []
    for path in paths:
        separator = splits[0].separator if splits else separator
        splits.append(_read_split_file(path, str(path.relative_to(folder)), data, has_labels, separator))
    if len(splits) == 1:
        return splits[0]
    labels = tuple(label for split in splits for label in split.labels or ())
    lines = tuple(line for split in splits for line in split.lines)
    rows: Sequence[str] = StreamedRows(*(split.rows for split in splits))
    rows = rows if any(isinstance(split.rows, StreamedRows) for split in splits) else tuple(rows)
    documents = [
        name
        for split in splits
        for name in (split.documents if split.has_named_rows else [*split.documents] * len(split.rows))
    ]
    return RawSplit(rows, labels or None, lines, str(paths[0].parent), splits[0].separator, tuple(documents))


def _read_split_file(path: Path, document: str, data: DataConfig, has_labels: bool, separator: str | None) -> RawSplit:
    """Read one file of a split in a folder, as table or plain text; raise DataError for text if labels are required."""
    if is_table_file(path):
        return read_table(path, data.columns, has_labels=has_labels)
    if has_labels:
        read_plain_text(path)  # reports a missing or empty file first
        raise DataError(f"{path}: classification needs labeled rows ({', '.join(TABLE_SUFFIXES)}), got plain text")
    split = read_plain_text(path, has_paragraphs=None if separator is None else separator == "\n\n")
    return _add_document_name(split, document, data)


def _add_document_name(split: RawSplit, document: str, data: DataConfig) -> RawSplit:
    """Return plain text as one document named after its file, or with each row as its own document."""
    # A stream's lines are running text. Paragraphs and rows that are read individually may be independent texts.
    documents = data.documents or ("files" if data.rows == "stream" and split.separator == "\n" else "rows")
    return replace(split, documents=(document,)) if documents == "files" else split
