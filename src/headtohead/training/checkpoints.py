"""Training checkpoints: weights and optimizer tensors as safetensors, the other training state as JSON.

A checkpoint is a folder such as `checkpoint-000100`. It is written under a temporary name and renamed, so it is either
complete or absent. Older checkpoints are removed afterwards.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor, nn

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256, translate_disk_full_error, write_bytes
from headtohead.errors import RunFolderError, truncate_text
from headtohead.json_files import CHECKSUM_KEY, has_valid_json_checksum, read_json_object, write_json
from headtohead.training.tensor_files import (
    collect_model_tensors,
    load_model_tensors,
    read_safetensors,
    write_safetensors,
)

CHECKPOINT_NAME = re.compile("checkpoint-([0-9]{6,18})")
TENSOR_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass
class TrainingState:
    """Training state other than tensors, stored in state.json."""

    step: int = 0
    num_metrics_lines: int = 0
    """Number of lines of metrics.jsonl up to this step; later lines are removed on resume."""
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


def save_checkpoint(folder: Path, model: nn.Module, optimizer_tensors: dict[str, Tensor], state: TrainingState) -> None:
    """Write a checkpoint into a run folder and remove older ones.

    Args:
        folder: Run folder in which the checkpoint is created.
        model: The model whose weights are saved.
        optimizer_tensors: Optimizer state by name.
        state: All other state of training.
    """
    final_path = folder / f"checkpoint-{state.step:06d}"
    if final_path.exists():  # left, with the same content, by a run that was killed right after writing it
        shutil.rmtree(final_path)
    temporary_path = folder / f".checkpoint.{os.getpid()}.part"
    shutil.rmtree(temporary_path, ignore_errors=True)
    with translate_disk_full_error(final_path):
        try:
            temporary_path.mkdir()
            tensors_by_file = dict(zip(TENSOR_FILES, (collect_model_tensors(model), optimizer_tensors), strict=True))
            checksums = {
                name: write_safetensors(temporary_path / name, tensors) for name, tensors in tensors_by_file.items()
            }
            write_json(temporary_path / "state.json", {**asdict(state), "sha256": checksums}, with_checksum=True)
            temporary_path.rename(final_path)
        finally:
            shutil.rmtree(temporary_path, ignore_errors=True)
    for old_checkpoint in list_checkpoints(folder)[:-1]:
        shutil.rmtree(old_checkpoint, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run folder by step, in ascending order."""
    matches = [(path, CHECKPOINT_NAME.fullmatch(path.name)) for path in folder.glob("checkpoint-*")]
    steps = {path: int(match[1]) for path, match in matches if match}
    return sorted(steps, key=lambda path: steps[path])


def find_latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run folder, or None. Remove leftovers of interrupted writes."""
    for leftover in [*folder.glob(".checkpoint.*.part"), *folder.glob(".*.part")]:
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def restore_checkpoint(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], TrainingState]:
    """Load the weights of a checkpoint into the model; return the optimizer tensors and the training state."""
    state, checksums = read_training_state(path)
    for name, expected_checksum in checksums.items():
        if compute_sha256(path / name) != expected_checksum:
            raise RunFolderError(f"{path / name} is corrupted: checksum mismatch; remove {path} to restart the trial")
    load_model_tensors(model, read_safetensors(path / "model.safetensors"), str(path))
    return read_safetensors(path / "optimizer.safetensors"), state


def read_training_state(path: Path) -> tuple[TrainingState, dict[str, str]]:
    """Return the training state of a checkpoint, and the checksums of its tensor files by name."""
    content = read_json_object(path / "state.json")
    try:
        if not has_valid_json_checksum(content):
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
    """Raise RunFolderError if a checkpoint has another number of processes: sums and dropout masks would change."""
    if state.processes != world_size:
        raise RunFolderError(
            f"{path} was saved by {_format_process_count(state.processes)}, this run has "
            f"{_format_process_count(world_size)}; use the same number (torchrun --nproc-per-node {state.processes}), "
            "or add --reshard to continue with the new number: results will be close, but not bit-identical"
        )


def reshard_checkpoint(folder: Path, world_size: int) -> bool:
    """Allow the newest checkpoint of a run to be resumed by `world_size` processes; return whether it was changed.

    Every process holds the whole model, so only the recorded number of processes changes.
    """
    checkpoint = find_latest_checkpoint(folder)
    if checkpoint is None:
        return False
    state, checksums = read_training_state(checkpoint)
    if state.processes == world_size:
        return False
    state.processes, state.resharded = world_size, [*state.resharded, state.step]
    write_json(checkpoint / "state.json", {**asdict(state), "sha256": checksums}, with_checksum=True)
    return True


def _format_process_count(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def truncate_jsonl(path: Path, num_lines: int) -> None:
    """Keep the first `num_lines` lines of a JSONL file, such as the metrics up to a checkpoint."""
    if path.is_file():
        kept_lines = safe_open.read_file(path).split(b"\n")[:num_lines]
        write_bytes(path, b"".join(line + b"\n" for line in kept_lines))


def verify_unchanged_files(folder: Path, expected_checksums: dict[str, str], moment: str) -> None:
    """Raise RunFolderError if a file that a checkpoint needs (`TrainingState.file_checksums`) is missing or changed.

    Args:
        folder: The run folder.
        expected_checksums: SHA-256 by file name.
        moment: When the files were written, for error messages.
    """
    for name, expected_checksum in expected_checksums.items():
        if not (folder / name).is_file() or compute_sha256(folder / name) != expected_checksum:
            raise RunFolderError(
                f"{folder / name} is missing or has changed since it was written {moment}; remove {folder} to restart "
                "the trial"
            )
