"""Run Python code that may crash or hang in a child process, such as the bfloat16 test or a GPU query."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headtohead.child_process import PYTHON_COMMAND


@dataclass(frozen=True)
class ProbeResult:
    """Exit status of a probe, and the JSON object that it printed if it succeeded."""

    output: dict[str, Any] | None
    exit_description: str


def run_probe_code(
    code: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_seconds: float
) -> ProbeResult:
    """Run Python code that probes the hardware in a child process, because it may crash or hang.

    The last line that the code prints must be a JSON object: the output of the result.
    """
    try:
        child = subprocess.run(
            [*PYTHON_COMMAND, "-c", _DISABLE_CORE_DUMP_CODE + code, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(None, f"timed out after {timeout_seconds:g} s")
    if child.returncode < 0:
        return ProbeResult(None, f"was killed: {signal.strsignal(-child.returncode)}")
    if child.returncode:
        last_line = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return ProbeResult(None, f"failed: {last_line}")
    return ProbeResult(json.loads(child.stdout.splitlines()[-1]), "succeeded")


_DISABLE_CORE_DUMP_CODE = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, OSError, ValueError):
    pass
"""
