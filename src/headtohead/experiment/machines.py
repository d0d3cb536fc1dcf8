"""Which versions, devices and processors trained the runs of an experiment, and whether they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headtohead.experiment.run_folder import Run

MACHINE_KEYS = ("headtohead", "torch", "numpy", "python", "system", "cpu")


def describe_mixed_machines(runs: Iterable[Run]) -> str:
    """Return in which versions, devices or processors the runs differ, with counts; an empty string if in none."""
    starts = [run.start for run in runs]
    counts = {key: Counter(start.versions[key] for start in starts if key in start.versions) for key in MACHINE_KEYS}
    counts["device"] = Counter(start.device for start in starts)
    return "; ".join(
        ", ".join(f"{key} {value} ({count} run{'s' if count != 1 else ''})" for value, count in counter.most_common(5))
        for key, counter in counts.items()
        if len(counter) > 1
    )
