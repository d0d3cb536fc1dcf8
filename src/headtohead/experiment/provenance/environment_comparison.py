"""Compare the environments that runs were trained in: package versions, devices and processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headtohead.experiment.run_folder import Run

MAX_NAMED_VALUES = 5
"""number of different values of a version that a message names"""
COMPARED_VERSIONS = ("headtohead", "torch", "numpy", "python", "system", "processor", "cpu")


def describe_mixed_environments(runs: Iterable[Run]) -> str:
    """Return the versions, devices or processors that differ between runs, with counts, or an empty string."""
    start_files = [run.start for run in runs]
    counters = {
        key: Counter(start.versions[key] for start in start_files if key in start.versions) for key in COMPARED_VERSIONS
    }
    counters["device"] = Counter(start.device for start in start_files)
    return "; ".join(_format_counts(key, counter) for key, counter in counters.items() if len(counter) > 1)


class EnvironmentChangedWarning(UserWarning):
    """An experiment is resumed with different package versions, or on a different device or processor."""


def describe_environment_changes(runs: Iterable[Run], versions: Mapping[str, str], device: str) -> str:
    """Return the versions, devices or processors in which runs differ from this process, or an empty string."""
    current_environment = {**versions, "device": device}
    counters: dict[str, Counter[str]] = {key: Counter() for key in (*COMPARED_VERSIONS, "device")}
    for run in runs:
        recorded_environment = {**run.start.versions, "device": run.start.device}
        for key, counter in counters.items():
            if recorded_environment.get(key, current_environment.get(key)) != current_environment.get(key):
                counter[recorded_environment[key]] += 1
    return "; ".join(
        f"{_format_counts(key, counter)}, here {current_environment.get(key)}"
        for key, counter in counters.items()
        if counter
    )


def _format_counts(key: str, counter: Counter[str]) -> str:
    """Return the most frequent versions or devices with counts, such as "torch 2.4 (3 runs), torch 2.5 (1 run)"."""
    return ", ".join(
        f"{key} {value} ({num_runs} run{'s' if num_runs != 1 else ''})"
        for value, num_runs in counter.most_common(MAX_NAMED_VALUES)
    )
