"""Flip or remove bytes in every kind of file: the reader must name the damaged file and must not use it."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headtohead.config.tables.search import WINNER_VARIANT
from headtohead.data.token_cache import TokenizedCorpus, load_tokenized_corpus
from headtohead.distillation import teacher_cache
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.findings import compute
from headtohead.json_files import read_json
from headtohead.report import write
from headtohead.runner.verification.json_differences import find_json_differences
from headtohead.runner.verification.verify import verify_experiment
from headtohead.saved_models import model_io

from .injection import RUN_NAME
from .outcome import FaultOutcome, FaultSettings
from .reference_run import SHORT_TRIAL_LENGTH, get_reference_run
from .run_monitor import collect_results, compare_with_reference
from .single_trials import build_trial, copy_folder, interrupt_trial_at, run_and_get_error, use_workspace_cache
from .workspace import Workspace, get_last_line

IGNORED_FILES = ("workers.log",)
"""the stderr of workers, which no code reads"""
REFUSED = "refused by name"
NOT_USED = "not used or rebuilt"
DamageCheck = Callable[[Path, Path], str]
"""maps a damaged copy of a folder and the damaged file in it to REFUSED, NOT_USED or a description of the error"""


def flip_bit(path: Path, rng: random.Random) -> None:
    """Flip one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def truncate_file(path: Path, rng: random.Random) -> None:
    """Remove the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


DAMAGE_FUNCTIONS = {"flipped": flip_bit, "truncated": truncate_file}


def corrupt_files(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Damage every kind of file that an experiment writes."""
    faults: list[tuple[str, Callable[[FaultSettings, str], FaultOutcome]]] = [
        ("files of a finished experiment", _damage_finished_experiment),
        ("files of a finished search", partial(_damage_finished_experiment, kind="search")),
        ("files of an unfinished run", _damage_unfinished_run),
        ("journal of a search", _damage_journal),
        ("tokens in the cache", _damage_token_cache),
        ("teacher outputs in the cache", _damage_teacher_cache),
    ]
    for name, damage in faults:
        if name != "files of a finished search" or not settings.is_short:
            settings.print_progress(f"  {name}")
            yield damage(settings, name)


def _damage_each_kind(
    settings: FaultSettings,
    name: str,
    folder: Path,
    paths_by_kind: dict[str, list[Path]],
    check: DamageCheck,
    action: str,
    scratch: Path,
) -> FaultOutcome:
    """Damage one file of each kind in a copy of the folder and check how it is read. `action` names the reader."""
    rng, errors, counts = random.Random(settings.seed), [], Counter[str]()
    for index, (kind, paths) in enumerate(sorted(paths_by_kind.items())):
        damages = (
            list(DAMAGE_FUNCTIONS) if not settings.is_short else [list(DAMAGE_FUNCTIONS)[index % len(DAMAGE_FUNCTIONS)]]
        )
        for damage in damages:
            path = rng.choice(paths)
            copy = copy_folder(folder, scratch)
            damaged = copy / path.relative_to(folder)
            DAMAGE_FUNCTIONS[damage](damaged, rng)
            reaction = NOT_USED if _has_unchanged_json(path, damaged) else check(copy, damaged)
            counts[reaction] += 1
            if reaction not in (REFUSED, NOT_USED):
                errors.append(f"{kind}, {damage}: {reaction}")
    file_names = ", ".join(sorted({paths[0].name for paths in paths_by_kind.values()}))
    observation = f"{action}: {counts[REFUSED]} {REFUSED}, {counts[NOT_USED]} {NOT_USED} ({file_names})"
    return FaultOutcome(f"bytes flipped or truncated: {name}", observation, counts.total(), errors=tuple(errors))


def _has_unchanged_json(path: Path, damaged: Path) -> bool:
    """Return whether the damage did not change the content, as when the `e` of 1e-05 becomes an `E`."""
    if path.suffix != ".json":
        return False
    with contextlib.suppress(RunFolderError):
        return bool(read_json(path) == read_json(damaged))
    return False


def group_files_by_kind(folder: Path, skip: Sequence[str] = ()) -> dict[str, list[Path]]:
    """Return the files of a folder; those that differ only in variant, seed, step or split are of one kind."""
    paths_by_kind: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size and not path.name.startswith(".") and path.name not in skip:
            kind = re.sub(r"(\w+/)?seed-\d+|\d{3,}|split\d|[0-9a-f]{20,}", "N", str(path.relative_to(folder)))
            paths_by_kind.setdefault(kind, []).append(path)
    return paths_by_kind


# -- a finished experiment


