"""The report of `h2h doctor`: properties of this machine, problems and advice."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from headtohead.data.token_cache import find_damaged_caches
from headtohead.training.hardware.devices import count_available_cores, select_device
from headtohead.training.hardware.precision import Bfloat16Support, probe_bfloat16
from headtohead.training.hardware.probe_process import run_probe_code

_CONTRIBUTOR_EXTRAS = {"bench", "dev", "docs", "fuzz", "mutation"}
"""Extras that users do not need; the report omits them."""
_LOW_MEMORY_BYTES = 2 * 2**30
_LOW_DISK_BYTES = 2 * 2**30


def list_extras_with_versions(distribution: str = "headtohead") -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra (optional dependencies) with their installed versions, for the report of
    `h2h doctor`. The version of a missing package is None.
    """
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w.-]+)['\"]", requirement)
        if match and match[1].lower() != distribution:  # skips `all`, which only refers to the other extras
            extras.setdefault(match[2], {})[match[1]] = find_installed_version(match[1])
    return extras


def find_installed_version(package: str) -> str | None:
    """Return the installed version of a package for the report of `h2h doctor`, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


_HUB_PROBE_CODE = """
import json, sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=float(sys.argv[2]))
    reached = True
except urllib.error.HTTPError:
    reached = True  # any response counts
except OSError:
    reached = False
print(json.dumps({"reached": reached}))
"""


def is_hub_reachable(url: str | None = None, *, timeout_seconds: float = 3.0) -> bool | None:
    """Return whether the Hugging Face Hub responds, for `h2h doctor`; None if HF_HUB_OFFLINE is set. Never raises."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    # Run in a child process, because a DNS lookup can block for longer than any socket timeout.
    result = run_probe_code(
        _HUB_PROBE_CODE, url or constants.ENDPOINT, str(timeout_seconds), timeout_seconds=timeout_seconds + 2
    )
    return bool(result.output and result.output["reached"])


@dataclass(frozen=True)
class DoctorCheck:
    """One line of the report: a property of the machine, whether it is fine, and advice."""

    name: str
    value: str
    is_ok: bool
    advice: str


