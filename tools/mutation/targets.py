"""The modules that mutation testing changes, and the tests that must detect the changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MutationTarget:
    """A group of modules and its tests, as patterns relative to the repository."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int = 0
    """number of randomly sampled mutants; 0 for all"""


MUTATION_TARGETS = {
    "atomic_io": MutationTarget(
        ("src/headtohead/atomic_io.py", "src/headtohead/json_files.py", "src/headtohead/cache_folders.py"),
        (
            "tests/test_atomic_io.py",
            "tests/test_json_files.py",
            "tests/test_cache_folders.py",
            "tests/test_safe_open.py",
        ),
    ),
    "safe_open": MutationTarget(
        ("src/headtohead/safe_open.py",), ("tests/test_safe_open.py", "tests/test_atomic_io.py")
    ),
    "journal": MutationTarget(("src/headtohead/experiment/journal.py",), ("tests/experiment/test_journal.py",)),
    "verdict": MutationTarget(("src/headtohead/verdict/*.py",), ("tests/verdict/test_*.py",)),
    "audit": MutationTarget(
        (
            "src/headtohead/audit/*.py",
            "src/headtohead/training/checkpoints.py",
            "src/headtohead/training/tensor_files.py",
        ),
        ("tests/audit/test_*.py", "tests/training/test_checkpoints.py"),
        sample=400,
    ),
}
