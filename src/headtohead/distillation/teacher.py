"""A teacher at work for the students of an experiment, once: what it writes, and what it thinks of each word.

The experiment's process does all of it before the first trial begins, with its progress told; workers then find it in
the cache (see `teacher_cache`). A trial that is run by itself does what is missing.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import lock_cache_folder, read_json
from headtohead.config import data, distillation, distillation_targets, experiment, loading
from headtohead.data.sft import PromptedBatchSchedule, PromptedRows, build_prompted_rows, split_into_fixed_rows
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.decoding_comparison.request import FingerprintedModel, load_fingerprinted_model
from headtohead.distillation import summarization
from headtohead.distillation.teacher_cache import CacheKey, TeacherCache, compute_hash, get_cache_root
from headtohead.errors import ModelError, RequestError, TrialError
from headtohead.execution.worker_pool import Job, WorkerPool, run_jobs
from headtohead.experiment.run_folder import Run, compute_run_identity
from headtohead.generation.generate import ContextOverflowWarning, generate
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.nn.transformer import Transformer
from headtohead.progress import ProgressCallback, ProgressReporter, ProgressUpdate
from headtohead.training.distillation_batches import DistillationBatchSchedule, DistillationObjective
from headtohead.training.distillation_loss import DistillationLossConfig, TeacherTargets, compute_teacher_targets
from headtohead.training.loop import TrainingProgress

GENERATION_BATCH_SIZE = 64
"""texts that a decoder of ours writes side by side; pretrained ones write one at a time"""
TRAINED_TEACHERS_FOLDER = "trained"
MAX_BATCHES_PER_JOB = 8
"""shares that a worker is given at a time: few enough that all end at about the same time"""


def ignore_progress(progress: ProgressUpdate) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class DistillationData:
    """What a trial of task distil learns from."""

    rows: PromptedRows
    cache: TeacherCache | None
    keys: tuple[str, ...]
    objective: DistillationObjective

    def schedule(self, trial: experiment.Trial, tokenizer: Any) -> PromptedBatchSchedule:
        context, seed = trial.model.context, trial.seed
        if self.cache is None:
            return PromptedBatchSchedule(
                self.rows, trial.prediction_task, trial.training, trial.data, context, seed, tokenizer
            )
        given = (self.rows, trial.prediction_task, trial.training, trial.data, context, seed, tokenizer)
        return DistillationBatchSchedule(*given, look_up_targets=self._read_targets)

    def _read_targets(self, rows: Sequence[int], counts: Sequence[int]) -> TeacherTargets:
        assert self.cache is not None
        return self.cache.targets([self.keys[row] for row in rows], counts)


def build_distillation_data(
    trial: experiment.Trial,
    dataset: Any,
    on_progress: ProgressCallback = ignore_progress,
    *,
    use_teacher: bool = True,
    teacher_workers: TeacherWorkers | None = None,
) -> DistillationData:
    """The lesson of this trial, with the teacher's part of it done. Without `taught`, people's texts stand in for the
    teacher's: enough to see whether a trial can be run, and how long a step takes."""
    assert trial.teacher is not None
    people = build_reference_rows(trial, dataset)
    how = trial.training.taught if use_teacher else None
    if how is None:
        return DistillationData(people, None, (), DistillationObjective())
    writer = open_teacher(trial, dataset, on_progress)
    rows = people
    if how.has_teacher_texts:
        rows = _build_teacher_rows(trial, dataset, writer, people, on_progress, teacher_workers)
    if not how.has_teacher_logits:
        return DistillationData(rows, None, (), DistillationObjective())
    check_same_vocabulary(writer, dataset.tokenizer)
    cache, keys = compute_cached_targets(writer, rows, how, on_progress)
    return DistillationData(
        rows,
        cache,
        tuple(keys),
        DistillationObjective(DistillationLossConfig(how.temperature, how.direction, how.weight)),
    )


