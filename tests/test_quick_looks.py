"""`h2h run RECIPE --quick` takes less than two minutes on two cores for every recipe, and is estimated correctly."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headtohead.config import recipe_catalog
from headtohead.experiment.loading import load_experiment
from headtohead.runner.plan import plan_experiment

MAX_CPU_SECONDS = 240
"""two minutes on two cores"""


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_catalog.list_recipes())
def test_a_quick_look_takes_two_minutes_and_as_long_as_estimated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Callable[[str], Path]
) -> None:
    """Both are measured in CPU time, so that load from other processes has little effect."""
    is_summarization = Path(load_experiment(name).data.source).name == "summaries"
    data = shared("summaries/dialogsum") if is_summarization else None  # without a default corpus
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-of-the-plan"))
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", time.process_time)
        plan = plan_experiment(load_experiment(name, data_source=data, use_quick_setting=True), 1)
    command = [sys.executable, "-m", "headtohead", "run", name, "--quick", "--workers", "2", "--out", "look"]
    command += ["--data", str(data)] if data is not None else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache-of-the-run")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {seconds:.0f} CPU seconds, estimated {plan.seconds:.0f}")
    assert seconds < MAX_CPU_SECONDS
    assert 0.5 < plan.seconds / seconds < 2
