"""A copy of the repository, in which modules are mutated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT_ROOT = Path(__file__).parents[2]
COPIED_PATHS = (
    "src",
    "tests",
    "tools",
    "docs",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
SINGLE_THREAD_VARIABLES = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
)


def copy_repository(folder: Path) -> None:
    """Copy the files that tests need."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "notebooks")
    for name in COPIED_PATHS:
        source = PROJECT_ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignore)
        else:
            shutil.copy2(source, folder / name)


def run_in_copy(folder: Path, *arguments: str) -> int:
    """Run `python -m tools.mutation` in the copy, with the copy's package, and return its exit code."""
    search_path = [str(folder / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        **os.environ,
        **SINGLE_THREAD_VARIABLES,
        "PYTHONPATH": os.pathsep.join(path for path in search_path if path),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.run(
        [sys.executable, "-m", "tools.mutation", *arguments], cwd=folder, env=variables, check=False
    ).returncode
