"""What a training would cost, and the full JSON schema: both need torch, so a child process is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from headtohead.config import loading
from headtohead.errors import ConfigError, RequestError
from headtohead.web.settings_form import parse_error_output
from headtohead.web.training_process import ConflictError

ESTIMATE_TIMEOUT_SECONDS = 180.0
JsonDict = dict[str, Any]


class CostEstimator:
    """One at a time, so that nobody fills the machine by asking."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._schema: JsonDict | None = None
        self._asked: asyncio.Task[None] | None = None

    def schema(self) -> JsonDict:
        """The JSON schema of experiment files: at once, and as soon as a child process has told them with the names of
        all parts, which a form suggests."""
        if self._schema is None:
            self._schema = loading.build_json_schema()
            self._asked = asyncio.create_task(self._load_full_schema())
        return self._schema

    async def _load_full_schema(self) -> None:
        with contextlib.suppress(RequestError, ValueError):
            _, out, _ = await _run_h2h_command(["schema"])
            self._schema = _merge_part_names(loading.build_json_schema(), json.loads(out))

    async def end(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait([self._asked])

    async def estimate_cost(self, arguments: Sequence[str]) -> JsonDict:
        """Sizes and times of each variant and of all together, from a few real steps."""
        if self._lock.locked():
            raise ConflictError("another estimate is being made; ask again in a moment")
        async with self._lock:
            code, out, err = await _run_h2h_command(["run", *arguments, "--dry-run", "--json"])
        if code != 0:
            faults = parse_error_output(err)
            raise ConfigError("form", faults) if faults else RequestError(err.strip() or "no estimate could be made")
        found: JsonDict = json.loads(out)
        return found


def _merge_part_names(schema: JsonDict, full_schema: JsonDict) -> JsonDict:
    """The schema with what the full one allows; defaults and descriptions are only in the first."""
    for name, table in full_schema["$defs"].items():
        there = schema["$defs"].get(name, {}).get("properties", {})
        for key, about in table.get("properties", {}).items():
            there[key] = {**there.get(key, {}), **about}
    return schema


async def _run_h2h_command(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a verb in a polite child process: (exit code, stdout, stderr)."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headtohead.cli",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with contextlib.suppress(psutil.Error):
        psutil.Process(child.pid).nice(10)
    try:
        async with asyncio.timeout(ESTIMATE_TIMEOUT_SECONDS):
            out, err = await child.communicate()
    except TimeoutError:
        raise RequestError(f"no estimate within {ESTIMATE_TIMEOUT_SECONDS:.0f} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def compute_total_cost(estimate: JsonDict, num_seeds: int, num_workers: int) -> JsonDict:
    """Seconds and bytes of the whole experiment on so many workers."""
    rows = estimate["plan"]
    trials = num_seeds * len(rows)
    at_once = max(1, min(num_workers, trials))
    return {
        "trials": trials,
        "workers": at_once,
        "seconds": num_seeds * sum(row["seconds"] for row in rows) / at_once,
        "bytes": max(row["training_bytes"] for row in rows) * at_once,
    }
