"""The report as one HTML file that needs nothing else: no network, no fonts, no library, and little JavaScript.

Charts are drawn beforehand as SVG, in two layouts between which the style sheet chooses, so the page is whole without
JavaScript, light to load, and prints. What our few lines of script add is pointing at a mark to read its figures.
Everything that comes from a user or a model is escaped by jinja2; a content security policy forbids every request and
every script but our own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from headtohead.attention_analysis import thumbnails
from headtohead.distillation import tables as distillation_tables
from headtohead.presentation import chart, number_format, style
from headtohead.presentation import table as presentation_table
from headtohead.report import charts, comparisons, findings_view, tables
from headtohead.report.findings_view import Findings
from headtohead.search import phrasing

TEMPLATES = Path(__file__).parent / "templates"
STATES = ("failed", "note", "passed", "does not apply")
CLOSING = tuple(".,;:!?)]}’'\"")
LABELLED = 10
"""so many tokens can be written beside a map"""
CLIP = re.compile(r'(<clipPath id="|clip-path="url\(#)(clip\d+)')


def render(findings: Findings, maps: Mapping[str, thumbnails.Maps] | None = None, folder: Path | None = None) -> str:
    """The page. `maps` are attention maps by variant; without them those in `folder` are shown."""
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template("page.html").render(**_view(findings, maps, folder), script_hash=digest)


def fragment(findings: Findings, maps: Mapping[str, thumbnails.Maps] | None = None, folder: Path | None = None) -> str:
    """The same for a place inside another page, such as a notebook; its style touches nothing else there."""
    return _environment().get_template("fragment.html").render(**_view(findings, maps, folder))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(figures=number_format, signs=style.WORD_SIGNS)
    return made


@lru_cache(maxsize=8)
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _view(findings: Findings, maps: Mapping[str, thumbnails.Maps] | None, folder: Path | None) -> dict[str, Any]:
    """All that the templates show."""
    if maps is None:
        maps = thumbnails.read_maps(folder, findings_view.names(findings)) if folder else {}
    metric, matters = findings_view.metric(findings), findings_view.matters(findings)
    by_name = {table.name: table for table in tables.tables(findings)}
    return {
        "style": Markup(_file("report.css")),
        "script": Markup(_file("report.js")),
        "dark": list(style.AFTER_DARK.items()),
        "data": Markup(embedded(findings)),
        "question": findings_view.question(findings),
        "about": _paragraphs(str(findings_view.experiment(findings).get("about") or "")),
        "looks": ", ".join(map(str, findings.get("looks") or [])),
        "where": tables.where(findings),
        "pairs_where": _pairs_where(findings),
        "rows": findings.get("rows"),
        "quick": bool(findings_view.experiment(findings).get("quick")),
        "other_corpus": any(row.get("other_data") for row in findings.get("published") or []),
        "original_note": (findings_view.experiment(findings).get("original") or {}).get("note") or "",
        "axis": str((findings.get("axis") or {}).get("setting") or "").rpartition(".")[2],
        "seeds": max((row.get("seeds") or 0 for row in findings_view.verdicts(findings)), default=0),
        "band": number_format.band(metric, matters),
        "metric": metric,
        "verdicts": [_verdict(row, metric) for row in findings_view.verdicts(findings)],
        "summary": summary(findings),
        "comparisons": _comparisons(findings, metric),
        "contest": distillation_tables.lead(findings),
        "contest_where": distillation_tables.where(findings),
        "side_by_side": distillation_tables.side_by_side(findings),
        "search": phrasing.sentences(findings),
        "charts": _or_none({chart.name: _chart(chart) for chart in charts.charts(findings)}),
        "tables": _or_none(by_name),
        "confusions": [_confusion(name, table) for name, table in by_name.items() if name.startswith("confusion-")],
        "flagged": [name for name, pair in (findings.get("pairing") or {}).items() if pair.get("flag")],
        "unpaired": _unpaired(findings),
        "audits": _audits(findings),
        "data_audits": _audits({"audits": {"data": findings.get("data_audits") or []}}),
        "failures": findings.get("failures") or [],
        "samples": _samples(findings),
        "maps": [_maps(name, one) for name, one in maps.items()],
        "labelled": LABELLED,
        "steep": _left_out(findings),
        "reproduce": _reproduce(findings, folder),
    }


def _or_none(found: dict[str, Any]) -> dict[str, Any]:
    """What is not there is None, so that a template can ask for it."""
    return defaultdict(lambda: None, found)


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def summary(findings: Findings) -> str:
    """1 helped, 2 hurt."""
    counts = Counter(row["word"] for row in findings_view.verdicts(findings))
    return ", ".join(f"{counts[word]} {word}" for word in style.WORD_SIGNS if counts[word])


def _paragraphs(text: str) -> list[Markup]:
    """Lines of a file are joined; an empty one begins a new paragraph; what stands in backticks is code."""
    joined = [" ".join(one.split()) for one in text.split("\n\n") if one.strip()]
    return [Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(one)))) for one in joined]


def _pairs_where(findings: Findings) -> str:
    """What the lines from seed to seed are drawn on, where that is not all of what decides."""
    texts = dict.fromkeys(pair.text for pair in findings_view.paired(findings))
    return f"on {', '.join(texts)}" if texts else ""


def _verdict(row: dict[str, Any], metric: str) -> dict[str, Any]:
    notes = []
    if row.get("noise") in ("seeds", "examples"):
        notes.append(f"the larger noise is from the {row['noise']}")
    if number_format.is_number(row.get("detectable")):
        size = number_format.band(metric, float(f"{row['detectable']:.2g}")).removeprefix("±")
        notes.append(f"the smallest change that could have been seen is about {size}")
    return {**row, "sign": style.WORD_SIGNS.get(row["word"], "?"), "notes": "; ".join(notes)}


def _comparisons(findings: Findings, metric: str) -> list[dict[str, Any]]:
    return [
        {**one, "chart": comparisons.chart_name(at), "rows": [_verdict(row, metric) for row in one["verdicts"]]}
        for at, one in enumerate(comparisons.comparisons(findings))
    ]


def _chart(chart: chart.Chart) -> dict[str, Any]:
    """Both layouts as SVG."""
    wide, narrow = _own_names(chart.svg("wide"), f"{chart.name}-wide"), _own_names(chart.svg("narrow"), chart.name)
    return {"wide": Markup(wide), "narrow": Markup(narrow), "title": chart.title, "words": chart.words}


def _own_names(svg: str, prefix: str) -> str:
    """Clip paths are counted through all that a process draws; here they are named by the chart that they belong to."""
    seen: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        name = seen.setdefault(match[2], f"{prefix}-{len(seen)}")
        return match[1] + name

    return CLIP.sub(renamed, svg)


def _confusion(name: str, table: presentation_table.Table) -> dict[str, Any]:
    shares = []
    for row in table.rows:
        counts = [cell.value for cell in row[1:]]
        shares.append([None, *(number / (sum(counts) or 1) for number in counts)])
    return {"table": table, "shares": shares, "name": name.removeprefix("confusion-")}


def _unpaired(findings: Findings) -> list[str]:
    pairs = (findings.get("pairing") or {}).items()
    return [name for name, pair in pairs if not tables.is_paired(pair)]


def _audits(findings: Findings) -> dict[str, Any]:
    """Failed ones by themselves, since they are read first; and for each variant all of them with a count."""
    failed, groups = [], []
    for name, found in (findings.get("audits") or {}).items():
        failed += [{**one, "variant": name} for one in found if one["passed"] is False]
        counts = Counter(map(tables.state_of, found))
        said = ", ".join(_counted(counts[state], state) for state in STATES if counts[state])
        table = presentation_table.Table(
            f"audits-{name}", "Audits", f"Audits: {name}.", tables.AUDIT_COLUMNS, _rows(found)
        )
        if found:
            groups.append({"name": name, "counts": said, "table": table})
    failed.sort(key=lambda one: not one.get("serious", True))
    return {"failed": failed, "groups": groups}


def _counted(count: int, state: str) -> str:
    several = {"note": "notes", "does not apply": "do not apply"}
    return f"{count} {several.get(state, state) if count > 1 else state}"


def _rows(found: list[dict[str, Any]]) -> tuple[tuple[presentation_table.Cell, ...], ...]:
    return tuple(tuple(row) for row in tables.audit_rows(found))


def _samples(findings: Findings) -> list[dict[str, Any]]:
    """By prompt: what each variant wrote, first seed first."""
    found = findings.get("samples") or {}
    prompts = dict.fromkeys(one["prompt"] for by_name in found.values() for one in by_name)
    made = []
    for prompt in prompts:
        columns = []
        for name in findings_view.names(findings):
            texts = [one for one in found.get(name, []) if one["prompt"] == prompt]
            if texts:
                texts = [{**one, "joint": "" if one["text"].startswith((*CLOSING, " ")) else " "} for one in texts]
                columns.append({"variant": name, "first": texts[0], "others": texts[1:]})
        made.append({"prompt": prompt, "columns": columns})
    return made


def _maps(name: str, maps: thumbnails.Maps) -> dict[str, Any]:
    tokens = maps.tokens[: thumbnails.MOST_TOKENS]
    return {
        "variant": name,
        "text": maps.text,
        "seed": maps.seed,
        "tokens": tokens,
        "cut": len(maps.tokens) > len(tokens),
        "layers": thumbnails.pictures(maps),
        "cell": _cell(len(tokens) or 1, max((len(one) for one in maps.after.values()), default=1)),
    }


def _cell(tokens: int, heads: int) -> int:
    """How many pixels of the screen a pair of tokens gets, so that up to four heads stand side by side."""
    if tokens <= LABELLED:
        return 20 if tokens < 5 else 16 if tokens < 8 else 13
    return max(2, (132 if heads < 4 else 84) // tokens)


def _left_out(findings: Findings) -> str:
    """What the learning curves do not show, in words."""
    split = next(iter(findings_view.splits_of(findings, "curves")), None)
    if split is None:
        return ""
    metric, points = findings_view.metric(findings), findings_view.curves(findings, split)
    kept = charts.without_steep_start(points, metric)
    if len(kept) == len(points):
        return ""
    first = points[0]
    value = number_format.value(metric, first.mean)
    return f"Step {first.at:,} is left out of the picture: {metric} there is about {value}."


def _reproduce(findings: Findings, folder: Path | None) -> dict[str, Any]:
    command = [str(word) for word in findings.get("command") or []]
    if command:
        command[0] = Path(command[0]).name
    corpus = findings.get("corpus") or {}
    seeds = {int(seed) for by in (findings.get("results") or {}).values() for pairs in by.values() for seed, _ in pairs}
    facts = {
        "Experiment": findings_view.experiment(findings).get("name"),
        "Identity of the experiment": findings.get("identity"),
        "Runs": folder.resolve().name if folder else None,
        "Seeds": ", ".join(map(str, sorted(seeds))),
        "Corpus": corpus.get("origin"),
        "SHA-256 of the corpus": corpus.get("digest"),
    }
    settings = findings_view.experiment(findings)
    return {
        "command": shlex.join(command),
        "facts": {name: str(fact) for name, fact in facts.items() if fact not in (None, "")},
        "settings": json.dumps(settings, indent=2, ensure_ascii=False) if settings else "",
    }
