"""Git revisions as variants: each is checked out into its own worktree inside the comparison's folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headtohead.config.experiment import BASELINE
from headtohead.errors import RequestError
from headtohead.versus.file_schemas import RevisionRecord

WORKTREES_FOLDER = "worktrees"
WORKING_TREE = "."
MAX_LISTED_FILES = 5
MAX_DIFF_CHARACTERS = 20_000


def run_git(directory: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run git to read or check out a revision; return its output. If it fails, raise RequestError with its message."""
    try:
        result = subprocess.run(["git", *arguments], cwd=directory, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise RequestError("git is not installed; revisions need it") from None
    if result.returncode:
        raise RequestError(f"git {arguments[0]}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def resolve_revisions(directory: Path, names: Iterable[str]) -> dict[str, RevisionRecord]:
    """Return the commit of each revision, by name.

    Raise RequestError for an unknown revision, and for uncommitted changes unless the working tree is compared.
    """
    names = list(names)
    changed_lines = run_git(directory, "status", "--porcelain", "--untracked-files=no").decode().splitlines()
    if changed_lines and WORKING_TREE not in names:
        listed = ", ".join(line[3:] for line in changed_lines[:MAX_LISTED_FILES])
        omitted = f" and {len(changed_lines) - MAX_LISTED_FILES} more" if len(changed_lines) > MAX_LISTED_FILES else ""
        raise RequestError(
            f"uncommitted changes in {listed}{omitted}; commit or stash them, or compare them as the revision "
            f"{WORKING_TREE!r} (they are recorded as a patch)"
        )
    revisions = {}
    for name in names:
        git_name = "HEAD" if name == WORKING_TREE else name
        try:
            commit = run_git(directory, "rev-parse", "--verify", "--end-of-options", f"{git_name}^{{commit}}")
        except RequestError:
            known_revisions = run_git(
                directory, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags"
            ).decode()
            listed = ", ".join(known_revisions.split()[:20])
            raise RequestError(f"unknown revision {name!r}; branches and tags: {listed or 'none'}") from None
        patch = read_uncommitted_patch(directory) if name == WORKING_TREE else b""
        digest = hashlib.sha256(patch).hexdigest() if patch else ""
        revisions[name] = RevisionRecord(name=name, commit=commit.decode().strip(), patch=digest)
    return revisions


def read_uncommitted_patch(directory: Path) -> bytes:
    """Return the uncommitted changes to tracked files as a patch."""
    return run_git(directory, "diff", "--binary", "HEAD")


def check_out_revision(
    directory: Path, comparison_folder: Path, revision: RevisionRecord, linked_paths: Sequence[str]
) -> Path:
    """Return the folder in which a revision's commands run: its worktree, which is created once.

    Raise RequestError if the worktree was changed since. `directory` is the user's working directory; the result is the
    same directory inside the worktree. `linked_paths` are files and folders of the working directory that the worktree
    links to.
    """
    repository_root = Path(run_git(directory, "rev-parse", "--show-toplevel").decode().strip())
    name = f"{revision.commit[:12]}{'-' + revision.patch[:8] if revision.patch else ''}"
    worktree = (comparison_folder / WORKTREES_FOLDER / name).resolve()
    if not worktree.exists():
        _create_worktree(directory, worktree, revision)
    patch = read_uncommitted_patch(worktree)
    patch_digest = hashlib.sha256(patch).hexdigest() if patch else ""
    commit = run_git(worktree, "rev-parse", "HEAD").decode().strip()
    if (commit, patch_digest) != (revision.commit, revision.patch):
        changed_files = run_git(worktree, "diff", "--name-only", "HEAD").decode().split()
        raise RequestError(
            f"{', '.join(changed_files[:MAX_LISTED_FILES])} in {worktree} changed since it was created; remove the "
            "folder with `git worktree remove --force`, and let the script write to {out}"
        )
    worktree_directory = worktree / directory.resolve().relative_to(repository_root.resolve())
    for path in linked_paths:
        _link_untracked_path(directory, worktree_directory, path)
    return worktree_directory


def _create_worktree(directory: Path, worktree: Path, revision: RevisionRecord) -> None:
    """Check a revision out. The folder appears by rename, so an interruption leaves no incomplete worktree."""
    partial_worktree = worktree.with_name(f"{worktree.name}.partial")
    shutil.rmtree(partial_worktree, ignore_errors=True)
    worktree.parent.mkdir(parents=True, exist_ok=True)
    run_git(directory, "worktree", "prune")
    run_git(directory, "worktree", "add", "--detach", "--force", str(partial_worktree), revision.commit)
    if revision.patch:
        run_git(partial_worktree, "apply", "--binary", "--index", stdin=read_uncommitted_patch(directory))
    run_git(directory, "worktree", "move", str(partial_worktree), str(worktree))


def _link_untracked_path(directory: Path, worktree_directory: Path, path: str) -> None:
    """Link a file or folder that git does not track into a worktree, at the same relative path."""
    target, link = (directory / path).resolve(), worktree_directory / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise RequestError(f"{path} must be a path below the working directory")
    if not target.exists():
        raise RequestError(f"{directory / path} does not exist, so it cannot be linked")
    if link.is_symlink() and link.resolve() == target:
        return
    if link.exists():
        raise RequestError(f"{path} is part of the revision; only files that git does not track can be linked")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def collect_revision_diffs(directory: Path, revisions: Mapping[str, RevisionRecord]) -> dict[str, str]:
    """Return the diffs between the baseline's revision and that of each variant, by variant, shortened if long."""
    if BASELINE not in revisions:
        return {}
    baseline, diffs = revisions[BASELINE], {}
    for name, revision in revisions.items():
        if revision != baseline:
            diff = compute_revision_diff(directory, baseline, revision)
            omitted = len(diff) - MAX_DIFF_CHARACTERS
            diffs[name] = diff if omitted <= 0 else f"{diff[:MAX_DIFF_CHARACTERS]}\n... {omitted:,} more characters"
    return diffs


def compute_revision_diff(directory: Path, baseline: RevisionRecord, variant: RevisionRecord) -> str:
    """Return the diff between two revisions, including uncommitted changes."""
    target_commit = [] if variant.patch else [variant.commit]  # by default, git compares with the working tree
    diff = run_git(directory, "diff", baseline.commit, *target_commit) if not baseline.patch else b""
    return diff.decode(errors="replace")
