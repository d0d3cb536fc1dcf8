"""Valid and invalid untrusted input: every target of tools/fuzz_targets, with a fixed number of inputs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.fuzz_targets.sample_experiment import build_sample_runs


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for inputs that contains a finished experiment (see tools/fuzz_targets)."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished experiment. Tests that write must copy it."""
    return build_sample_runs(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module", autouse=True)
def own_parts_stay_here() -> Iterator[None]:
    """Unregister the parts that a test registers."""
    from headtohead.nn.parts import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        patch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
        yield
