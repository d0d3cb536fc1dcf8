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

from headtohead.atomic_io import at_work, read_json
from headtohead.config import data, distillation, distillation_targets, experiment, loading
from headtohead.data.sft import Prompted, PromptedSchedule, fixed_rows, prompted
from headtohead.data.tokenizers import Tokens
from headtohead.decoding_comparison.request import Writer, open_writer
from headtohead.distillation import summarization
from headtohead.distillation.teacher_cache import TeacherCache, Whose, hash_of, root
from headtohead.errors import ModelError, RequestError, TrialError
from headtohead.execution.worker_pool import Crew, Job, run_jobs
from headtohead.experiment.run_folder import Run, identity_of
from headtohead.generation.generate import SlidingWarning, generate
from headtohead.generation.strategies import Strategy, strategy
from headtohead.nn.transformer import Transformer
from headtohead.progress import Clock, Pace, Tell
from headtohead.training.distillation_batches import Student, TaughtSchedule
from headtohead.training.distillation_loss import Mixture, Targets, targets_of
from headtohead.training.loop import Progress

TOGETHER = 64
"""texts that a decoder of ours writes side by side; pretrained ones write one at a time"""
TRAINED = "trained"
SHARES = 8
"""shares that a worker is given at a time: few enough that all end at about the same time"""


def silent(pace: Pace) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Lesson:
    """What a trial of task distil learns from."""

    rows: Prompted
    cache: TeacherCache | None
    keys: tuple[str, ...]
    objective: Student

    def schedule(self, trial: experiment.Trial, tokenizer: Any) -> PromptedSchedule:
        context, seed = trial.model.context, trial.seed
        if self.cache is None:
            return PromptedSchedule(self.rows, trial.goal, trial.training, trial.data, context, seed, tokenizer)
        given = (self.rows, trial.goal, trial.training, trial.data, context, seed, tokenizer)
        return TaughtSchedule(*given, gather=self._targets)

    def _targets(self, rows: Sequence[int], counts: Sequence[int]) -> Targets:
        assert self.cache is not None
        return self.cache.targets([self.keys[row] for row in rows], counts)


def lesson_of(
    trial: experiment.Trial, prepared: Any, tell: Tell = silent, *, taught: bool = True, helpers: Helpers | None = None
) -> Lesson:
    """The lesson of this trial, with the teacher's part of it done. Without `taught`, people's texts stand in for the
    teacher's: enough to see whether a trial can be run, and how long a step takes."""
    assert trial.teacher is not None
    people = people_of(trial, prepared)
    how = trial.training.taught if taught else None
    if how is None:
        return Lesson(people, None, (), Student())
    writer = teacher_of(trial, prepared, tell)
    rows = people
    if how.has_texts:
        rows = _written(trial, prepared, writer, people, tell, helpers)
    if not how.has_logits:
        return Lesson(rows, None, (), Student())
    check_tokens(writer, prepared.tokenizer)
    cache, keys = think(writer, rows, how, tell)
    return Lesson(rows, cache, tuple(keys), Student(Mixture(how.temperature, how.direction, how.weight)))


def people_of(trial: experiment.Trial, prepared: Any) -> Prompted:
    """The texts of people that every variant of the experiment learns from, or begins with."""
    assert trial.teacher is not None
    train = prepared.encoded["train"]
    if isinstance(train, Prompted):
        return train
    return prompted("train", fixed_rows(train, trial.model.context, trial.teacher.documents))


def teach(
    experiment: experiment.Experiment, folder: Path, tell: Tell = silent, crew: Crew | None = None
) -> dict[str, Any]:
    """Do the teacher's work for every variant, and say who it is: plain data for the experiment's folder."""
    from headtohead.experiment.trial import prepare  # which knows this file

    trials = [loading.trial(experiment, variant, 0) for variant in experiment.names]
    for trial in trials:
        lesson_of(trial, prepare(trial.data, trial.task), tell, helpers=helpers_of(crew, trial, folder))
    first = trials[0]
    prepared = prepare(first.data, first.task)
    if prepared.documents is not None:
        from headtohead.distillation.reference_runs import contest  # which knows this file

        return contest(first, prepared, folder, tell, helpers_of(crew, first, folder))
    return about(first, prepared, tell)