def build_reference_rows(trial: experiment.Trial, dataset: Any) -> PromptedRows:
    """The texts of people that every variant of the experiment learns from, or begins with."""
    assert trial.teacher is not None
    train = dataset.encoded["train"]
    if isinstance(train, PromptedRows):
        return train
    return build_prompted_rows("train", split_into_fixed_rows(train, trial.model.context, trial.teacher.documents))


def run_teacher(
    experiment: experiment.Experiment,
    folder: Path,
    on_progress: ProgressCallback = ignore_progress,
    pool: WorkerPool | None = None,
) -> dict[str, Any]:
    """Do the teacher's work for every variant, and say who it is: plain data for the experiment's folder."""
    from headtohead.trials.dataset import prepare_dataset  # which knows this file

    trials = [loading.build_trial(experiment, variant, 0) for variant in experiment.names]
    for trial in trials:
        build_distillation_data(
            trial,
            prepare_dataset(trial.data, trial.task),
            on_progress,
            teacher_workers=build_teacher_workers(pool, trial, folder),
        )
    first = trials[0]
    prepared = prepare_dataset(first.data, first.task)
    if prepared.documents is not None:
        from headtohead.distillation.reference_runs import evaluate_references  # which knows this file

        return evaluate_references(first, prepared, folder, on_progress, build_teacher_workers(pool, first, folder))
    return describe_teacher(first, prepared, on_progress)


def build_teacher_workers(pool: WorkerPool | None, trial: experiment.Trial, folder: Path) -> TeacherWorkers | None:
    return TeacherWorkers(pool, trial, folder / "workers.log") if pool is not None and pool.can_teach else None


def describe_teacher(
    trial: experiment.Trial, dataset: Any, on_progress: ProgressCallback = ignore_progress
) -> dict[str, Any]:
    """Name, weights and size of the teacher; what it scored, where it was trained here."""
    assert trial.teacher is not None
    writer = open_teacher(trial, dataset, on_progress)
    row: dict[str, Any] = {**writer.to_dict(), "trained": None, "scores": {}}
    if not isinstance(trial.teacher.model, str):
        run = Run(train_teacher(trial, dataset, on_progress))
        row |= {"name": "teacher", "trained": run.result["trained"], "scores": run.result["scores"]}
        row["settings"] = trial.teacher.model_dump(mode="json", include={"model", "training"})
    return row


def list_cache_folders(trial: experiment.Trial, dataset: Any) -> list[Path]:
    """The folders of the cache with work of this trial's teacher, and the teacher itself if it was trained here."""
    assert trial.teacher is not None
    mine = open_teacher(trial, dataset).digest
    found = sorted(
        about.parent for about in get_cache_root().glob("*/teacher.json") if read_json(about)["digest"] == mine
    )
    return found if isinstance(trial.teacher.model, str) else [*found, train_teacher(trial, dataset)]


# ---- the teacher


def build_teacher_trial(trial: experiment.Trial) -> experiment.Trial:
    """The trial that a teacher of parts is trained by: an ordinary language model, on the same data."""
    assert trial.teacher is not None
    teacher = trial.teacher
    raw = trial.model_dump(mode="json", include={"data", "use"})
    training = teacher.training or trial.training.model_copy(update={"taught": None})
    return experiment.Trial.model_validate(
        {
            **raw,
            "task": "language-model",
            "variant": "teacher",
            "seed": teacher.seed,
            "model": teacher.model.model_dump(mode="json") if not isinstance(teacher.model, str) else {},
            "training": training.model_dump(mode="json"),
        }
    )


def open_teacher(
    trial: experiment.Trial, dataset: Any, on_progress: ProgressCallback = ignore_progress
) -> FingerprintedModel:
    """The teacher, opened; one of parts is trained first, if it has not been."""
    assert trial.teacher is not None
    if isinstance(trial.teacher.model, str):
        return _open_cached(trial.teacher.model)
    return _open_cached(str(train_teacher(trial, dataset, on_progress)))


