"""Open any model that a command accepts: a run folder written by this package, or a pretrained model."""

from __future__ import annotations

from pathlib import Path

from headtohead.errors import RunFolderError
from headtohead.json_files import read_json_object
from headtohead.pretrained.loading import LoadedPretrained, load_pretrained
from headtohead.saved_models import model_io
from headtohead.saved_models.model_io import SavedModel

ModelBundle = SavedModel | LoadedPretrained
"""either kind of opened model; both have model, tokenizer, target, label_names, name and folder"""


def open_model(source: str | Path, *, use_initial_weights: bool = False) -> ModelBundle:
    """Open a run folder, a pretrained folder, a GGUF file, hub:owner/name, or an installed package with weights.

    If `use_initial_weights` is set, return a run folder's model as it was before training.
    """
    path = Path(source).expanduser()
    if _is_run_model(path) or use_initial_weights or (path.is_dir() and not _has_weights(path)):
        return model_io.load_saved_model(path, use_initial_weights=use_initial_weights)
    return load_pretrained(source)


def _is_run_model(folder: Path) -> bool:
    """Return whether the model to open is a run folder written by this package."""
    try:
        config = read_json_object(folder / "config.json")
    except RunFolderError:
        return False
    return config.get("model_type") == "headtohead" or model_io.CONFIG_KEY in config


def _has_weights(folder: Path) -> bool:
    """Return whether a folder looks like a pretrained model, so that error messages describe it as such."""
    return (folder / "config.json").is_file() or any(
        path.suffix in (".gguf", ".safetensors", ".bin") for path in folder.iterdir()
    )
