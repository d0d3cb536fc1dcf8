"""Searching: cells through the same workers into run folders, then the winner beside the baseline on fresh seeds.

The comparison at the end is an ordinary experiment in the ordinary folder, with a variant `winner`; report, verify and
findings know nothing new about it. The search lies beside it, in the folder `search`, and never scores test data.

Cells are opened one after the other. What a decision about cell k (a proposal of tpe, giving it up) knows of others are
the cells up to k - LAG and no later ones, and it waits for those: so a search gives the same whatever the order in
which workers finish, and the same again after a kill.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import read_json, write_json
from headtohead.config import experiment as config_experiment
from headtohead.config.loading import trial as trial_of
from headtohead.config.overlays import TABLES, Raw
from headtohead.config.search import FIRST_SEED, WINNER, Search, Settings, changes_for
from headtohead.distillation.teacher import silent
from headtohead.errors import DiskFullError, HeadToHeadError, RequestError, TrialError
from headtohead.execution.worker_pool import Crew, Job, Watch, crew_of, environment_for, run_jobs
from headtohead.experiment.run_folder import Run, create_runs, locked
from headtohead.experiment.trial import begin, estimate, prepare, versions
from headtohead.progress import Tell
from headtohead.runner import run_experiment
from headtohead.runner.run_experiment import DEFAULT_FOLDER, Outcome
from headtohead.search import points as known
from headtohead.search import pruning, samplers
from headtohead.search.points import Cell, Journal

CPU = torch.device("cpu")
LAG = 4
"""cells that can be under way at once where decisions rest on the cells before"""
BUILT = 32
"""so many different models of a search are built, to see that they can be, before anything is trained"""
TIMED = 3
"""so many cells are timed for an estimate"""
GIVE_UP = 50
"""so many cells that fail in a row end a search"""
LOST_TWICE = "its worker was killed twice"


def run(
    experiment: config_experiment.Experiment,
    out: Path | None = None,
    *,
    workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    on: str | Crew | None = None,
    watch: Watch = lambda jobs: None,
    tell: Tell = silent,
    command: Sequence[str] = (),
) -> Outcome:
    """Run an experiment; where it asks for a search, search first and compare the winner with the baseline."""
    folder = out or DEFAULT_FOLDER / experiment.name
    asked = list(command or sys.argv)
    if experiment.search is not None:
        settings = known.winner_of(experiment, folder)
        if settings is None:
            check_searchable(experiment)
            settings = _searched(experiment, folder, crew_of(on, workers, device), device, resume, watch, asked)
            resume = True
        changes = changes_for(_raw(experiment), settings)
        experiment = experiment.model_copy(update={"variants": {**experiment.variants, WINNER: changes}})
    how: dict[str, Any] = {"workers": workers, "device": device, "on": on, "watch": watch, "tell": tell}
    return run_experiment.run(experiment, folder, resume=resume, command=asked, **how)


def _searched(
    experiment: config_experiment.Experiment,
    folder: Path,
    crew: Crew,
    device: str,
    resume: bool,
    watch: Watch,
    command: list[str],
) -> Settings:
    """The settings of the winner."""
    with locked(folder):
        create_runs(folder, experiment, {"versions": versions(), "command": command}, resume=resume)
        search = Searching(experiment, folder)
        search.run(crew, device, watch)
        return search.winner().settings


def check_searchable(experiment: config_experiment.Experiment) -> None:
    """Everything that can be wrong with the search is found before anything is written."""
    assert experiment.search is not None
    samplers.check_optuna(experiment.search)
    run_experiment.check_runnable(experiment)
    trial = trial_of(experiment, config_experiment.BASELINE, 0)
    if prepare(trial.data, trial.task).corpus.validation is None:
        raise RequestError(
            "search: the winner is chosen on validation data, and there is none; give data.validation a share of "
            "train, or data.files a validation file"
        )
    for settings, different in _different(experiment):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                begin(different, prepare(different.data, different.task), Path(scratch), CPU, taught=False)
        except (HeadToHeadError, ValueError) as error:
            said = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise RequestError(f"search.space: the cell with {said} cannot be built: {error}") from None


def _different(experiment: config_experiment.Experiment) -> list[tuple[Settings, config_experiment.Trial]]:
    """Cells, one for each model and optimizer that the search will build."""
    assert experiment.search is not None
    found: list[tuple[Settings, config_experiment.Trial]] = []
    for settings in itertools.islice(experiment.search.corners(), 64 * BUILT):
        one = _trial(experiment, "cell", settings, FIRST_SEED)
        if len(found) < BUILT and not any(
            (one.model, one.training.optimizer) == (other.model, other.training.optimizer) for _, other in found
        ):
            found.append((settings, one))
    return found


def _raw(experiment: config_experiment.Experiment) -> Raw:
    return experiment.model_dump(mode="json", include={*TABLES})


def _trial(
    experiment: config_experiment.Experiment, name: str, settings: Settings, seed: int
) -> config_experiment.Trial:
    """A trial of a search: the cell laid over the baseline, nothing tried on it at the end, no test text watched."""
    changes = changes_for(_raw(experiment), settings)
    made = trial_of(experiment.model_copy(update={"variants": {name: changes}}), name, seed)
    data = made.data.model_copy(update={"watch": ()})
    return made.model_copy(update={"data": data, "probe": config_experiment.Probe(), "choosing": True})


@dataclass
class Searching:
    """A search under way."""

    experiment: config_experiment.Experiment
    folder: Path
    now: Callable[[], float] = time.monotonic
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.experiment.search is not None
        self.search: Search = self.experiment.search
        self.metric = self.experiment.primary.metric
        self.place = known.folder_of(self.folder)
        self.journal = Journal(self.place)
        lines = self.journal.open(known.identity_of(self.experiment))
        self.cells = known.cells_in(self.place, self.search, lines, self.metric)
        self.before, self.began = known.seconds_in(lines), self.now()
        self.under_way: dict[tuple[int, int], Job] = {}
        self.lost: set[tuple[int, int]] = set()
        self.exhausted = False

    def run(self, crew: Crew, device: str, watch: Watch) -> None:
        """Until nothing is left to try, or the budget is used up."""
        run_jobs(
            self.jobs,
            crew=crew,
            log=self.folder / "workers.log",
            device=device,
            watch=watch,
            more=self.more,
            environment=environment_for([trial for _, trial in _different(self.experiment)]),
        )

    def winner(self) -> Cell:
        """The best cell on validation data. Once it is in the journal it stays."""
        found = known.best(self.cells, self.metric)
        if found is None:
            reasons = [f"{cell.name}: {cell.failure}" for cell in self.cells if cell.failure]
            raise TrialError("no cell of the search came through:\n  " + "\n  ".join(reasons[:5]))
        self.journal.write("winner", cell=found.number, budget=known.budget_of(self.search))
        return found

    def more(self, free: int) -> list[Job]:
        """The next trials for so many free workers."""
        for key, job in list(self.under_way.items()):
            if job.is_over:
                del self.under_way[key]
                self._over(job, *key)
        made: list[Job] = []
        while len(made) < free and (following := self._next()) is not None:
            made.append(self._job(*following))
            self.under_way[following] = made[-1]
        return made

    def seconds(self) -> float:
        """What the search has taken so far, breaks left out."""
        return self.before + self.now() - self.began

    def _next(self) -> tuple[int, int] | None:
        """The cell and the seed that come next."""
        if self._is_late():
            return None
        for cell in self.cells:
            self._judge(cell)
            if cell.status == "open" and (seed := self._next_seed(cell)) is not None:
                return cell.number, seed
        opened = self._open_cell()
        return (opened.number, FIRST_SEED) if opened is not None else None

    def _seeds_under_way(self, cell: Cell) -> list[int]:
        return [seed for number, seed in self.under_way if number == cell.number]

    def _next_seed(self, cell: Cell) -> int | None:
        """The seed that the cell gets now. Where cells are given up, one seed has to be over before the next begins."""
        under_way = self._seeds_under_way(cell)
        for seed in range(FIRST_SEED, FIRST_SEED + cell.seeds):
            if seed in cell.figures or seed in under_way:
                continue
            return None if under_way and self.search.prune else seed
        return None

    def _open_cell(self) -> Cell | None:
        """A new cell, if there is one, the budget allows it, and what it rests on is known."""
        while not self.exhausted and self._has_room() and self._is_known(len(self.cells)):
            number = len(self.cells)
            if number >= GIVE_UP and all(cell.failure for cell in self.cells[-GIVE_UP:]):
                break
            before = [cell.settings for cell in self.cells]
            settings = samplers.propose(self.search, number, before, self._scored(number))
            if settings is None:
                self.exhausted = True
                return None
            cell = Cell(number, settings, self.search.seeds)
            self.journal.write("cell", cell=number, settings=settings)
            self.cells.append(cell)
            if self._is_possible(cell):
                return cell
        return None

    def _is_possible(self, cell: Cell) -> bool:
        """Numbers from inside a range may go together badly though the range's ends do not."""
        try:
            _trial(self.experiment, cell.name, cell.settings, FIRST_SEED)
        except ValueError as error:
            cell.failure = f"impossible: {error}"
            _fail(self.place / cell.name / f"seed-{FIRST_SEED}", cell.failure, "Impossible")
        return cell.failure is None

    def _has_room(self) -> bool:
        """Are there trials left for all seeds of one more cell?"""
        if self.search.budget is None or self.search.budget.trials is None:
            return True
        return sum(cell.cost for cell in self.cells) + self.search.seeds <= self.search.budget.trials

    def _is_known(self, number: int) -> bool:
        if self.search.method != "tpe" and self.search.prune is None:
            return True
        return all(cell.status != "open" for cell in self._earlier(number))

    def _earlier(self, number: int) -> list[Cell]:
        return self.cells[: max(0, number - LAG + 1)]

    def _scored(self, number: int) -> list[tuple[Settings, float]]:
        """What a proposal may know. A cell that failed counts as the worst of the others."""
        earlier = self._earlier(number)
        means = {cell.number: known.mean(cell.scores(self.metric)) for cell in earlier if cell.figures}
        if not means:
            return []
        worst = min(means.values())
        return [(cell.settings, means.get(cell.number, worst)) for cell in earlier]

    def _judge(self, cell: Cell) -> None:
        """Give the cell up if it is certainly behind."""
        if self.search.prune is None or cell.status != "open" or self._seeds_under_way(cell):
            return
        others = [one.scores(self.metric) for one in self._earlier(cell.number) if one.status == "finished"]
        cell.pruned = pruning.judge(cell.scores(self.metric), others, self.search.prune, cell.seeds)
        if cell.pruned is not None:
            self.journal.write("pruned", cell=cell.number, why=known.why(cell.pruned))

    def _is_late(self) -> bool:
        """Is the time used up? One cell is always brought to its end, so that there is a winner."""
        minutes = self.search.budget.minutes if self.search.budget else None
        if minutes is None or self.seconds() < 60 * minutes:
            return False
        return any(cell.status == "finished" for cell in self.cells)

    def _job(self, number: int, seed: int) -> Job:
        cell = self.cells[number]
        trial = _trial(self.experiment, cell.name, cell.settings, seed)
        return Job(trial, self.place / cell.name / f"seed-{seed}")

    def _over(self, job: Job, number: int, seed: int) -> None:
        """Write down how a trial ended. One whose worker was lost is tried once more."""
        failure = job.folder / "failure.json"
        if job.state == "lost" and (number, seed) in self.lost:
            _fail(job.folder, f"{LOST_TWICE} ({job.message})", "Lost")
        elif job.state == "lost":
            self.lost.add((number, seed))
        if job.state == "failed" and (not failure.is_file() or read_json(failure)["kind"] in known.TRY_AGAIN):
            raise (DiskFullError if job.wrong_request else TrialError)(job.message)  # no fault of the cell's
        known.note(self.cells[number], seed, Run(job.folder), self.metric)
        self.journal.write("trial", cell=number, seed=seed, seconds=round(self.seconds(), 1))


