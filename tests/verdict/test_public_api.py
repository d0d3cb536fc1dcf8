"""The public API of the package `verdict`: small, sorted, and without torch."""

from __future__ import annotations

import subprocess
import sys

from headtohead import verdict


def test_public_names_are_sorted_and_there() -> None:
    assert verdict.__all__ == sorted(verdict.__all__)
    assert all(hasattr(verdict, name) for name in verdict.__all__)


def test_judging_needs_no_torch() -> None:
    code = "import sys, headtohead.verdict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
