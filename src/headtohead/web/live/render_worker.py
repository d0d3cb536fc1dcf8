"""A child process that renders charts and computes verdicts: work too slow for the server's event loop.

It runs at low priority beside training, and exits when idle. `python -m headtohead.web.live.render_worker` is its
command; see `json_channel` for the protocol.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

from headtohead.errors import HeadToHeadError
from headtohead.json_channel import ChildExitedError, ParentChannel, RequestChannel, RequestFailedError

NICENESS = 10
IDLE_TIMEOUT_SECONDS = 120.0
RESPONSE_TIMEOUT_SECONDS = 300.0
"""generous, because beside training on every core the process waits most of the time"""
JsonDict = dict[str, Any]


class RenderWorker(RequestChannel):
    """The server's end: one child, which answers requests in order."""

    def __init__(self) -> None:
        super().__init__(
            "headtohead.web.live.render_worker",
            idle_seconds=IDLE_TIMEOUT_SECONDS,
            response_seconds=RESPONSE_TIMEOUT_SECONDS,
        )

    async def ask(self, request: JsonDict) -> JsonDict:
        """Return the answer, {"error": message} if the request failed, or {} if the process exited or timed out."""
        try:
            async with aclosing(self.stream(request)) as answers:
                return (await anext(answers))["result"]  # type: ignore[no-any-return]
        except RequestFailedError as error:
            return {"error": str(error)}
        except ChildExitedError:
            return {}


def main() -> None:
    """Answer requests until the server closes the channel."""
    os.nice(NICENESS)
    channel = ParentChannel()
    for request in channel.requests():
        number = request["request"]
        try:
            channel.send({"request": number, "event": "result", "result": _handle_request(request)})
            channel.send({"request": number, "event": "done"})
        except (HeadToHeadError, ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
            channel.send({"request": number, "event": "failed", "message": str(error)})


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
    from headtohead.presentation.html import render_chart
    from headtohead.report.curve_charts import build_learning_curves

    chart = build_learning_curves(findings)
    return None if chart is None else render_chart(chart)


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
