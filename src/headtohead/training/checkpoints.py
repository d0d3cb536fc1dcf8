"""The state of a training on disk: tensors as safetensors, the rest as JSON, each file whole or not there.

A checkpoint is a folder `checkpoint-000100` that comes into being by a rename; the newest whole one counts and
older ones are removed after it is in place.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import safetensors.torch as st
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch import Tensor, nn

from headtohead.atomic_io import (
    CHECKSUM_KEY,
    compute_sha256,
    has_valid_checksum,
    read_bytes,
    read_json_object,
    translate_disk_full_error,
    write_bytes,
    write_json,
)
from headtohead.errors import RunFolderError, truncate_text

TENSOR_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass
class TrainingState:
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
    processes: int = 1
    """that train it together"""
    resharded: list[int] = field(default_factory=list)
    """the steps after which their number was changed"""
    beside: dict[str, str] = field(default_factory=dict)
    """checksums of the files beside the checkpoint that it goes on with: the best weights so far, and as much of
    metrics.jsonl as belongs to it"""


def collect_model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each tensor once: a tied weight is saved under its first name."""
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach().cpu().contiguous()
    return found


def load_tensors(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Put saved tensors back; what is missing must be tied to something that is there."""
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # tensors of another shape
        said = truncate_text(str(error).replace("\n", " "), 300)
        raise RunFolderError(f"{source}: the weights do not fit the model: {said}") from None
    untied = set(missing) & set(collect_model_tensors(model))
    if untied or unexpected:
        raise RunFolderError(
            f"{source}: the weights do not fit the model: missing {sorted(untied)[:3]}, unknown {sorted(unexpected)[:3]}"  # noqa: E501
        )


def save_weights(path: Path, model: nn.Module) -> str:
    """Gives the checksum of what was written."""
    content = st.save(collect_model_tensors(model), metadata={"format": "pt"})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        if not path.exists():
            raise RunFolderError(f"{path}: no weights here; was the run finished?")
        return st.load(read_bytes(path))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise RunFolderError(f"{path}: is damaged ({error})") from None


def save(folder: Path, model: nn.Module, optimizer_tensors: dict[str, Tensor], state: TrainingState) -> None:
    """Write the checkpoint of this step and remove older ones."""
    final = folder / f"checkpoint-{state.step:06d}"
    if final.exists():  # left by a run that was killed right after writing it: the same content
        shutil.rmtree(final)
    temporary = folder / f".checkpoint.{os.getpid()}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    with translate_disk_full_error(final):
        try:
            temporary.mkdir()
            parts = {
                "model.safetensors": st.save(collect_model_tensors(model)),
                "optimizer.safetensors": st.save(optimizer_tensors),
            }
            for name, content in parts.items():
                write_bytes(temporary / name, content)
            sums = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
            write_json(temporary / "state.json", {**asdict(state), "sha256": sums}, with_checksum=True)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for old in list_checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-[0-9]*"))


def find_latest(folder: Path) -> Path | None:
    """The newest checkpoint, or None. Rests of a write that was cut off are swept away."""
    for rest in [*folder.glob(".checkpoint.*.part"), *folder.glob(".*.part")]:
        shutil.rmtree(rest, ignore_errors=True) if rest.is_dir() else rest.unlink(missing_ok=True)
    found = list_checkpoints(folder)
    return found[-1] if found else None


def restore(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], TrainingState]:
    """Put the model back where it was; gives the optimizer's tensors and the state."""
    state, sums = read_state(path)
    for name, wanted in sums.items():
        if compute_sha256(path / name) != wanted:
            raise RunFolderError(f"{path / name}: the checksum does not agree; remove {path} to start the trial anew")
    load_tensors(model, read_weights(path / "model.safetensors"), str(path))
    return read_weights(path / "optimizer.safetensors"), state


def read_state(path: Path) -> tuple[TrainingState, dict[str, str]]:
    """Where the training of this checkpoint stands, and the checksums of its other files."""
    raw = read_json_object(path / "state.json")
    try:
        if not has_valid_checksum(raw):
            raise ValueError("its checksum does not agree")
        raw.pop(CHECKSUM_KEY, None)
        sums = raw.pop("sha256", None)
        if not isinstance(sums, dict) or set(sums) != set(TENSOR_FILES):
            raise ValueError(f"it has checksums of other files than {' and '.join(TENSOR_FILES)}")
        return TypeAdapter(TrainingState).validate_json(json.dumps(raw), strict=True), sums
    except ValueError as error:
        said = truncate_text(str(error).replace("\n", ": "), 300)
        raise RunFolderError(f"{path / 'state.json'}: is damaged ({said}); remove {path} to start anew") from None


def check_world_size(path: Path, state: TrainingState, world_size: int) -> None:
    """Another number of processes sums in another order and has other streams for dropout: not the same bits."""
    if state.processes != world_size:
        raise RunFolderError(
            f"{path}: was saved by a training on {_format_process_count(state.processes)}, and this is {_format_process_count(world_size)}; "  # noqa: E501
            f"start as many again (torchrun --nproc-per-node {state.processes}), or add --reshard to go on with this "
            "number: then it ends near the same figures, but not with the same bits"
        )


def reshard(folder: Path, world_size: int) -> bool:
    """Let another number of processes go on with a run. Each holds the whole model, so nothing else is to be done."""
    found = find_latest(folder)
    if found is None:
        return False
    state, sums = read_state(found)
    if state.processes == world_size:
        return False
    state.processes, state.resharded = world_size, [*state.resharded, state.step]
    write_json(found / "state.json", {**asdict(state), "sha256": sums}, with_checksum=True)
    return True


def _format_process_count(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def truncate_lines(path: Path, num_lines: int) -> None:
    """Leave the first so many lines of a JSONL file."""
    if path.is_file():
        kept = path.read_bytes().split(b"\n")[:num_lines]
        write_bytes(path, b"".join(line + b"\n" for line in kept))


def verify_checksums(folder: Path, expected_checksums: dict[str, str], moment: str) -> None:
    """Are these files of a run what they were then?"""
    for name, there in expected_checksums.items():
        if not (folder / name).is_file() or compute_sha256(folder / name) != there:
            raise RunFolderError(
                f"{folder / name}: is damaged, or gone: it is not what it was {moment}; remove {folder} to start the "
                "trial anew"
            )
