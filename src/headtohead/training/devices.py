"""Where training runs, and what this machine can do: the device, its threads, all that `h2h doctor` tells.

Whether bfloat16 works is tried in a child process. Some machines announce AMX to oneDNN and then refuse its
instructions, which kills the process, and there is no exception to catch. oneDNN can be told to stay below
AMX: see "CPU Dispatcher Control" in its developer guide.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from headtohead.errors import DeviceError, RequestError, suggest

DEVICES = ("auto", "cpu", "cuda", "mps")
BFLOAT16_WORKAROUND_ENV = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Set before torch is imported, this keeps oneDNN from using AMX."""

_DEVICE_ALIASES = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "metal": "mps",
    "apple": "mps",
}  # no spelling leads from one to the other
_CHROMIUM_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LOW_MEMORY_BYTES, _LOW_DISK_BYTES = 2 * 2**30, 2 * 2**30


# Choosing


def select_device(device: str = "auto") -> torch.device:
    """The device to train on; `auto` takes the fastest kind that is there."""
    if device not in DEVICES:
        meant = _DEVICE_ALIASES.get(device) or suggest(device, DEVICES)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise DeviceError(f"no device is called {device!r}{hint} (allowed: {', '.join(DEVICES)})")
    if device == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if _explain_unavailable(kind) is None))
    if why := _explain_unavailable(device):
        raise DeviceError(f"device {device!r} is not there: {why}; use --device auto or --device cpu")
    return torch.device(device)


def _explain_unavailable(kind: str) -> str | None:
    """Why a device of this kind cannot be used, or None if it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        return "no GPU is found" if built else "this torch is built without CUDA"
    if kind == "mps" and not torch.backends.mps.is_available():
        return "macOS finds no GPU" if torch.backends.mps.is_built() else "this torch is built without MPS"
    return None


def set_num_threads(num_threads: int) -> int:
    """Let torch use n threads in this process; returns how many it used before."""
    if num_threads < 1:
        raise RequestError(f"threads must be 1 or more, got {num_threads}")
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    return before


def count_available_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


# Trying in a child process


@dataclass(frozen=True)
class ChildProcessResult:
    """How a child process ended: with the JSON answer that it printed, or, in words, without one."""

    answer: dict[str, Any] | None
    ending: str


def run_in_child_process(
    code: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_seconds: float
) -> ChildProcessResult:
    """Run Python code in a child process that may die or hang without harm to this one."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _DISABLE_CORE_DUMP_CODE + code, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ChildProcessResult(None, f"gave no answer in {timeout_seconds:g} s")
    if child.returncode < 0:
        return ChildProcessResult(None, f"was killed: {signal.strsignal(-child.returncode)}")
    if child.returncode:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return ChildProcessResult(None, f"failed: {last}")
    return ChildProcessResult(json.loads(child.stdout.splitlines()[-1]), "answered")


_DISABLE_CORE_DUMP_CODE = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, OSError, ValueError):
    pass
"""


# bfloat16

# Big enough that oneDNN takes its AMX kernels, where it believes to have them. What a model does is tried
# forward and backward: a matrix product and fused attention.
_BFLOAT16_PROBE_CODE = """
import json, sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
device = sys.argv[1]

def work(kind):
    began = time.perf_counter()
    x, w = (t.to(device, kind, copy=True).requires_grad_() for t in (left, right))
    y = x @ w
    heads = y.view(1, 8, 256, 64)
    z = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    (y.sum() + z.sum()).backward()
    result = torch.cat([t.detach().float().flatten().cpu() for t in (y, z, x.grad)])
    return result, time.perf_counter() - began

