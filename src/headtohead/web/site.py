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
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headtohead.presentation import number_format, style
from headtohead.progress import duration
from headtohead.web.experiment_folders import Folders
from headtohead.web.live.watchers import Watchers

NAVIGATION = (
    ("/", "Experiments"),
    ("/start", "Start"),
    ("/attention", "Attention"),
    ("/playground", "Playground"),
    ("/design", "Design"),
)
"""address and title of each page, in order"""

HERE = Path(__file__).parent
REPORT = HERE.parent / "report" / "templates"


@dataclass(frozen=True)
class Site:
    """The server's own things, at hand in every request."""

    folders: Folders
    watchers: Watchers
    files: Path
    """the folder whose experiment files can be started, and whose data can be trained on"""


def site_of(request: Request) -> Site:
    found: Site = request.app.state.site
    return found


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader([HERE / "templates", REPORT]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(figures=number_format, signs=style.WORD_SIGNS, navigation=NAVIGATION, address=address)
    made.tests["endswith"] = lambda text, ending: str(text).endswith(ending)
    made.filters.update(drawn=Markup, duration=duration)  # drawn: an SVG of our own making
    return made


def address(*parts: str) -> str:
    """A path of which every part is quoted: /experiments/NAME/stop."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def region(name: str, view: dict[str, Any]) -> str:
    """A piece of a page that is sent again when it changes."""
    return _environment().get_template(f"regions/{name}.html").render(**view)


def page(request: Request, template: str, status: int = 200, **view: Any) -> HTMLResponse:
    """A whole page."""
    text = _environment().get_template(template).render(here=request.url.path, **view)
    return HTMLResponse(text, status_code=status)


@lru_cache(maxsize=1)
def style_sheet() -> str:
    """The report's look, ours beside it, and the colours of charts after dark."""
    dark = [
        f'.h2h svg [{what}="{light}"] {{ {what}: {after}; }}'
        for light, after in style.AFTER_DARK.items()
        for what in ("fill", "stroke")
    ]
    ours = HERE / "static"
    files = (
        REPORT / "report.css",
        ours / "site.css",
        REPORT / "attention.css",
        ours / "models.css",
        ours / "design.css",
    )
    texts = [file.read_text(encoding="utf-8") for file in files]
    return "\n".join([*texts, "@media screen and (prefers-color-scheme: dark) {", *dark, "}"])