def helpers_of(crew: Crew | None, trial: experiment.Trial, folder: Path) -> Helpers | None:
    return Helpers(crew, trial, folder / "workers.log") if crew is not None and crew.can_teach else None


def about(trial: experiment.Trial, prepared: Any, tell: Tell = silent) -> dict[str, Any]:
    """Name, weights and size of the teacher; what it scored, where it was trained here."""
    assert trial.teacher is not None
    writer = teacher_of(trial, prepared, tell)
    row: dict[str, Any] = {**writer.as_row(), "trained": None, "scores": {}}
    if not isinstance(trial.teacher.model, str):
        run = Run(trained_teacher(trial, prepared, tell))
        row |= {"name": "teacher", "trained": run.result["trained"], "scores": run.result["scores"]}
        row["settings"] = trial.teacher.model_dump(mode="json", include={"model", "training"})
    return row


def kept_for(trial: experiment.Trial, prepared: Any) -> list[Path]:
    """The folders of the cache with work of this trial's teacher, and the teacher itself if it was trained here."""
    assert trial.teacher is not None
    mine = teacher_of(trial, prepared).digest
    found = sorted(about.parent for about in root().glob("*/teacher.json") if read_json(about)["digest"] == mine)
    return found if isinstance(trial.teacher.model, str) else [*found, trained_teacher(trial, prepared)]


# ---- the teacher


def teacher_trial(trial: experiment.Trial) -> experiment.Trial:
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


def teacher_of(trial: experiment.Trial, prepared: Any, tell: Tell = silent) -> Writer:
    """The teacher, opened; one of parts is trained first, if it has not been."""
    assert trial.teacher is not None
    if isinstance(trial.teacher.model, str):
        return _opened(trial.teacher.model)
    return _opened(str(trained_teacher(trial, prepared, tell)))


def trained_teacher(trial: experiment.Trial, prepared: Any, tell: Tell = silent) -> Path:
    """The run folder of a teacher of parts, which lies in the cache by what it is made of."""
    from headtohead.experiment.trial import run_trial  # which knows this file

    own = teacher_trial(trial)
    folder = root() / TRAINED / identity_of(own, prepared.corpus.digest)
    with at_work(folder):
        if not (folder / "result.json").is_file():

            def told(progress: Progress) -> None:
                left = (progress.steps - progress.step) / progress.rate if progress.rate else None
                tell(Pace("the teacher is trained", progress.step, progress.steps, left))

            run_trial(own, folder, tell=told)
    return folder


@lru_cache(maxsize=2)
def _opened(where: str) -> Writer:
    return open_writer(where)


def check_tokens(writer: Writer, tokenizer: Tokens) -> None:
    """Two distributions can be compared word by word only where both are over the same words."""
    there, here = _vocabulary(writer.tokenizer), _vocabulary(tokenizer)
    if there == here:
        return
    at = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), min(len(there), len(here)))
    first = f"the first that differs is number {at}" if at < min(len(there), len(here)) else "one has more of them"
    raise ModelError(
        f"{writer.name}: its tokens are not the student's ({len(there):,} beside {len(here):,}; {first}), so its "
        'logits cannot be learned from; training.taught.by = "texts" works with any tokens'
    )


def _vocabulary(tokenizer: Any) -> list[str]:
    return [tokenizer.token(i) for i in range(tokenizer.vocab_size)]


def together(writer: Writer) -> int:
    """How many texts are worked on at once. One of a large model, so that a kill loses one."""
    return TOGETHER if isinstance(writer.model, Transformer) else 1


# ---- texts


def chosen_strategy(teacher: distillation.Teacher) -> Strategy:
    if teacher.strategy is not None:
        return strategy(teacher.strategy.kind, **teacher.strategy.options)
    return strategy("sample" if teacher.prompt is None else "greedy")


