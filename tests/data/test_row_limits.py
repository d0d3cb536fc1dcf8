"""Row limits: `data.train_rows`, `data.validation_rows` and `data.test_rows`."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.raw_corpus import RawSplit
from headtohead.data.sources.loading import load_corpus
from headtohead.data.splits import iter_sampled_runs, sample_rows

LABELS = ["rare"] * 20 + ["common"] * 180  # sorted by class, as many published files are


@pytest.fixture
def labeled_folder(tmp_path: Path) -> Path:
    for split in ("train", "validation", "test"):
        rows = [f"{split} text {i},{label}" for i, label in enumerate(LABELS)]
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    return tmp_path


def test_limits_keep_classes_in_proportion_and_order(labeled_folder: Path) -> None:
    data = DataConfig(source=str(labeled_folder), train_rows=100, validation_rows=20, test_rows=50)
    corpus = load_corpus(data, has_labels=True)
    for name, expected in (("train", (10, 90)), ("validation", (2, 18)), ("test", (5, 45))):
        split = corpus.splits[name]
        counts = Counter(corpus.label_names[label] for label in split.labels or ())
        assert (counts["rare"], counts["common"]) == expected
        numbers = [int(row.split()[-1]) for row in split.rows]
        assert numbers == sorted(numbers)


def test_limits_do_not_move_rows_between_splits(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "\n".join(f"row {i},{i % 2}" for i in range(500)), encoding="utf-8")
    corpus = load_corpus(DataConfig(source=str(path)), has_labels=True)
    limited = load_corpus(DataConfig(source=str(path), train_rows=30, test_rows=10), has_labels=True)
    for name in corpus.splits:
        assert set(limited.splits[name].rows) <= set(corpus.splits[name].rows)
    assert corpus.splits["validation"].rows == limited.splits["validation"].rows
    assert corpus.digest != limited.digest


@pytest.mark.parametrize(("count", "limit"), [(1000, 100), (57, 12), (15, 12), (11, 10), (1000, 3), (7, 1)])
def test_running_text_is_sampled_in_runs_from_beginning_to_end(count: int, limit: int) -> None:
    sample = sample_rows(RawSplit(tuple(map(str, range(count)))), limit)
    numbers = [int(row) for row in sample.rows]
    assert len(numbers) == limit
    assert len({2 * number // count for number in numbers}) == min(limit, 2)
    if limit == 100:
        neighbors = sum(b == a + 1 for a, b in pairwise(numbers))
        assert neighbors == 90  # ten runs of ten rows


@pytest.mark.parametrize("limit", [5, 6, None])
def test_a_limit_that_is_not_smaller_keeps_every_row(limit: int | None) -> None:
    split = RawSplit(("a", "b", "c", "d", "e"))
    assert sample_rows(split, limit) is split
    assert all(iter_sampled_runs(5, limit or 9))
