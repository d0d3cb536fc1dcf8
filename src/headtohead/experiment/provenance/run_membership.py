"""Check that the runs in an experiment's folder belong to that experiment.

A run belongs to its experiment if it was trained with the experiment's current settings, corpus and code, if the
experiment requests its seed, if its weights are not those of a different seed, and if the journal records its result.
`--resume` refuses to continue if there are foreign runs, and verdicts that would use them are withheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headtohead.atomic_io import compute_sha256
from headtohead.config.experiment import BASELINE
from headtohead.config.tables.search import SEARCH_FOLDER
from headtohead.config.trial_settings import build_trial
from headtohead.experiment.journal import JOURNAL_FILE, Journal, compute_settings_digest
from headtohead.experiment.provenance.run_identity import DATA_FILE_PREFIX, Dependencies, describe_setting_differences
from headtohead.experiment.run_folder import WEIGHT_FILES, ExperimentRuns, Run
from headtohead.experiment.schemas import CorpusEvent, ExperimentFile, JournalEvent, RunEvent, SettingsEvent
from headtohead.json_files import read_json_object

TRAINED_FILES = (*WEIGHT_FILES, "head.safetensors")
"""files with trained weights; of a frozen encoder, only the head is trained"""
MAX_DIFFERENCES = 3
"""number of different settings that a message names"""
TRAIN_AGAIN_REMEDY = "remove {folders} and train again with --resume"


@dataclass(frozen=True)
class RunIssue:
    """The reason why some of a variant's runs do not belong to the experiment."""

    variant: str
    seeds: tuple[int, ...]
    """the affected runs; empty for all"""
    kind: Literal["foreign", "surplus", "copied", "unrecorded", "missing", "experiment"]
    problem: str
    """predicate about the variant, such as "was trained on a different corpus" """
    remedy: str

    @property
    def reason(self) -> str:
        """The issue as a predicate about the variant."""
        plural = "s" if len(self.seeds) > 1 else ""
        seeds = f" (seed{plural} {', '.join(map(str, self.seeds))})" if self.seeds else ""
        folders = " and ".join(f"{self.variant}/seed-{seed}" for seed in self.seeds)
        return f"{self.problem}{seeds}; {self.remedy.format(folders=folders)}"


def find_run_issues(runs: ExperimentRuns) -> list[RunIssue]:
    """Return every run that does not belong to the experiment, and every run that is missing."""
    events = Journal(runs.folder).read()
    return _merge_seeds(
        [
            *_find_changed_experiment_files(runs, events),
            *find_foreign_runs(runs, runs.metadata),
            *_find_unrecorded_runs(runs, events),
        ]
    )


def find_resume_issues(runs: ExperimentRuns, metadata: ExperimentFile) -> list[RunIssue]:
    """Return the runs that do not belong to the experiment in `metadata`. Missing runs will be trained."""
    journal_issues = _find_unrecorded_runs(runs, Journal(runs.folder).read())
    return _merge_seeds(
        [
            *find_foreign_runs(runs, metadata),
            *_find_runs_of_edited_files(runs, metadata),
            *_find_foreign_search_runs(runs, metadata),
            *(issue for issue in journal_issues if issue.kind != "missing"),
        ]
    )


def find_foreign_runs(runs: ExperimentRuns, metadata: ExperimentFile) -> list[RunIssue]:
    """Return the runs with different settings, corpora, code or seeds, and those that are copies."""
    issues: list[RunIssue] = []
    written_paths = _collect_written_paths(runs)
    known_digests: dict[str, str] = {}
    for variant in metadata.experiment.names:
        first_seed_by_weights: dict[str, int] = {}
        for seed in runs.seeds(variant):
            run = runs.run(variant, seed)
            if not (run.folder / "trial.json").is_file() and not run.is_finished:
                continue
            if problem := _describe_foreign_trial(run, metadata, variant, seed, written_paths):
                issues.append(RunIssue(variant, (seed,), "foreign", problem, TRAIN_AGAIN_REMEDY))
            elif seed >= metadata.experiment.max_seeds:
                problem = f"has runs that the experiment does not ask for (seeds = {metadata.experiment.seeds})"
                remedy = "raise seeds to include them, or remove {folders}"
                issues.append(RunIssue(variant, (seed,), "surplus", problem, remedy))
            elif (
                run.is_finished and (first := first_seed_by_weights.setdefault(_get_weights_digest(run), seed)) != seed
            ):
                problem = f"has the same trained weights as with seed {first}, byte for byte: copied, or not seeded"
                issues.append(RunIssue(variant, (seed,), "copied", problem, TRAIN_AGAIN_REMEDY))
            elif run.is_finished and (changed := _list_changed_files(run, known_digests)):
                problem = f"read {', '.join(changed)} in another version than other runs of the experiment"
                issues.append(RunIssue(variant, (seed,), "foreign", problem, TRAIN_AGAIN_REMEDY))
            if run.is_finished:
                known_digests = {**run.result.opened_files, **known_digests}
                known_digests = {path: digest for path, digest in known_digests.items() if path not in written_paths}
    return issues


