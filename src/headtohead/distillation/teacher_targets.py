"""Teacher targets: the teacher's top-k log-probabilities at every predicted position, computed once and cached."""

from __future__ import annotations

from typing import Any

import torch

from headtohead.atomic_io import lock_cache_folder
from headtohead.config.training import DistillationConfig
from headtohead.data.sft import PromptedRows
from headtohead.distillation.teacher import choose_batch_size
from headtohead.distillation.teacher_cache import CacheKey, TeacherCache, compute_hash, find_missing
from headtohead.errors import ModelError
from headtohead.progress import ProgressCallback, ProgressReporter, ignore_progress
from headtohead.saved_models.open_model import FingerprintedModel
from headtohead.training.distillation_loss import TeacherTargets, compute_teacher_targets


def compute_cached_targets(
    teacher: FingerprintedModel,
    rows: PromptedRows,
    settings: DistillationConfig,
    on_progress: ProgressCallback = ignore_progress,
) -> tuple[TeacherCache, list[str]]:
    """Return a cache that holds the targets for every row, and each row's cache key."""
    top_k = min(settings.top_k, int(teacher.tokenizer.vocab_size))
    cache_settings = {"kind": "logits", "top_k": top_k, "temperature": settings.temperature}
    cache_key = CacheKey(teacher.name, teacher.digest, cache_settings)
    token_rows = rows.to_lists()
    target_starts = [1] * len(rows) if rows.prompt_lengths is None else rows.prompt_lengths.tolist()
    max_row_length = max(map(len, token_rows)) - 1
    if max_row_length > teacher.model.context:
        raise ModelError(
            f"{teacher.name}: its context length is {teacher.model.context}, and the student's rows have "
            f"{max_row_length} tokens"
        )
    keys = [compute_hash(row, start) for row, start in zip(token_rows, target_starts, strict=True)]
    cache = TeacherCache.open(cache_key)
    if find_missing(keys, cache.block_locations):
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(cache_key, is_writable=True)
            missing = find_missing(keys, cache.block_locations)
            completed = len(keys) - len(missing)
            progress = ProgressReporter("computing teacher logits", len(keys), on_progress, completed=completed)
            batch_size = choose_batch_size(teacher)
            for start in range(0, len(missing), batch_size):
                batch_indices = missing[start : start + batch_size]
                targets = _compute_targets(
                    teacher.model,
                    [token_rows[index] for index in batch_indices],
                    [target_starts[index] for index in batch_indices],
                    settings,
                )
                for index, row_targets in zip(batch_indices, targets, strict=True):
                    cache.add_targets(keys[index], row_targets)
                progress.step(len(batch_indices))
    return cache, keys


@torch.inference_mode()
def _compute_targets(
    model: Any, rows: list[list[int]], target_starts: list[int], settings: DistillationConfig
) -> list[TeacherTargets]:
    """Return each row's targets from one forward pass over the right-padded batch."""
    width = max(map(len, rows)) - 1
    input_ids = torch.tensor([[*row[:-1], *[0] * (width + 1 - len(row))] for row in rows])
    lengths = torch.tensor([len(row) - 1 for row in rows])
    mask = torch.arange(width) < lengths[:, None]
    logits = model(input_ids, None if bool(mask.all()) else mask).logits
    return [
        compute_teacher_targets(logits[index, start - 1 : len(row) - 1], settings.top_k, settings.temperature)
        for index, (row, start) in enumerate(zip(rows, target_starts, strict=True))
    ]
