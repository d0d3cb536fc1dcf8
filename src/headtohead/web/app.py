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
from headtohead.web import site
from headtohead.web.estimates import CostEstimator
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError
from headtohead.web.live.watchers import WatcherRegistry
from headtohead.web.models.catalog import ModelCatalog
from headtohead.web.models.client import ModelProcessClient
from headtohead.web.pages import api, attention, compare, design, experiments, playground, start
from headtohead.web.request_guard import AllowedHosts, RequestGuard
from headtohead.web.site import AppContext
from headtohead.web.training_process import ConflictError

PAGE_ROUTERS = (
    *(experiments.router, compare.router, start.router, api.router, design.router, design.api_router),
    *(attention.router, attention.api_router, playground.router, playground.api_router),
)


def create_app(
    runs_folder: Path,
    *,
    token: str | None = None,
    allowed_hosts: AllowedHosts | None = None,
    experiment_files_folder: Path | None = None,
    pretrained_models: Sequence[str] = (),
) -> FastAPI:
    """Return the application for the experiments in `runs_folder`.

    `allowed_hosts` defaults to the loopback names. `experiment_files_folder`, which contains experiment files and data,
    defaults to the current folder. `pretrained_models` are offered in addition to those in installed packages.
    """
    experiment_folders = ExperimentFolders.open_root(runs_folder)
    watchers = WatcherRegistry(experiment_folders.root, site.render_region)
    context = AppContext(
        experiment_folders=experiment_folders,
        watchers=watchers,
        experiment_files_folder=(experiment_files_folder or Path.cwd()).resolve(),
        model_catalog=ModelCatalog(experiment_folders, pretrained_models),
        model_process=ModelProcessClient(),
        estimator=CostEstimator(),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Stop watchers and child processes when the server shuts down."""
        yield
        watchers.end()
        await context.estimator.end()
        await watchers.render_worker.end()
        await context.model_process.end()

    app = FastAPI(
        title="Head to Head", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", lifespan=lifespan
    )
    app.state.context = context
    for router in PAGE_ROUTERS:
        app.include_router(router)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), include_in_schema=False)
    app.add_api_route("/static/{name}", site.serve_static_file, include_in_schema=False)
    app.add_exception_handler(HeadToHeadError, _handle_package_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_middleware(RequestGuard, allowed_hosts=allowed_hosts or AllowedHosts.for_address("127.0.0.1"), token=token)
    return app


def _handle_package_error(request: Request, error: Exception) -> Response:
    """Turn one of this package's errors into the app's response: status 404, 409 or 422."""
    status = 404 if isinstance(error, NameNotFoundError) else 409 if isinstance(error, ConflictError) else 422
    field_errors = (
        [{"location": issue.location, "message": issue.message} for issue in error.issues]
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
    """Turn an invalid request into the app's response: status 422 and one message per field."""
    assert isinstance(error, RequestValidationError)
    field_errors = [
        {"location": ".".join(map(str, issue["loc"])), "message": str(issue["msg"])} for issue in error.errors()
    ]
    return _build_error_response(
        request,
        422,
        "; ".join(f"{field_error['location']}: {field_error['message']}" for field_error in field_errors),
        field_errors,
    )


def _build_error_response(
    request: Request, status: int, message: str, field_errors: list[dict[str, str]] | None = None
) -> Response:
    """Return an error of the app as JSON for the API, as text for static files, and as a page otherwise."""
    message = message.encode("utf-8", "replace").decode()
    if request.url.path.startswith("/api"):
        return JSONResponse({"detail": message, **({"errors": field_errors} if field_errors else {})}, status)
    if request.url.path.startswith("/static"):
        return PlainTextResponse(message, status)
    return site.render_page(request, "error.html", status, message=message, is_missing=status == 404)
