"""What all pages share: the navigation, the templates, the static files, and what a page knows about the server.

A new page is a file in pages/ with a `router`, a template that extends layout.html, and a line in NAVIGATION and in
`app.PAGES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from markupsafe import Markup

from headtohead.presentation import style
from headtohead.presentation.html import TEMPLATES_FOLDER, create_environment
from headtohead.progress import format_duration
from headtohead.web.experiment_folders import ExperimentFolders
from headtohead.web.live.watchers import WatcherRegistry

NAVIGATION = (
    ("/", "Experiments"),
    ("/start", "Start"),
    ("/attention", "Attention"),
    ("/playground", "Playground"),
    ("/design", "Design"),
)
"""address and title of each page, in order"""

WEB_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class AppContext:
    """The server's own things, at hand in every request."""

    folders: ExperimentFolders
    watchers: WatcherRegistry
    files: Path
    """the folder whose experiment files can be started, and whose data can be trained on"""


def get_app_context(request: Request) -> AppContext:
    found: AppContext = request.app.state.site
    return found


@lru_cache(maxsize=1)
def _create_jinja_environment() -> Environment:
    made = create_environment(WEB_FOLDER / "templates")
    made.globals.update(navigation=NAVIGATION, address=build_url_path)
    made.tests["endswith"] = lambda text, ending: str(text).endswith(ending)
    made.filters.update(drawn=Markup, duration=format_duration)  # drawn: an SVG of our own making
    return made


def build_url_path(*parts: str) -> str:
    """A path of which every part is quoted: /experiments/NAME/stop."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def render_region(name: str, variables: dict[str, Any]) -> str:
    """A piece of a page that is sent again when it changes."""
    return _create_jinja_environment().get_template(f"regions/{name}.html").render(**variables)


def render_page(request: Request, template: str, status: int = 200, **view: Any) -> HTMLResponse:
    """A whole page."""
    text = _create_jinja_environment().get_template(template).render(here=request.url.path, **view)
    return HTMLResponse(text, status_code=status)


@lru_cache(maxsize=1)
def build_stylesheet() -> str:
    """The report's look, ours beside it, and the colours of charts after dark."""
    dark = [
        f'.h2h svg [{what}="{light}"] {{ {what}: {after}; }}'
        for light, after in style.DARK_MODE_COLORS.items()
        for what in ("fill", "stroke")
    ]
    ours = WEB_FOLDER / "static"
    files = (
        TEMPLATES_FOLDER / "report.css",
        ours / "site.css",
        TEMPLATES_FOLDER / "attention.css",
        ours / "models.css",
        ours / "design.css",
    )
    texts = [file.read_text(encoding="utf-8") for file in files]
    return "\n".join([*texts, "@media screen and (prefers-color-scheme: dark) {", *dark, "}"])
