"""Generate texts with a teacher, cache them and turn them into training sequences for its students."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headtohead.cache_folders import lock_cache_folder
from headtohead.config import experiment
from headtohead.data.sft import PromptedRows, build_prompted_rows
from headtohead.distillation.summary_dataset import encode_split_prompts
from headtohead.distillation.teacher import (
    RunTrial,
    build_teacher_strategy,
    choose_teacher_batch_size,
    list_vocabulary,
    open_teacher,
)
from headtohead.distillation.teacher_cache import TeacherCache, TeacherCacheKey, find_uncached_indices, hash_json_values
from headtohead.errors import RequestError
from headtohead.experiment.schemas import TeacherTextLine
from headtohead.generation.generate import generate
from headtohead.generation.session import ContextOverflowWarning
from headtohead.generation.strategies import Strategy
from headtohead.progress import ProgressCallback, ProgressReporter, ignore_progress
from headtohead.saved_models.fingerprint import FingerprintedModel


class TeacherTextGenerators(Protocol):
    """Worker processes that generate teacher texts in parallel, implemented by `execution.teacher_workers`."""

    @property
    def size(self) -> int: ...
    def generate(self, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int) -> Iterator[TeacherTextLine]: ...


def generate_cached_texts(
    teacher: FingerprintedModel,
    prompts: Sequence[Sequence[int]],
    strategy: Strategy,
    max_new_tokens: int,
    seed: int,
    on_progress: ProgressCallback = ignore_progress,
    progress_label: str = "generating teacher texts",
    batch_size: int | None = None,
    generators: TeacherTextGenerators | None = None,
) -> list[TeacherTextLine]:
    """Return the teacher's text for every prompt, generating only those that are not in the teacher cache.

    With `generators`, several processes share the uncached prompts. The batches stay the same, and so do the texts.
    """
    settings = {"kind": "texts", "strategy": str(strategy), "max_new_tokens": max_new_tokens, "seed": seed}
    cache_key = TeacherCacheKey(teacher.name, teacher.digest, settings)
    prompt_keys = [hash_json_values(list(prompt)) for prompt in prompts]
    cache = TeacherCache.open(cache_key)
    if find_uncached_indices(prompt_keys, cache.text_lines):
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(cache_key, is_writable=True)
            uncached_indices = find_uncached_indices(prompt_keys, cache.text_lines)
            num_cached = len(prompts) - len(uncached_indices)
            progress = ProgressReporter(progress_label, len(prompts), on_progress, completed=num_cached)
            prompts_per_batch = batch_size or choose_teacher_batch_size(teacher)
            prompt_batches = [
                [list(prompts[index]) for index in uncached_indices[start : start + prompts_per_batch]]
                for start in range(0, len(uncached_indices), prompts_per_batch)
            ]
            if generators is not None and len(prompt_batches) > generators.size:
                text_lines = generators.generate(prompt_batches, max_new_tokens)
            else:
                text_lines = _generate_text_lines(teacher, prompt_batches, strategy, max_new_tokens, seed)
            for text_line in text_lines:
                cache.add_text_line(text_line)
                progress.step(1)
    return [cache.text_lines[key] for key in prompt_keys]


def generate_texts_in_worker(
    trial: experiment.Trial,
    dataset: Any,
    run_trial: RunTrial,
    *,
    prompt_batches: Sequence[list[list[int]]],
    max_new_tokens: int,
) -> Iterator[dict[str, Any]]:
    """Yield a line for the teacher cache for every prompt. Runs in a worker process for `generate_cached_texts`."""
    assert trial.teacher is not None
    teacher = open_teacher(trial, dataset, run_trial)
    strategy = build_teacher_strategy(trial.teacher)
    text_lines = _generate_text_lines(teacher, prompt_batches, strategy, max_new_tokens, trial.teacher.seed)
    return (text_line.to_json() for text_line in text_lines)


def _generate_text_lines(
    teacher: FingerprintedModel,
    prompt_batches: Sequence[list[list[int]]],
    strategy: Strategy,
    max_new_tokens: int,
    seed: int,
) -> Iterator[TeacherTextLine]:
    """Generate one batch at a time and yield a line for the teacher cache for each of its prompts."""
    for prompts in prompt_batches:
        start_time = time.perf_counter()
        with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
            continuations = generate(
                teacher.bundle, prompts, strategy, max_new_tokens=max_new_tokens, seed=seed, batch_size=len(prompts)
            )
        seconds_per_text = round((time.perf_counter() - start_time) / len(prompts), 4)
        for continuation in continuations:
            yield TeacherTextLine(
                key=hash_json_values(prompts[continuation.prompt]),
                ids=list(continuation.ids),
                text=continuation.text,
                stop_reason=continuation.finish_reason,
                seconds=seconds_per_text,
            )


def build_teacher_text_rows(
    trial: experiment.Trial,
    dataset: Any,
    teacher: FingerprintedModel,
    reference_rows: PromptedRows,
    on_progress: ProgressCallback,
    generators: TeacherTextGenerators | None,
) -> PromptedRows:
    """Build training sequences from teacher texts.

    Each sequence starts with the prompt of a reference sequence, or with its first `teacher.prompt_tokens` tokens, and
    continues with the teacher's text.
    """
    teacher_config = trial.teacher
    assert teacher_config is not None
    student_tokenizer = dataset.tokenizer
    context = trial.model.context
    has_prompts = reference_rows.prompt_lengths is not None
    max_new_tokens = teacher_config.max_new_tokens if has_prompts else context + 1 - teacher_config.prompt_tokens
    if max_new_tokens < 1:
        raise RequestError(
            f"teacher.prompt_tokens: must be at most {context} (the context length), got {teacher_config.prompt_tokens}"
        )
    reference_sequences = reference_rows.to_lists()
    prefix_lengths = (
        [teacher_config.prompt_tokens] * len(reference_sequences)
        if reference_rows.prompt_lengths is None
        else reference_rows.prompt_lengths.tolist()
    )
    prefixes = [
        token_ids[: min(prefix_length, len(token_ids) - 1)]
        for token_ids, prefix_length in zip(reference_sequences, prefix_lengths, strict=True)
    ]
    has_same_vocabulary = list_vocabulary(teacher.tokenizer) == list_vocabulary(student_tokenizer)
    if has_prompts:
        prompts = encode_split_prompts(trial.data, dataset, teacher.tokenizer, "train")
    elif has_same_vocabulary:
        prompts = prefixes
    else:
        prompts = [teacher.tokenizer.encode(student_tokenizer.decode(prefix_ids)) for prefix_ids in prefixes]
    strategy = build_teacher_strategy(teacher_config)
    text_lines = generate_cached_texts(
        teacher, prompts, strategy, max_new_tokens, teacher_config.seed, on_progress, generators=generators
    )
    eos_ids = [] if student_tokenizer.eos_id is None else [student_tokenizer.eos_id]
    teacher_sequences = []
    for prefix_ids, text_line in zip(prefixes, text_lines, strict=True):
        teacher_text = text_line.text.strip() if has_prompts else text_line.text
        teacher_ids = text_line.ids if has_same_vocabulary else student_tokenizer.encode(teacher_text)
        stop_ids = eos_ids if text_line.stop_reason == "token" else []
        teacher_sequences.append([*prefix_ids, *teacher_ids, *stop_ids][: context + 1])
    prompt_lengths = [len(prefix_ids) for prefix_ids in prefixes] if has_prompts else None
    return build_prompted_rows("train", teacher_sequences, prompt_lengths)
