"""Running an experiment: its trials through the workers, into run folders, and what came out."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.audit import data_audit
from headtohead.audit.data_checks import count_baselines, leakage
from headtohead.config import experiment
from headtohead.config import loading as config_loading
from headtohead.config.experiment import BASELINE
from headtohead.config.loading import build_trial as trial_of
from headtohead.data import batches
from headtohead.data.sources import loading
from headtohead.data.splits import Corpus
from headtohead.errors import DataError, DiskFullError, RequestError
from headtohead.execution.backends import build_worker_pool
from headtohead.execution.local_worker import default_num_workers, prestart_workers
from headtohead.execution.teacher_workers import run_teacher
from headtohead.execution.worker_pool import (
    Job,
    JobState,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import encoder_inputs, schemas
from headtohead.experiment.run_folder import ExperimentRuns, Run, build_trials, create_runs, lock_folder
from headtohead.experiment.versions import collect_versions
from headtohead.findings import compute
from headtohead.model_cost import ModelCost
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.trials.outputs import remove_checkpoints
from headtohead.trials.trial import (
    build_training,
    compute_model_size,
    estimate_seconds,
    run_trial,
)

DEFAULT_RUNS_FOLDER = Path("runs")


@dataclass(frozen=True)
class ExperimentOutcome:
    """What an experiment left behind. `findings` is None when not even the baseline came through."""

    runs: ExperimentRuns
    jobs: tuple[Job, ...]
    findings: schemas.Findings | None

    @property
    def failed_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job.state in ("failed", "lost")]


def run_experiment(
    experiment: experiment.Experiment,
    output_folder: Path | None = None,
    *,
    num_workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    backend: str | WorkerPool | None = None,
    on_update: OnJobsUpdate = lambda jobs: None,
    on_progress: ProgressCallback = ignore_progress,
    command: Sequence[str] = (),
) -> ExperimentOutcome:
    """Run every trial of the experiment that is not there yet; `on` names a cluster to run them on."""
    folder = output_folder or DEFAULT_RUNS_FOLDER / experiment.name
    with contextlib.ExitStack() as open_until_the_end:
        pool = None
        if backend is None:
            asked = [trial_of(experiment, name, 0) for name in experiment.names]
            needed = 0 if resume else experiment.max_seeds * len(asked)
            at_once = prestart_workers(build_worker_pool(None, num_workers, device), needed, build_environment(asked))
            pool = open_until_the_end.enter_context(at_once)
        sizes = check_runnable(experiment)
        pool = pool or build_worker_pool(backend, num_workers, device)
        check_disk_space(experiment, folder, pool.size, sizes[BASELINE].weights_bytes)
        existed = folder.exists()
        open_until_the_end.enter_context(lock_folder(folder))
        try:
            runs = create_runs(
                folder, experiment, versions=collect_versions(), command=list(command or sys.argv), resume=resume
            )
        except BaseException:
            if not existed:
                _remove_if_empty(folder)
            raise
        schemas.write_record(folder / "corpus.json", describe_corpus(experiment), with_checksum=True)
        if experiment.spec.has_teacher:
            description = run_teacher(experiment, folder, on_progress, pool)
            schemas.write_record(folder / "teacher.json", description, with_checksum=True)
        for trial in (trial_of(experiment, name, 0) for name in experiment.names):
            dataset = prepare_dataset(trial.data, trial.task)
            get_task(trial.task).train_dependencies(trial, dataset, run_trial, on_progress)
        looks = compute.list_interim_analyses(runs)
        jobs: list[Job] = []
        found: schemas.Findings | None = None
        for seeds in looks or (experiment.max_seeds,):
            jobs += _build_jobs(runs, experiment, range(len(jobs) // len(experiment.names), seeds), sizes)
            needed = sum(job.state == "waiting" for job in jobs)
            run_jobs(
                jobs,
                pool=replace(pool, size=max(1, min(pool.size, needed))),
                log_path=folder / "workers.log",
                device=device,
                on_update=on_update,
            )
            if not runs.finished(BASELINE):
                break
            found = compute.write_findings(runs, interim_analyses=looks)
            if looks and all(verdict.outcome != "cannot tell" for verdict in found.verdicts):
                break
    return ExperimentOutcome(runs, tuple(jobs), found)


def describe_corpus(experiment: experiment.Experiment) -> schemas.CorpusFile:
    """What the texts are, what the audits found in them, and which held-out rows do not occur in train."""
    trial = trial_of(experiment, BASELINE, 0)
    prepared = prepare_dataset(trial.data, trial.task)
    texts, tokenizer = prepared.corpus, prepared.tokenizer
    splits = {}
    for name, split in texts.splits.items():
        tokens = prepared.encoded[name].tokens.numel()
        shown = batches.count_tokens(prepared.encoded[name], tokenizer.vocab_size)
        unknown = 0.0 if tokenizer.unk_id is None else int(shown[tokenizer.unk_id]) / tokens
        splits[name] = schemas.SplitRecord(
            role=split.role,
            rows=len(split.rows),
            tokens=tokens,
            bytes=sum(len(row.encode()) + 1 for row in split.rows),
            unknown=unknown,
        )
    # Scores can be told apart by row only where an example is a row, and not a block of a stream.
    by_row = trial.spec.scores_every_row and (trial.spec.target.is_class or trial.data.rows == "sentences")
    unseen = {
        split.name: np.flatnonzero(leakage.compute_unseen_mask(texts, split.name)).tolist()
        for split in texts.get_test_splits()
        if by_row
    }
    return schemas.CorpusFile(
        origin=texts.origin,
        digest=texts.digest,
        vocab_size=tokenizer.vocab_size,
        labels=list(texts.label_names),
        splits=splits,
        audits=list(
            data_audit.audit_data(
                texts, tokenizer, encoded_splits=prepared.encoded, unknown_rate=trial.data.word_dropout
            )
        ),
        unseen=unseen,
        count_baselines=_compute_count_baselines(trial, prepared),
        lines_by_label=_count_words_by_label(trial, texts),
    )


def _compute_count_baselines(trial: experiment.Trial, dataset: Dataset) -> dict[str, dict[str, float]]:
    """What a count can do with labelled rows: over their tokens, or over words where a model brings pieces of words."""
    if not dataset.label_names:
        return {}
    encoded, vocab = dataset.encoded, dataset.tokenizer.vocab_size
    if trial.spec.needs_pretrained:
        encoded, vocab = encoder_inputs.encode_as_words(dataset.corpus)
    return count_baselines.score_simple_classifiers(dataset.corpus, encoded, vocab)


def _count_words_by_label(trial: experiment.Trial, unlabelled_corpus: Corpus) -> dict[str, dict[str, int]]:
    """Whose words the texts of a language model are, where the same source also has rows with labels."""
    if trial.spec.target.is_class or trial.spec.has_teacher or trial.data.files is not None:
        return {}
    try:
        labelled = loading.load_corpus(trial.data, has_labels=True)
    except DataError:
        return {}
    return count_baselines.count_lines_by_label(unlabelled_corpus, labelled)


def _build_jobs(
    runs: ExperimentRuns, experiment: experiment.Experiment, seeds: range, model_sizes: Mapping[str, ModelCost]
) -> list[Job]:
    made = []
    for trial in build_trials(experiment, seeds):
        run_folder = runs.run(trial.variant, trial.seed)
        if run_folder.is_finished:
            remove_checkpoints(run_folder.folder)  # a kill may have come between the result and the end of sweeping
        state: JobState = "kept" if run_folder.is_finished else "waiting"
        made.append(Job(trial, run_folder.folder, state, model_cost=model_sizes.get(trial.variant)))
    return made


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass


def check_runnable(experiment: experiment.Experiment) -> dict[str, ModelCost]:
    """Everything that can be wrong with the request is found before anything is written: corpus, tokens, models. Gives
    the sizes of each variant's model."""
    sizes = {}
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        prepared = prepare_dataset(trial.data, trial.task)
        unknown = [name for name in trial.data.monitor if name not in prepared.corpus.splits]
        if unknown:
            there = ", ".join(split.name for split in prepared.corpus.get_test_splits())
            raise RequestError(f"data.monitor: no held-out text named {unknown[0]!r} (there are: {there})")
        primary = experiment.primary.split
        if primary not in ("test", *prepared.corpus.splits):
            raise RequestError(
                f"primary.split: no split named {primary!r} (there are: {', '.join(prepared.corpus.splits)})"
            )
        sizes[variant] = compute_model_size(trial, prepared)
        with tempfile.TemporaryDirectory() as scratch:
            build_training(
                trial, prepared, Path(scratch), torch.device("cpu"), with_dependencies=False, model_size=sizes[variant]
            )
    return sizes


