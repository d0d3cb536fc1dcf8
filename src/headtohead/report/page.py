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
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from headtohead.attention_analysis import thumbnails
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format, style
from headtohead.presentation import table as presentation_table
from headtohead.presentation.html import (
    CLOSING_PUNCTUATION,
    _create_jinja_environment,
    _default_to_none,
    _read_template_file,
    encode_script_json,
    render_chart,
)
from headtohead.report import charts, comparisons, tables
from headtohead.search import phrasing

AUDIT_STATUS_ORDER = ("failed", "note", "passed", "does not apply")
MAX_LABELLED_TOKENS = 10
"""so many tokens can be written beside a map"""


def render_page(
    findings: Findings, attention_maps: Mapping[str, thumbnails.TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """The page. `maps` are attention maps by variant; without them those in `folder` are shown."""
    script = _read_template_file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _create_jinja_environment()
        .get_template("page.html")
        .render(**_build_template_variables(findings, attention_maps, folder), script_hash=digest)
    )


def render_fragment(
    findings: Findings, attention_maps: Mapping[str, thumbnails.TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """The same for a place inside another page, such as a notebook; its style touches nothing else there."""
    return (
        _create_jinja_environment()
        .get_template("fragment.html")
        .render(**_build_template_variables(findings, attention_maps, folder))
    )


def _build_template_variables(
    findings: Findings, attention_maps: Mapping[str, thumbnails.TrainingMaps] | None, folder: Path | None
) -> dict[str, Any]:
    """All that the templates show."""
    if attention_maps is None:
        attention_maps = (
            thumbnails.read_training_maps(folder, findings_view.list_variant_names(findings)) if folder else {}
        )
    metric, matters = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    by_name = {table.name: table for table in tables.build_tables(findings)}
    return {
        "style": Markup(_read_template_file("report.css")),
        "script": Markup(_read_template_file("report.js")),
        "dark": list(style.DARK_MODE_COLORS.items()),
        "data": Markup(encode_script_json(findings)),
        "question": findings_view.get_question(findings),
        "about": _split_paragraphs(str(findings_view.get_experiment(findings).get("about") or "")),
        "looks": ", ".join(map(str, findings.get("looks") or [])),
        "where": tables.describe_primary_metric(findings),
        "pairs_where": _describe_paired_sets(findings),
        "rows": findings.get("rows"),
        "quick": bool(findings_view.get_experiment(findings).get("quick")),
        "other_corpus": any(row.get("other_data") for row in findings.get("published") or []),
        "original_note": (findings_view.get_experiment(findings).get("original") or {}).get("note") or "",
        "axis": str((findings.get("axis") or {}).get("setting") or "").rpartition(".")[2],
        "seeds": max((row.get("seeds") or 0 for row in findings_view.get_verdicts(findings)), default=0),
        "band": number_format.format_margin(metric, matters),
        "metric": metric,
        "verdicts": [_prepare_verdict(row, metric) for row in findings_view.get_verdicts(findings)],
        "summary": summarize_verdicts(findings),
        "comparisons": _prepare_comparisons(findings, metric),
        "contest": distillation_tables.build_headline_verdicts(findings),
        "contest_where": distillation_tables.describe_evaluation_set(findings),
        "side_by_side": distillation_tables.list_sample_summaries(findings),
        "search": phrasing.describe_search(findings),
        "charts": _default_to_none({chart.name: render_chart(chart) for chart in charts.build_charts(findings)}),
        "tables": _default_to_none(by_name),
        "confusions": [
            _prepare_confusion_matrix(name, table) for name, table in by_name.items() if name.startswith("confusion-")
        ],
        "flagged": [name for name, pair in (findings.get("pairing") or {}).items() if pair.get("flag")],
        "unpaired": _list_unpaired_variants(findings),
        "audits": _prepare_audits(findings),
        "data_audits": _prepare_audits({"audits": {"data": findings.get("data_audits") or []}}),
        "failures": findings.get("failures") or [],
        "samples": _prepare_samples(findings),
        "maps": [_prepare_attention_maps(name, one) for name, one in attention_maps.items()],
        "labelled": MAX_LABELLED_TOKENS,
        "steep": _describe_omitted_start(findings),
        "reproduce": _prepare_reproduction_info(findings, folder),
    }


def summarize_verdicts(findings: Findings) -> str:
    """1 helped, 2 hurt."""
    counts = Counter(row["word"] for row in findings_view.get_verdicts(findings))
    return ", ".join(f"{counts[word]} {word}" for word in style.VERDICT_SYMBOLS if counts[word])


def _split_paragraphs(text: str) -> list[Markup]:
    """Lines of a file are joined; an empty one begins a new paragraph; what stands in backticks is code."""
    joined = [" ".join(one.split()) for one in text.split("\n\n") if one.strip()]
    return [Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(one)))) for one in joined]


def _describe_paired_sets(findings: Findings) -> str:
    """What the lines from seed to seed are drawn on, where that is not all of what decides."""
    texts = dict.fromkeys(pair.text for pair in findings_view.pair_scores_by_seed(findings))
    return f"on {', '.join(texts)}" if texts else ""


def _prepare_verdict(row: dict[str, Any], metric: str) -> dict[str, Any]:
    notes = []
    if row.get("noise") in ("seeds", "examples"):
        notes.append(f"the larger noise is from the {row['noise']}")
    if number_format.is_finite_number(row.get("detectable")):
        size = number_format.format_margin(metric, float(f"{row['detectable']:.2g}")).removeprefix("±")
        notes.append(f"the smallest change that could have been seen is about {size}")
    return {**row, "sign": style.VERDICT_SYMBOLS.get(row["word"], "?"), "notes": "; ".join(notes)}


