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

from headtohead.atomic_io import read_json, write_json
from headtohead.audit import data_audit
from headtohead.audit.data_checks import count_baselines, leakage
from headtohead.config import experiment
from headtohead.config import loading as config_loading
from headtohead.config.experiment import BASELINE
from headtohead.config.loading import trial as trial_of
from headtohead.data import batches
from headtohead.data.sources import loading
from headtohead.data.splits import Corpus
from headtohead.distillation import teacher
from headtohead.errors import CorpusError, DiskFullError, RequestError
from headtohead.execution.worker_pool import (
    Crew,
    Job,
    State,
    Watch,
    crew_of,
    default_workers,
    early,
    environment_for,
    run_jobs,
)
from headtohead.experiment import encoder_inputs, findings
from headtohead.experiment.run_folder import SCHEMA, Runs, create_runs, locked, trials
from headtohead.experiment.trial import Prepared, begin, estimate, prepare, sizes_of, sweep, versions
from headtohead.nn.flops import Count

DEFAULT_FOLDER = Path("runs")


@dataclass(frozen=True)
class Outcome:
    """What an experiment left behind. `findings` is None when not even the baseline came through."""

    runs: Runs
    jobs: tuple[Job, ...]
    findings: dict[str, Any] | None

    @property
    def failures(self) -> list[Job]:
        return [job for job in self.jobs if job.state in ("failed", "lost")]


