"""Data sets of the Hugging Face hub: `hub:owner/name`, or `hub:owner/name@revision`.

Only files of text and tables are fetched, never code. Where they are kept and whether the network may be used is for
HF_HOME and HF_HUB_OFFLINE to say, which huggingface_hub reads itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from headtohead.errors import DataError

SOURCE_PREFIX = "hub:"
DATA_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
# Files that describe a data set are not part of it.
METADATA_FILES = ("dataset_infos.json", "dataset_info.json", "requirements.txt", "LICENSE.txt", "license.txt")


def download_dataset(source: str) -> Path:
    """The folder with the data set's files on this machine."""
    name, _, revision = source.removeprefix(SOURCE_PREFIX).partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise DataError(f"{source}: a data set of the hub is written hub:owner/name, or hub:owner/name@revision")
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=[f"*{suffix}" for suffix in DATA_SUFFIXES],
            ignore_patterns=list(METADATA_FILES),
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise DataError(
            f"{source}: cannot be had from the hub, and is not in its cache on this machine ({type(error).__name__}: "
            f'{reason}). A folder with the files works without the hub: source = "path/to/folder"'
        ) from error
    return Path(folder)


def is_data_file(path: Path) -> bool:
    return path.suffix.lower() in DATA_SUFFIXES and path.name not in METADATA_FILES