def _damage_finished_experiment(settings: FaultSettings, name: str, kind: str = "plain") -> FaultOutcome:
    """Check that `h2h verify` names damaged files and that findings are not computed from them."""
    reference = get_reference_run(settings, kind)
    expected = compute.compute_findings(open_experiment_runs(reference.folder))

    def check_damage(copy: Path, path: Path) -> str:
        if not _is_named_by_verify(copy, path):
            return "`h2h verify` did not name it"
        try:
            findings = compute.compute_findings(open_experiment_runs(copy))
        except HeadToHeadError:
            findings = expected  # refused, so it was not used
        if differences := list(find_json_differences(findings.to_json(), expected.to_json())):
            return f"was used silently ({differences[0]})"
        return _check_model_load(path) if path.name == "model.safetensors" else REFUSED

    skip = (*IGNORED_FILES, *(("report.html",) if settings.is_short else ()))
    paths_by_kind, scratch = group_files_by_kind(reference.folder, skip), settings.scratch / "damaged"
    return _damage_each_kind(settings, name, reference.folder, paths_by_kind, check_damage, "`h2h verify`", scratch)


def _is_named_by_verify(copy: Path, path: Path) -> bool:
    """Return whether `h2h verify` names a damaged file."""
    render_report = write if path.name == "report.html" else None
    try:
        checks = verify_experiment(copy, render_report=render_report)
        messages = [f"{check.location} {check.observation}" for check in checks if not check.passed]
    except HeadToHeadError as error:
        messages = [str(error)]
    return any(str(path.relative_to(copy)) in message for message in messages)


def _check_model_load(path: Path) -> str:
    """Return how loading damaged weights ends."""
    try:
        model_io.load_saved_model(path.parent)
    except HeadToHeadError as error:
        return _check_refusal(path, str(error))
    return "was loaded silently"


def _check_refusal(path: Path, message: str) -> str:
    """Return REFUSED if an error message names the damaged file."""
    return REFUSED if path.name in message else f"was refused, but not named: {message}"


def _check_resumed_results(runs: Path, expected: dict[str, Any]) -> str:
    """Return NOT_USED if the results are those of the reference run."""
    errors = compare_with_reference(runs, expected)
    return f"was used silently ({errors[0]})" if errors else NOT_USED


# -- an unfinished run


