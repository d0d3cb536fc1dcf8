"""Chart colors, shapes and dashes, in light and dark mode.

The palette is that of Okabe and Ito (Color Universal Design, 2008), which is safe for all forms of color blindness.
Variants also differ in shape and dash. Charts are drawn in light colors; in dark mode the page's style sheet replaces
each of them with its counterpart in `DARK_MODE_COLORS`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TEXT_COLOR = "#1f2933"
MUTED_TEXT_COLOR = "#52606d"
GRID_COLOR = "#e4e7eb"
EQUIVALENCE_BAND_COLOR = "#dde4ec"
ZERO_LINE_COLOR = "#3e4c59"

VARIANT_COLORS = ("#0072b2", "#e69f00", "#cc79a7", "#009e73", "#56b4e9", "#d55e00", "#7b61b8")
BASELINE_COLOR = "#5f6b7a"
VARIANT_SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
VARIANT_DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 4), (10, 4))


class VerdictStyle(NamedTuple):
    """How an outcome is shown: its color, its shape in charts, and its symbol in text."""

    color: str
    shape: str
    symbol: str


VERDICT_STYLES = {
    "helped": VerdictStyle("#0b7a6b", "triangle-up", "▲"),
    "hurt": VerdictStyle("#b4451f", "triangle-down", "▼"),
    "no practical difference": VerdictStyle("#4a6380", "square", "■"),
    "cannot tell": VerdictStyle("#8a6a00", "circle", "?"),
    "too few seeds": VerdictStyle("#4d5866", "diamond", "◇"),
    "not comparable": VerdictStyle("#7a4988", "cross", "✕"),
    "quick look": VerdictStyle("#4d5866", "diamond", "◇"),
}
VERDICT_COLORS = {outcome: verdict_style.color for outcome, verdict_style in VERDICT_STYLES.items()}
VERDICT_SHAPES = {outcome: verdict_style.shape for outcome, verdict_style in VERDICT_STYLES.items()}
VERDICT_SYMBOLS = {outcome: verdict_style.symbol for outcome, verdict_style in VERDICT_STYLES.items()}

DARK_MODE_COLORS = {
    TEXT_COLOR: "#e8ecf1",
    MUTED_TEXT_COLOR: "#aab4c0",
    GRID_COLOR: "#2d3540",
    EQUIVALENCE_BAND_COLOR: "#323e4c",
    ZERO_LINE_COLOR: "#c5ced8",
    BASELINE_COLOR: "#b6c0cc",
    "#0072b2": "#5fb0f0",
    "#009e73": "#3fcf9f",
    "#d55e00": "#ff9152",
    "#7b61b8": "#b39bea",
    "#0b7a6b": "#3fcfb8",
    "#b4451f": "#ff9170",
    "#4a6380": "#a7c0de",
    "#8a6a00": "#e8c55a",
    "#7a4988": "#d4a3e2",
    "#4d5866": "#aab4c1",
}

FONT_FAMILY = "Liberation Sans, Arial, Helvetica, sans-serif"


def assign_variant_styles(variant_names: list[str]) -> tuple[list[str], list[str], list[list[int]]]:
    """Return one color, shape and dash for each variant; the first variant is the baseline.

    Up to 56 variants get distinct combinations.
    """
    variant_indices = range(len(variant_names) - 1)
    shapes = VARIANT_SHAPES[1:] if len(variant_names) < len(VARIANT_SHAPES) else VARIANT_SHAPES
    return (
        [BASELINE_COLOR, *(VARIANT_COLORS[index % len(VARIANT_COLORS)] for index in variant_indices)],
        [VARIANT_SHAPES[0], *(shapes[index % len(shapes)] for index in variant_indices)],
        [list(VARIANT_DASHES[index % len(VARIANT_DASHES)]) for index in range(len(variant_names))],
    )


def build_vega_config(background: str) -> dict[str, Any]:
    """Return the style of all charts as Vega-Lite config: fonts, colors and spacing."""
    text_style = {
        "labelFont": FONT_FAMILY,
        "titleFont": FONT_FAMILY,
        "labelColor": MUTED_TEXT_COLOR,
        "titleColor": MUTED_TEXT_COLOR,
    }
    return {
        "background": background,
        "font": FONT_FAMILY,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **text_style,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "gridColor": GRID_COLOR,
            "domainColor": GRID_COLOR,
            "tickColor": GRID_COLOR,
            "labelOverlap": True,
            "labelFlush": False,
        },
        "legend": {
            **text_style,
            "labelFontSize": 12,
            "labelColor": TEXT_COLOR,
            "labelLimit": 300,
            "orient": "top",
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "columnPadding": 24,
            "title": None,
        },
        "title": {
            "font": FONT_FAMILY,
            "color": TEXT_COLOR,
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "frame": "group",
            "subtitleColor": MUTED_TEXT_COLOR,
        },
        "concat": {"spacing": 26},
        "text": {"font": FONT_FAMILY, "fill": TEXT_COLOR},
    }
