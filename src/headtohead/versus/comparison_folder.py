"""The folder of a comparison: create it, check that it holds the same comparison, and read its runs and its journal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from headtohead.atomic_io import compute_sha256
from headtohead.config.experiment import BASELINE
from headtohead.errors import RunFolderError
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.schemas import RunEvent, read_record, write_record
from headtohead.json_files import verify_json_checksum
from headtohead.versus.config import VersusConfig
from headtohead.versus.file_schemas import COMPARISON_FILE, RUN_FILE, CommandRun, ComparisonFile
from headtohead.versus.revisions import collect_revision_diffs, resolve_revisions
from headtohead.versus.script_files import hash_script_files
from headtohead.versus.versions import collect_script_versions

REPEAT_SUFFIX = "-repeat"
RERUN_ADVICE = "delete the folder of this run and use --resume"


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of a comparison: comparison.json, journal.jsonl and VARIANT/seed-N/run.json.

    baseline/seed-N-repeat holds a second baseline run with the first seed, which shows whether results are repeatable.
    """

    path: Path
    record: ComparisonFile
    """content of comparison.json"""

    @property
    def config(self) -> VersusConfig:
        return self.record.config

    def get_run_folder(self, variant: str, seed: int) -> Path:
        return self.path / variant / f"seed-{seed}"

    @property
    def repeated_run_folder(self) -> Path:
        """The folder of the second baseline run with the first seed."""
        return self.path / BASELINE / f"seed-{self.config.first_seed}{REPEAT_SUFFIX}"

    def read_repeated_run(self) -> CommandRun | None:
        """Return the second baseline run with the first seed, or None if there is none."""
        return read_command_run(self.repeated_run_folder, BASELINE, self.config.first_seed)

    def read_runs(self) -> dict[str, dict[int, CommandRun]]:
        """Return the ended runs as {variant: {seed: run}}. Raise RunFolderError if a run.json was modified."""
        return {
            name: {
                seed: run
                for seed in self.config.list_seeds(name)
                if (run := read_command_run(self.get_run_folder(name, seed), name, seed)) is not None
            }
            for name in self.config.commands
        }

    def find_journal_mismatches(self) -> dict[str, list[str]]:
        """Return {variant: messages} for runs that were removed, replaced or added since the journal recorded them."""
        journaled_digests = read_journaled_run_digests(self.path)
        repeated_run_file = self.repeated_run_folder / RUN_FILE
        if repeated_run_file.is_file():
            journaled_digests.get((BASELINE, self.config.first_seed), set()).discard(compute_sha256(repeated_run_file))
        messages: dict[str, list[str]] = {}
        for name in self.config.commands:
            for seed in self.config.list_seeds(name):
                run_file = self.get_run_folder(name, seed) / RUN_FILE
                digests = journaled_digests.get((name, seed), set())
                if not run_file.is_file() and digests:
                    message = f"lacks a run that {JOURNAL_FILE} records; restore it, or run it again with --resume"
                elif run_file.is_file() and compute_sha256(run_file) not in digests:
                    message = f"has a run that is not the one that {JOURNAL_FILE} records; {RERUN_ADVICE}"
                else:
                    continue
                messages.setdefault(name, []).append(f"seed {seed}: {message}")
        return messages


def read_journaled_run_digests(folder: Path) -> dict[tuple[str, int], set[str]]:
    """Return {(variant, seed): digests of run.json} from the journal in a comparison's folder.

    A run that was started again has several digests.
    """
    digests: dict[tuple[str, int], set[str]] = {}
    for event in Journal(folder).read():
        if isinstance(event, RunEvent):
            digests.setdefault((event.variant, event.seed), set()).add(event.digest)
    return digests


def read_command_run(run_folder: Path, variant: str, seed: int) -> CommandRun | None:
    """Return a run of the comparison, or None if it has not ended.

    Raise RunFolderError if its run.json was modified, or belongs to a different variant or seed.
    """
    path = run_folder / RUN_FILE
    if not path.is_file():
        return None
    verify_json_checksum(path, RERUN_ADVICE)
    run = read_record(path, CommandRun)
    if (run.variant, run.seed) != (variant, seed):
        raise RunFolderError(f"{path} belongs to {run.variant}/seed-{run.seed}; {RERUN_ADVICE}")
    return run


def is_comparison_folder(folder: Path) -> bool:
    """Return whether a folder holds a comparison of commands, as opposed to an experiment."""
    return (folder / COMPARISON_FILE).is_file()


def open_comparison_folder(folder: Path) -> ComparisonFolder:
    """Read comparison.json of an existing comparison."""
    return ComparisonFolder(folder, read_record(folder / COMPARISON_FILE, ComparisonFile))