def write(
    writer: Writer,
    prompts: Sequence[Sequence[int]],
    how: Strategy,
    longest: int,
    seed: int,
    tell: Tell = silent,
    what: str = "the teacher writes",
    size: int | None = None,
    helpers: Helpers | None = None,
) -> list[dict[str, Any]]:
    """What the model writes after each prompt; what is in the cache is not written again. With `helpers`, workers share
    what is missing: the same texts, sooner."""
    settings = {"kind": "texts", "strategy": str(how), "max_new_tokens": longest, "seed": seed}
    whose = Whose(writer.name, writer.digest, settings)
    keys = [hash_of(list(prompt)) for prompt in prompts]
    cache = TeacherCache.open(whose)
    missing = _missing(keys, cache.texts)
    if missing:
        with at_work(cache.folder):
            cache = TeacherCache.open(whose, going_on=True)
            missing = _missing(keys, cache.texts)
            clock = Clock(what, len(keys), tell, done=len(keys) - len(missing))
            size = size or together(writer)
            shares = [[list(prompts[i]) for i in missing[at : at + size]] for at in range(0, len(missing), size)]
            if helpers is not None and len(shares) > helpers.crew.size:
                lines = helpers.texts(shares, longest)
            else:
                lines = (line for share in shares for line in _lines(writer, share, how, longest, seed))
            for line in lines:
                cache.add_text(line.pop("key"), line)
                clock.step(1)
    return [cache.texts[key] for key in keys]


