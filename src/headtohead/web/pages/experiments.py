"""The list of experiments, the page of one, and the buttons on it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from headtohead.errors import RequestError
from headtohead.presentation import number_format
from headtohead.web import training_process
from headtohead.web.experiment_folders import UnknownNameError, file_in
from headtohead.web.live.experiment_state import BASELINE, Live, Reader, contest
from headtohead.web.site import REPORT, Site, address, page, site_of

router = APIRouter(include_in_schema=False)
Here = Annotated[Site, Depends(site_of)]
MOST_SEEDS = 100
MOST_FIELDS = 200


def exists(site: Site, name: str) -> str:
    """The name, if there is such an experiment or if a server was asked for one."""
    if name not in site.folders.experiments() and name not in training_process.started(site.folders.root):
        raise UnknownNameError("there is no experiment of that name")
    return name


def read(site: Site, name: str) -> tuple[Reader, Live]:
    reader = Reader(site.folders.root, exists(site, name))
    return reader, reader.read()


def listed(site: Site) -> list[dict[str, Any]]:
    """Every experiment in one line, those that are at work first."""
    names = dict.fromkeys([*site.folders.experiments(), *training_process.started(site.folders.root)])
    rows = []
    for name in names:
        reader = Reader(site.folders.root, name)
        live = reader.read(metrics=False)
        found = reader.findings()
        verdicts = contest(found) or found.get("verdicts", [])
        rows.append(
            {
                "name": name,
                "question": live.question,
                "state": live.state,
                "finished": live.finished,
                "trials": len(live.trials),
                "verdicts": [_word(row) for row in verdicts if isinstance(row, dict)],
            }
        )
    order = ("running", "starting")
    return sorted(rows, key=lambda row: (row["state"] not in order, row["name"]))


def _word(row: dict[str, Any]) -> dict[str, str]:
    return {"variant": str(row.get("variant", "")), "word": str(row.get("word", ""))}


def settings_of(about: dict[str, Any]) -> list[dict[str, str]]:
    """What each variant changes, beside the baseline's value."""
    variants = about.get("variants")
    rows = []
    for name, changes in variants.items() if isinstance(variants, dict) else ():
        for table, inner in changes.items() if isinstance(changes, dict) else ():
            for key, value in inner.items() if isinstance(inner, dict) else ():
                before = about.get(table)
                original = before.get(key) if isinstance(before, dict) else None
                rows.append(
                    {
                        "variant": str(name),
                        "setting": f"{table}.{key}",
                        "baseline": number_format.plain(original),
                        "value": number_format.plain(value),
                    }
                )
    return rows


@router.get("/")
def show_list(request: Request, site: Here) -> HTMLResponse:
    return page(request, "experiments.html", rows=listed(site), place=site.folders.root.name)


@router.get("/experiments/{name}")
def show_one(request: Request, name: str, site: Here) -> HTMLResponse:
    reader, live = read(site, name)
    return page(
        request,
        "experiment.html",
        name=name,
        live=live,
        judged=reader.judged(live),
        settings=settings_of(reader.about()),
        audits=reader.audits(),
        report=file_in(reader.folder, "report.html") is not None,
        seeds=max((trial.seed + 1 for trial in live.trials), default=0),
        baseline=BASELINE,
    )


@router.get("/experiments/{name}/events")
async def events(name: str, site: Here, last_event_id: Annotated[str, Header()] = "") -> StreamingResponse:
    """The regions of the page as they change, as server-sent events."""
    exists(site, name)
    return StreamingResponse(_stream(site, name, last_event_id), media_type="text/event-stream")


async def _stream(site: Site, name: str, last: str) -> AsyncIterator[bytes]:
    async with aclosing(site.watchers.watcher(name).events(last)) as sent:
        async for event in sent:
            yield event


@router.get("/experiments/{name}/report")
def report(name: str, site: Here) -> Response:
    """The report as it lies in the folder. Of scripts, only those that this package writes into reports may run, and
    the page is shut off from the rest of the server: the file may have come from anywhere."""
    path = file_in(site.folders.find(name), "report.html")
    if path is None:
        raise HTTPException(404, "this experiment has no report yet")
    ours = " ".join(f"'sha256-{_digest(REPORT / file)}'" for file in ("report.js", "attention.js"))
    policy = (
        f"sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {ours}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(
        path.read_bytes(), media_type="text/html; charset=utf-8", headers={"content-security-policy": policy}
    )


def _digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


async def filled_in(request: Request) -> dict[str, str]:
    """The fields of a form that was sent."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise HTTPException(415, "a form is sent as application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "the form cannot be read") from None


def back_to(name: str) -> RedirectResponse:
    return RedirectResponse(address("experiments", name), status_code=303)


@router.post("/experiments/{name}/stop")
def stop(name: str, site: Here) -> RedirectResponse:
    training_process.stop(site.folders.root, exists(site, name))
    return back_to(name)


@router.post("/experiments/{name}/resume")
def resume(name: str, site: Here) -> RedirectResponse:
    site.folders.find(name)
    training_process.resume(site.folders.root, name)
    return back_to(name)


@router.post("/experiments/{name}/seeds")
def add_seeds(name: str, site: Here, form: Annotated[dict[str, str], Depends(filled_in)]) -> RedirectResponse:
    given = form.get("add", "").strip()
    if not given.isascii() or not given.isdigit():
        raise RequestError("add: how many seeds, as a whole number")
    more_seeds(site, name, int(given))
    return back_to(name)


def more_seeds(site: Site, name: str, add: int) -> int:
    """Train so many more seeds of every variant; how many there will be."""
    site.folders.find(name)
    if not 1 <= add <= MOST_SEEDS:
        raise RequestError(f"add: from 1 to {MOST_SEEDS}, not {add}")
    _, live = read(site, name)
    seeds = 1 + max((trial.seed for trial in live.trials), default=-1) + add
    training_process.resume(site.folders.root, name, seeds)
    return seeds