def check_disk_space(experiment: experiment.Experiment, folder: Path, num_workers: int, weights_bytes: int) -> None:
    """Is there room for the runs? Weights, of so many bytes, for each trial, and for those at work two checkpoints of
    three times that."""
    trials_to_run = experiment.max_seeds * len(experiment.names)
    needed = weights_bytes * trials_to_run + 6 * weights_bytes * min(num_workers, trials_to_run)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        sizes = f"the runs need about {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB left"
        raise DiskFullError(f"{folder}: {sizes}")


@dataclass(frozen=True)
class VariantPlan:
    """What a run would do, known before it is started."""

    variant: str
    settings: dict[str, Any]
    parameters: int
    flops_per_token: int
    training_bytes: int
    steps: int
    seconds: float
    """for one trial on one worker"""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_experiment(experiment: experiment.Experiment) -> list[VariantPlan]:
    """Sizes and a time for each variant, from the real model and a few real steps."""
    found = []
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            seconds = estimate_seconds(trial, folder)
            start = Run(folder).start
        settings = config_loading.diff_from_baseline(experiment, variant)
        found.append(
            VariantPlan(
                variant,
                settings,
                start.parameters,
                start.flops_per_token,
                start.training_bytes,
                start.steps,
                seconds,
            )
        )
    return found


__all__ = [
    "DEFAULT_RUNS_FOLDER",
    "ExperimentOutcome",
    "VariantPlan",
    "default_num_workers",
    "plan_experiment",
    "run_experiment",
]
