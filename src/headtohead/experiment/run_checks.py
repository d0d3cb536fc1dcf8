"""Check that the runs in an experiment's folder belong to that experiment.

A run belongs to its experiment if it was trained with the experiment's current settings, corpus and code, if the
experiment requests its seed, if no other seed has identical files, and if the journal records its result. `--resume`
refuses to continue if there are any foreign runs, and verdicts that would use them are withheld.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headtohead.atomic_io import compute_sha256, read_json_object
from headtohead.config.experiment import BASELINE
from headtohead.config.loading import build_trial
from headtohead.config.search import SEARCH_FOLDER
from headtohead.experiment.journal import JOURNAL_FILE, Journal, compute_settings_digest
from headtohead.experiment.run_folder import WEIGHT_FILES, ExperimentRuns, Run
from headtohead.experiment.run_identity import Dependencies, describe_differences
from headtohead.experiment.schemas import CorpusEvent, ExperimentFile, JournalEvent, RunEvent, SettingsEvent

TRAINED_FILES = (*WEIGHT_FILES, "head.safetensors")
"""files with trained weights; of a frozen encoder, only the head is trained"""
MAX_DIFFERENCES = 3
TRAIN_AGAIN = "remove {folders} and train again with --resume"


@dataclass(frozen=True)
class RunIssue:
    """The reason why some of a variant's runs do not belong to the experiment."""

    variant: str
    seeds: tuple[int, ...]
    """the affected runs; empty for all"""
    kind: Literal["foreign", "surplus", "copied", "unrecorded", "missing", "experiment"]
    problem: str
    """predicate about the variant, such as "was trained on another corpus" """
    remedy: str

    @property
    def reason(self) -> str:
        """The issue as a predicate about the variant."""
        plural = "s" if len(self.seeds) > 1 else ""
        seeds = f" (seed{plural} {', '.join(map(str, self.seeds))})" if self.seeds else ""
        folders = " and ".join(f"{self.variant}/seed-{seed}" for seed in self.seeds)
        return f"{self.problem}{seeds}; {self.remedy.format(folders=folders)}"


def find_issues(runs: ExperimentRuns) -> list[RunIssue]:
    """Return every run that does not belong to the experiment, and every run that is missing."""
    events = Journal(runs.folder).read()
    return _merge_seeds(
        [*_find_changed_files(runs, events), *find_foreign_runs(runs, runs.metadata), *_find_unrecorded(runs, events)]
    )


def find_resume_issues(runs: ExperimentRuns, metadata: ExperimentFile) -> list[RunIssue]:
    """Return the runs that do not belong to the experiment in `metadata`. Missing runs will be trained."""
    unrecorded = _find_unrecorded(runs, Journal(runs.folder).read())
    return _merge_seeds(
        [
            *find_foreign_runs(runs, metadata),
            *_find_foreign_search_runs(runs, metadata),
            *(issue for issue in unrecorded if issue.kind != "missing"),
        ]
    )


def find_foreign_runs(runs: ExperimentRuns, metadata: ExperimentFile) -> list[RunIssue]:
    """Return the runs with different settings, corpora, code or seeds, and those that are copies."""
    issues: list[RunIssue] = []
    for variant in metadata.experiment.names:
        weights: dict[str, int] = {}
        for seed in runs.seeds(variant):
            run = runs.run(variant, seed)
            if not (run.folder / "trial.json").is_file() and not run.is_finished:
                continue
            if problem := _compare_trial(run, metadata, variant, seed):
                issues.append(RunIssue(variant, (seed,), "foreign", problem, TRAIN_AGAIN))
            elif seed >= metadata.experiment.max_seeds:
                problem = f"has runs that the experiment does not ask for (seeds = {metadata.experiment.seeds})"
                remedy = "raise seeds to include them, or remove {folders}"
                issues.append(RunIssue(variant, (seed,), "surplus", problem, remedy))
            elif run.is_finished and (first := weights.setdefault(_hash_content(run), seed)) != seed:
                problem = f"has the same trained weights as with seed {first}, byte for byte: copied, or not seeded"
                issues.append(RunIssue(variant, (seed,), "copied", problem, TRAIN_AGAIN))
    return issues


def _find_foreign_search_runs(runs: ExperimentRuns, metadata: ExperimentFile) -> Iterator[RunIssue]:
    """Yield the search runs that were trained with different code or weights. The journal checks their settings."""
    for path in sorted((runs.folder / SEARCH_FOLDER).glob("point-*/seed-*/trial.json")):
        record = Run(path.parent).trial_file
        # A search may select different files than the baseline.
        expected = {**record.dependencies, **metadata.dependencies.get(BASELINE, {})}
        expected = {name: expected[name] for name in record.dependencies}
        if problem := _describe_changed_dependencies(record.dependencies, expected):
            name = str(path.parent.parent.relative_to(runs.folder))
            yield RunIssue(name, (record.trial.seed,), "foreign", problem, TRAIN_AGAIN)


