"""Training checkpoints: tensors as safetensors, other state as JSON.

A checkpoint is a folder such as `checkpoint-000100`. It is written under a temporary name and renamed, so it is either
complete or absent. Older checkpoints are removed afterwards.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import safetensors.torch as st
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch import Tensor, nn

from headtohead import safe_open
from headtohead.atomic_io import (
    CHECKSUM_KEY,
    compute_sha256,
    has_valid_checksum,
    read_json_object,
    translate_disk_full_error,
    write_bytes,
    write_json,
)
from headtohead.errors import RunFolderError, truncate_text

CHECKPOINT_NAME = re.compile("checkpoint-([0-9]{6,18})")
TENSOR_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass
class TrainingState:
    """Training state other than tensors, stored as state.json."""

    step: int = 0
    num_metrics_lines: int = 0
    """Lines of metrics.jsonl up to this step; later lines are dropped on resume."""
    seconds: float = 0.0
    loss_sum: float = 0.0
    """The sum of training losses since the last evaluation."""
    num_summed_steps: int = 0
    first_loss: float | None = None
    first_step_digest: str = ""
    """Hash of the first step's loss and gradients."""
    best_step: int | None = None
    best_score: float | None = None
    evaluations_since_best: int = 0
    peak_memory: int = 0
    processes: int = 1
    """Number of processes."""
    resharded: list[int] = field(default_factory=list)
    """Steps after which the number of processes changed."""
    file_checksums: dict[str, str] = field(default_factory=dict)
    """Checksums of the files next to the checkpoint that training resumes with: best weights and metrics.jsonl."""


def collect_model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict on the CPU, with tied tensors under their first name only."""
    seen_ids: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen_ids:
            seen_ids.add(id(tensor))
            tensors[name] = tensor.detach().cpu().contiguous()
    return tensors


def load_tensors(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load saved tensors into the model. Missing tensors must be tied to loaded ones."""
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # tensors with a different shape
        reason = truncate_text(str(error).replace("\n", " "), 300)
        raise RunFolderError(f"{source}: the weights do not match the model: {reason}") from None
    untied = set(missing) & set(collect_model_tensors(model))
    if untied or unexpected:
        raise RunFolderError(
            f"{source}: the weights do not match the model: missing {sorted(untied)[:3]}, "
            f"unexpected {sorted(unexpected)[:3]}"
        )


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the model weights; return the SHA-256 of the file."""
    content = st.save(collect_model_tensors(model), metadata={"format": "pt"})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights from a checkpoint or model; raise RunFolderError if the file is missing or corrupted."""
    if not path.exists():
        raise RunFolderError(f"{path} not found: the run may not have finished")
    try:
        return st.load(safe_open.read_file(path, safe_open.MAX_WEIGHTS_BYTES))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise RunFolderError(f"{path} is corrupted ({error})") from None


def save(folder: Path, model: nn.Module, optimizer_tensors: dict[str, Tensor], state: TrainingState) -> None:
    """Write this step's checkpoint and remove older ones."""
    final_path = folder / f"checkpoint-{state.step:06d}"
    if final_path.exists():  # left, with the same content, by a run that was killed right after writing it
        shutil.rmtree(final_path)
    temporary_path = folder / f".checkpoint.{os.getpid()}.part"
    shutil.rmtree(temporary_path, ignore_errors=True)
    with translate_disk_full_error(final_path):
        try:
            temporary_path.mkdir()
            files = {
                "model.safetensors": st.save(collect_model_tensors(model)),
                "optimizer.safetensors": st.save(optimizer_tensors),
            }
            for name, content in files.items():
                write_bytes(temporary_path / name, content)
            checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            write_json(temporary_path / "state.json", {**asdict(state), "sha256": checksums}, with_checksum=True)
            temporary_path.rename(final_path)
        finally:
            shutil.rmtree(temporary_path, ignore_errors=True)
    for old_checkpoint in list_checkpoints(folder)[:-1]:
        shutil.rmtree(old_checkpoint, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return a run folder's checkpoints by step, lowest first."""
    steps = {path: CHECKPOINT_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*")}
    return sorted((path for path, step in steps.items() if step), key=lambda path: int(path.name[11:]))


def find_latest(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None. Removes leftovers of interrupted writes."""
    for leftover in [*folder.glob(".checkpoint.*.part"), *folder.glob(".*.part")]:
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def restore(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], TrainingState]:
    """Load the model weights; return the optimizer tensors and the training state."""
    state, checksums = read_state(path)
    for name, expected in checksums.items():
        if compute_sha256(path / name) != expected:
            raise RunFolderError(f"{path / name} is corrupted: checksum mismatch; remove {path} to restart the trial")
    load_tensors(model, read_weights(path / "model.safetensors"), str(path))
    return read_weights(path / "optimizer.safetensors"), state


def read_state(path: Path) -> tuple[TrainingState, dict[str, str]]:
    """Return a checkpoint's training state and the checksums of its tensor files."""
    content = read_json_object(path / "state.json")
    try:
        if not has_valid_checksum(content):
            raise ValueError("checksum mismatch")
        content.pop(CHECKSUM_KEY, None)
        checksums = content.pop("sha256", None)
        if not isinstance(checksums, dict) or set(checksums) != set(TENSOR_FILES):
            raise ValueError(f"it must have checksums of {' and '.join(TENSOR_FILES)}")
        return TypeAdapter(TrainingState).validate_json(json.dumps(content), strict=True), checksums
    except ValueError as error:
        reason = truncate_text(str(error).replace("\n", ": "), 300)
        raise RunFolderError(
            f"{path / 'state.json'} is corrupted ({reason}); remove {path} to restart the trial"
        ) from None


def check_world_size(path: Path, state: TrainingState, world_size: int) -> None:
    """Raise RunFolderError if the number of processes differs: summation order and dropout masks would change."""
    if state.processes != world_size:
        raise RunFolderError(
            f"{path} was saved by {_format_process_count(state.processes)}, this run has "
            f"{_format_process_count(world_size)}; use the same number (torchrun --nproc-per-node {state.processes}), "
            "or add --reshard to continue with the new number: results will be close, but not bit-identical"
        )


def reshard(folder: Path, world_size: int) -> bool:
    """Allow a run to resume with a different number of processes; return whether anything changed.

    Every process holds the whole model, so only the recorded number has to change.
    """
    checkpoint = find_latest(folder)
    if checkpoint is None:
        return False
    state, checksums = read_state(checkpoint)
    if state.processes == world_size:
        return False
    state.processes, state.resharded = world_size, [*state.resharded, state.step]
    write_json(checkpoint / "state.json", {**asdict(state), "sha256": checksums}, with_checksum=True)
    return True


def _format_process_count(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def truncate_lines(path: Path, num_lines: int) -> None:
    """Keep the first `num_lines` lines of a JSONL file."""
    if path.is_file():
        kept_lines = safe_open.read_file(path).split(b"\n")[:num_lines]
        write_bytes(path, b"".join(line + b"\n" for line in kept_lines))


def verify_checksums(folder: Path, expected_checksums: dict[str, str], moment: str) -> None:
    """Raise RunFolderError if a file is missing or has changed. `moment` says when it was written, for the message."""
    for name, expected in expected_checksums.items():
        if not (folder / name).is_file() or compute_sha256(folder / name) != expected:
            raise RunFolderError(
                f"{folder / name} is missing or has changed since it was written {moment}; remove {folder} to restart "
                "the trial"
            )
