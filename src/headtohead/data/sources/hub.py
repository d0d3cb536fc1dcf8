"""Source `hub`: datasets on the Hugging Face Hub, written `hub:owner/name` or `hub:owner/name@revision`.

Only text and table files are downloaded, never code. huggingface_hub reads HF_HOME and HF_HUB_OFFLINE itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from headtohead.data.raw_corpus import RawCorpus
from headtohead.data.sources.folders_and_files import DATA_SUFFIXES, METADATA_FILES, list_folder_files, read_folder
from headtohead.data.sources.registry import CorpusSource, SourceRequest, source
from headtohead.errors import DataError


@source("hub")
class HubSource(CorpusSource):
    """A dataset on the hub, with one or more files per split."""

    has_path_argument = False

    def read(self, request: SourceRequest) -> RawCorpus:
        folder = download_dataset(request.argument)
        name = f"hub:{request.argument}"
        return read_folder(folder, request.data, request.has_labels, display_name=name, is_recursive=True)

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        return list_folder_files(download_dataset(request.argument), request.data, is_recursive=True)


def download_dataset(repo: str) -> Path:
    """Download a dataset from the Hugging Face Hub, unless it is cached, and return the local folder with its files."""
    name, _, revision = repo.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise DataError(f"hub:{repo}: a hub dataset is written hub:owner/name or hub:owner/name@revision")
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
            f"hub:{repo}: cannot be downloaded and is not in the local cache ({type(error).__name__}: {reason}). A "
            'folder with its files works offline: source = "path/to/folder"'
        ) from error
    return Path(folder)