def train_teacher(trial: experiment.Trial, dataset: Any, on_progress: ProgressCallback = ignore_progress) -> Path:
    """The run folder of a teacher of parts, which lies in the cache by what it is made of."""
    from headtohead.trials.trial import run_trial  # which knows this file

    own = build_teacher_trial(trial)
    folder = get_cache_root() / TRAINED_TEACHERS_FOLDER / compute_run_identity(own, dataset.corpus.digest)
    with lock_cache_folder(folder):
        if not (folder / "result.json").is_file():

            def told(progress: TrainingProgress) -> None:
                left = (progress.steps - progress.step) / progress.rate if progress.rate else None
                on_progress(ProgressUpdate("the teacher is trained", progress.step, progress.steps, left))

            run_trial(own, folder, on_progress=told)
    return folder


@lru_cache(maxsize=2)
def _open_cached(source: str) -> FingerprintedModel:
    return load_fingerprinted_model(source)


def check_same_vocabulary(teacher: FingerprintedModel, tokenizer: TokenizerProtocol) -> None:
    """Two distributions can be compared word by word only where both are over the same words."""
    there, here = _list_vocabulary(teacher.tokenizer), _list_vocabulary(tokenizer)
    if there == here:
        return
    at = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), min(len(there), len(here)))
    first = f"the first that differs is number {at}" if at < min(len(there), len(here)) else "one has more of them"
    raise ModelError(
        f"{teacher.name}: its tokens are not the student's ({len(there):,} beside {len(here):,}; {first}), so its "
        'logits cannot be learned from; training.taught.by = "texts" works with any tokens'
    )


def _list_vocabulary(tokenizer: Any) -> list[str]:
    return [tokenizer.token(i) for i in range(tokenizer.vocab_size)]


def choose_batch_size(writer: FingerprintedModel) -> int:
    """How many texts are worked on at once. One of a large model, so that a kill loses one."""
    return GENERATION_BATCH_SIZE if isinstance(writer.model, Transformer) else 1


# ---- texts


def build_teacher_strategy(teacher: distillation.TeacherConfig) -> Strategy:
    if teacher.strategy is not None:
        return build_strategy(teacher.strategy.kind, **teacher.strategy.options)
    return build_strategy("sample" if teacher.prompt is None else "greedy")


def generate_texts(
    writer: FingerprintedModel,
    prompts: Sequence[Sequence[int]],
    decoding_strategy: Strategy,
    max_new_tokens: int,
    seed: int,
    on_progress: ProgressCallback = ignore_progress,
    progress_label: str = "the teacher writes",
    batch_size: int | None = None,
    teacher_workers: TeacherWorkers | None = None,
) -> list[dict[str, Any]]:
    """What the model writes after each prompt; what is in the cache is not written again. With `helpers`, workers share
    what is missing: the same texts, sooner."""
    settings = {"kind": "texts", "strategy": str(decoding_strategy), "max_new_tokens": max_new_tokens, "seed": seed}
    whose = CacheKey(writer.name, writer.digest, settings)
    keys = [compute_hash(list(prompt)) for prompt in prompts]
    cache = TeacherCache.open(whose)
    missing = _find_missing(keys, cache.texts)
    if missing:
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(whose, is_writable=True)
            missing = _find_missing(keys, cache.texts)
            clock = ProgressReporter(progress_label, len(keys), on_progress, completed=len(keys) - len(missing))
            batch_size = batch_size or choose_batch_size(writer)
            shares = [
                [list(prompts[i]) for i in missing[at : at + batch_size]] for at in range(0, len(missing), batch_size)
            ]
            if teacher_workers is not None and len(shares) > teacher_workers.crew.size:
                lines = teacher_workers.texts(shares, max_new_tokens)
            else:
                lines = (
                    line
                    for share in shares
                    for line in _generate_cache_lines(writer, share, decoding_strategy, max_new_tokens, seed)
                )
            for line in lines:
                cache.add_text(line.pop("key"), line)
                clock.step(1)
    return [cache.texts[key] for key in keys]


