"""The state of a training on disk: tensors as safetensors, the rest as JSON, each file whole or not there.

A checkpoint is a folder `checkpoint-000100` that comes into being by a rename; the newest whole one counts and
older ones are removed after it is in place.
"""

import hashlib
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch as st
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import RunFolderError
from ..files import disk_full_in_words, read_json, write_bytes, write_json


@dataclass
class State:
    """Where a training stands, apart from tensors."""

    step: int = 0
    metrics_lines: int = 0
    """how much of metrics.jsonl belongs to it; later lines are drawn again"""
    seconds: float = 0.0
    recent_loss: float = 0.0
    recent_steps: int = 0
    first_loss: float | None = None
    best_step: int | None = None
    best_score: float | None = None
    waited: int = 0
    """evaluations since the best"""
    peak_memory: int = 0


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each tensor once: a tied weight is saved under its first name."""
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach().cpu().contiguous()
    return found


def load_tensors(model: nn.Module, tensors: dict[str, Tensor], place: str) -> None:
    """Put saved tensors back; what is missing must be tied to something that is there."""
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    untied = set(missing) & set(model_tensors(model))
    if untied or unexpected:
        raise RunFolderError(
            f"{place}: the weights do not fit the model: missing {sorted(untied)[:3]}, unknown {sorted(unexpected)[:3]}"
        )


def save_weights(path: Path, model: nn.Module) -> None:
    write_bytes(path, st.save(model_tensors(model), metadata={"format": "pt"}))


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return st.load(path.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(f"{path}: no weights here; was the run finished?") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunFolderError(f"{path}: is damaged ({error})") from None


def save(folder: Path, model: nn.Module, optimizer: dict[str, Tensor], state: State) -> None:
    """Write the checkpoint of this step and remove older ones."""
    final = folder / f"checkpoint-{state.step:06d}"
    if final.exists():  # left by a run that was killed right after writing it: the same content
        shutil.rmtree(final)
    temporary = folder / f".checkpoint.{os.getpid()}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    with disk_full_in_words(final):
        try:
            temporary.mkdir()
            parts = {
                "model.safetensors": st.save(model_tensors(model)),
                "optimizer.safetensors": st.save(optimizer),
            }
            for name, content in parts.items():
                write_bytes(temporary / name, content)
            sums = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
            write_json(temporary / "state.json", {**asdict(state), "sha256": sums})
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for old in checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-[0-9]*"))


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, or None. Rests of a write that was cut off are swept away."""
    for rest in [*folder.glob(".checkpoint.*.part"), *folder.glob(".*.part")]:
        shutil.rmtree(rest, ignore_errors=True) if rest.is_dir() else rest.unlink(missing_ok=True)
    found = checkpoints(folder)
    return found[-1] if found else None


def restore(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], State]:
    """Put the model back where it was; gives the optimizer's tensors and the state."""
    raw: dict[str, Any] = read_json(path / "state.json")
    sums: dict[str, str] = raw.pop("sha256")
    for name, wanted in sums.items():
        if hashlib.sha256((path / name).read_bytes()).hexdigest() != wanted:
            raise RunFolderError(f"{path / name}: the checksum does not agree; remove {path} to start the trial anew")
    load_tensors(model, read_weights(path / "model.safetensors"), str(path))
    return read_weights(path / "optimizer.safetensors"), State(**raw)


def cut_lines(path: Path, lines: int) -> None:
    """Leave the first so many lines of a JSONL file."""
    if path.is_file():
        kept = path.read_bytes().split(b"\n")[:lines]
        write_bytes(path, b"".join(line + b"\n" for line in kept))
