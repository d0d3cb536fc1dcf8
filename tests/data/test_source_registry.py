"""Corpus sources by name: built-in sources, a user's source, errors, the cache, and the conformance suite."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.sources import CorpusSource, RawCorpus, RawSplit, SourceRequest, registry, source
from headtohead.data.sources.loading import load_corpus, resolve_source_path
from headtohead.data.sources.registry import resolve_source
from headtohead.data.token_cache import build_cache_key, load_tokenized_corpus
from headtohead.errors import ConfigError, DataError
from headtohead.experiment.loading import build_experiment, load_experiment
from headtohead.nn.parts.registry import load_plugin
from headtohead.testing import SourceConformanceSuite, find_source_violations

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "corpora.md"
POEMS = [
    {"text": f"{word} are red and {author} knows", "author": author, "year": year}
    for word in ("roses", "barns", "apples", "foxes", "leaves")
    for author in ("Ann", "Bo")
    for year in (1800, 1950)
]
ROWS = [f"row number {i}" for i in range(50)]


@pytest.fixture(autouse=True)
def restored_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("headtohead_own_"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def poems(tmp_path: Path) -> Path:
    """Write the example source of the guide with its data; return the folder."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    (tmp_path / "poems.py").write_text(code)
    (tmp_path / "poems.json").write_text(json.dumps(POEMS))
    return tmp_path


def test_built_in_sources_are_registered_like_any_other() -> None:
    assert set(registry.list_source_names()) >= {"file", "folder", "hub", "sotu"}


def test_the_source_of_the_guide_is_read_from_an_experiment_file(poems: Path) -> None:
    (poems / "experiment.toml").write_text(
        """
question = "Does it help?"
task = "classify"
seeds = 1
plugins = ["poems.py"]
[data]
source = "poems:poems.json"
[model]
width = 16
layers = 1
heads = 2
context = 8
[training]
budget = "4 steps"
[variants.alibi]
model.position = "alibi"
"""
    )
    experiment = load_experiment(poems / "experiment.toml")
    assert experiment.data.source == f"poems:{poems / 'poems.json'}", "a path is relative to the experiment file"
    corpus = load_corpus(experiment.data, has_labels=True)
    assert corpus.label_names == ("Ann", "Bo")
    assert list(corpus.splits) == ["train", "validation", "modern"]
    assert len(corpus.splits["modern"].rows) == 10
    assert corpus.origin.startswith("poems in ")


def test_the_sources_of_the_guide_pass_the_conformance_suite(poems: Path) -> None:
    assert find_source_violations(f"poems:{poems / 'poems.json'}", has_labels=True, plugin=poems / "poems.py") == []
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    (poems / "many_poems.py").write_text(code)
    for i, row in enumerate(ROWS):
        (poems / f"{i:02}.txt").write_text(row)
    assert find_source_violations(f"many-poems:{poems}", plugin=poems / "many_poems.py") == []


def test_cached_tokens_follow_the_source_file_and_the_data(poems: Path) -> None:
    data = DataConfig(source=f"poems:{poems / 'poems.json'}")
    load_plugin(poems / "poems.py")
    assert len(load_tokenized_corpus(data, has_labels=False).corpus.splits["modern"].rows) == 10
    key = build_cache_key(data, False, Path())
    (poems / "poems.json").write_text(json.dumps([*POEMS, {"text": "new", "author": "Ann", "year": 2000}]))
    changed = build_cache_key(data, False, Path())
    assert changed["files"] != key["files"] and changed["code"] == key["code"]
    code = (poems / "poems.py").read_text().replace("1900", "1850")
    (poems / "poems.py").write_text(code)
    load_plugin(poems / "poems.py")
    assert build_cache_key(data, False, Path())["code"] != key["code"]
    assert len(load_tokenized_corpus(data, has_labels=False).corpus.splits["modern"].rows) == 11