def _prepare_comparisons(findings: Findings, metric: str) -> list[dict[str, Any]]:
    return [
        {
            **one,
            "chart": comparisons.format_chart_name(at),
            "rows": [_prepare_verdict(row, metric) for row in one["verdicts"]],
        }
        for at, one in enumerate(comparisons.list_judged_comparisons(findings))
    ]


def _prepare_confusion_matrix(name: str, table: presentation_table.Table) -> dict[str, Any]:
    shares = []
    for row in table.rows:
        counts = [cell.value for cell in row[1:]]
        shares.append([None, *(number / (sum(counts) or 1) for number in counts)])
    return {"table": table, "shares": shares, "name": name.removeprefix("confusion-")}


def _list_unpaired_variants(findings: Findings) -> list[str]:
    pairs = (findings.get("pairing") or {}).items()
    return [name for name, pair in pairs if not tables.is_paired(pair)]


def _prepare_audits(findings: Findings) -> dict[str, Any]:
    """Failed ones by themselves, since they are read first; and for each variant all of them with a count."""
    failed, groups = [], []
    for name, found in (findings.get("audits") or {}).items():
        failed += [{**one, "variant": name} for one in found if one["passed"] is False]
        counts = Counter(map(tables.get_audit_status, found))
        said = ", ".join(_format_status_count(counts[state], state) for state in AUDIT_STATUS_ORDER if counts[state])
        table = presentation_table.Table(
            f"audits-{name}", "Audits", f"Audits: {name}.", tables.AUDIT_COLUMNS, _build_audit_rows(found)
        )
        if found:
            groups.append({"name": name, "counts": said, "table": table})
    failed.sort(key=lambda one: not one.get("is_blocking", True))
    return {"failed": failed, "groups": groups}


def _format_status_count(count: int, status: str) -> str:
    several = {"note": "notes", "does not apply": "do not apply"}
    return f"{count} {several.get(status, status) if count > 1 else status}"


def _build_audit_rows(audits: list[dict[str, Any]]) -> tuple[tuple[presentation_table.Cell, ...], ...]:
    return tuple(tuple(row) for row in tables.make_audit_rows(audits))


def _prepare_samples(findings: Findings) -> list[dict[str, Any]]:
    """By prompt: what each variant wrote, first seed first."""
    found = findings.get("samples") or {}
    prompts = dict.fromkeys(one["prompt"] for by_name in found.values() for one in by_name)
    made = []
    for prompt in prompts:
        columns = []
        for name in findings_view.list_variant_names(findings):
            texts = [one for one in found.get(name, []) if one["prompt"] == prompt]
            if texts:
                texts = [
                    {**one, "joint": "" if one["text"].startswith((*CLOSING_PUNCTUATION, " ")) else " "}
                    for one in texts
                ]
                columns.append({"variant": name, "first": texts[0], "others": texts[1:]})
        made.append({"prompt": prompt, "columns": columns})
    return made


def _prepare_attention_maps(variant: str, attention_maps: thumbnails.TrainingMaps) -> dict[str, Any]:
    tokens = attention_maps.tokens[: thumbnails.MAX_TOKENS]
    return {
        "variant": variant,
        "text": attention_maps.text,
        "seed": attention_maps.seed,
        "tokens": tokens,
        "cut": len(attention_maps.tokens) > len(tokens),
        "layers": thumbnails.render_layers(attention_maps),
        "cell": _choose_pixel_size(
            len(tokens) or 1, max((len(one) for one in attention_maps.after.values()), default=1)
        ),
    }


def _choose_pixel_size(num_tokens: int, num_heads: int) -> int:
    """How many pixels of the screen a pair of tokens gets, so that up to four heads stand side by side."""
    if num_tokens <= MAX_LABELLED_TOKENS:
        return 20 if num_tokens < 5 else 16 if num_tokens < 8 else 13
    return max(2, (132 if num_heads < 4 else 84) // num_tokens)


def _describe_omitted_start(findings: Findings) -> str:
    """What the learning curves do not show, in words."""
    split = next(iter(findings_view.list_splits(findings, "curves")), None)
    if split is None:
        return ""
    metric, points = findings_view.get_metric(findings), findings_view.compute_learning_curves(findings, split)
    kept = charts.drop_steep_start(points, metric)
    if len(kept) == len(points):
        return ""
    first = points[0]
    value = number_format.format_score(metric, first.mean)
    return f"Step {first.at:,} is left out of the picture: {metric} there is about {value}."


def _prepare_reproduction_info(findings: Findings, folder: Path | None) -> dict[str, Any]:
    command = [str(word) for word in findings.get("command") or []]
    if command:
        command[0] = Path(command[0]).name
    corpus = findings.get("corpus") or {}
    seeds = {int(seed) for by in (findings.get("results") or {}).values() for pairs in by.values() for seed, _ in pairs}
    facts = {
        "Experiment": findings_view.get_experiment(findings).get("name"),
        "Identity of the experiment": findings.get("identity"),
        "Runs": folder.resolve().name if folder else None,
        "Seeds": ", ".join(map(str, sorted(seeds))),
        "Corpus": corpus.get("origin"),
        "SHA-256 of the corpus": corpus.get("digest"),
    }
    settings = findings_view.get_experiment(findings)
    return {
        "command": shlex.join(command),
        "facts": {name: str(fact) for name, fact in facts.items() if fact not in (None, "")},
        "settings": json.dumps(settings, indent=2, ensure_ascii=False) if settings else "",
    }
