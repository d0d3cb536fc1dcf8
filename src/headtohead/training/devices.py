"""Devices: select one, set the number of threads, and check whether bfloat16 works.

bfloat16 is tested in a child process: some machines advertise AMX to oneDNN but reject its instructions, which kills
the process without raising an exception. ONEDNN_MAX_CPU_ISA keeps oneDNN below AMX; see "CPU Dispatcher Control" in its
developer guide.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch

from headtohead.errors import DeviceError, RequestError, suggest

DEVICES = ("auto", "cpu", "cuda", "mps")
BFLOAT16_WORKAROUND_ENV = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Set before torch is imported, this keeps oneDNN from using AMX."""

_DEVICE_ALIASES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps"}


def select_device(device: str = "auto") -> torch.device:
    """Return the device to train on. `auto` selects the fastest available kind."""
    if device not in DEVICES:
        hint = _DEVICE_ALIASES.get(device) or suggest(device, DEVICES)
        hint_text = f"; did you mean {hint!r}?" if hint else ""
        raise DeviceError(f"unknown device {device!r}{hint_text} (allowed: {', '.join(DEVICES)})")
    if device == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if _explain_unavailable(kind) is None))
    if reason := _explain_unavailable(device):
        raise DeviceError(f"device {device!r} is not available: {reason}; use --device auto or --device cpu")
    return torch.device(device)


def _explain_unavailable(kind: str) -> str | None:
    """Return why this kind of device cannot be used, or None if it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        is_built = torch.version.cuda or torch.version.hip
        return "no GPU was found" if is_built else "this build of torch has no CUDA support"
    if kind == "mps" and not torch.backends.mps.is_available():
        return "no GPU was found" if torch.backends.mps.is_built() else "this build of torch has no MPS support"
    return None


def set_num_threads(num_threads: int) -> int:
    """Set the number of torch threads in this process; return the previous number."""
    if num_threads < 1:
        raise RequestError(f"threads must be 1 or more, got {num_threads}")
    previous = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    return previous


def count_available_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


# ---- child processes


@dataclass(frozen=True)
class ChildProcessResult:
    """How a child process ended, and the JSON object it printed if it succeeded."""

    output: dict[str, Any] | None
    exit_description: str


def run_in_child_process(
    code: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_seconds: float
) -> ChildProcessResult:
    """Run Python code in a child process that may crash or hang. The code prints its result as a line of JSON."""
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
        return ChildProcessResult(None, f"timed out after {timeout_seconds:g} s")
    if child.returncode < 0:
        return ChildProcessResult(None, f"was killed: {signal.strsignal(-child.returncode)}")
    if child.returncode:
        last_line = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return ChildProcessResult(None, f"failed: {last_line}")
    return ChildProcessResult(json.loads(child.stdout.splitlines()[-1]), "succeeded")


_DISABLE_CORE_DUMP_CODE = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, OSError, ValueError):
    pass
"""


# ---- bfloat16

# A matrix product and fused attention, forward and backward, large enough for oneDNN to select its AMX kernels.
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
_MAX_BFLOAT16_ERROR = 0.05  # bfloat16 has 8 significant bits: rounding alone gives less than 0.01 here
_PROBE_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Bfloat16Support:
    """Whether bfloat16 can be used: directly, only with `workaround` in the environment, or not at all."""

    status: Literal["works", "works with workaround", "no"]
    exit_description: str
    """The outcome of the attempt without the workaround."""
    workaround: str | None = None
    slowdown: float | None = None
    """Time in bfloat16 divided by time in float32, for the same work."""


def probe_bfloat16(
    device: str = "cpu", *, probe_code: str = _BFLOAT16_PROBE_CODE, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
) -> Bfloat16Support:
    """Try bfloat16 in a child process. If that fails on the CPU, try again without AMX."""
    default_result = _run_probe(probe_code, device, timeout_seconds)
    if default_result.output:
        return Bfloat16Support("works", default_result.exit_description, slowdown=default_result.output["slowdown"])
    if device == "cpu":
        workaround_result = _run_probe(probe_code, device, timeout_seconds, BFLOAT16_WORKAROUND_ENV)
        if workaround_result.output:
            workaround = " ".join(f"{name}={value}" for name, value in BFLOAT16_WORKAROUND_ENV.items())
            slowdown = workaround_result.output["slowdown"]
            return Bfloat16Support("works with workaround", default_result.exit_description, workaround, slowdown)
    return Bfloat16Support("no", default_result.exit_description)


def _run_probe(
    probe_code: str, device: str, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> ChildProcessResult:
    """Run the probe; treat an inaccurate result as a failure."""
    result = run_in_child_process(probe_code, device, environment=environment, timeout_seconds=timeout_seconds)
    if result.output is None or result.output["error"] < _MAX_BFLOAT16_ERROR:  # False for nan
        return result
    return ChildProcessResult(None, f"was inaccurate: relative error {result.output['error']:.0%}")


def is_bfloat16_usable(device: str = "cpu") -> bool:
    """Return whether bfloat16 works in this process's environment. The first call takes a few seconds."""
    return _is_bfloat16_usable_cached(device, *(os.environ.get(name) for name in BFLOAT16_WORKAROUND_ENV))


@cache
def _is_bfloat16_usable_cached(device: str, *environment: str | None) -> bool:
    return _run_probe(_BFLOAT16_PROBE_CODE, device, _PROBE_TIMEOUT_SECONDS).output is not None