def _damage_unfinished_run(settings: FaultSettings, name: str) -> FaultOutcome:
    """Check that an interrupted trial does not resume from damaged files."""
    reference = get_reference_run(settings)
    workspace = reference.create_workspace(settings.scratch / "unfinished")
    runs, trial = workspace.runs, build_trial(workspace)
    with use_workspace_cache(workspace):
        interrupt_trial_at(trial, runs / RUN_NAME, 3 * workspace.steps // 5)

        def check_damage(copy: Path, path: Path) -> str:
            message = run_and_get_error(trial, copy / RUN_NAME)
            expected = {RUN_NAME: reference.results[RUN_NAME]}
            return _check_refusal(path, message) if message else _check_resumed_results(copy, expected)

        scratch = settings.scratch / "unfinished-damaged"
        return _damage_each_kind(settings, name, runs, group_files_by_kind(runs), check_damage, "resumed", scratch)


# -- a search


def _damage_journal(settings: FaultSettings, name: str) -> FaultOutcome:
    """Check that a search does not continue from a damaged journal."""
    folder = settings.scratch / "journal"
    if settings.is_short:
        _write_journal(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(get_reference_run(settings, "search").folder / JOURNAL_FILE, folder)
    expected = Journal(folder).read()

    def check_damage(copy: Path, path: Path) -> str:
        try:
            events = Journal(copy).read()
        except HeadToHeadError as error:
            return _check_refusal(path, str(error))
        # The decisions of lines that are missing at the end are repeated with the same result.
        return NOT_USED if events == expected[: len(events)] else "was used silently"

    paths_by_kind = {f"journal {index}": [folder / JOURNAL_FILE] for index in range(20)}
    scratch = settings.scratch / "journal-damaged"
    outcome = _damage_each_kind(settings, name, folder, paths_by_kind, check_damage, "read", scratch)
    if settings.is_short:
        return outcome
    errors = _resume_with_truncated_journal(settings)
    resumed = "" if errors else "; 1 search resumed with half of it to the same results"
    observation, times = outcome.observation + resumed, outcome.times + 1
    return FaultOutcome(outcome.fault, observation, times, errors=(*outcome.errors, *errors))


def _write_journal(folder: Path) -> None:
    """Write the journal of a small search."""
    journal = Journal(folder)
    journal.append(schemas.SearchStartEvent(identity="identity"))
    for point in range(4):
        journal.append(schemas.PointEvent(point=point, settings={"training.optimizer.lr": 0.01 / (point + 1)}))
        journal.append(schemas.TrialEvent(point=point, seed=1000, seconds=1.5 * point))
    journal.append(schemas.WinnerEvent(point=2, budget=None))


def _resume_with_truncated_journal(settings: FaultSettings) -> list[str]:
    """Resume a search whose journal lost its end before the winner was compared; return errors."""
    reference = get_reference_run(settings, "search")
    workspace = reference.create_workspace(reference.folder.parent)  # with the same files
    runs = copy_folder(reference.folder, settings.scratch / "truncated-journal")
    path = runs / JOURNAL_FILE
    before_winner, _, _ = path.read_bytes().partition(b'{"event": "winner"')
    path.write_bytes(before_winner[: len(before_winner) // 2])
    for variant in ("baseline", WINNER_VARIANT):
        shutil.rmtree(runs / variant)
    run = workspace.run_to_end(out=runs)
    errors = compare_with_reference(runs, reference.results)
    return errors + ([f"did not resume: {get_last_line(run.output)}"] if run.exit_code else [])


# -- caches


def _damage_token_cache(settings: FaultSettings, name: str) -> FaultOutcome:
    """Check that damaged files of the token cache are rebuilt."""
    workspace = get_reference_run(settings).create_workspace(settings.scratch / "tokens")
    data = build_trial(workspace).data
    with use_workspace_cache(workspace):
        expected = load_tokenized_corpus(data, has_labels=False)

    def check_damage(copy: Path, path: Path) -> str:
        stderr = io.StringIO()
        copied_workspace = Workspace(copy.parent, workspace.kind)  # its cache is the copy
        with use_workspace_cache(copied_workspace), contextlib.redirect_stderr(stderr):
            corpus = load_tokenized_corpus(data, has_labels=False)
        if not _are_corpora_equal(corpus, expected):
            return "was used silently"
        return NOT_USED if path.name in stderr.getvalue() else "was rebuilt, but not named"

    scratch = settings.scratch / "tokens-damaged" / "cache"
    paths_by_kind = group_files_by_kind(workspace.cache)
    return _damage_each_kind(settings, name, workspace.cache, paths_by_kind, check_damage, "opened", scratch)


def _are_corpora_equal(first: TokenizedCorpus, second: TokenizedCorpus) -> bool:
    """Return whether two tokenized corpora have the same tokens."""
    is_equal = first.tokenizer.vocab_size == second.tokenizer.vocab_size
    is_equal &= first.corpus.digest == second.corpus.digest and list(first.encoded) == list(second.encoded)
    token_pairs = [(first.encoded[name].token_ids, second.encoded[name].token_ids) for name in first.encoded]
    return is_equal and all(torch.equal(a, b) for a, b in token_pairs)


def _damage_teacher_cache(settings: FaultSettings, name: str) -> FaultOutcome:
    """Check that students do not train on damaged teacher outputs."""
    length = SHORT_TRIAL_LENGTH if settings.is_short else (200, 50)
    workspace = Workspace(settings.scratch / "teacher-bytes", "distillation", *length)
    trial, run_name = build_trial(workspace, "both"), "both/seed-0"
    with use_workspace_cache(workspace):
        if message := run_and_get_error(trial, workspace.runs / run_name):
            return FaultOutcome(name, "none", errors=(f"the trial failed without a fault: {message}",))
    expected = collect_results(workspace.runs)

    def check_damage(copy: Path, path: Path) -> str:
        copied_workspace = Workspace(copy.parent, workspace.kind, workspace.steps, workspace.checkpoint_every)
        shutil.rmtree(copied_workspace.runs, ignore_errors=True)
        with use_workspace_cache(copied_workspace):
            message = run_and_get_error(trial, copied_workspace.runs / run_name)
        return _check_refusal(path, message) if message else _check_resumed_results(copied_workspace.runs, expected)

    paths_by_kind = group_files_by_kind(workspace.cache / "headtohead" / "teachers")
    if settings.is_short:  # the run of the teacher is like any other, so its weights are enough
        text_files = (teacher_cache.METADATA_FILE, teacher_cache.TEXTS_FILE)
        logits_files = (teacher_cache.LOGITS_INDEX_FILE, teacher_cache.LOGITS_FILE)
        selected = {*text_files, *logits_files, "model.safetensors"}
        paths_by_kind = {kind: paths for kind, paths in paths_by_kind.items() if Path(kind).name in selected}
    scratch = settings.scratch / "teacher-damaged" / "cache"
    return _damage_each_kind(settings, name, workspace.cache, paths_by_kind, check_damage, "student trained", scratch)
