"""The application: pages and API behind the guard. Nothing here needs torch; what does is asked of child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from headtohead.errors import HeadToHeadError, SpecError
from headtohead.web import site as shared
from headtohead.web.estimates import Estimates
from headtohead.web.experiment_folders import Folders, UnknownNameError
from headtohead.web.live.watchers import Watchers
from headtohead.web.models.catalog import Catalog
from headtohead.web.models.client import Models
from headtohead.web.pages import api, attention, design, experiments, playground, start
from headtohead.web.request_guard import Guard, Hosts
from headtohead.web.site import HERE, REPORT, Site
from headtohead.web.training_process import BusyError

PAGES = (
    *(experiments.router, start.router, api.router, design.router, design.api),
    *(attention.router, attention.api, playground.router, playground.api),
)
STATIC = {
    **dict.fromkeys(("live.js", "form.js", "design.js", "looking.js", "playground.js"), HERE / "static"),
    **dict.fromkeys(("report.js", "attention.js"), REPORT),
}
"""file: where it lies"""


def create(
    runs: Path,
    *,
    token: str | None = None,
    hosts: Hosts | None = None,
    files: Path | None = None,
    models: Sequence[str] = (),
) -> FastAPI:
    """The application for the experiments below RUNS. `hosts` are the names it goes by, unless given those of the
    loopback; `files` is the folder with experiment files and data, unless given the one that it is started in; `models`
    are pretrained ones to look at and play with, beside those of installed packages."""
    folders = Folders.at(runs)
    watchers = Watchers(folders.root, shared.region)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        watchers.end()
        await app.state.estimates.end()
        await watchers.helper.end()
        await app.state.models.end()

    app = FastAPI(title="Head to Head", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", lifespan=life)
    app.state.site = Site(folders, watchers, (files or Path.cwd()).resolve())
    app.state.estimates = Estimates()
    app.state.catalog, app.state.models = Catalog(folders, models), Models()
    for router in PAGES:
        app.include_router(router)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), include_in_schema=False)
    app.add_api_route("/static/{name}", static, include_in_schema=False)
    app.add_exception_handler(HeadToHeadError, _our_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_json)
    app.add_middleware(Guard, hosts=hosts or Hosts.of("127.0.0.1"), token=token)
    return app


def static(name: str) -> Response:
    """Our style sheet and scripts: names that are known, and no others."""
    headers = {"cache-control": "no-cache"}
    if name == "site.css":
        return Response(shared.style_sheet(), media_type="text/css", headers=headers)
    if name not in STATIC:
        raise HTTPException(404, "there is no such file")
    return Response((STATIC[name] / name).read_bytes(), media_type="text/javascript", headers=headers)


def _our_error(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownNameError) else 409 if isinstance(error, BusyError) else 422
    faults = [{"place": f.place, "message": f.message} for f in error.faults] if isinstance(error, SpecError) else []
    return _said(request, status, str(error), faults)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _said(request, error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _wrong_json(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{"place": ".".join(map(str, one["loc"])), "message": str(one["msg"])} for one in error.errors()]
    return _said(request, 422, "; ".join(f"{f['place']}: {f['message']}" for f in faults), faults)


def _said(request: Request, status: int, words: str, faults: list[dict[str, str]] | None = None) -> Response:
    """What went wrong: data for programs, a page for people."""
    words = words.encode("utf-8", "replace").decode()
    if request.url.path.startswith("/api"):
        return JSONResponse({"detail": words, **({"faults": faults} if faults else {})}, status)
    if request.url.path.startswith("/static"):
        return PlainTextResponse(words, status)
    return shared.page(request, "error.html", status, words=words, is_missing=status == 404)
