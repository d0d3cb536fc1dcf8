"""Generate texts with the teacher, cache them and turn them into training rows for students."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headtohead.atomic_io import lock_cache_folder
from headtohead.config import data, experiment
from headtohead.data.sft import PromptedRows, build_prompted_rows
from headtohead.distillation import summarization
from headtohead.distillation.teacher import (
    RunTrial,
    build_teacher_strategy,
    choose_batch_size,
    list_vocabulary,
    open_teacher,
)
from headtohead.distillation.teacher_cache import CacheKey, TeacherCache, compute_hash, find_missing
from headtohead.errors import RequestError
from headtohead.experiment.schemas import TeacherTextLine
from headtohead.generation.generate import ContextOverflowWarning, generate
from headtohead.generation.strategies import Strategy
from headtohead.progress import ProgressCallback, ProgressReporter, ignore_progress
from headtohead.saved_models.open_model import FingerprintedModel


class TextGenerators(Protocol):
    """Processes that generate teacher texts in parallel, implemented by `execution.teacher_workers`."""

    @property
    def size(self) -> int: ...
    def generate(self, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int) -> Iterator[TeacherTextLine]: ...


def generate_texts(
    teacher: FingerprintedModel,
    prompts: Sequence[Sequence[int]],
    strategy: Strategy,
    max_new_tokens: int,
    seed: int,
    on_progress: ProgressCallback = ignore_progress,
    progress_label: str = "generating teacher texts",
    batch_size: int | None = None,
    generators: TextGenerators | None = None,
) -> list[TeacherTextLine]:
    """Return one cache line per prompt, generating only those that are not cached.

    With `generators`, several processes share the missing prompts. The batches stay the same, and so do the texts.
    """
    settings = {"kind": "texts", "strategy": str(strategy), "max_new_tokens": max_new_tokens, "seed": seed}
    cache_key = CacheKey(teacher.name, teacher.digest, settings)
    keys = [compute_hash(list(prompt)) for prompt in prompts]
    cache = TeacherCache.open(cache_key)
    if find_missing(keys, cache.texts):
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(cache_key, is_writable=True)
            missing = find_missing(keys, cache.texts)
            progress = ProgressReporter(progress_label, len(keys), on_progress, completed=len(keys) - len(missing))
            prompts_per_batch = batch_size or choose_batch_size(teacher)
            batches = [
                [list(prompts[index]) for index in missing[start : start + prompts_per_batch]]
                for start in range(0, len(missing), prompts_per_batch)
            ]
            if generators is not None and len(batches) > generators.size:
                lines = generators.generate(batches, max_new_tokens)
            else:
                lines = _generate_lines(teacher, batches, strategy, max_new_tokens, seed)
            for line in lines:
                cache.add_text(line)
                progress.step(1)
    return [cache.texts[key] for key in keys]


def generate_batches(
    trial: experiment.Trial,
    dataset: Any,
    run_trial: RunTrial,
    *,
    prompt_batches: Sequence[list[list[int]]],
    max_new_tokens: int,
) -> Iterator[dict[str, Any]]:
    """Yield a cache line for every prompt in these batches; runs in a worker on behalf of `generate_texts`."""
    assert trial.teacher is not None
    teacher = open_teacher(trial, dataset, run_trial)
    strategy = build_teacher_strategy(trial.teacher)
    lines = _generate_lines(teacher, prompt_batches, strategy, max_new_tokens, trial.teacher.seed)
    return (line.to_json() for line in lines)


def _generate_lines(
    teacher: FingerprintedModel,
    prompt_batches: Sequence[list[list[int]]],
    strategy: Strategy,
    max_new_tokens: int,
    seed: int,
) -> Iterator[TeacherTextLine]:
    """Generate one batch at a time and yield a cache line for each of its prompts."""
    for prompts in prompt_batches:
        start = time.perf_counter()
        with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
            continuations = generate(
                teacher.opened, prompts, strategy, max_new_tokens=max_new_tokens, seed=seed, batch_size=len(prompts)
            )
        seconds = round((time.perf_counter() - start) / len(prompts), 4)
        for continuation in continuations:
            key = compute_hash(prompts[continuation.prompt])
            yield TeacherTextLine(
                key=key,
                ids=list(continuation.ids),
                text=continuation.text,
                stop_reason=continuation.finish_reason,
                seconds=seconds,
            )


def build_teacher_rows(
    trial: experiment.Trial,
    dataset: Any,
    teacher: FingerprintedModel,
    reference_rows: PromptedRows,
    on_progress: ProgressCallback,
    generators: TextGenerators | None,
) -> PromptedRows:
    """Build training rows from teacher texts.

    Each row starts with the prompt of a reference row, or with its first `teacher.prompt_tokens` tokens, and continues
    with the teacher's text.
    """
    teacher_config, tokenizer, context = trial.teacher, dataset.tokenizer, trial.model.context
    assert teacher_config is not None
    has_prompts = reference_rows.prompt_lengths is not None
    max_new_tokens = teacher_config.max_new_tokens if has_prompts else context + 1 - teacher_config.prompt_tokens
    if max_new_tokens < 1:
        raise RequestError(
            f"teacher.prompt_tokens: must be at most {context} (the context length), got {teacher_config.prompt_tokens}"
        )
    rows = reference_rows.to_lists()
    start_lengths = (
        [teacher_config.prompt_tokens] * len(rows)
        if reference_rows.prompt_lengths is None
        else reference_rows.prompt_lengths.tolist()
    )
    starts = [row[: min(length, len(row) - 1)] for row, length in zip(rows, start_lengths, strict=True)]
    is_same_vocabulary = list_vocabulary(teacher.tokenizer) == list_vocabulary(tokenizer)
    if has_prompts:
        prompts = build_summary_prompts(trial.data, dataset, teacher.tokenizer, "train")
    elif is_same_vocabulary:
        prompts = starts
    else:
        prompts = [teacher.tokenizer.encode(tokenizer.decode(ids)) for ids in starts]
    strategy = build_teacher_strategy(teacher_config)
    lines = generate_texts(
        teacher, prompts, strategy, max_new_tokens, teacher_config.seed, on_progress, generators=generators
    )
    stop_ids = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    teacher_rows = []
    for start_ids, line in zip(starts, lines, strict=True):
        text = line.text.strip() if has_prompts else line.text
        ids = line.ids if is_same_vocabulary else tokenizer.encode(text)
        teacher_rows.append([*start_ids, *ids, *(stop_ids if line.stop_reason == "token" else [])][: context + 1])
    prompt_lengths = [len(ids) for ids in starts] if has_prompts else None
    return build_prompted_rows("train", teacher_rows, prompt_lengths)


def build_summary_prompts(data: data.DataConfig, dataset: Any, tokenizer: Any, split: str) -> list[list[int]]:
    """Return the prompt ids for every document in a split, in the vocabulary of `tokenizer`."""
    summary_prompt = summarization.build_summary_prompt(data.tokenizer)
    return [summary_prompt.ids(tokenizer, document.text)[0] for document in dataset.documents.splits[split]]