@dataclass(frozen=True)
class TeacherWorkers:
    """Workers that write for a teacher: those that run the trials afterwards."""

    crew: WorkerPool
    trial: experiment.Trial
    log: Path

    def texts(self, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int) -> Iterator[dict[str, Any]]:
        """What they wrote, as it comes. Each worker takes the next few shares when it has written its last."""
        few = max(1, min(MAX_BATCHES_PER_JOB, len(prompt_batches) // (2 * self.crew.size)))
        jobs = [
            Job(
                self.trial,
                self.log.parent,
                texts={"shares": list(prompt_batches[at : at + few]), "longest": max_new_tokens},
            )
            for at in range(0, len(prompt_batches), few)
        ]
        written: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def take(jobs: Sequence[Job]) -> None:
            for job in jobs:
                while job.written:
                    written.put(job.written.popleft())

        def work() -> None:
            try:
                run_jobs(jobs, pool=self.crew, log_path=self.log, on_update=take)
            finally:
                take(jobs)
                written.put(None)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while (line := written.get()) is not None:
            yield line
        thread.join()
        if failed := next((job for job in jobs if job.state != "finished"), None):
            raise TrialError(f"the teacher could not write: {failed.message}")


def generate_batches(
    trial: experiment.Trial, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int
) -> Iterator[dict[str, Any]]:
    """A worker's part of the writing: shares of prompts, each written side by side as they would be by one process."""
    from headtohead.trials.dataset import prepare_dataset  # which knows this file

    assert trial.teacher is not None
    writer = open_teacher(trial, prepare_dataset(trial.data, trial.task))
    for share in prompt_batches:
        yield from _generate_cache_lines(
            writer, share, build_teacher_strategy(trial.teacher), max_new_tokens, trial.teacher.seed
        )


def _find_missing(keys: Sequence[str], cached: Any) -> list[int]:
    """The first place of each key that is not there."""
    first = {key: at for at, key in reversed(list(enumerate(keys)))}
    return sorted(at for key, at in first.items() if key not in cached)


def _generate_cache_lines(
    writer: FingerprintedModel, prompts: list[list[int]], decoding_strategy: Strategy, max_new_tokens: int, seed: int
) -> Iterator[dict[str, Any]]:
    """What is written after some prompts, side by side: the lines of the cache."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextOverflowWarning)
        made = generate(
            writer.opened, prompts, decoding_strategy, max_new_tokens=max_new_tokens, seed=seed, batch_size=len(prompts)
        )
    seconds = round((time.perf_counter() - began) / len(prompts), 4)
    for row in made:
        key = compute_hash(prompts[row.prompt])
        yield {"key": key, "ids": list(row.ids), "text": row.text, "ended": row.ended, "seconds": seconds}


def _build_teacher_rows(
    trial: experiment.Trial,
    dataset: Any,
    writer: FingerprintedModel,
    reference_rows: PromptedRows,
    on_progress: ProgressCallback,
    teacher_workers: TeacherWorkers | None,
) -> PromptedRows:
    """Rows that the teacher wrote: of each row of people's its beginning, or its prompt, then the teacher's text."""
    teacher, tokenizer, context = trial.teacher, dataset.tokenizer, trial.model.context
    assert teacher is not None
    rows = [
        reference_rows.tokens[a:b].tolist()
        for a, b in zip(reference_rows.offsets, reference_rows.offsets[1:], strict=False)
    ]
    longest = teacher.max_new_tokens if reference_rows.prompt_lengths is not None else context + 1 - teacher.begin
    if longest < 1:
        raise RequestError(f"teacher.begin: {teacher.begin} tokens leave nothing to write in a context of {context}")
    begins = (
        [teacher.begin] * len(rows) if reference_rows.prompt_lengths is None else reference_rows.prompt_lengths.tolist()
    )
    begun = [row[: min(begin, len(row) - 1)] for row, begin in zip(rows, begins, strict=True)]
    same = _list_vocabulary(writer.tokenizer) == _list_vocabulary(tokenizer)
    if reference_rows.prompt_lengths is not None:
        prompts = build_summary_prompts(trial.data, dataset, writer.tokenizer, "train")
    else:
        prompts = begun if same else [_retokenize(writer, tokenizer, ids) for ids in begun]
    lines = generate_texts(
        writer,
        prompts,
        build_teacher_strategy(teacher),
        longest,
        teacher.seed,
        on_progress,
        teacher_workers=teacher_workers,
    )
    stop = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    made = []
    for ids, line in zip(begun, lines, strict=True):
        said = (
            line["ids"]
            if same
            else tokenizer.encode(line["text"].strip() if reference_rows.prompt_lengths is not None else line["text"])
        )
        ended = stop if line["ended"] == "token" else []
        made.append([*ids, *said, *ended][: context + 1])
    return build_prompted_rows(
        "train", made, None if reference_rows.prompt_lengths is None else [len(ids) for ids in begun]
    )


def build_summary_prompts(data: data.DataConfig, dataset: Any, tokenizer: Any, split: str) -> list[list[int]]:
    """Every document of a split as a question for a model with this tokenizer."""
    asking = summarization.build_summary_prompt(data.tokens)
    return [asking.ids(tokenizer, document.text)[0] for document in dataset.documents.splits[split]]


def _retokenize(writer: FingerprintedModel, tokenizer: TokenizerProtocol, ids: Sequence[int]) -> list[int]:
    found: list[int] = writer.tokenizer.encode(tokenizer.decode(ids))
    return found


# ---- logits


def compute_cached_targets(
    writer: FingerprintedModel,
    rows: PromptedRows,
    settings: distillation_targets.DistillationConfig,
    on_progress: ProgressCallback = ignore_progress,
) -> tuple[TeacherCache, list[str]]:
    """The teacher's likeliest words at every counted position of the rows, and each row's key in the cache."""
    top = min(settings.top, int(writer.tokenizer.vocab_size))
    whose = CacheKey(writer.name, writer.digest, {"kind": "logits", "top": top, "temperature": settings.temperature})
    every = [rows.tokens[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
    begins = [1] * len(rows) if rows.prompt_lengths is None else rows.prompt_lengths.tolist()
    longest = max(map(len, every)) - 1
    if longest > writer.model.context:
        raise ModelError(f"{writer.name}: reads {writer.model.context} tokens, and the student's texts have {longest}")
    keys = [compute_hash(row, begin) for row, begin in zip(every, begins, strict=True)]
    cache = TeacherCache.open(whose)
    if _find_missing(keys, cache.places):
        with lock_cache_folder(cache.folder):
            cache = TeacherCache.open(whose, is_writable=True)
            missing = _find_missing(keys, cache.places)
            clock = ProgressReporter("the teacher reads", len(keys), on_progress, completed=len(keys) - len(missing))
            size = choose_batch_size(writer)
            for start in range(0, len(missing), size):
                some = missing[start : start + size]
                found = _compute_targets(writer.model, [every[i] for i in some], [begins[i] for i in some], settings)
                for i, targets in zip(some, found, strict=True):
                    cache.add_targets(keys[i], targets)
                clock.step(len(some))
    return cache, keys


@torch.inference_mode()
def _compute_targets(
    model: Any, rows: list[list[int]], target_starts: list[int], settings: distillation_targets.DistillationConfig
) -> list[TeacherTargets]:
    """Of rows side by side; padding stands on the right, where no earlier word can see it."""
    width = max(map(len, rows)) - 1
    ids = torch.tensor([[*row[:-1], *[0] * (width + 1 - len(row))] for row in rows])
    lengths = torch.tensor([len(row) - 1 for row in rows])
    mask = torch.arange(width) < lengths[:, None]
    logits = model(ids, None if bool(mask.all()) else mask).logits
    return [
        compute_teacher_targets(logits[i, begin - 1 : len(row) - 1], settings.top, settings.temperature)
        for i, (row, begin) in enumerate(zip(rows, target_starts, strict=True))
    ]


__all__ = [
    "DistillationData",
    "ProgressCallback",
    "build_distillation_data",
    "compute_cached_targets",
    "generate_texts",
    "ignore_progress",
    "open_teacher",
    "run_teacher",
    "train_teacher",
]