left, right = torch.randn(256, 512), torch.randn(512, 512) / 512 ** 0.5
exact, rough = work(torch.float32)[0], work(torch.bfloat16)[0]
error = ((rough - exact).norm() / exact.norm()).item()
slow, quick = (min(work(kind)[1] for _ in range(5)) for kind in (torch.bfloat16, torch.float32))
print(json.dumps({"error": error, "slowdown": slow / quick}))
"""
_MAX_BFLOAT16_ERROR = 0.05  # bfloat16 keeps 8 bits: rounding alone gives less than a hundredth here
_PROBE_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Bfloat16Support:
    """Whether bfloat16 can be used: as it is, only with `cure` in the environment, or not at all."""

    outcome: Literal["works", "works with cure", "no"]
    ending: str
    """how the attempt without the cure ended"""
    cure: str | None = None
    slowdown: float | None = None
    """seconds in bfloat16 per second in float32, for the same work"""


def probe_bfloat16(
    device: str = "cpu", *, probe_code: str = _BFLOAT16_PROBE_CODE, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
) -> Bfloat16Support:
    """Try bfloat16 in a child process; if that fails on the CPU, once more without AMX."""
    first = _reject_inaccurate_result(run_in_child_process(probe_code, device, timeout_seconds=timeout_seconds))
    if first.answer:
        return Bfloat16Support("works", first.ending, slowdown=first.answer["slowdown"])
    if device == "cpu":
        second = _reject_inaccurate_result(
            run_in_child_process(
                probe_code, device, environment=BFLOAT16_WORKAROUND_ENV, timeout_seconds=timeout_seconds
            )
        )
        if second.answer:
            cure = " ".join(f"{name}={value}" for name, value in BFLOAT16_WORKAROUND_ENV.items())
            return Bfloat16Support("works with cure", first.ending, cure, second.answer["slowdown"])
    return Bfloat16Support("no", first.ending)


def _reject_inaccurate_result(result: ChildProcessResult) -> ChildProcessResult:
    """An answer that is wrong is none."""
    if result.answer is None:
        return result
    error = result.answer["error"]
    if error < _MAX_BFLOAT16_ERROR:  # false for nan too
        return result
    return ChildProcessResult(None, f"computed wrongly: {error:.0%} off")


def is_bfloat16_usable(device: str = "cpu") -> bool:
    """Whether bfloat16 can be used in this process, in its environment. The first call takes some seconds."""
    return _is_bfloat16_usable_cached(device, *(os.environ.get(name) for name in BFLOAT16_WORKAROUND_ENV))


@cache
def _is_bfloat16_usable_cached(device: str, *environment: str | None) -> bool:
    return (
        _reject_inaccurate_result(
            run_in_child_process(_BFLOAT16_PROBE_CODE, device, timeout_seconds=_PROBE_TIMEOUT_SECONDS)
        ).answer
        is not None
    )


def list_extras(distribution: str = "headtohead") -> dict[str, dict[str, str | None]]:
    """For each extra its packages, each with the installed version or None. Read from the metadata."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in requirements:
        match = re.match(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w.-]+)['\"]", line)
        if match and match[1].lower() != distribution:  # `all` only points at the others
            found.setdefault(match[2], {})[match[1]] = get_package_version(match[1])
    return found


def get_package_version(package: str) -> str | None:
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
    reached = True  # it answered, if only to say no
except OSError:
    reached = False
print(json.dumps({"reached": reached}))
"""


def is_hub_reachable(url: str | None = None, *, timeout_seconds: float = 3.0) -> bool | None:
    """Whether the hub answers in time; None if HF_HUB_OFFLINE says not to ask. Never fails."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    # In a child process because looking up a name can hang for longer than any time-out of a socket.
    tried = run_in_child_process(
        _HUB_PROBE_CODE, url or constants.ENDPOINT, str(timeout_seconds), timeout_seconds=timeout_seconds + 2
    )
    return bool(tried.answer and tried.answer["reached"])


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    return next((path for name in _CHROMIUM_EXECUTABLES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class DoctorCheck:
    """One line of `h2h doctor`: what was found, whether it is fine, and what to do about it."""

    name: str
    found: str
    fine: bool
    advice: str


@dataclass(frozen=True)
class DoctorReport:
    """What this machine has, as `h2h doctor` tells it. Sizes are in bytes."""

    device: str
    device_name: str
    cores: int
    threads: int
    memory: int
    memory_free: int
    folder: str
    disk_free: int
    versions: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    bfloat16: Bfloat16Support
    hub: bool | None
    chromium: str | None

    @property
    def findings(self) -> tuple[DoctorCheck, ...]:
        return tuple(look(self) for look in _DOCTOR_CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON."""
        return {**asdict(self), "findings": [asdict(finding) for finding in self.findings]}


def inspect_machine(
    runs_folder: Path = Path(), *, check_hub: Callable[[], bool | None] = is_hub_reachable
) -> DoctorReport:
    """Look at the machine; runs are to be written in `folder`. Takes some seconds."""
    device = select_device("auto")
    memory = psutil.virtual_memory()
    return DoctorReport(
        device=device.type,
        device_name=torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        cores=count_available_cores(),
        threads=torch.get_num_threads(),
        memory=memory.total,
        memory_free=memory.available,
        folder=str(runs_folder.resolve()),
        disk_free=shutil.disk_usage(_find_existing_parent(runs_folder.resolve())).free,
        versions={
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(torch.__version__),
            "headtohead": get_package_version("headtohead"),
        },
        extras=list_extras(),
        bfloat16=probe_bfloat16(device.type),
        hub=check_hub(),
        chromium=find_chromium(),
    )


def _find_existing_parent(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


# What to say of it


def _check_device(report: DoctorReport) -> DoctorCheck:
    advice = "enough for small models" if report.device == "cpu" else "--device auto takes it"
    return DoctorCheck("device", report.device_name, True, advice)


def _check_cores(report: DoctorReport) -> DoctorCheck:
    found = f"{report.cores} (threads of this process: {report.threads})"
    if report.threads <= report.cores:
        return DoctorCheck("cores", found, True, "trials run side by side, one a core with one thread each")
    return DoctorCheck("cores", found, False, "threads that share a core slow each other down: set OMP_NUM_THREADS=1")


def _check_memory(report: DoctorReport) -> DoctorCheck:
    fine = report.memory_free >= _LOW_MEMORY_BYTES
    advice = "enough for small models" if fine else "close other programs, or run with --workers 1"
    return DoctorCheck(
        "memory", f"{_format_gib(report.memory_free)} free of {_format_gib(report.memory)}", fine, advice
    )


def _check_disk(report: DoctorReport) -> DoctorCheck:
    fine = report.disk_free >= _LOW_DISK_BYTES
    advice = "enough for many runs" if fine else "free some, or write runs elsewhere with --out"
    return DoctorCheck("disk", f"{_format_gib(report.disk_free)} free for {report.folder}", fine, advice)


def _check_versions(report: DoctorReport) -> DoctorCheck:
    found = ", ".join(f"{name} {number or 'not installed'}" for name, number in report.versions.items())
    fine = report.versions["headtohead"] is not None
    advice = "name these when you report a fault" if fine else "install the package: pip install -e ."
    return DoctorCheck("versions", found, fine, advice)


def _check_extras(report: DoctorReport) -> DoctorCheck:
    if not report.extras:
        return DoctorCheck("extras", "not known", False, "install the package: pip install -e .")
    absent = [name for name, packages in report.extras.items() if None in packages.values()]
    found = ", ".join(f"{name} {'no' if name in absent else 'yes'}" for name in report.extras)
    advice = f"if you need one: pip install 'headtohead[{','.join(absent)}]'" if absent else "everything is there"
    return DoctorCheck("extras", found, True, advice)


def _check_bfloat16(report: DoctorReport) -> DoctorCheck:
    tried = report.bfloat16
    if tried.outcome == "no":
        return DoctorCheck("bfloat16", f"no: the attempt {tried.ending}", False, "stay with float32, the default")
    if tried.outcome == "works with cure":
        found = f"the attempt {tried.ending}; it works with {tried.cure}"
        return DoctorCheck("bfloat16", found, False, f"before you start anything in bfloat16: export {tried.cure}")
    assert tried.slowdown is not None
    found = f"works, takes {tried.slowdown:.1f} times as long as float32"
    return DoctorCheck("bfloat16", found, True, "stay with float32" if tried.slowdown > 1 else "worth a try for speed")


def _check_hub(report: DoctorReport) -> DoctorCheck:
    if report.hub is None:
        return DoctorCheck("hub", "not asked: HF_HUB_OFFLINE is set", True, "unset it to load from the hub")
    advice = "only data and models named by hub address need it"
    return DoctorCheck("hub", "reachable" if report.hub else "not reachable", True, advice)


def _check_chromium(report: DoctorReport) -> DoctorCheck:
    return DoctorCheck("chromium", report.chromium or "not found", True, "only tests marked browser need it")


_DOCTOR_CHECKS = (
    _check_device,
    _check_cores,
    _check_memory,
    _check_disk,
    _check_versions,
    _check_extras,
    _check_bfloat16,
    _check_hub,
    _check_chromium,
)


def _format_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
