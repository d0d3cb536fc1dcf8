"""The FastAPI application: pages and API behind the request guard. Child processes do everything that needs torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from headtohead.errors import ConfigError, HeadToHeadError
from headtohead.presentation.renderers.html import TEMPLATES_FOLDER
from headtohead.web import site
from headtohead.web.estimates import CostEstimator
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError
from headtohead.web.live.watchers import WatcherRegistry
from headtohead.web.models.catalog import ModelCatalog
from headtohead.web.models.client import ModelProcessClient
from headtohead.web.pages import api, attention, compare, design, experiments, playground, start
from headtohead.web.request_guard import AllowedHosts, RequestGuard
from headtohead.web.site import WEB_FOLDER, AppContext
from headtohead.web.training_process import ConflictError

PAGE_ROUTERS = (
    *(experiments.router, compare.router, start.router, api.router, design.router, design.api_router),
    *(attention.router, attention.api_router, playground.router, playground.api_router),
)
STATIC_FILE_FOLDERS = {
    **dict.fromkeys(("live.js", "form.js", "design.js", "attention_form.js", "playground.js"), WEB_FOLDER / "static"),
    **dict.fromkeys(("report.js", "attention.js"), TEMPLATES_FOLDER),
}
"""folder of each static file, by file name"""


def create_app(
    runs_folder: Path,
    *,
    token: str | None = None,
    allowed_hosts: AllowedHosts | None = None,
    experiment_files_folder: Path | None = None,
    pretrained_models: Sequence[str] = (),
) -> FastAPI:
    """Return the application for the experiments in `runs_folder`.

    `allowed_hosts` defaults to the loopback names, `experiment_files_folder` (experiment files and data) to the current
    folder. `pretrained_models` are offered in addition to those in installed packages.
    """
    folders = ExperimentFolders.open_root(runs_folder)
    watchers = WatcherRegistry(folders.root, site.render_region)
    context = AppContext(
        folders=folders,
        watchers=watchers,
        files=(experiment_files_folder or Path.cwd()).resolve(),
        catalog=ModelCatalog(folders, pretrained_models),
        models=ModelProcessClient(),
        estimator=CostEstimator(),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Stop watchers and child processes when the server shuts down."""
        yield
        watchers.end()
        await context.estimator.end()
        await watchers.render_worker.end()
        await context.models.end()

    app = FastAPI(
        title="Head to Head", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", lifespan=lifespan
    )
    app.state.site = context
    for router in PAGE_ROUTERS:
        app.include_router(router)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), include_in_schema=False)
    app.add_api_route("/static/{name}", serve_static_file, include_in_schema=False)
    app.add_exception_handler(HeadToHeadError, _handle_package_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_middleware(RequestGuard, allowed_hosts=allowed_hosts or AllowedHosts.of("127.0.0.1"), token=token)
    return app


def serve_static_file(name: str) -> Response:
    """Serve the style sheet and the scripts; respond with 404 to any other name."""
    headers = {"cache-control": "no-cache"}
    if name == "site.css":
        return Response(site.build_stylesheet(), media_type="text/css", headers=headers)
    if name not in STATIC_FILE_FOLDERS:
        raise HTTPException(404, "no such file")
    return Response((STATIC_FILE_FOLDERS[name] / name).read_bytes(), media_type="text/javascript", headers=headers)


def _handle_package_error(request: Request, error: Exception) -> Response:
    """Respond to one of this package's errors with status 404, 409 or 422."""
    status = 404 if isinstance(error, NameNotFoundError) else 409 if isinstance(error, ConflictError) else 422
    field_errors = (
        [{"place": issue.location, "message": issue.message} for issue in error.issues]
        if isinstance(error, ConfigError)
        else []
    )
    return _build_error_response(request, status, str(error), field_errors)


def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _build_error_response(request, error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Respond to an invalid request with status 422 and one message per field."""
    assert isinstance(error, RequestValidationError)
    field_errors = [
        {"place": ".".join(map(str, issue["loc"])), "message": str(issue["msg"])} for issue in error.errors()
    ]
    return _build_error_response(
        request,
        422,
        "; ".join(f"{field_error['place']}: {field_error['message']}" for field_error in field_errors),
        field_errors,
    )


def _build_error_response(
    request: Request, status: int, message: str, field_errors: list[dict[str, str]] | None = None
) -> Response:
    """Return the error as JSON for the API, as text for static files, and as a page otherwise."""
    message = message.encode("utf-8", "replace").decode()
    if request.url.path.startswith("/api"):
        return JSONResponse({"detail": message, **({"faults": field_errors} if field_errors else {})}, status)
    if request.url.path.startswith("/static"):
        return PlainTextResponse(message, status)
    return site.render_page(request, "error.html", status, message=message, is_missing=status == 404)