def _compare_trial(run: Run, metadata: ExperimentFile, variant: str, seed: int) -> str:
    """Return how a run's settings differ from the experiment's, or an empty string if they agree."""
    record, expected = run.trial_file, build_trial(metadata.experiment, variant, seed)
    named = {"variant": variant, "seed": seed, **expected.settings()}
    recorded = {"variant": record.trial.variant, "seed": record.trial.seed, **record.trial.settings()}
    if differences := describe_differences(recorded, named):
        return f"was trained with other settings: {'; '.join(differences[:MAX_DIFFERENCES])}"
    if record.corpus_digest != metadata.corpus_digests.get(variant, record.corpus_digest):
        return "was trained on another corpus than the experiment's: the data was changed"
    return _describe_changed_dependencies(record.dependencies, metadata.dependencies.get(variant, {}))


def _describe_changed_dependencies(recorded: Dependencies, expected: Dependencies) -> str:
    """Return which of a run's code files or weights have changed, or an empty string if none have."""
    changed = [name for name in dict.fromkeys([*expected, *recorded]) if expected.get(name) != recorded.get(name)]
    return f"was trained with other code or weights: {', '.join(changed)} was changed" if changed else ""


def _hash_content(run: Run) -> str:
    """Return a digest of the trained weights or, if none were saved, of the metrics, which include durations."""
    checksums = run.result.sha256
    is_trained = run.start.steps > 0 and run.start.parameters > 0
    names = [name for name in TRAINED_FILES if name in checksums] if is_trained else ["metrics.jsonl"]
    return " ".join(checksums.get(name, str(run.folder)) for name in names or ["metrics.jsonl"])


def _find_unrecorded(runs: ExperimentRuns, events: list[JournalEvent]) -> Iterator[RunIssue]:
    """Yield the runs that contradict the journal: never started, with different results, or removed after finishing."""
    last_events = {(event.variant, event.seed): event for event in events if isinstance(event, RunEvent)}
    for variant in runs.experiment.names:
        finished = runs.finished(variant)
        for seed, run in finished.items():
            event = last_events.get((variant, seed))
            if event is None:
                problem = f"has a run that {JOURNAL_FILE} does not record"
                yield RunIssue(variant, (seed,), "unrecorded", problem, TRAIN_AGAIN)
            elif event.status == "finished" and event.digest != compute_sha256(run.folder / "result.json"):
                problem = f"has a run whose result is not the one that {JOURNAL_FILE} records"
                yield RunIssue(variant, (seed,), "unrecorded", problem, TRAIN_AGAIN)
        for (name, seed), event in last_events.items():
            if name == variant and event.status == "finished" and seed not in finished:
                problem = f"misses a run that {JOURNAL_FILE} records as finished"
                yield RunIssue(variant, (seed,), "missing", problem, "restore it, or train it again with --resume")


def _find_changed_files(runs: ExperimentRuns, events: list[JournalEvent]) -> Iterator[RunIssue]:
    """Yield the experiment files that differ from those recorded in the journal."""
    settings = [event.digest for event in events if isinstance(event, SettingsEvent)]
    corpora = [event.digest for event in events if isinstance(event, CorpusEvent)]
    raw = read_json_object(runs.folder / "experiment.json")
    problems = []
    if settings[-1:] != [compute_settings_digest(raw)]:
        problems.append(f"belongs to an experiment whose experiment.json is not the one that {JOURNAL_FILE} records")
    if corpora[-1:] != [compute_sha256(runs.folder / "corpus.json")]:
        problems.append(f"is judged with a corpus.json that is not the one that {JOURNAL_FILE} records")
    remedy = "run the experiment again with --resume, which rewrites it"
    if not events:
        problems, remedy = [f"belongs to an experiment without {JOURNAL_FILE}"], "restore it, or train again"
    for problem in problems:
        for variant in runs.experiment.names:
            yield RunIssue(variant, (), "experiment", problem, remedy)


def _merge_seeds(issues: list[RunIssue]) -> list[RunIssue]:
    """Return one issue for all seeds of a variant with the same problem."""
    merged: dict[tuple[str, str], RunIssue] = {}
    for issue in issues:
        key = issue.variant, issue.problem
        seeds = merged[key].seeds if key in merged else ()
        merged[key] = RunIssue(issue.variant, (*seeds, *issue.seeds), issue.kind, issue.problem, issue.remedy)
    return list(merged.values())
