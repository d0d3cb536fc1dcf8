"""Versions of what training scripts run with: their Python interpreter, and the libraries installed for it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

VERSIONS_SCRIPT = """
import json, platform
from importlib import metadata
versions = {"python": platform.python_version()}
for name in ("torch", "numpy", "transformers", "lightning", "keras", "jax", "scikit-learn"):
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""
VERSIONS_TIMEOUT_SECONDS = 60


def collect_script_versions(programs: Collection[str], directory: Path) -> dict[str, str]:
    """Return the versions of this package, the system and, if all programs are the same Python, of its libraries."""
    versions = {
        "headtohead": metadata.version("headtohead"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if len(programs) > 1 or not all(Path(program).name.startswith("python") for program in programs):
        return versions
    try:
        output = subprocess.run(
            [*programs, "-c", VERSIONS_SCRIPT],
            cwd=directory,
            capture_output=True,
            check=True,
            timeout=VERSIONS_TIMEOUT_SECONDS,
        ).stdout
        return versions | {str(name): str(version) for name, version in json.loads(output).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return versions
