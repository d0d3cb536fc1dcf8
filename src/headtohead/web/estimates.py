"""Cost estimates (`h2h plan`) and the complete JSON schema of the settings form (`h2h schema`).

Both need torch, which the server does not import, so child processes compute them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import psutil

from headtohead.child_process import PYTHON_COMMAND
from headtohead.config import json_schema
from headtohead.errors import ConfigError, RequestError
from headtohead.web.settings_form import parse_field_errors
from headtohead.web.training_process import ConflictError

ESTIMATE_TIMEOUT_SECONDS = 180.0
JsonDict = dict[str, Any]


class CostEstimator:
    """Runs one estimate at a time, so that requests cannot overload the machine."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._schema: JsonDict | None = None
        self._schema_task: asyncio.Task[None] | None = None

    def get_form_schema(self) -> JsonDict:
        """Return the JSON schema of experiment files, from which the settings form is built.

        Names of parts are added once a child process has listed them.
        """
        if self._schema is None:
            self._schema = json_schema.build_json_schema()
            self._schema_task = asyncio.create_task(self._load_full_schema())
        return self._schema

    async def _load_full_schema(self) -> None:
        with contextlib.suppress(RequestError, ValueError):
            _, out, _ = await _run_h2h_command(["schema"])
            self._schema = _complete_form_schema(json_schema.build_json_schema(), json.loads(out))

    async def end(self) -> None:
        """Stop listing the names of parts when the server shuts down."""
        if self._schema_task is not None:
            self._schema_task.cancel()
            await asyncio.wait([self._schema_task])

    async def estimate_cost(self, arguments: Sequence[str]) -> JsonDict:
        """Return each variant's size and time, and the totals, measured with a few real steps."""
        if self._lock.locked():
            raise ConflictError("another estimate is in progress; try again in a moment")
        async with self._lock:
            exit_code, out, err = await _run_h2h_command(["plan", *arguments, "--json"])
        if exit_code != 0:
            issues = parse_field_errors(err)
            raise ConfigError("form", issues) if issues else RequestError(err.strip() or "the estimate failed")
        plan: JsonDict = json.loads(out)
        return plan


def _complete_form_schema(schema: JsonDict, full_schema: JsonDict) -> JsonDict:
    """Add the allowed values that the child process `h2h schema` has listed to the schema of the settings form.

    Only the first schema, which the server builds without torch, contains defaults and descriptions.
    """
    for name, table in full_schema["$defs"].items():
        properties = schema["$defs"].get(name, {}).get("properties", {})
        for key, full_property in table.get("properties", {}).items():
            properties[key] = {**properties.get(key, {}), **full_property}
    return schema


async def _run_h2h_command(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Estimate costs or list parts in a child process of low priority: run `h2h plan` or `h2h schema`.

    Return its exit code, stdout and stderr.
    """
    child = await asyncio.create_subprocess_exec(
        *PYTHON_COMMAND,
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
        raise RequestError(f"the estimate did not finish within {ESTIMATE_TIMEOUT_SECONDS:.0f} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
