"""Shared by all pages: navigation, templates, submitted forms, static files and the application context.

To add a page, write a module in pages/ with a `router` and a template that extends layout.html, and add it to
`NAVIGATION` and to `app.PAGE_ROUTERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment
from markupsafe import Markup

from headtohead.presentation import style
from headtohead.presentation.renderers.html import TEMPLATES_FOLDER, create_environment
from headtohead.progress import format_duration
from headtohead.web.estimates import CostEstimator
from headtohead.web.experiment_folders import ExperimentFolders
from headtohead.web.live.watchers import WatcherRegistry
from headtohead.web.models.catalog import ModelCatalog
from headtohead.web.models.client import ModelProcessClient

NAVIGATION = (
    ("/", "Experiments"),
    ("/start", "Start"),
    ("/attention", "Attention"),
    ("/playground", "Playground"),
    ("/design", "Design"),
)
"""path and title of each page, in order"""

WEB_FOLDER = Path(__file__).parent
STATIC_FILE_FOLDERS = {
    **dict.fromkeys(("live.js", "form.js", "design.js", "attention_form.js", "playground.js"), WEB_FOLDER / "static"),
    **dict.fromkeys(("report.js", "attention.js"), TEMPLATES_FOLDER),
}
"""folder of each static file, by file name"""
MAX_FORM_FIELDS = 200


@dataclass
class AppContext:
    """State that every request can access."""

    experiment_folders: ExperimentFolders
    watchers: WatcherRegistry
    experiment_files_folder: Path
    """the folder whose experiment files can be started and whose data can be used"""
    model_catalog: ModelCatalog
    model_process: ModelProcessClient
    estimator: CostEstimator


def get_app_context(request: Request) -> AppContext:
    """Return the state of the application that serves a request: a FastAPI dependency."""
    context: AppContext = request.app.state.context
    return context


AppContextDep = Annotated[AppContext, Depends(get_app_context)]


@lru_cache(maxsize=1)
def _create_jinja_environment() -> Environment:
    """Return the jinja2 environment with the templates of all pages of the site."""
    environment = create_environment(WEB_FOLDER / "templates")
    environment.globals.update(navigation=NAVIGATION, address=build_url_path)
    environment.tests["endswith"] = lambda text, ending: str(text).endswith(ending)
    environment.filters.update(svg=Markup, duration=format_duration)  # svg: rendered by this package, so not escaped
    return environment


def build_url_path(*parts: str) -> str:
    """Return a URL path with every segment quoted, such as /experiments/NAME/stop."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def render_region(name: str, variables: dict[str, Any]) -> str:
    """Return the HTML of a page region that is updated while the page is open."""
    return _create_jinja_environment().get_template(f"regions/{name}.html").render(**variables)


def render_page(request: Request, template: str, status: int = 200, **view: Any) -> HTMLResponse:
    """Render a page and return it as a response."""
    html = _create_jinja_environment().get_template(template).render(current_path=request.url.path, **view)
    return HTMLResponse(html, status_code=status)


async def parse_form_body(request: Request) -> dict[str, str]:
    """Return the fields of a form that any page of the site submits, by name: a FastAPI dependency."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/x-www-form-urlencoded", ""):
        raise HTTPException(415, "forms must be sent as application/x-www-form-urlencoded")
    try:
        body = (await request.body()).decode()
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "malformed form") from None


def serve_static_file(name: str) -> Response:
    """Serve the style sheet and scripts of the site; respond with 404 to any other name."""
    headers = {"cache-control": "no-cache"}
    if name == "site.css":
        return Response(build_site_stylesheet(), media_type="text/css", headers=headers)
    if name not in STATIC_FILE_FOLDERS:
        raise HTTPException(404, "no such file")
    return Response((STATIC_FILE_FOLDERS[name] / name).read_bytes(), media_type="text/javascript", headers=headers)


@lru_cache(maxsize=1)
def build_site_stylesheet() -> str:
    """Return the style sheet of all pages: those of the web app and of reports, and the charts' dark-mode colors."""
    dark_rules = [
        f'.h2h svg [{property_name}="{light}"] {{ {property_name}: {dark}; }}'
        for light, dark in style.DARK_MODE_COLORS.items()
        for property_name in ("fill", "stroke")
    ]
    static_folder = WEB_FOLDER / "static"
    stylesheets = (
        TEMPLATES_FOLDER / "report.css",
        static_folder / "site.css",
        TEMPLATES_FOLDER / "attention.css",
        static_folder / "models.css",
        static_folder / "design.css",
    )
    rules = [stylesheet.read_text(encoding="utf-8") for stylesheet in stylesheets]
    return "\n".join([*rules, "@media screen and (prefers-color-scheme: dark) {", *dark_rules, "}"])
