"""Shared by all pages: navigation, templates, the style sheet and the application context.

To add a page, write a module in pages/ with a `router` and a template that extends layout.html, and add it to
`NAVIGATION` and to `app.PAGE_ROUTERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
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


@dataclass
class AppContext:
    """State that every request can access."""

    folders: ExperimentFolders
    watchers: WatcherRegistry
    files: Path
    """the folder whose experiment files can be started and whose data can be used"""
    catalog: ModelCatalog
    models: ModelProcessClient
    estimator: CostEstimator


def get_app_context(request: Request) -> AppContext:
    context: AppContext = request.app.state.site
    return context


AppContextDep = Annotated[AppContext, Depends(get_app_context)]


@lru_cache(maxsize=1)
def _create_jinja_environment() -> Environment:
    """Return the jinja2 environment that all pages share."""
    environment = create_environment(WEB_FOLDER / "templates")
    environment.globals.update(navigation=NAVIGATION, address=build_url_path)
    environment.tests["endswith"] = lambda text, ending: str(text).endswith(ending)
    environment.filters.update(svg=Markup, duration=format_duration)  # svg: rendered by this package, so not escaped
    return environment


def build_url_path(*parts: str) -> str:
    """Return a URL path with every segment quoted, such as /experiments/NAME/stop."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def render_region(name: str, variables: dict[str, Any]) -> str:
    """Render a page region that is updated while the page is open."""
    return _create_jinja_environment().get_template(f"regions/{name}.html").render(**variables)


def render_page(request: Request, template: str, status: int = 200, **view: Any) -> HTMLResponse:
    """Render a page and return it as a response."""
    text = _create_jinja_environment().get_template(template).render(current_path=request.url.path, **view)
    return HTMLResponse(text, status_code=status)


@lru_cache(maxsize=1)
def build_stylesheet() -> str:
    """Return the style sheets for the report and the web app, and the charts' dark-mode colors."""
    dark_rules = [
        f'.h2h svg [{property_name}="{light}"] {{ {property_name}: {dark}; }}'
        for light, dark in style.DARK_MODE_COLORS.items()
        for property_name in ("fill", "stroke")
    ]
    static_folder = WEB_FOLDER / "static"
    files = (
        TEMPLATES_FOLDER / "report.css",
        static_folder / "site.css",
        TEMPLATES_FOLDER / "attention.css",
        static_folder / "models.css",
        static_folder / "design.css",
    )
    texts = [file.read_text(encoding="utf-8") for file in files]
    return "\n".join([*texts, "@media screen and (prefers-color-scheme: dark) {", *dark_rules, "}"])
