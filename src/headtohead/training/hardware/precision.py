"""Training precision: the autocast dtype, and whether bfloat16 works on this machine.

bfloat16 is tested in a child process: some machines advertise AMX to oneDNN but reject its instructions, which kills
the process without raising an exception. ONEDNN_MAX_CPU_ISA prevents oneDNN from using AMX; see "CPU Dispatcher
Control" in its developer guide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from headtohead.errors import DeviceError
from headtohead.training.hardware.probe_process import ProbeResult, run_probe_code

BFLOAT16_WORKAROUND_ENV = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Set before torch is imported, this keeps oneDNN from using AMX."""


def get_autocast_dtype(precision: Literal["fp32", "bf16", "fp16"], device: torch.device) -> torch.dtype | None:
    """Return the dtype of operations under autocast for a value of `training.precision`, or None for fp32.

    Raises:
        DeviceError: If the device does not support this precision.
    """
    if precision == "fp32":
        return None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    advice = 'use training.precision = "fp32"'
    if not torch.amp.is_autocast_available(device.type):
        raise DeviceError(f"device {device.type!r} does not support mixed precision; {advice}")
    if device.type == "cuda" and precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError(f'this GPU does not support bfloat16; use training.precision = "fp16", or {advice}')
    if device.type == "cpu" and precision == "bf16":
        check_bfloat16_on_cpu('training.precision = "bf16"')
    return dtype


def check_bfloat16_on_cpu(purpose: str) -> None:
    """Raise DeviceError if the precision bfloat16 crashes on this machine. `purpose` is the feature that needs it."""
    if not is_bfloat16_usable():
        name, value = next(iter(BFLOAT16_WORKAROUND_ENV.items()))
        raise DeviceError(
            f"{purpose} needs bfloat16, which crashes on this machine; set {name}={value} before starting "
            "(`h2h doctor` reports details)"
        )


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
    """Whether bfloat16 works on this machine, and whether it requires the environment variables in `workaround`."""

    status: Literal["works", "works with workaround", "no"]
    exit_description: str
    """The outcome of the attempt without the workaround."""
    workaround: str | None = None
    slowdown: float | None = None
    """Time in bfloat16 divided by time in float32, for the same work."""


def probe_bfloat16(
    device: str = "cpu", *, probe_code: str = _BFLOAT16_PROBE_CODE, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
) -> Bfloat16Support:
    """Try the precision bfloat16 in a child process. If that fails on the CPU, try again without AMX."""
    default_result = _run_bfloat16_probe(probe_code, device, timeout_seconds)
    if default_result.output:
        return Bfloat16Support("works", default_result.exit_description, slowdown=default_result.output["slowdown"])
    if device == "cpu":
        workaround_result = _run_bfloat16_probe(probe_code, device, timeout_seconds, BFLOAT16_WORKAROUND_ENV)
        if workaround_result.output:
            workaround = " ".join(f"{name}={value}" for name, value in BFLOAT16_WORKAROUND_ENV.items())
            slowdown = workaround_result.output["slowdown"]
            return Bfloat16Support("works with workaround", default_result.exit_description, workaround, slowdown)
    return Bfloat16Support("no", default_result.exit_description)


def _run_bfloat16_probe(
    probe_code: str, device: str, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> ProbeResult:
    """Try the precision bfloat16 once in a child process; an inaccurate result counts as a failure."""
    result = run_probe_code(probe_code, device, environment=environment, timeout_seconds=timeout_seconds)
    if result.output is None or result.output["error"] < _MAX_BFLOAT16_ERROR:  # False for nan
        return result
    return ProbeResult(None, f"was inaccurate: relative error {result.output['error']:.0%}")


def is_bfloat16_usable(device: str = "cpu") -> bool:
    """Return whether the precision bfloat16 works on a device with the environment variables of this process.

    The first call takes a few seconds.
    """
    return _is_bfloat16_usable_cached(device, *(os.environ.get(name) for name in BFLOAT16_WORKAROUND_ENV))


@cache
def _is_bfloat16_usable_cached(device: str, *environment: str | None) -> bool:
    return _run_bfloat16_probe(_BFLOAT16_PROBE_CODE, device, _PROBE_TIMEOUT_SECONDS).output is not None
