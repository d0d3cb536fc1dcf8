"""Versions of the libraries that training scripts commonly use, read without importing them."""

from __future__ import annotations

import platform
from importlib import metadata

LIBRARIES = ("headtohead", "torch", "numpy", "transformers", "lightning", "keras", "jax", "scikit-learn")


def collect_script_versions() -> dict[str, str]:
    """Return the versions of the installed libraries, Python and the operating system."""
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