def _fail(folder: Path, message: str, kind: str) -> None:
    """Say in the run's folder that it has no result, as a worker does."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "failure.json", {"message": message, "kind": kind})


@dataclass(frozen=True)
class SearchPlan:
    """What a search would do, known before it is started."""

    cells: int | None
    trials: int | None
    seconds: float
    """for one trial on one worker, a mean over a few cells"""
    minutes: float | None
    """what the budget allows"""
    of: int | None
    """cells that a grid has, if it has more than its budget allows"""

    def as_row(self) -> dict[str, float | None]:
        return dataclasses.asdict(self)


def plan(experiment: config_experiment.Experiment) -> SearchPlan:
    """How many cells and trials, and how long one takes: from a few real steps of a few cells."""
    assert experiment.search is not None
    check_searchable(experiment)
    search = experiment.search
    settings = [samplers.propose(search, number, [], []) for number in range(TIMED)]
    seconds = []
    for one in settings:
        if one is not None:
            with tempfile.TemporaryDirectory() as scratch:
                seconds.append(estimate(_trial(experiment, "cell", one, FIRST_SEED), Path(scratch), steps=1))
    cells, trials = search.planned()
    whole = search.cells() if search.method == "grid" else None
    minutes = search.budget.minutes if search.budget else None
    return SearchPlan(cells, trials, sum(seconds) / len(seconds), minutes, whole if whole != cells else None)