def choose_comparison_folder(folder: Path, config: VersusConfig, directory: Path) -> Path:
    """Return the first of FOLDER, FOLDER-2, FOLDER-3, ... that is free or holds the same comparison."""
    record = build_comparison_record(config, directory)
    candidates = chain([folder], (folder.with_name(f"{folder.name}-{index}") for index in count(2)))
    return next(candidate for candidate in candidates if not holds_different_comparison(candidate, record))


def holds_different_comparison(folder: Path, record: ComparisonFile) -> bool:
    """Return whether a folder holds a different comparison of which any run has a value."""
    if not is_comparison_folder(folder):
        return False
    comparison = open_comparison_folder(folder)
    return has_run_with_value(comparison) and bool(list_setting_changes(comparison.record, record))


def build_comparison_record(config: VersusConfig, directory: Path) -> ComparisonFile:
    """Return the content of comparison.json for a comparison whose commands run in `directory`."""
    revision_names = {command.revision for command in config.commands.values() if command.revision is not None}
    resolved_revisions = resolve_revisions(directory, sorted(revision_names)) if revision_names else {}
    revisions = {
        name: resolved_revisions[command.revision]
        for name, command in config.commands.items()
        if command.revision is not None
    }
    return ComparisonFile(
        config=config,
        revisions=revisions,
        diffs=collect_revision_diffs(directory, revisions),
        files={
            name: hash_script_files(command.command_words, directory)
            for name, command in config.commands.items()
            if command.revision is None
        },
        versions=collect_script_versions({command.command_words[0] for command in config.commands.values()}, directory),
        directory=str(directory.resolve()),
    )


def create_comparison_folder(folder: Path, config: VersusConfig, directory: Path, *, resume: bool) -> ComparisonFolder:
    """Write comparison.json, or check that an existing folder holds the same comparison.

    Only the number of seeds may differ, so that seeds can be added later. If no run in the folder has a value, the new
    comparison replaces that of the folder.
    """
    record = build_comparison_record(config, directory)
    path = folder / COMPARISON_FILE
    if path.exists():
        previous = open_comparison_folder(folder)
        changes = list_setting_changes(previous.record, record)
        if has_run_with_value(previous):
            if not resume:
                raise RunFolderError(f"{folder} exists; continue it with --resume, or choose another folder with --out")
            if changes:
                raise RunFolderError(
                    f"{folder} holds a different comparison ({'; '.join(changes)}); choose another folder with --out"
                )
            record = record.model_copy(update={"files": previous.record.files})
        elif changes:
            _discard_failed_run_records(folder)
    write_record(path, record)
    return ComparisonFolder(folder, record)


def _discard_failed_run_records(folder: Path) -> None:
    """Remove the records of an earlier comparison's failed runs, which the report would show as those of this one."""
    for path in (*folder.glob(f"*/seed-*/{RUN_FILE}"), folder / JOURNAL_FILE):
        path.unlink(missing_ok=True)


def has_run_with_value(comparison: ComparisonFolder) -> bool:
    """Return whether any run of a comparison has a value, which may be infinite."""
    return any(run.has_value for runs_by_seed in comparison.read_runs().values() for run in runs_by_seed.values())


def list_setting_changes(previous: ComparisonFile, current: ComparisonFile) -> list[str]:
    """Return what differs between the comparison in a folder and the requested one: settings, revisions, scripts.

    Added seeds and settings that cannot change a value, such as the question, are ignored.
    """
    ignored_keys = {"seeds", "question", "timeout", "retries", "check_determinism"}
    previous_settings = previous.config.model_dump(mode="json", exclude=ignored_keys)
    current_settings = current.config.model_dump(mode="json", exclude=ignored_keys)
    changes = [
        f"{key} is {previous_settings[key]!r}, not {value!r}"
        for key, value in current_settings.items()
        if previous_settings[key] != value
    ]
    changes += [
        f"revision {record.name!r} of {name} was {previous.revisions[name].commit[:12]}, not {record.commit[:12]}"
        for name, record in current.revisions.items()
        if name in previous.revisions and previous.revisions[name] != record
    ]
    if current.config.seeds < previous.config.seeds:
        changes.append(f"seeds is {previous.config.seeds}, not {current.config.seeds}; seeds can only be added")
    changed_files = {
        file: None
        for name, files in current.files.items()
        for file in previous.list_named_scripts(name)
        if files.get(file) != previous.files[name][file]
    }
    return changes + [f"{file} has changed" for file in changed_files]
