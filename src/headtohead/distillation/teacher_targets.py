"""Teacher targets: the teacher's top-k log-probabilities at every predicted position, computed once and cached."""

from __future__ import annotations

from typing import Any

import torch

from headtohead.cache_folders import lock_cache_folder
from headtohead.config.tables.training import DistillationConfig
from headtohead.data.sft import PromptedRows
from headtohead.distillation.teacher import choose_teacher_batch_size
from headtohead.distillation.teacher_cache import TeacherCache, TeacherCacheKey, find_uncached_indices, hash_json_values
from headtohead.errors import ModelError
from headtohead.progress import ProgressCallback, ProgressReporter, ignore_progress
from headtohead.saved_models.fingerprint import FingerprintedModel
from headtohead.training.losses.distillation_loss import TeacherTargets, compute_teacher_targets


def compute_cached_targets(
    teacher: FingerprintedModel,
    rows: PromptedRows,
    settings: DistillationConfig,
    on_progress: ProgressCallback = ignore_progress,
) -> tuple[TeacherCache, list[str]]:
    """Return a cache that contains the targets for every training sequence, and the cache key of each sequence."""
    top_k = min(settings.top_k, int(teacher.tokenizer.vocab_size))
    cache_settings = {"kind": "logits", "top_k": top_k, "temperature": settings.temperature}
    cache_key = TeacherCacheKey(teacher.name, teacher.digest, cache_settings)
    sequences = rows.to_lists()
    first_target_positions = [1] * len(rows) if rows.prompt_lengths is None else rows.prompt_lengths.tolist()
    max_input_length = max(map(len, sequences)) - 1
    if max_input_length > teacher.model.context:
        raise ModelError(
            f"{teacher.name}: its context length is {teacher.model.context}, and the student's sequences have "
            f"{max_input_length} tokens"
        )
    sequence_keys = [
        hash_json_values(token_ids, first_position)
        for token_ids, first_position in zip(sequences, first_target_positions, strict=True)
    ]
    cache = TeacherCache.open(cache_key)
    if find_uncached_indices(sequence_keys, cache.block_locations):
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(cache_key, is_writable=True)
            uncached_indices = find_uncached_indices(sequence_keys, cache.block_locations)
            num_cached = len(sequences) - len(uncached_indices)
            progress = ProgressReporter("computing teacher logits", len(sequences), on_progress, completed=num_cached)
            batch_size = choose_teacher_batch_size(teacher)
            for start in range(0, len(uncached_indices), batch_size):
                batch_indices = uncached_indices[start : start + batch_size]
                batch_targets = _compute_batch_targets(
                    teacher.model,
                    [sequences[index] for index in batch_indices],
                    [first_target_positions[index] for index in batch_indices],
                    settings,
                )
                for index, targets in zip(batch_indices, batch_targets, strict=True):
                    cache.add_targets(sequence_keys[index], targets)
                progress.step(len(batch_indices))
    return cache, sequence_keys


@torch.inference_mode()
def _compute_batch_targets(
    model: Any, sequences: list[list[int]], first_target_positions: list[int], settings: DistillationConfig
) -> list[TeacherTargets]:
    """Return each sequence's targets from one forward pass over the right-padded batch."""
    max_input_length = max(map(len, sequences)) - 1
    input_ids = torch.tensor(
        [[*token_ids[:-1], *[0] * (max_input_length + 1 - len(token_ids))] for token_ids in sequences]
    )
    input_lengths = torch.tensor([len(token_ids) - 1 for token_ids in sequences])
    attention_mask = torch.arange(max_input_length) < input_lengths[:, None]
    logits = model(input_ids, None if bool(attention_mask.all()) else attention_mask).logits
    return [
        compute_teacher_targets(
            logits[index, first_position - 1 : len(token_ids) - 1], settings.top_k, settings.temperature
        )
        for index, (token_ids, first_position) in enumerate(zip(sequences, first_target_positions, strict=True))
    ]
