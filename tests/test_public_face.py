"""The public API: sorted, complete, and quick to import. `make lint` checks the layers with import-linter."""

import subprocess
import sys

import pytest

import headtohead as h2h


def test_public_names_are_sorted_and_resolve():
    assert h2h.__all__ == sorted(h2h.__all__)
    for name in h2h.__all__:
        assert getattr(h2h, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        h2h.nothing  # noqa: B018


def test_config_verdict_and_report_do_not_import_torch():
    packages = "headtohead, headtohead.config, headtohead.verdict, headtohead.report"
    code = f"import sys, {packages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