@dataclass(frozen=True)
class Helpers:
    """Workers that write for a teacher: those that run the trials afterwards."""

    crew: Crew
    trial: experiment.Trial
    log: Path

    def texts(self, shares: Sequence[list[list[int]]], longest: int) -> Iterator[dict[str, Any]]:
        """What they wrote, as it comes. Each worker takes the next few shares when it has written its last."""
        few = max(1, min(SHARES, len(shares) // (2 * self.crew.size)))
        jobs = [
            Job(self.trial, self.log.parent, texts={"shares": list(shares[at : at + few]), "longest": longest})
            for at in range(0, len(shares), few)
        ]
        written: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def take(jobs: Sequence[Job]) -> None:
            for job in jobs:
                while job.written:
                    written.put(job.written.popleft())

        def work() -> None:
            try:
                run_jobs(jobs, crew=self.crew, log=self.log, watch=take)
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


def texts_of(trial: experiment.Trial, shares: Sequence[list[list[int]]], longest: int) -> Iterator[dict[str, Any]]:
    """A worker's part of the writing: shares of prompts, each written side by side as they would be by one process."""
    from headtohead.experiment.trial import prepare  # which knows this file

    assert trial.teacher is not None
    writer = teacher_of(trial, prepare(trial.data, trial.task))
    for share in shares:
        yield from _lines(writer, share, chosen_strategy(trial.teacher), longest, trial.teacher.seed)


def _missing(keys: Sequence[str], there: Any) -> list[int]:
    """The first place of each key that is not there."""
    first = {key: at for at, key in reversed(list(enumerate(keys)))}
    return sorted(at for key, at in first.items() if key not in there)


def _lines(
    writer: Writer, prompts: list[list[int]], how: Strategy, longest: int, seed: int
) -> Iterator[dict[str, Any]]:
    """What is written after some prompts, side by side: the lines of the cache."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlidingWarning)
        made = generate(writer.opened, prompts, how, max_new_tokens=longest, seed=seed, batch=len(prompts))
    seconds = round((time.perf_counter() - began) / len(prompts), 4)
    for row in made:
        key = hash_of(prompts[row.prompt])
        yield {"key": key, "ids": list(row.ids), "text": row.text, "ended": row.ended, "seconds": seconds}


def _written(
    trial: experiment.Trial, prepared: Any, writer: Writer, people: Prompted, tell: Tell, helpers: Helpers | None
) -> Prompted:
    """Rows that the teacher wrote: of each row of people's its beginning, or its prompt, then the teacher's text."""
    teacher, tokenizer, context = trial.teacher, prepared.tokenizer, trial.model.context
    assert teacher is not None
    rows = [people.tokens[a:b].tolist() for a, b in zip(people.offsets, people.offsets[1:], strict=False)]
    longest = teacher.max_new_tokens if people.begins is not None else context + 1 - teacher.begin
    if longest < 1:
        raise RequestError(f"teacher.begin: {teacher.begin} tokens leave nothing to write in a context of {context}")
    begins = [teacher.begin] * len(rows) if people.begins is None else people.begins.tolist()
    begun = [row[: min(begin, len(row) - 1)] for row, begin in zip(rows, begins, strict=True)]
    same = _vocabulary(writer.tokenizer) == _vocabulary(tokenizer)
    if people.begins is not None:
        prompts = questions(trial.data, prepared, writer.tokenizer, "train")
    else:
        prompts = begun if same else [_in_its_tokens(writer, tokenizer, ids) for ids in begun]
    lines = write(writer, prompts, chosen_strategy(teacher), longest, teacher.seed, tell, helpers=helpers)
    stop = [] if tokenizer.stop_id is None else [tokenizer.stop_id]
    made = []
    for ids, line in zip(begun, lines, strict=True):
        said = (
            line["ids"]
            if same
            else tokenizer.encode(line["text"].strip() if people.begins is not None else line["text"])
        )
        ended = stop if line["ended"] == "token" else []
        made.append([*ids, *said, *ended][: context + 1])
    return prompted("train", made, None if people.begins is None else [len(ids) for ids in begun])


def questions(data: data.Data, prepared: Any, tokenizer: Any, split: str) -> list[list[int]]:
    """Every document of a split as a question for a model with this tokenizer."""
    asking = summarization.asking_of(data.tokens)
    return [asking.ids(tokenizer, document.text)[0] for document in prepared.documents.splits[split]]


def _in_its_tokens(writer: Writer, tokenizer: Tokens, ids: Sequence[int]) -> list[int]:
    found: list[int] = writer.tokenizer.encode(tokenizer.decode(ids))
    return found


# ---- logits


def think(
    writer: Writer, rows: Prompted, how: distillation_targets.Taught, tell: Tell = silent
) -> tuple[TeacherCache, list[str]]:
    """The teacher's likeliest words at every counted position of the rows, and each row's key in the cache."""
    top = min(how.top, int(writer.tokenizer.vocab_size))
    whose = Whose(writer.name, writer.digest, {"kind": "logits", "top": top, "temperature": how.temperature})
    every = [rows.tokens[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
    begins = [1] * len(rows) if rows.begins is None else rows.begins.tolist()
    longest = max(map(len, every)) - 1
    if longest > writer.model.context:
        raise ModelError(f"{writer.name}: reads {writer.model.context} tokens, and the student's texts have {longest}")
    keys = [hash_of(row, begin) for row, begin in zip(every, begins, strict=True)]
    cache = TeacherCache.open(whose)
    if _missing(keys, cache.places):
        with at_work(cache.folder):
            cache = TeacherCache.open(whose, going_on=True)
            missing = _missing(keys, cache.places)
            clock = Clock("the teacher reads", len(keys), tell, done=len(keys) - len(missing))
            size = together(writer)
            for start in range(0, len(missing), size):
                some = missing[start : start + size]
                found = _targets(writer.model, [every[i] for i in some], [begins[i] for i in some], how)
                for i, targets in zip(some, found, strict=True):
                    cache.add_targets(keys[i], targets)
                clock.step(len(some))
    return cache, keys


@torch.inference_mode()
def _targets(model: Any, rows: list[list[int]], begins: list[int], how: distillation_targets.Taught) -> list[Targets]:
    """Of rows side by side; padding stands on the right, where no earlier word can see it."""
    width = max(map(len, rows)) - 1
    ids = torch.tensor([[*row[:-1], *[0] * (width + 1 - len(row))] for row in rows])
    lengths = torch.tensor([len(row) - 1 for row in rows])
    mask = torch.arange(width) < lengths[:, None]
    logits = model(ids, None if bool(mask.all()) else mask).logits
    return [
        targets_of(logits[i, begin - 1 : len(row) - 1], how.top, how.temperature)
        for i, (row, begin) in enumerate(zip(rows, begins, strict=True))
    ]


__all__ = ["Lesson", "Tell", "lesson_of", "silent", "teach", "teacher_of", "think", "trained_teacher", "write"]
