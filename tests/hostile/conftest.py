"""Valid and invalid input from untrusted sources: every target of tools/fuzz_targets, with a fixed number of tries."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.fuzz_targets.sample_experiment import sample_runs


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that inputs are put in, with an experiment that was really run (see tools/fuzz_targets)."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished experiment that no test changes. Tests that write work on a copy."""
    return sample_runs(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module", autouse=True)
def own_parts_stay_here() -> Iterator[None]:
    """Parts that a file of tests lets in are not there for the tests after it."""
    from headtohead.nn.parts import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        patch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
        yield
