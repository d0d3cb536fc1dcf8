"""Hub datasets are read from the cache without network access; missing ones have a clear error message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headtohead.config.tables.data import DataConfig
from headtohead.data.sources.folders_and_files import read_folder
from headtohead.data.sources.loading import load_corpus
from headtohead.errors import DataError

Write = Callable[..., Path]


def test_pieces_of_a_split_are_joined_in_order(write: Write, tmp_path: Path) -> None:
    write("data/train-00001-of-00002.jsonl", '{"text": "two"}\n')
    write("data/train-00000-of-00002.jsonl", '{"text": "one"}\n')
    write("data/validation-00000-of-00001.jsonl", '{"text": "held"}\n')
    write("data/test-00000-of-00001-abc.jsonl", '{"text": "out"}\n')
    write("README.md", "about")
    write("dataset_infos.json", "{}")
    folder = read_folder(tmp_path, DataConfig(source="hub:a/b"), False, display_name="hub:a/b", is_recursive=True)
    assert folder.train.rows == ("one", "two")
    assert folder.validation is not None
    assert folder.validation.rows == ("held",)
    assert folder.tests["test"].rows == ("out",)


def test_two_configurations_need_a_choice(write: Write, tmp_path: Path) -> None:
    write("en/train.csv", "text\none\n")
    write("fr/train.csv", "text\nun\n")
    with pytest.raises(DataError, match=r"several files match train: en/train.csv, fr/train.csv"):
        read_folder(tmp_path, DataConfig(source="hub:a/b"), False, display_name="hub:a/b", is_recursive=True)


LOAD = """
from headtohead.config.tables.data import DataConfig
from headtohead.data.sources.loading import load_corpus
from headtohead.errors import DataError
for name in ("owner/name", "owner/other"):
    try:
        print(load_corpus(DataConfig(source="hub:" + name, validation_fraction=0.0), has_labels=False).train.rows)
    except DataError as error:
        print("refused:", error)
"""


def test_without_a_network_the_cache_is_enough_and_what_it_lacks_is_rejected(write: Write, tmp_path: Path) -> None:
    repository, commit = "hub/datasets--owner--name", "0123456789abcdef0123456789abcdef01234567"
    write(f"{repository}/refs/main", commit)
    write(f"{repository}/snapshots/{commit}/train.txt", "one\ntwo\n")
    write(f"{repository}/snapshots/{commit}/test.txt", "three\n")
    # A process of its own: the hub's settings are read once, at import.
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, check=True)
    existing, absent = result.stdout.splitlines()
    assert existing == "('one', 'two')"
    assert absent.startswith("refused: hub:owner/other: cannot be downloaded")
    assert "A folder with its files works offline" in absent


def test_a_name_that_is_none_is_rejected() -> None:
    with pytest.raises(DataError, match=r"a hub dataset is written hub:owner/name"):
        load_corpus(DataConfig(source="hub:a b/c"), has_labels=False)
