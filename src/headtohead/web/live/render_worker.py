"""A child process that renders charts and computes verdicts: work too slow for the server's event loop.

It runs at low priority so as not to slow down training, and exits when idle. It is started with
`python -m headtohead.web.live.render_worker`; see `child_process` for the protocol.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtohead.child_process import AsyncChildProcess, ChildExitedError, ParentChannel, RequestFailedError
from headtohead.errors import HeadToHeadError

if TYPE_CHECKING:
    from headtohead.experiment.schemas import Findings

NICENESS = 10
IDLE_TIMEOUT_SECONDS = 120.0
RESPONSE_TIMEOUT_SECONDS = 300.0
"""generous, because the process mostly waits while training runs on every core"""
JsonDict = dict[str, Any]


class RenderWorker(AsyncChildProcess):
    """The server's side of the channel: one child process that handles requests in order."""

    def __init__(self) -> None:
        """Prepare to start the rendering process at the first request."""
        super().__init__(
            "headtohead.web.live.render_worker",
            idle_seconds=IDLE_TIMEOUT_SECONDS,
            response_seconds=RESPONSE_TIMEOUT_SECONDS,
        )

    async def call(self, request: JsonDict) -> JsonDict:
        """Return the response, {"error": message} if the request failed, or {} if the process exited or timed out."""
        try:
            async with aclosing(self.stream_responses(request)) as responses:
                return (await anext(responses))["result"]  # type: ignore[no-any-return]
        except RequestFailedError as error:
            return {"error": str(error)}
        except ChildExitedError:
            return {}


def main() -> None:
    """Respond to rendering requests until the server closes the channel."""
    os.nice(NICENESS)
    channel = ParentChannel()
    for request in channel.iter_requests():
        request_id = request["request"]
        try:
            channel.send({"request": request_id, "event": "result", "result": _render_requested_chart(request)})
            channel.send({"request": request_id, "event": "done"})
        except (HeadToHeadError, ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
            channel.send({"request": request_id, "event": "failed", "message": str(error)})


def _render_requested_chart(request: JsonDict) -> JsonDict:
    """Render the chart that the server requests: learning curves or a forest plot."""
    from headtohead.experiment.schemas import Findings

    if request["action"] == "curves":
        findings = Findings.model_validate(request["findings"])
        return {"chart": _render_learning_curves(findings, request.get("suffix", ""))}
    if request["action"] == "judge":
        findings = _compute_interim_findings(Path(request["folder"]))
    else:
        findings = Findings.model_validate(request["findings"])
    chart = _render_forest_plot(findings) if findings.verdicts else None
    return {
        "warnings": [warning.to_json() for warning in findings.warnings],
        "verdicts": [verdict.to_dict() for verdict in findings.verdicts],
        "metric": findings.metric,
        "chart": chart,
    }


def _compute_interim_findings(experiment_folder: Path) -> Findings:
    """Compute what the worker renders: interim findings of the trials finished so far."""
    from headtohead.experiment.run_folder import open_experiment_runs
    from headtohead.findings import compute

    runs = open_experiment_runs(experiment_folder)
    return compute.compute_findings(runs, is_live=True)


def _render_learning_curves(findings: Findings, name_suffix: str) -> JsonDict | None:
    """Render the learning curves for the server in this process, or return None without curves.

    The suffix distinguishes element ids from those of a second curve chart on the same page.
    """
    from headtohead.presentation.renderers.html import render_chart
    from headtohead.report.charts.learning_curves import build_learning_curves

    chart = build_learning_curves(findings)
    return None if chart is None else render_chart(replace(chart, name=chart.name + name_suffix))


def _render_forest_plot(findings: Findings) -> JsonDict:
    """Render the verdicts as a forest plot for the server in this process."""
    from headtohead.experiment import findings_view
    from headtohead.presentation.renderers.html import render_chart
    from headtohead.report.charts.forest_plot import build_forest_plot

    chart = build_forest_plot(
        findings.verdicts,
        findings_view.get_metric(findings),
        findings_view.get_equivalence_margin(findings),
    )
    return render_chart(chart)


if __name__ == "__main__":
    main()