def test_an_unknown_name_is_rejected_with_the_closest_match(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no source named 'hubb'\n    did you mean 'hub'\?\n    allowed: .*sotu"):
        load_corpus(DataConfig(source="hubb:owner/name"), has_labels=False)
    raw: dict[str, Any] = {
        "question": "?",
        "task": "language-model",
        "data": {"source": "poem:x"},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    with pytest.raises(ConfigError, match=r"data\.source: no source named 'poem'"):
        build_experiment(raw)


def test_a_path_with_a_colon_stays_a_path(write: Callable[..., Path], tmp_path: Path) -> None:
    write("poems:old.txt", "\n".join(ROWS))
    corpus = load_corpus(DataConfig(source="poems:old.txt"), has_labels=False, base_folder=tmp_path)
    assert corpus.origin.startswith("file poems:old.txt")


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("sotu", "sotu"),
        ("hub:owner/name", "hub:owner/name"),
        ("texts", "{folder}/texts"),
        ("missing.txt", "{folder}/missing.txt"),
        ("folder:texts", "folder:{folder}/texts"),
        ("rows:texts", "rows:{folder}/texts"),
        ("rows:anything", "rows:anything"),
        ("rows", "rows"),
    ],
)
def test_paths_become_absolute_and_other_arguments_stay(tmp_path: Path, text: str, resolved: str) -> None:
    source("rows")(lambda request: RawCorpus(RawSplit(ROWS), "here"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve_source_path(text, tmp_path) == resolved.format(folder=tmp_path)


def test_the_request_has_the_argument_and_the_settings() -> None:
    requests: list[SourceRequest] = []

    @source("rows")
    def read(request: SourceRequest) -> RawCorpus:
        requests.append(request)
        return RawCorpus(RawSplit(ROWS), "here")

    data = DataConfig(source="rows:one:two", validation_fraction=0.2)
    corpus = load_corpus(data, has_labels=False, base_folder=Path("/base"))
    assert (requests[0].argument, requests[0].path, requests[0].data) == ("one:two", Path("/base/one:two"), data)
    assert set(corpus.splits) == {"train", "validation", "test"}, "missing splits are held out"
    assert sorted(row for split in corpus.splits.values() for row in split.rows) == sorted(ROWS)


def test_a_class_is_a_source_too() -> None:
    @source("rows")
    class Rows(CorpusSource):
        def read(self, request: SourceRequest) -> RawCorpus:
            return RawCorpus(RawSplit(ROWS), "here")

    reader, _ = resolve_source(DataConfig(source="rows"), Path(), has_labels=False)
    assert isinstance(reader, Rows) and reader.name == "rows"
    with pytest.raises(DataError, match="Other must subclass CorpusSource"):
        source("other")(type("Other", (), {}))


def test_two_files_cannot_define_the_same_source(poems: Path) -> None:
    load_plugin(poems / "poems.py")
    other = poems / "other.py"
    other.write_text((poems / "poems.py").read_text() + "\n# another file\n")
    with pytest.raises(Exception, match=r"source 'poems' is defined twice: in .*poems\.py and .*other\.py"):
        load_plugin(other)
    with pytest.raises(DataError, match="source name 'My Poems' is invalid"):
        source("My Poems")


@pytest.mark.parametrize(
    ("returned", "has_labels", "message"),
    [
        ([], False, "must return a RawCorpus, got list"),
        (RawCorpus(RawSplit([]), "here"), False, "train has no rows"),
        (RawCorpus(RawSplit(ROWS), "here", tests={"train": RawSplit(ROWS)}), False, "cannot be named 'train'"),
        (RawCorpus(RawSplit(ROWS), "here"), True, "split 'train' has 50 rows and no labels"),
        (RawCorpus(RawSplit(ROWS, ("a", "b")), "here"), True, "split 'train' has 50 rows and 2 labels"),
    ],
)
def test_what_a_source_returns_is_checked(returned: Any, has_labels: bool, message: str) -> None:
    source("rows")(lambda request: returned)
    with pytest.raises(DataError, match=re.escape(message)):
        load_corpus(DataConfig(source="rows"), has_labels=has_labels)


@pytest.mark.parametrize(
    ("corpus", "violation"),
    [
        (RawCorpus(RawSplit([*ROWS, " "]), "here"), "train: row 51 is empty"),
        (RawCorpus(RawSplit([*ROWS, "\ud800"]), "here"), "train: row 51 contains a lone surrogate"),
        (RawCorpus(RawSplit(ROWS, lines=(1,)), "here"), "train: 50 rows and 1 line numbers"),
        (RawCorpus(RawSplit(ROWS), " "), "origin is empty; it should say where the text comes from"),
        (RawCorpus(RawSplit(["one row"]), "here"), "cannot be split into train and test"),
    ],
)
def test_the_conformance_suite_finds_violations(corpus: RawCorpus, violation: str) -> None:
    source("rows")(lambda request: corpus)
    (result,) = find_source_violations("rows")
    assert violation in result


def test_the_conformance_suite_finds_unknown_labels_and_chance() -> None:
    labels = tuple("ab"[i % 2] for i in range(50))
    test = RawSplit(["row"], ("c",))
    source("rows")(lambda request: RawCorpus(RawSplit(ROWS, labels), "here", tests={"new": test}))
    assert find_source_violations("rows", has_labels=True) == ["new: label 'c' does not occur in train"]
    calls: list[int] = []

    @source("chance")
    def read(request: SourceRequest) -> RawCorpus:
        calls.append(1)
        return RawCorpus(RawSplit([f"{row} {len(calls)}" for row in ROWS]), "here")

    assert "reading it twice returns different rows" in find_source_violations("chance")[0]


class TestDefaultCorpus(SourceConformanceSuite):
    source = "sotu"


class TestDefaultCorpusWithLabels(SourceConformanceSuite):
    source = "sotu"
    has_labels = True