@dataclass(frozen=True)
class DoctorReport:
    """Properties of this machine; sizes are in bytes."""

    device: str
    device_name: str
    num_cores: int
    num_threads: int
    memory_total: int
    memory_free: int
    runs_folder: str
    disk_free: int
    versions: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    bfloat16: Bfloat16Support
    is_hub_reachable: bool | None
    cache_errors: dict[str, str | None] | None = None
    """The error in each token cache folder, or None; set only if every byte was read."""

    @property
    def checks(self) -> tuple[DoctorCheck, ...]:
        """The lines of the report."""
        return tuple(check(self) for check in _DOCTOR_CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """Return the properties and checks as JSON-serializable data."""
        return {**asdict(self), "checks": [asdict(check) for check in self.checks]}


def inspect_machine(
    runs_folder: Path = Path(), *, check_hub: Callable[[], bool | None] = is_hub_reachable, read_caches: bool = False
) -> DoctorReport:
    """Collect the properties of this machine for the report of `h2h doctor`, which takes a few seconds.

    Args:
        runs_folder: Folder for which free disk space is measured.
        check_hub: Check whether the Hugging Face Hub responds.
        read_caches: Verify the checksums of all token cache files.
    """
    device = select_device("auto")
    memory, runs_folder = psutil.virtual_memory(), runs_folder.resolve()
    existing_folder = next(folder for folder in (runs_folder, *runs_folder.parents) if folder.exists())
    return DoctorReport(
        device=device.type,
        device_name=torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        num_cores=count_available_cores(),
        num_threads=torch.get_num_threads(),
        memory_total=memory.total,
        memory_free=memory.available,
        runs_folder=str(runs_folder),
        disk_free=shutil.disk_usage(existing_folder).free,
        versions={
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(torch.__version__),
            "headtohead": find_installed_version("headtohead"),
        },
        extras=list_extras_with_versions(),
        bfloat16=probe_bfloat16(device.type),
        is_hub_reachable=check_hub(),
        cache_errors={str(folder): error for folder, error in find_damaged_caches().items()} if read_caches else None,
    )


def _check_device(report: DoctorReport) -> DoctorCheck:
    advice = "enough for small models" if report.device == "cpu" else "selected by --device auto"
    return DoctorCheck("device", report.device_name, True, advice)


def _check_cores(report: DoctorReport) -> DoctorCheck:
    value = f"{report.num_cores} (threads of this process: {report.num_threads})"
    if report.num_threads <= report.num_cores:
        return DoctorCheck("cores", value, True, "trials run in parallel, one per core with one thread each")
    return DoctorCheck("cores", value, False, "more threads than cores slow each other down: set OMP_NUM_THREADS=1")


def _check_memory(report: DoctorReport) -> DoctorCheck:
    is_ok = report.memory_free >= _LOW_MEMORY_BYTES
    advice = "enough for small models" if is_ok else "close other programs, or run with --workers 1"
    value = f"{_format_gib(report.memory_free)} free of {_format_gib(report.memory_total)}"
    return DoctorCheck("memory", value, is_ok, advice)


def _check_disk(report: DoctorReport) -> DoctorCheck:
    is_ok = report.disk_free >= _LOW_DISK_BYTES
    advice = "enough for many runs" if is_ok else "free some space, or write runs elsewhere with --out"
    return DoctorCheck("disk", f"{_format_gib(report.disk_free)} free for {report.runs_folder}", is_ok, advice)


def _check_versions(report: DoctorReport) -> DoctorCheck:
    value = ", ".join(f"{name} {version or 'not installed'}" for name, version in report.versions.items())
    is_ok = report.versions["headtohead"] is not None
    advice = "include these in bug reports" if is_ok else "install the package: pip install -e ."
    return DoctorCheck("versions", value, is_ok, advice)


def _check_extras(report: DoctorReport) -> DoctorCheck:
    """Report in `h2h doctor` which optional dependencies are installed, except those of contributors."""
    if not report.extras:
        return DoctorCheck("extras", "unknown", False, "install the package: pip install -e .")
    extras = {name: packages for name, packages in report.extras.items() if name not in _CONTRIBUTOR_EXTRAS}
    missing = [name for name, packages in extras.items() if None in packages.values()]
    value = ", ".join(name for name in extras if name not in missing) or "none"
    if not missing:
        return DoctorCheck("extras", value, True, "all installed")
    advice = f"not installed: {', '.join(missing)}\nto add one: pip install 'headtohead[{missing[0]}]'"
    return DoctorCheck("extras", value, True, advice)


def _check_bfloat16(report: DoctorReport) -> DoctorCheck:
    """Report in `h2h doctor` whether bfloat16 works on this machine, and its speed."""
    support = report.bfloat16
    if support.status == "no":
        return DoctorCheck("bfloat16", f"no: the test {support.exit_description}", False, "use float32, the default")
    if support.status == "works with workaround":
        value = f"the test {support.exit_description}; works with {support.workaround}"
        return DoctorCheck("bfloat16", value, False, f"before using bfloat16: export {support.workaround}")
    assert support.slowdown is not None
    advice = "use float32, which is faster here" if support.slowdown > 1 else "faster than float32 here"
    return DoctorCheck("bfloat16", f"works; takes {support.slowdown:.2g} times as long as float32", True, advice)


def _check_hub(report: DoctorReport) -> DoctorCheck:
    if report.is_hub_reachable is None:
        return DoctorCheck("hub", "not tried: HF_HUB_OFFLINE is set", True, "unset it to download from the hub")
    value = "reachable" if report.is_hub_reachable else "not reachable"
    return DoctorCheck("hub", value, True, "needed only for data and models on the hub")


def _check_cache(report: DoctorReport) -> DoctorCheck:
    """Report corrupted token cache folders in `h2h doctor`."""
    if report.cache_errors is None:
        return DoctorCheck("token cache", "not read", True, "h2h doctor --deep compares every byte with its checksum")
    errors = [f"{folder}: {error}" for folder, error in report.cache_errors.items() if error]
    if not errors:
        return DoctorCheck("token cache", f"{len(report.cache_errors)} folders, all intact", True, "nothing to do")
    return DoctorCheck("token cache", "\n".join(errors), False, "remove these folders; they are rebuilt when needed")


_DOCTOR_CHECKS = (
    _check_device,
    _check_cores,
    _check_memory,
    _check_disk,
    _check_versions,
    _check_extras,
    _check_bfloat16,
    _check_hub,
    _check_cache,
)


def _format_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