def _list_changed_files(run: Run, digests: Mapping[str, str]) -> list[str]:
    """Return the files that the code of a run read and whose digests differ from the given ones, by path."""
    return [path for path, digest in run.result.opened_files.items() if digests.get(path, digest) != digest]


def _find_runs_of_edited_files(runs: ExperimentRuns, metadata: ExperimentFile) -> Iterator[RunIssue]:
    """Yield the runs whose code read a file that was edited since. New runs would read a different version."""
    written_paths = _collect_written_paths(runs)
    for variant in metadata.experiment.names:
        for seed, run in runs.finished(variant).items():
            files = [Path(path) for path in run.result.opened_files]
            digests = {str(file): compute_sha256(file) for file in files if file.is_file()}
            named_files = [name for name in run.trial_file.dependencies if name.startswith(DATA_FILE_PREFIX)]
            for path in list(digests):
                if path in written_paths or any(_is_one_of(name, [path]) for name in named_files):
                    del digests[path]  # files that the code names are compared by name
            if changed := _list_changed_files(run, digests):
                problem = f"was trained with different files or versions: {', '.join(changed)} was changed"
                yield RunIssue(variant, (seed,), "foreign", problem, TRAIN_AGAIN_REMEDY)


def _find_foreign_search_runs(runs: ExperimentRuns, metadata: ExperimentFile) -> Iterator[RunIssue]:
    """Yield the search runs that were trained with different code or weights. The journal checks their settings."""
    for path in sorted((runs.folder / SEARCH_FOLDER).glob("point-*/seed-*/trial.json")):
        trial_file = Run(path.parent).trial_file
        # A search may select different files than the baseline.
        expected_dependencies = {**trial_file.dependencies, **metadata.dependencies.get(BASELINE, {})}
        expected_dependencies = {name: expected_dependencies[name] for name in trial_file.dependencies}
        if problem := _describe_changed_dependencies(trial_file.dependencies, expected_dependencies):
            name = str(path.parent.parent.relative_to(runs.folder))
            yield RunIssue(name, (trial_file.trial.seed,), "foreign", problem, TRAIN_AGAIN_REMEDY)


def _collect_written_paths(runs: ExperimentRuns) -> list[str]:
    """Return the files that user code wrote in any run, such as logs and caches. Their content is no input."""
    return [
        path
        for variant in runs.experiment.names
        for run in runs.finished(variant).values()
        for path in run.result.written_files
    ]


def _describe_foreign_trial(
    run: Run, metadata: ExperimentFile, variant: str, seed: int, written_paths: Sequence[str]
) -> str:
    """Return how a run's settings, corpus or files differ from those of the experiment, or an empty string."""
    recorded_trial, expected_trial = run.trial_file.trial, build_trial(metadata.experiment, variant, seed)
    expected_settings = {"variant": variant, "seed": seed, **expected_trial.dump_variant_settings()}
    recorded_settings = {
        "variant": recorded_trial.variant,
        "seed": recorded_trial.seed,
        **recorded_trial.dump_variant_settings(),
    }
    if differences := describe_setting_differences(recorded_settings, expected_settings):
        return f"was trained with different settings: {'; '.join(differences[:MAX_DIFFERENCES])}"
    corpus_digest = run.trial_file.corpus_digest
    if corpus_digest != metadata.corpus_digests.get(variant, corpus_digest):
        return "was trained on a different corpus than the experiment: the data was changed"
    expected = metadata.dependencies.get(variant, {})
    return _describe_changed_dependencies(run.trial_file.dependencies, expected, written_paths)


