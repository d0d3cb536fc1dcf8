"""The package versions, devices and processors that an experiment's runs were trained with, and whether they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headtohead.experiment.run_folder import Run

MACHINE_KEYS = ("headtohead", "torch", "numpy", "python", "system", "cpu")


def describe_mixed_machines(runs: Iterable[Run]) -> str:
    """Return the versions, devices or processors in which the runs differ, with counts, or an empty string."""
    starts = [run.start for run in runs]
    counts = {key: Counter(start.versions[key] for start in starts if key in start.versions) for key in MACHINE_KEYS}
    counts["device"] = Counter(start.device for start in starts)
    return "; ".join(
        ", ".join(_format_count(key, *item) for item in counter.most_common(5))
        for key, counter in counts.items()
        if len(counter) > 1
    )


class OtherMachineWarning(UserWarning):
    """An experiment is resumed with different package versions, or on a different device or processor."""


def describe_other_machines(runs: Iterable[Run], versions: Mapping[str, str], device: str) -> str:
    """Return the versions, device or processor in which the runs differ from this process, or an empty string."""
    here = {**versions, "device": device}
    counts: dict[str, Counter[str]] = {key: Counter() for key in (*MACHINE_KEYS, "device")}
    for run in runs:
        recorded = {**run.start.versions, "device": run.start.device}
        for key, counter in counts.items():
            if recorded.get(key, here.get(key)) != here.get(key):
                counter[recorded[key]] += 1
    return "; ".join(
        f"{', '.join(_format_count(key, *item) for item in counter.most_common(5))}, here {here.get(key)}"
        for key, counter in counts.items()
        if counter
    )


def _format_count(key: str, value: str, count: int) -> str:
    return f"{key} {value} ({count} run{'s' if count != 1 else ''})"
