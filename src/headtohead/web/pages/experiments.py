"""The experiment list, an experiment's page, and its actions."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from headtohead import safe_open
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.distillation.tables import build_headline_verdicts
from headtohead.errors import RequestError
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import get_baseline_setting
from headtohead.presentation import number_format
from headtohead.presentation.renderers.html import TEMPLATES_FOLDER
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_pdf_document
from headtohead.versus.comparison import is_comparison
from headtohead.web import training_process
from headtohead.web.experiment_folders import NameNotFoundError, find_readable_file
from headtohead.web.live.experiment_state import MAX_SHOWN_ROWS, ExperimentReader, ExperimentState
from headtohead.web.request_guard import CONTENT_SECURITY_POLICY
from headtohead.web.site import AppContext, AppContextDep, build_url_path, render_page

router = APIRouter(include_in_schema=False)
MAX_ADDITIONAL_SEEDS = 100
MAX_FORM_FIELDS = 200
MAX_LISTED_VERDICTS = 50
"""verdicts of an experiment in the list of experiments"""


def validate_experiment_name(context: AppContext, name: str) -> str:
    """Return the name if such an experiment exists or was started by a server."""
    if name not in context.folders.experiments() and name not in training_process.list_started_names(
        context.folders.root
    ):
        raise NameNotFoundError("no such experiment")
    return name


def read_experiment_state(context: AppContext, name: str) -> tuple[ExperimentReader, ExperimentState]:
    reader = ExperimentReader(context.folders.root, validate_experiment_name(context, name))
    return reader, reader.read()


def list_experiment_summaries(context: AppContext) -> list[dict[str, Any]]:
    """Return a summary of every experiment, active ones first."""
    names = dict.fromkeys([*context.folders.experiments(), *training_process.list_started_names(context.folders.root)])
    rows = []
    for name in names:
        reader = ExperimentReader(context.folders.root, name)
        live = reader.read(with_metrics=False)
        findings = reader.findings()
        verdicts = build_headline_verdicts(findings) or findings.verdicts
        rows.append(
            {
                "name": name,
                "question": live.question,
                "state": live.state,
                "finished": live.finished,
                "trials": len(live.trials),
                "quick": live.quick,
                "verdicts": [
                    {"variant": verdict.variant, "outcome": verdict.outcome}
                    for verdict in verdicts[:MAX_LISTED_VERDICTS]
                ],
            }
        )
    return sorted(rows, key=lambda row: (row["state"] not in ("running", "starting"), row["name"]))


def list_changed_settings(experiment: Experiment | None) -> list[dict[str, str]]:
    """Return the settings that each variant changes, along with the baseline's values."""
    rows = (
        {
            "variant": name,
            "setting": f"{table}.{key}",
            "baseline": number_format.format_setting(get_baseline_setting(experiment, f"{table}.{key}")),
            "value": number_format.format_setting(value),
        }
        for name, changes in (experiment.variants if experiment else {}).items()
        for table, settings in changes.items()
        for key, value in settings.items()
    )
    return list(islice(rows, MAX_SHOWN_ROWS))


@router.get("/")
def show_experiment_list(request: Request, context: AppContextDep) -> HTMLResponse:
    return render_page(
        request, "experiments.html", rows=list_experiment_summaries(context), place=context.folders.root.name
    )


@router.get("/experiments/{name}")
def show_experiment(request: Request, name: str, context: AppContextDep) -> HTMLResponse:
    """Show an experiment's live state, verdicts, settings and audits."""
    reader, live = read_experiment_state(context, name)
    versus = reader.findings().versus
    return render_page(
        request,
        "experiment.html",
        observations=versus.observations[:MAX_SHOWN_ROWS] if versus else None,
        name=name,
        live=live,
        judged=reader.judged(live),
        settings=list_changed_settings(reader.experiment()),
        audits=reader.audits(),
        report=find_readable_file(reader.folder, "report.html") is not None,
        seeds=max((trial.seed + 1 for trial in live.trials), default=0),
        baseline=BASELINE,
    )


@router.get("/experiments/{name}/events")
async def stream_experiment_events(
    name: str, context: AppContextDep, last_event_id: Annotated[str, Header()] = ""
) -> StreamingResponse:
    """Stream page regions as server-sent events whenever they change."""
    validate_experiment_name(context, name)
    return StreamingResponse(_stream_events(context, name, last_event_id), media_type="text/event-stream")


