"""The models that the model process has loaded. Recently used ones stay loaded, up to a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headtohead.errors import ModelError, RequestError
from headtohead.pretrained.loading import load_pretrained
from headtohead.pretrained.weights import locate_weights
from headtohead.saved_models import model_io
from headtohead.saved_models.open_model import ModelBundle
from headtohead.training.tensor_files import load_model_tensors, read_safetensors
from headtohead.web.models.catalog import FINAL_CHECKPOINT, INITIAL_CHECKPOINT

MAX_CACHE_BYTES = 2 << 30
"""total size of loaded models, as float32"""
MAX_CACHED_MODELS = 8
JsonDict = dict[str, Any]


@dataclass
class CachedModel:
    """A loaded model in the cache."""

    bundle: ModelBundle
    size_bytes: int
    num_users: int = 0


class ModelCache:
    """Least-recently-used cache of the web app's loaded models. Models in use are never evicted."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.cached_models: dict[tuple[str, str, int], CachedModel] = {}

    @contextmanager
    def acquire(self, load_request: JsonDict) -> Iterator[ModelBundle]:
        """Yield the model of a request, loading it first if necessary. It is not evicted while it is in use."""
        key, size_bytes = _compute_cache_key_and_size(load_request)
        cached_model = self.cached_models.pop(key, None)
        if cached_model is None:
            self._evict_until_fits(size_bytes)
            cached_model = CachedModel(_load_model(load_request), size_bytes)
        self.cached_models[key] = cached_model  # reinsert as the most recently used
        cached_model.num_users += 1
        try:
            yield cached_model.bundle
        finally:
            cached_model.num_users -= 1

    def _evict_until_fits(self, size_bytes: int) -> None:
        """Remove idle models, least recently used first, until `size_bytes` more fit into the cache."""
        if size_bytes > self.max_bytes:
            raise ModelError(f"this model needs {size_bytes >> 20:,} MB; the limit is {self.max_bytes >> 20:,} MB")
        for key, cached_model in list(self.cached_models.items()):
            if (
                len(self.cached_models) < MAX_CACHED_MODELS
                and self._compute_total_bytes() + size_bytes <= self.max_bytes
            ):
                return
            if not cached_model.num_users:
                del self.cached_models[key]
        if self._compute_total_bytes() + size_bytes > self.max_bytes:
            raise RequestError("models in use occupy all memory; try again when they are free")

    def _compute_total_bytes(self) -> int:
        return sum(cached_model.size_bytes for cached_model in self.cached_models.values())


def _compute_cache_key_and_size(load_request: JsonDict) -> tuple[tuple[str, str, int], int]:
    """Return a cache key, which includes the weights' modification time, and the size in bytes."""
    location = load_request["location"]
    if not load_request["run"]:
        return (location, FINAL_CHECKPOINT, 0), 4 * locate_weights(location).num_parameters
    status = (Path(location) / "model.safetensors").stat()
    return (location, load_request["checkpoint"], status.st_mtime_ns), status.st_size


def _load_model(load_request: JsonDict) -> ModelBundle:
    """Load a pretrained model, or a checkpoint from a run."""
    if not load_request["run"]:
        return load_pretrained(load_request["location"])
    folder, checkpoint = Path(load_request["location"]), load_request["checkpoint"]
    bundle = model_io.load_saved_model(folder, use_initial_weights=checkpoint == INITIAL_CHECKPOINT)
    if checkpoint not in (INITIAL_CHECKPOINT, FINAL_CHECKPOINT):
        load_model_tensors(bundle.model, read_safetensors(folder / checkpoint / "model.safetensors"), checkpoint)
    return replace(bundle, folder=Path(load_request["label"]))  # pages show the label instead of the path


MODEL_CACHE = ModelCache()