def _describe_changed_dependencies(
    recorded: Dependencies, expected: Dependencies, written_paths: Sequence[str] = ()
) -> str:
    """Return which files or versions differ between a run and its experiment, as a predicate about the variant.

    Return an empty string if there are no differences, so that the run belongs to the experiment.
    """
    changed_names = [
        name
        for name in dict.fromkeys([*expected, *recorded])
        if expected.get(name) != recorded.get(name)
        and not (
            name.startswith(DATA_FILE_PREFIX)
            # Workers of a cluster may have data files elsewhere.
            and (name not in expected or name not in recorded or _is_one_of(name, written_paths))
        )
    ]
    return (
        f"was trained with different files or versions: {', '.join(changed_names)} was changed" if changed_names else ""
    )


def _is_one_of(dependency: str, paths: Sequence[str]) -> bool:
    """Return whether the data file of a dependency, as the code names it, is one of the paths."""
    name = Path(dependency.removeprefix(DATA_FILE_PREFIX)).parts
    return any(Path(path).parts[-len(name) :] == name for path in paths)


def _get_weights_digest(run: Run) -> str:
    """Return a digest that no two runs of an experiment share, unless one is a copy.

    It is that of the trained weights or, if none were saved, of the metrics, which include durations.
    """
    checksums = run.result.sha256
    is_trained = run.start.steps > 0 and run.start.parameters > 0
    names = [name for name in TRAINED_FILES if name in checksums] if is_trained else ["metrics.jsonl"]
    return " ".join(checksums.get(name, str(run.folder)) for name in names or ["metrics.jsonl"])


def _find_unrecorded_runs(runs: ExperimentRuns, events: list[JournalEvent]) -> Iterator[RunIssue]:
    """Yield the runs that contradict the journal: never started, with different results, or removed after finishing."""
    last_events = {(event.variant, event.seed): event for event in events if isinstance(event, RunEvent)}
    for variant in runs.experiment.names:
        finished_runs = runs.finished(variant)
        for seed, run in finished_runs.items():
            event = last_events.get((variant, seed))
            if event is None:
                problem = f"has a run that {JOURNAL_FILE} does not record"
                yield RunIssue(variant, (seed,), "unrecorded", problem, TRAIN_AGAIN_REMEDY)
            elif event.status == "finished" and event.digest != compute_sha256(run.folder / "result.json"):
                problem = f"has a run whose result is not the one that {JOURNAL_FILE} records"
                yield RunIssue(variant, (seed,), "unrecorded", problem, TRAIN_AGAIN_REMEDY)
        for (name, seed), event in last_events.items():
            if name == variant and event.status == "finished" and seed not in finished_runs:
                problem = f"lacks a run that {JOURNAL_FILE} records as finished"
                yield RunIssue(variant, (seed,), "missing", problem, "restore it, or train it again with --resume")


def _find_changed_experiment_files(runs: ExperimentRuns, events: list[JournalEvent]) -> Iterator[RunIssue]:
    """Yield an issue for experiment.json and corpus.json if they differ from those that the journal records."""
    settings_digests = [event.digest for event in events if isinstance(event, SettingsEvent)]
    corpus_digests = [event.digest for event in events if isinstance(event, CorpusEvent)]
    experiment_json = read_json_object(runs.folder / "experiment.json")
    problems = []
    if settings_digests[-1:] != [compute_settings_digest(experiment_json)]:
        problems.append(f"belongs to an experiment whose experiment.json is not the one that {JOURNAL_FILE} records")
    if corpus_digests[-1:] != [compute_sha256(runs.folder / "corpus.json")]:
        problems.append(f"is judged with a corpus.json that is not the one that {JOURNAL_FILE} records")
    remedy = "run the experiment again with --resume, which rewrites it"
    if not events:
        problems, remedy = [f"belongs to an experiment without {JOURNAL_FILE}"], "restore it, or train again"
    for problem in problems:
        for variant in runs.experiment.names:
            yield RunIssue(variant, (), "experiment", problem, remedy)


def _merge_seeds(issues: list[RunIssue]) -> list[RunIssue]:
    """Return one issue for all runs of a variant that do not belong to the experiment for the same reason."""
    merged_issues: dict[tuple[str, str], RunIssue] = {}
    for issue in issues:
        key = issue.variant, issue.problem
        seeds = merged_issues[key].seeds if key in merged_issues else ()
        merged_issues[key] = RunIssue(issue.variant, (*seeds, *issue.seeds), issue.kind, issue.problem, issue.remedy)
    return list(merged_issues.values())
