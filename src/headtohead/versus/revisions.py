"""Git revisions as variants: each is checked out into its own worktree inside the comparison's folder."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from headtohead.config.experiment import BASELINE
from headtohead.errors import RequestError
from headtohead.versus.records import RevisionRecord

WORKTREES_FOLDER = "worktrees"
WORKING_TREE = "."
MAX_LISTED_FILES = 5
MAX_DIFF_CHARACTERS = 20_000


def run_git(directory: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Run git and return its output. If it fails, raise RequestError with git's message."""
    try:
        result = subprocess.run(["git", *arguments], cwd=directory, input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise RequestError("git is not installed; revisions need it") from None
    if result.returncode:
        raise RequestError(f"git {arguments[0]}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def resolve_revisions(directory: Path, names: Iterable[str]) -> dict[str, RevisionRecord]:
    """Return the commit of each revision. Raise RequestError for uncommitted changes, unless they are compared."""
    names = list(names)
    changed = run_git(directory, "status", "--porcelain", "--untracked-files=no").decode().splitlines()
    if changed and WORKING_TREE not in names:
        listed = ", ".join(line[3:] for line in changed[:MAX_LISTED_FILES])
        more = f" and {len(changed) - MAX_LISTED_FILES} more" if len(changed) > MAX_LISTED_FILES else ""
        raise RequestError(
            f"uncommitted changes in {listed}{more}; commit or stash them, or compare them as the revision "
            f"{WORKING_TREE!r} (they are recorded as a patch)"
        )
    records = {}
    for name in names:
        target = "HEAD" if name == WORKING_TREE else name
        try:
            commit = run_git(directory, "rev-parse", "--verify", "--end-of-options", f"{target}^{{commit}}")
        except RequestError:
            known = run_git(directory, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags").decode()
            listed = ", ".join(known.split()[:20])
            raise RequestError(f"unknown revision {name!r}; branches and tags: {listed or 'none'}") from None
        patch = read_patch(directory) if name == WORKING_TREE else b""
        digest = hashlib.sha256(patch).hexdigest() if patch else ""
        records[name] = RevisionRecord(name=name, commit=commit.decode().strip(), patch=digest)
    return records


def read_patch(directory: Path) -> bytes:
    """Return the uncommitted changes to tracked files as a patch."""
    return run_git(directory, "diff", "--binary", "HEAD")


def check_out(directory: Path, folder: Path, record: RevisionRecord) -> Path:
    """Return the folder in which a revision's commands run. It is created once and checked on every start.

    `directory` is the user's working directory; the result is the same directory inside the worktree.
    """
    top = Path(run_git(directory, "rev-parse", "--show-toplevel").decode().strip())
    name = f"{record.commit[:12]}{'-' + record.patch[:8] if record.patch else ''}"
    worktree = (folder / WORKTREES_FOLDER / name).resolve()
    if not worktree.exists():
        worktree.parent.mkdir(parents=True, exist_ok=True)
        run_git(directory, "worktree", "prune")
        run_git(directory, "worktree", "add", "--detach", str(worktree), record.commit)
        if record.patch:
            run_git(worktree, "apply", "--binary", "--index", data=read_patch(directory))
    patch = read_patch(worktree)
    digest = hashlib.sha256(patch).hexdigest() if patch else ""
    commit = run_git(worktree, "rev-parse", "HEAD").decode().strip()
    if (commit, digest) != (record.commit, record.patch):
        raise RequestError(f"{worktree} was changed since it was created; remove it with `git worktree remove`")
    return worktree / directory.resolve().relative_to(top)


def collect_diffs(directory: Path, revisions: Mapping[str, RevisionRecord]) -> dict[str, str]:
    """Return the diff between the baseline's revision and that of each variant."""
    if BASELINE not in revisions:
        return {}
    baseline, diffs = revisions[BASELINE], {}
    for name, record in revisions.items():
        if record != baseline:
            diff = compute_diff(directory, baseline, record)
            omitted = len(diff) - MAX_DIFF_CHARACTERS
            diffs[name] = diff if omitted <= 0 else f"{diff[:MAX_DIFF_CHARACTERS]}\n... {omitted:,} more characters"
    return diffs


def compute_diff(directory: Path, baseline: RevisionRecord, variant: RevisionRecord) -> str:
    """Return the diff between two revisions, including uncommitted changes."""
    target = [] if variant.patch else [variant.commit]
    diff = run_git(directory, "diff", baseline.commit, *target) if not baseline.patch else b""
    return diff.decode(errors="replace")
