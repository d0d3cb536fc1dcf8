"""The experiment list, an experiment's page, and its actions."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from headtohead import safe_open
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.distillation.tables import build_rouge_verdict_cards
from headtohead.errors import RequestError
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import get_baseline_setting
from headtohead.presentation import number_format
from headtohead.presentation.renderers.html import TEMPLATES_FOLDER
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_pdf_document
from headtohead.versus.comparison_folder import is_comparison_folder
from headtohead.web import training_process
from headtohead.web.experiment_folders import NameNotFoundError, find_readable_file
from headtohead.web.live.experiment_state import MAX_SHOWN_ROWS, ExperimentReader, ExperimentState
from headtohead.web.request_guard import CONTENT_SECURITY_POLICY
from headtohead.web.site import AppContext, AppContextDep, build_url_path, parse_form_body, render_page

router = APIRouter(include_in_schema=False)
MAX_ADDITIONAL_SEEDS = 100
MAX_LISTED_VERDICTS = 50
"""verdicts of an experiment in the list of experiments"""


def check_experiment_in_url(context: AppContext, name: str) -> str:
    """Return the name in the URL of an experiment's page or API request.

    Raise NameNotFoundError, which becomes status 404, unless the experiment exists or was started by a server.
    """
    experiment_names = context.experiment_folders.list_experiments()
    if name not in experiment_names and name not in training_process.list_names_started_by_server(
        context.experiment_folders.root
    ):
        raise NameNotFoundError("no such experiment")
    return name


def read_experiment_state(context: AppContext, name: str) -> tuple[ExperimentReader, ExperimentState]:
    """Return the reader and the current state of the experiment in a URL."""
    reader = ExperimentReader(context.experiment_folders.root, check_experiment_in_url(context, name))
    return reader, reader.read_state()


def list_experiment_summaries(context: AppContext) -> list[dict[str, Any]]:
    """Return a summary of every experiment, active ones first."""
    root = context.experiment_folders.root
    started_names = training_process.list_names_started_by_server(root)
    names = dict.fromkeys([*context.experiment_folders.list_experiments(), *started_names])
    rows = []
    for name in names:
        reader = ExperimentReader(root, name)
        state = reader.read_state(with_metrics=False)
        findings = reader.read_findings()
        verdicts = build_rouge_verdict_cards(findings) or findings.verdicts
        rows.append(
            {
                "name": name,
                "question": state.question,
                "state": state.state,
                "finished": state.finished,
                "trials": len(state.trials),
                "quick": state.quick,
                "verdicts": [
                    {"variant": verdict.variant, "outcome": verdict.outcome}
                    for verdict in verdicts[:MAX_LISTED_VERDICTS]
                ],
            }
        )
    return sorted(rows, key=lambda row: (row["state"] not in ("running", "starting"), row["name"]))


def list_changed_settings(experiment: Experiment | None) -> list[dict[str, str]]:
    """Return what an experiment's page shows of the settings that each variant changes, with the baseline's values."""
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
        request, "experiments.html", rows=list_experiment_summaries(context), place=context.experiment_folders.root.name
    )


@router.get("/experiments/{name}")
def show_experiment(request: Request, name: str, context: AppContextDep) -> HTMLResponse:
    """Show an experiment's live state, verdicts, settings and audits."""
    reader, state = read_experiment_state(context, name)
    versus = reader.read_findings().versus
    return render_page(
        request,
        "experiment.html",
        observations=versus.observations[:MAX_SHOWN_ROWS] if versus else None,
        name=name,
        live=state,
        judged=reader.read_shown_verdicts(state),
        settings=list_changed_settings(reader.read_experiment()),
        audits=reader.read_audits(),
        report=find_readable_file(reader.folder, "report.html") is not None,
        seeds=max((trial.seed + 1 for trial in state.trials), default=0),
        baseline=BASELINE,
    )


@router.get("/experiments/{name}/events")
async def stream_experiment_events(
    name: str, context: AppContextDep, last_event_id: Annotated[str, Header()] = ""
) -> StreamingResponse:
    """Stream page regions as server-sent events whenever they change."""
    check_experiment_in_url(context, name)
    return StreamingResponse(_stream_events(context, name, last_event_id), media_type="text/event-stream")