def run(
    experiment: experiment.Experiment,
    out: Path | None = None,
    *,
    workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    on: str | Crew | None = None,
    watch: Watch = lambda jobs: None,
    tell: teacher.Tell = teacher.silent,
    command: Sequence[str] = (),
) -> Outcome:
    """Run every trial of the experiment that is not there yet; `on` names a cluster to run them on."""
    folder = out or DEFAULT_FOLDER / experiment.name
    with contextlib.ExitStack() as open_until_the_end:
        crew = None
        if on is None:
            asked = [trial_of(experiment, name, 0) for name in experiment.names]
            needed = 0 if resume else experiment.most_seeds * len(asked)
            at_once = early(crew_of(None, workers, device), needed, environment_for(asked))
            crew = open_until_the_end.enter_context(at_once)
        sizes = check_runnable(experiment)
        crew = crew or crew_of(on, workers, device)
        check_room(experiment, folder, crew.size, sizes[BASELINE].weights_bytes)
        existed = folder.exists()
        open_until_the_end.enter_context(locked(folder))
        try:
            about = {"versions": versions(), "command": list(command or sys.argv)}
            runs = create_runs(folder, experiment, about, resume=resume)
        except BaseException:
            if not existed:
                _remove_if_empty(folder)
            raise
        write_json(folder / "corpus.json", describe_corpus(experiment), sealed=True)
        if experiment.task == "distil":
            write_json(folder / "teacher.json", teacher.teach(experiment, folder, tell, crew), sealed=True)
        looks = findings.looks_of(runs)
        jobs: list[Job] = []
        found: dict[str, Any] | None = None
        for seeds in looks or (experiment.most_seeds,):
            jobs += _jobs(runs, experiment, range(len(jobs) // len(experiment.names), seeds), sizes)
            needed = sum(job.state == "waiting" for job in jobs)
            run_jobs(
                jobs,
                crew=replace(crew, size=max(1, min(crew.size, needed))),
                log=folder / "workers.log",
                device=device,
                watch=watch,
            )
            if not runs.finished(BASELINE):
                break
            found = findings.write(runs, looks=looks)
            if looks and all(row["word"] != "cannot tell" for row in found["verdicts"]):
                break
    return Outcome(runs, tuple(jobs), found)


def describe_corpus(experiment: experiment.Experiment) -> dict[str, Any]:
    """What the texts are, what the audits found in them, and which held-out rows do not occur in train."""
    trial = trial_of(experiment, BASELINE, 0)
    prepared = prepare(trial.data, trial.task)
    texts, tokenizer = prepared.corpus, prepared.tokenizer
    splits = {}
    for name, split in texts.splits.items():
        tokens = prepared.encoded[name].tokens.numel()
        shown = batches.word_counts(prepared.encoded[name], tokenizer.vocab_size)
        unknown = 0.0 if tokenizer.unknown_id is None else int(shown[tokenizer.unknown_id]) / tokens
        splits[name] = {
            "role": split.role,
            "rows": len(split.rows),
            "tokens": tokens,
            "bytes": sum(len(row.encode()) + 1 for row in split.rows),
            "unknown": unknown,
        }
    # Scores can be told apart by row only where an example is a row, and not a block of a stream.
    by_row = trial.goal == "classify" or trial.data.rows == "sentences"
    unseen = {
        split.name: np.flatnonzero(leakage.unseen_rows(texts, split.name)).tolist()
        for split in texts.held_out()
        if by_row
    }
    return {
        "schema": SCHEMA,
        "origin": texts.origin,
        "digest": texts.digest,
        "vocabulary": tokenizer.vocab_size,
        "labels": list(texts.label_names),
        "splits": splits,
        "audits": [
            finding.as_row()
            for finding in data_audit.audit_data(texts, tokenizer, encoded=prepared.encoded, unknown=trial.data.unknown)
        ],
        "unseen": unseen,
        "simple": _simple(trial, prepared),
        "whose": _whose(trial, texts),
    }


def _simple(trial: experiment.Trial, prepared: Prepared) -> dict[str, dict[str, float]]:
    """What a count can do with labelled rows: over their tokens, or over words where a model brings pieces of words."""
    if not prepared.corpus.label_names:
        return {}
    encoded, vocab = prepared.encoded, prepared.tokenizer.vocab_size
    if trial.task == "finetune":
        encoded, vocab = encoder_inputs.as_words(prepared.corpus)
    return count_baselines.simple_answers(prepared.corpus, encoded, vocab)


def _whose(trial: experiment.Trial, texts: Corpus) -> dict[str, dict[str, int]]:
    """Whose words the texts of a language model are, where the same source also has rows with labels."""
    if trial.task != "language-model" or trial.data.files is not None:
        return {}
    try:
        labelled = loading.load(trial.data, "classify")
    except CorpusError:
        return {}
    return count_baselines.whose_words(texts, labelled)


def _jobs(runs: Runs, experiment: experiment.Experiment, seeds: range, sizes: Mapping[str, Count]) -> list[Job]:
    made = []
    for trial in trials(experiment, seeds):
        run_folder = runs.run(trial.variant, trial.seed)
        if run_folder.is_finished:
            sweep(run_folder.folder)  # a kill may have come between the result and the end of sweeping
        state: State = "kept" if run_folder.is_finished else "waiting"
        made.append(Job(trial, run_folder.folder, state, sizes=sizes.get(trial.variant)))
    return made


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass


def check_runnable(experiment: experiment.Experiment) -> dict[str, Count]:
    """Everything that can be wrong with the request is found before anything is written: corpus, tokens, models. Gives
    the sizes of each variant's model."""
    sizes = {}
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        prepared = prepare(trial.data, trial.task)
        unknown = [name for name in trial.data.watch if name not in prepared.corpus.splits]
        if unknown:
            there = ", ".join(split.name for split in prepared.corpus.held_out())
            raise RequestError(f"data.watch: no held-out text named {unknown[0]!r} (there are: {there})")
        primary = experiment.primary.split
        if primary not in ("test", *prepared.corpus.splits):
            raise RequestError(
                f"primary.split: no split named {primary!r} (there are: {', '.join(prepared.corpus.splits)})"
            )
        sizes[variant] = sizes_of(trial, prepared)
        with tempfile.TemporaryDirectory() as scratch:
            begin(trial, prepared, Path(scratch), torch.device("cpu"), taught=False, sizes=sizes[variant])
    return sizes


def check_room(experiment: experiment.Experiment, folder: Path, workers: int, weights: int) -> None:
    """Is there room for the runs? Weights, of so many bytes, for each trial, and for those at work two checkpoints of
    three times that."""
    trials_to_run = experiment.most_seeds * len(experiment.names)
    needed = weights * trials_to_run + 6 * weights * min(workers, trials_to_run)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        sizes = f"the runs need about {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB left"
        raise DiskFullError(f"{folder}: {sizes}")


@dataclass(frozen=True)
class Plan:
    """What a run would do, known before it is started."""

    variant: str
    settings: dict[str, Any]
    parameters: int
    flops_per_token: int
    training_bytes: int
    steps: int
    seconds: float
    """for one trial on one worker"""

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def plan(experiment: experiment.Experiment) -> list[Plan]:
    """Sizes and a time for each variant, from the real model and a few real steps."""
    found = []
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            seconds = estimate(trial, folder)
            start = read_json(folder / "start.json")
        settings = config_loading.changes_of(experiment, variant)
        found.append(
            Plan(
                variant,
                settings,
                start["parameters"],
                start["flops_per_token"],
                start["training_bytes"],
                start["steps"],
                seconds,
            )
        )
    return found


__all__ = ["DEFAULT_FOLDER", "Outcome", "Plan", "default_workers", "plan", "run"]
