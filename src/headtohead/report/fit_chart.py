"""Loss and accuracy along the way, train and validation in one picture: how well a classifier fits, and when it begins
to learn by heart."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import altair as alt

from headtohead.presentation import number_format, style
from headtohead.presentation.chart import Built, Chart, Layout, Panels, Sheets, value_words
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings, Point

SPLITS = ("train", "validation")
MOST_VARIANTS = 12
LOOKS = {"train": (style.SOFT, [4, 3]), "validation": (style.WORD_HUES["helped"], [1, 0])}


def fit_chart(findings: Findings) -> Chart | None:
    """A row for each variant: loss on the left, accuracy on the right; a rule where the weights were chosen."""
    if not findings.get("losses") or findings_view.metric(findings) != "accuracy":
        return None
    known = [name for name in findings_view.names(findings) if _is_followed(findings, name)][:MOST_VARIANTS]
    if not known:
        return None
    panels = [(name, kind) for name in known for kind in ("loss", "accuracy")]
    said = "Loss and accuracy of train and validation while training. " + " ".join(_said(findings, n) for n in known)

    def build(layout: Layout, sheets: Sheets) -> Built:
        made = [_panel(findings, name, kind, sheets) for name, kind in panels]
        return alt.concat(*made, bounds="flush", spacing=alt.RowColnumber(row=80, column=58))

    sizes: dict[Layout, Panels] = {"wide": Panels(372, 170, 2, 2), "narrow": Panels(286, 150, 1, 2)}
    return Chart("fit", "Loss and accuracy, train and validation", said, build, sizes)


def _is_followed(findings: Findings, name: str) -> bool:
    return all((findings["losses"].get(name) or {}).get(split) for split in SPLITS)


def points(findings: Findings, name: str, kind: str, split: str) -> list[Point]:
    """Mean, lowest and highest seed at each step."""
    lines = (findings["losses"] if kind == "loss" else findings["curves"])[name][split]
    by_step: dict[int, list[float]] = {}
    for line in lines.values():
        for at, value in line:
            if number_format.is_number(value):
                by_step.setdefault(int(at), []).append(value)
    return [
        Point(split, at, statistics.fmean(values), min(values), max(values), len(values))
        for at, values in sorted(by_step.items())
    ]


def chosen(findings: Findings, name: str) -> float | None:
    """The step whose weights were tested: the middle one of the seeds."""
    pairs = (findings.get("chosen") or {}).get(name) or []
    return statistics.median(step for _, step in pairs) if pairs else None


def _said(findings: Findings, name: str) -> str:
    ends = [f"{split} {points(findings, name, 'accuracy', split)[-1].mean:.1%}" for split in SPLITS]
    at = chosen(findings, name)
    where = "" if at is None else f", weights of step {at:,.0f}"
    return f"{name}: at the end {', '.join(ends)}{where}."


def _panel(findings: Findings, name: str, kind: str, sheets: Sheets) -> alt.LayerChart | alt.FacetChart:
    found = {split: points(findings, name, kind, split) for split in SPLITS}
    rows: list[dict[str, Any]] = [
        {**asdict(one), "tip": _tip(name, kind, one)} for split in SPLITS for one in found[split]
    ]
    data = sheets.chart(rows)
    labels = value_words("accuracy") if kind == "accuracy" else "format(datum.value, ',~r')"
    y_axis = alt.Axis(title=None, tickCount=5, labelExpr=labels)
    steps = sorted({one.at for one in found["train"]})
    ticks: dict[str, Any] = {"values": steps} if len(steps) <= 6 else {"tickCount": 5}
    x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=alt.Axis(title="step", grid=False, **ticks))
    scale = alt.Scale(zero=False, padding=6)
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    hue = alt.Color(
        "variant:N", scale=alt.Scale(domain=list(LOOKS), range=[look[0] for look in LOOKS.values()]), legend=legend
    )
    dashes = alt.Scale(domain=list(LOOKS), range=[look[1] for look in LOOKS.values()])
    layers = [
        data.mark_area(aria=False, opacity=0.16).encode(
            x=x, y=alt.Y("low:Q", scale=scale, axis=y_axis), y2="high:Q", color=hue
        ),
        data.mark_line(aria=False, strokeWidth=2).encode(
            x=x,
            y=alt.Y("mean:Q", scale=scale, axis=y_axis),
            color=hue,
            strokeDash=alt.StrokeDash("variant:N", scale=dashes, legend=legend),
        ),
        data.mark_point(size=30, filled=True, opacity=1).encode(
            x=x, y=alt.Y("mean:Q", scale=scale, axis=y_axis), color=hue, description="tip:N"
        ),
    ]
    if (at := chosen(findings, name)) is not None:
        rule = sheets.chart([{"at": at}]).mark_rule(aria=False, color=style.ZERO, strokeDash=[2, 2])
        layers.append(rule.encode(x=x))
    return alt.layer(*layers).properties(title=alt.TitleParams(name, subtitle=kind))


def _tip(name: str, kind: str, point: Point) -> str:
    def say(value: float) -> str:
        return number_format.value("accuracy", value) if kind == "accuracy" else f"{value:.3f}"

    seeds = f" (seeds from {say(point.low)} to {say(point.high)})" if point.seeds > 1 else ""
    return f"{name}, {point.variant}, step {point.at:,}: {kind} {say(point.mean)}{seeds}"
