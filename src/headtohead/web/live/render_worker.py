"""A child process for what is slow: charts take a second to draw, verdicts read every score.

It is as polite as a process can be (nice), so that trainings have the machine, and ends when nothing was asked for a
while. `python -m headtohead.web.live.render_worker` takes lines of JSON and answers each with one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from headtohead.errors import HeadToHeadError

IDLE_TIMEOUT_SECONDS = 120.0
RESPONSE_TIMEOUT_SECONDS = 300.0
"""seconds for an answer: beside trainings on every core it computes for seconds, and waits for most of the time"""
MAX_RESPONSE_BYTES = 64 << 20
JsonDict = dict[str, Any]


class RenderWorker:
    """The server's side: one child, started when it is needed, one question at a time."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def ask(self, request: JsonDict) -> JsonDict:
        """The answer; empty when there is none in time."""
        async with self._lock:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                    answer = await self._exchange(request)
            except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
                await self.end()
                return {}
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT_SECONDS, self._close_idle_process)
            return answer

    async def _exchange(self, request: JsonDict) -> JsonDict:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headtohead.web.live.render_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=MAX_RESPONSE_BYTES,
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(request).encode() + b"\n")
        await self._child.stdin.drain()
        found: JsonDict = json.loads(await self._child.stdout.readuntil(b"\n"))
        return found

    def _close_idle_process(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()  # it reads the end, and ends
        self._child = None

    async def end(self) -> None:
        child, self._child = self._child, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def main() -> None:
    """The child's side."""
    os.nice(10)
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints must not disturb the line to the parent
    for asked in sys.stdin:
        try:
            answer = _handle_request(json.loads(asked))
        except (HeadToHeadError, ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
            answer = {"error": str(error)}
        line.write(json.dumps(answer) + "\n")


def _handle_request(request: JsonDict) -> JsonDict:
    if request["what"] == "curves":
        return {"chart": _render_learning_curves(request["findings"])}
    found = _compute_interim_findings(Path(request["folder"])) if request["what"] == "judge" else request["findings"]
    rows = found.get("verdicts") or []
    return {"verdicts": rows, "metric": found.get("metric"), "chart": _render_forest_plot(found) if rows else None}


def _compute_interim_findings(experiment_folder: Path) -> JsonDict:
    """What can be said from the trials that are finished."""
    from headtohead.experiment.run_folder import open_runs
    from headtohead.findings import findings

    runs = open_runs(experiment_folder)
    return findings.compute_findings(runs, interim_analyses=findings.list_interim_analyses(runs))


def _render_learning_curves(findings: JsonDict) -> JsonDict | None:
    from headtohead.experiment import findings_view
    from headtohead.presentation.html import render_chart
    from headtohead.report import charts

    splits = [
        split
        for split in findings_view.list_splits(findings, "curves")
        if findings_view.compute_learning_curves(findings, split)
    ]
    return render_chart(charts.build_learning_curves(findings, splits)) if splits else None


def _render_forest_plot(findings: JsonDict) -> JsonDict:
    from headtohead.experiment import findings_view
    from headtohead.presentation.html import render_chart
    from headtohead.report.forest import build_forest_plot

    drawn = build_forest_plot(
        findings_view.get_verdicts(findings),
        findings_view.get_metric(findings),
        findings_view.get_equivalence_margin(findings),
    )
    return render_chart(drawn)


if __name__ == "__main__":
    main()
