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

IDLE = 120.0
LONGEST = 300.0
"""seconds for an answer: beside trainings on every core it computes for seconds, and waits for most of the time"""
LARGEST_ANSWER = 64 << 20
Json = dict[str, Any]


class Helper:
    """The server's side: one child, started when it is needed, one question at a time."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._one = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, question: Json) -> Json:
        """The answer; empty when there is none in time."""
        async with self._one:
            if self._idle is not None:
                self._idle.cancel()
            try:
                async with asyncio.timeout(LONGEST):
                    answer = await self._answer(question)
            except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
                await self.end()
                return {}
            self._idle = asyncio.get_running_loop().call_later(IDLE, self._send_home)
            return answer

    async def _answer(self, question: Json) -> Json:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headtohead.web.live.render_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LARGEST_ANSWER,
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(question).encode() + b"\n")
        await self._child.stdin.drain()
        found: Json = json.loads(await self._child.stdout.readuntil(b"\n"))
        return found

    def _send_home(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()  # it reads the end, and ends
        self._child = None

    async def end(self) -> None:
        child, self._child = self._child, None
        if self._idle is not None:
            self._idle.cancel()
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
            answer = _work(json.loads(asked))
        except (HeadToHeadError, ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
            answer = {"error": str(error)}
        line.write(json.dumps(answer) + "\n")


def _work(asked: Json) -> Json:
    if asked["what"] == "curves":
        return {"chart": _curves(asked["findings"])}
    found = _judged(Path(asked["folder"])) if asked["what"] == "judge" else asked["findings"]
    rows = found.get("verdicts") or []
    return {"verdicts": rows, "metric": found.get("metric"), "chart": _forest(found) if rows else None}


def _judged(folder: Path) -> Json:
    """What can be said from the trials that are finished."""
    from headtohead.experiment import findings
    from headtohead.experiment.run_folder import open_runs

    runs = open_runs(folder)
    return findings.find(runs, looks=findings.looks_of(runs))


def _curves(found: Json) -> Json | None:
    from headtohead.report import charts, findings_view
    from headtohead.report.page import _chart

    splits = [split for split in findings_view.splits_of(found, "curves") if findings_view.curves(found, split)]
    return _chart(charts.learning_curves(found, splits)) if splits else None


def _forest(found: Json) -> Json:
    from headtohead.report import findings_view
    from headtohead.report.forest import forest
    from headtohead.report.page import _chart

    drawn = forest(findings_view.verdicts(found), findings_view.metric(found), findings_view.matters(found))
    return _chart(drawn)


if __name__ == "__main__":
    main()
