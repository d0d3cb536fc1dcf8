"""Input that somebody else made, sound and unsound: every door of tools/doors, within a bounded number of tries."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that inputs are put in, with an experiment that was really run (see tools/doors)."""
    return tmp_path_factory.mktemp("scratch")
