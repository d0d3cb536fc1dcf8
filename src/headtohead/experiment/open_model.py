"""One door for every verb that takes a MODEL: a run folder of ours, or anything that is pretrained."""

from __future__ import annotations

from pathlib import Path

from headtohead.atomic_io import read_table
from headtohead.errors import RunFolderError
from headtohead.experiment import model_io
from headtohead.experiment.model_io import Saved
from headtohead.pretrained.loading import Loaded, load_pretrained

Opened = Saved | Loaded
"""both have: model, tokenizer, task, label_names, name, folder"""


def open_model(where: str | Path, *, initial: bool = False) -> Opened:
    """A run folder, a pretrained folder, a GGUF file, hub:owner/name, or an installed package with weights.

    With `initial`, a run's model as it was before training.
    """
    place = Path(where).expanduser()
    if _is_ours(place) or initial or (place.is_dir() and not _holds_weights(place)):
        return model_io.load(place, initial=initial)
    return load_pretrained(where)


def _is_ours(place: Path) -> bool:
    try:
        config = read_table(place / "config.json")
    except RunFolderError:
        return False
    return config.get("model_type") == "headtohead" or model_io.OURS in config


def _holds_weights(place: Path) -> bool:
    """Whether a folder looks like a pretrained model, so that an error speaks of what it was meant to be."""
    return (place / "config.json").is_file() or any(
        p.suffix in (".gguf", ".safetensors", ".bin") for p in place.iterdir()
    )
