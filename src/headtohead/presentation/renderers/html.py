"""Render HTML pages from templates, with embedded charts and data for scripts. All pages share this module."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from headtohead.errors import ChartError
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import Chart
from headtohead.presentation.renderers import user_markdown

TEMPLATES_FOLDER = Path(__file__).parent.parent / "templates"
CLOSING_PUNCTUATION = tuple(".,;:!?)]}’'\"")
CLIP_PATH_PATTERN = re.compile(r'(<clipPath id="|clip-path="url\(#)(clip\d+)')
INLINE_CODE_PATTERN = re.compile(r"`([^`]+)`")


def create_environment(*template_folders: Path) -> Environment:
    """Return a jinja2 environment that escapes everything and fails on undefined names.

    This package's templates are searched after `template_folders`.
    """
    environment = Environment(
        loader=FileSystemLoader([*template_folders, TEMPLATES_FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        number_format=number_format, verdict_symbols=style.VERDICT_SYMBOLS, render_chart=render_chart
    )
    environment.filters["inline_code"] = render_inline_code
    environment.filters["markdown"] = lambda text: Markup(user_markdown.render_user_html(text))
    return environment


@lru_cache(maxsize=1)
def get_environment() -> Environment:
    """Return the shared environment with this package's templates."""
    return create_environment()


@lru_cache(maxsize=8)
def read_template_file(name: str) -> str:
    """Return the contents of one of this package's style sheets or scripts."""
    return (TEMPLATES_FOLDER / name).read_text(encoding="utf-8")


def render_html_template(
    template: str, *, extra_styles: Sequence[str] = (), script: str = "report.js", **variables: Any
) -> str:
    """Render a template as a self-contained page with embedded style sheets and script.

    The content security policy allows the script by its hash.
    """
    script_text = read_template_file(script)
    return (
        get_environment()
        .get_template(template)
        .render(
            style=Markup("".join(read_template_file(name) for name in ("report.css", *extra_styles))),
            script=Markup(script_text),
            script_hash=base64.b64encode(hashlib.sha256(script_text.encode()).digest()).decode(),
            dark=list(style.DARK_MODE_COLORS.items()),
            **variables,
        )
    )


def encode_script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: it cannot contain a closing tag."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_inline_code(text: str) -> Markup:
    """Escape text and turn backticked words into code elements."""
    return Markup(INLINE_CODE_PATTERN.sub(r"<code>\1</code>", str(escape(text))))


def render_chart(chart: Chart) -> dict[str, Any]:
    """Return the HTML of both layouts of a chart as SVG, with its title and text alternative.

    If the chart cannot be rendered, a paragraph replaces both layouts, and a ChartWarning is issued.
    """
    try:
        wide = _rename_clip_paths(chart.to_svg("wide"), f"{chart.name}-wide")
        narrow = _rename_clip_paths(chart.to_svg("narrow"), chart.name)
    except ChartError as error:
        wide = narrow = f"<p>{escape(chart.warn_not_rendered(error))}</p>"
    return {"wide": Markup(wide), "narrow": Markup(narrow), "title": chart.title, "alt_text": chart.alt_text}


def _rename_clip_paths(svg: str, prefix: str) -> str:
    """Return an SVG to embed in HTML, whose clip paths are numbered per chart.

    The chart renderer numbers them per process, so equal charts would differ and ids could clash on one page.
    """
    new_names: dict[str, str] = {}

    def rename_match(match: re.Match[str]) -> str:
        return match[1] + new_names.setdefault(match[2], f"{prefix}-{len(new_names)}")

    return CLIP_PATH_PATTERN.sub(rename_match, svg)