async def _stream_events(context: AppContext, name: str, last_event_id: str) -> AsyncIterator[bytes]:
    async with aclosing(context.watchers.get_watcher(name).events(last_event_id)) as events:
        async for event in events:
            yield event


@router.get("/experiments/{name}/report")
def show_report(request: Request, name: str, context: AppContextDep) -> Response:
    """Show the report in a sandboxed frame, so that a redirect in an untrusted report cannot leave this page."""
    if find_readable_file(context.folders.find(name), "report.html") is None:
        raise HTTPException(404, "this experiment has no report yet")
    response = render_page(request, "report.html", name=name)
    response.headers["content-security-policy"] = f"{CONTENT_SECURITY_POLICY}; frame-src 'self'"
    return response


@router.get("/experiments/{name}/report/content")
def serve_report(name: str, context: AppContextDep, sec_fetch_dest: Annotated[str, Header()] = "iframe") -> Response:
    """Serve the report. The file is untrusted: it is sandboxed, and only this package's own scripts may run."""
    path = find_readable_file(context.folders.find(name), "report.html")
    if path is None:
        raise HTTPException(404, "this experiment has no report yet")
    if sec_fetch_dest != "iframe":  # outside the frame, a redirect in the file would be followed
        return RedirectResponse(build_url_path("experiments", name, "report"), status_code=303)
    scripts = (TEMPLATES_FOLDER / name for name in ("report.js", "attention.js"))
    script_hashes = " ".join(f"'sha256-{_compute_sha256_base64(script)}'" for script in scripts)
    policy = (
        f"sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {script_hashes}; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    headers = {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}
    return Response(safe_open.read_file(path), media_type="text/html; charset=utf-8", headers=headers)


@router.get("/experiments/{name}/report.pdf")
def download_pdf(name: str, context: AppContextDep) -> Response:
    """Render the report as a PDF. Nothing is written to the experiment's folder."""
    folder = context.folders.find(name)
    if find_readable_file(folder, "findings.json") is None:
        raise HTTPException(404, "this experiment has no findings yet")
    pdf = render_pdf_document(ReportContext(findings_view.read_findings(folder), folder))
    headers = {"content-disposition": "attachment; filename=report.pdf"}
    return Response(pdf, media_type="application/pdf", headers=headers)


def _compute_sha256_base64(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


async def parse_form(request: Request) -> dict[str, str]:
    """Return a submitted form's fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise HTTPException(415, "forms must be sent as application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "malformed form") from None


def redirect_to_experiment(name: str) -> RedirectResponse:
    return RedirectResponse(build_url_path("experiments", name), status_code=303)


@router.post("/experiments/{name}/stop")
def stop_experiment(name: str, context: AppContextDep) -> RedirectResponse:
    training_process.stop(context.folders.root, validate_experiment_name(context, name))
    return redirect_to_experiment(name)


@router.post("/experiments/{name}/resume")
def resume_experiment(name: str, context: AppContextDep) -> RedirectResponse:
    resume_training(context, name)
    return redirect_to_experiment(name)


@router.post("/experiments/{name}/seeds")
def add_seeds(
    name: str, context: AppContextDep, form_data: Annotated[dict[str, str], Depends(parse_form)]
) -> RedirectResponse:
    """Train additional seeds of an experiment."""
    num_seeds = form_data.get("num_seeds", "").strip()
    if not num_seeds.isascii() or not num_seeds.isdigit():
        raise RequestError("num_seeds: must be an integer")
    train_additional_seeds(context, name, int(num_seeds))
    return redirect_to_experiment(name)


def resume_training(context: AppContext, name: str, num_seeds: int | None = None) -> None:
    """Resume training an experiment. The server never runs the commands of a command comparison."""
    if is_comparison(context.folders.find(name)):
        raise RequestError(f"{name} compares commands; continue it in a terminal with h2h versus --resume")
    training_process.resume(context.folders.root, name, num_seeds)


def train_additional_seeds(context: AppContext, name: str, num_additional_seeds: int) -> int:
    """Start training additional seeds for every variant and return the total number of seeds."""
    context.folders.find(name)
    if not 1 <= num_additional_seeds <= MAX_ADDITIONAL_SEEDS:
        raise RequestError(f"num_seeds: must be between 1 and {MAX_ADDITIONAL_SEEDS}, got {num_additional_seeds}")
    _, live = read_experiment_state(context, name)
    seeds = 1 + max((trial.seed for trial in live.trials), default=-1) + num_additional_seeds
    resume_training(context, name, seeds)
    return seeds