async def _stream_events(context: AppContext, name: str, last_event_id: str) -> AsyncIterator[bytes]:
    async with aclosing(context.watchers.get_watcher(name).stream_events(last_event_id)) as events:
        async for event in events:
            yield event


@router.get("/experiments/{name}/report")
def show_report(request: Request, name: str, context: AppContextDep) -> Response:
    """Show an experiment's report in a sandboxed frame, which an untrusted report cannot leave by a redirect."""
    if find_readable_file(context.experiment_folders.find_experiment(name), "report.html") is None:
        raise HTTPException(404, "this experiment has no report yet")
    response = render_page(request, "report.html", name=name)
    response.headers["content-security-policy"] = f"{CONTENT_SECURITY_POLICY}; frame-src 'self'"
    return response


@router.get("/experiments/{name}/report/content")
def serve_report(name: str, context: AppContextDep, sec_fetch_dest: Annotated[str, Header()] = "iframe") -> Response:
    """Serve an experiment's report. The file is untrusted: it is sandboxed, and only this package's scripts run."""
    path = find_readable_file(context.experiment_folders.find_experiment(name), "report.html")
    if path is None:
        raise HTTPException(404, "this experiment has no report yet")
    if sec_fetch_dest != "iframe":  # outside the frame, a redirect in the file would be followed
        return RedirectResponse(build_url_path("experiments", name, "report"), status_code=303)
    scripts = (TEMPLATES_FOLDER / file_name for file_name in ("report.js", "attention.js"))
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
    folder = context.experiment_folders.find_experiment(name)
    if find_readable_file(folder, "findings.json") is None:
        raise HTTPException(404, "this experiment has no findings yet")
    pdf = render_pdf_document(ReportContext(findings_view.read_findings(folder), folder))
    headers = {"content-disposition": "attachment; filename=report.pdf"}
    return Response(pdf, media_type="application/pdf", headers=headers)


def _compute_sha256_base64(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


def redirect_to_experiment(name: str) -> RedirectResponse:
    """Redirect the browser to an experiment's page after a form was submitted."""
    return RedirectResponse(build_url_path("experiments", name), status_code=303)


@router.post("/experiments/{name}/stop")
def stop_experiment(name: str, context: AppContextDep) -> RedirectResponse:
    training_process.stop_training_process(context.experiment_folders.root, check_experiment_in_url(context, name))
    return redirect_to_experiment(name)


@router.post("/experiments/{name}/resume")
def resume_experiment(name: str, context: AppContextDep) -> RedirectResponse:
    resume_training(context, name)
    return redirect_to_experiment(name)


@router.post("/experiments/{name}/seeds")
def add_seeds(
    name: str, context: AppContextDep, form_data: Annotated[dict[str, str], Depends(parse_form_body)]
) -> RedirectResponse:
    """Train additional seeds of an experiment."""
    num_seeds = form_data.get("num_seeds", "").strip()
    if not num_seeds.isascii() or not num_seeds.isdigit():
        raise RequestError("num_seeds: must be an integer")
    train_additional_seeds(context, name, int(num_seeds))
    return redirect_to_experiment(name)


def resume_training(context: AppContext, name: str, num_seeds: int | None = None) -> None:
    """Resume an experiment, as its page and the API can request. The server never runs a comparison's commands."""
    if is_comparison_folder(context.experiment_folders.find_experiment(name)):
        raise RequestError(f"{name} compares commands; continue it in a terminal with h2h versus --resume")
    training_process.resume_training_process(context.experiment_folders.root, name, num_seeds)


def train_additional_seeds(context: AppContext, name: str, num_additional_seeds: int) -> int:
    """Start training additional seeds, as the experiment's page and the API can request; return the new total."""
    context.experiment_folders.find_experiment(name)
    if not 1 <= num_additional_seeds <= MAX_ADDITIONAL_SEEDS:
        raise RequestError(f"num_seeds: must be between 1 and {MAX_ADDITIONAL_SEEDS}, got {num_additional_seeds}")
    _, state = read_experiment_state(context, name)
    num_seeds = 1 + max((trial.seed for trial in state.trials), default=-1) + num_additional_seeds
    resume_training(context, name, num_seeds)
    return num_seeds
