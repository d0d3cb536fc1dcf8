"""HTML building blocks shared by every page: the jinja2 environment, embedded charts and script data."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headtohead.presentation import chart, number_format, style

TEMPLATES_FOLDER = Path(__file__).parent / "templates"


CLOSING_PUNCTUATION = tuple(".,;:!?)]}’'\"")


CLIP_PATH_PATTERN = re.compile(r'(<clipPath id="|clip-path="url\(#)(clip\d+)')


@lru_cache(maxsize=1)
def _create_jinja_environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(number_format=number_format, verdict_symbols=style.VERDICT_SYMBOLS)
    return made


@lru_cache(maxsize=8)
def _read_template_file(name: str) -> str:
    return (TEMPLATES_FOLDER / name).read_text(encoding="utf-8")


def _default_to_none(mapping: dict[str, Any]) -> dict[str, Any]:
    """What is not there is None, so that a template can ask for it."""
    return defaultdict(lambda: None, mapping)


def encode_script_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_chart(chart: chart.Chart) -> dict[str, Any]:
    """Both layouts as SVG."""
    wide, narrow = (
        _rename_clip_paths(chart.svg("wide"), f"{chart.name}-wide"),
        _rename_clip_paths(chart.svg("narrow"), chart.name),
    )
    return {"wide": Markup(wide), "narrow": Markup(narrow), "title": chart.title, "words": chart.words}


def _rename_clip_paths(svg: str, prefix: str) -> str:
    """Clip paths are counted through all that a process draws; here they are named by the chart that they belong to."""
    seen: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        name = seen.setdefault(match[2], f"{prefix}-{len(seen)}")
        return match[1] + name

    return CLIP_PATH_PATTERN.sub(renamed, svg)
