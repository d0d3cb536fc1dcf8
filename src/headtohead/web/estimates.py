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
from headtohead.errors import RequestError, SpecError
from headtohead.web.settings_form import faults_in
from headtohead.web.training_process import BusyError

LONGEST = 180.0
Json = dict[str, Any]


class Estimates:
    """One at a time, so that nobody fills the machine by asking."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._schema: Json | None = None
        self._asked: asyncio.Task[None] | None = None

    def schema(self) -> Json:
        """The JSON schema of experiment files: at once, and as soon as a child process has told them with the names of
        all parts, which a form suggests."""
        if self._schema is None:
            self._schema = loading.schema()
            self._asked = asyncio.create_task(self._ask_for_parts())
        return self._schema

    async def _ask_for_parts(self) -> None:
        with contextlib.suppress(RequestError, ValueError):
            _, out, _ = await _h2h(["schema"])
            self._schema = _with_parts(loading.schema(), json.loads(out))

    async def end(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait([self._asked])

    async def estimate(self, arguments: Sequence[str]) -> Json:
        """Sizes and times of each variant and of all together, from a few real steps."""
        if self._one.locked():
            raise BusyError("another estimate is being made; ask again in a moment")
        async with self._one:
            code, out, err = await _h2h(["run", *arguments, "--dry-run", "--json"])
        if code != 0:
            faults = faults_in(err)
            raise SpecError("form", faults) if faults else RequestError(err.strip() or "no estimate could be made")
        found: Json = json.loads(out)
        return found


def _with_parts(schema: Json, full: Json) -> Json:
    """The schema with what the full one allows; defaults and descriptions are only in the first."""
    for name, table in full["$defs"].items():
        there = schema["$defs"].get(name, {}).get("properties", {})
        for key, about in table.get("properties", {}).items():
            there[key] = {**there.get(key, {}), **about}
    return schema


async def _h2h(arguments: Sequence[str]) -> tuple[int, str, str]:
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
        async with asyncio.timeout(LONGEST):
            out, err = await child.communicate()
    except TimeoutError:
        raise RequestError(f"no estimate within {LONGEST:.0f} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def total(plan: Json, seeds: int, workers: int) -> Json:
    """Seconds and bytes of the whole experiment on so many workers."""
    rows = plan["plan"]
    trials = seeds * len(rows)
    at_once = max(1, min(workers, trials))
    return {
        "trials": trials,
        "workers": at_once,
        "seconds": seeds * sum(row["seconds"] for row in rows) / at_once,
        "bytes": max(row["training_bytes"] for row in rows) * at_once,
    }
