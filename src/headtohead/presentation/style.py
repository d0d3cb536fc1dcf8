"""How charts look, in one place: colours, shapes and dashes, and the same colours after dark.

The colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any kind of colour sight can
tell apart; shape and dash tell the variants apart as well, so that nothing hangs on colour alone.
A chart is drawn once, in the colours for paper. After dark the page's style sheet puts the second colour of each pair
in the place of the first.
"""

from __future__ import annotations

from typing import Any

INK = "#1f2933"
SOFT = "#52606d"
GRID = "#e4e7eb"
BAND = "#dde4ec"
ZERO = "#3e4c59"

HUES = ("#0072b2", "#e69f00", "#cc79a7", "#009e73", "#56b4e9", "#d55e00", "#7b61b8")
BASELINE_HUE = "#5f6b7a"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 4), (10, 4))

WORD_HUES = {
    "helped": "#0b7a6b",
    "hurt": "#b4451f",
    "no practical difference": "#4a6380",
    "cannot tell": "#8a6a00",
    "not comparable": "#7a4988",
}
WORD_SHAPES = {
    "helped": "triangle-up",
    "hurt": "triangle-down",
    "no practical difference": "square",
    "cannot tell": "circle",
    "not comparable": "cross",
}
WORD_SIGNS = {
    "helped": "▲",
    "hurt": "▼",
    "no practical difference": "■",
    "cannot tell": "?",
    "not comparable": "✕",
}

AFTER_DARK = {
    INK: "#e8ecf1",
    SOFT: "#aab4c0",
    GRID: "#2d3540",
    BAND: "#323e4c",
    ZERO: "#c5ced8",
    BASELINE_HUE: "#b6c0cc",
    "#0072b2": "#5fb0f0",
    "#009e73": "#3fcf9f",
    "#d55e00": "#ff9152",
    "#7b61b8": "#b39bea",
    "#0b7a6b": "#3fcfb8",
    "#b4451f": "#ff9170",
    "#4a6380": "#a7c0de",
    "#8a6a00": "#e8c55a",
    "#7a4988": "#d4a3e2",
}

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def scales(names: list[str]) -> tuple[list[str], list[str], list[list[int]]]:
    """Colour, shape and dash for each variant; the first is the baseline. 7 colours and 8 shapes go 56 variants far."""
    others = range(len(names) - 1)
    return (
        [BASELINE_HUE, *(HUES[i % len(HUES)] for i in others)],
        [SHAPES[0], *(SHAPES[1 + i % (len(SHAPES) - 1)] if len(names) < 8 else SHAPES[i % 8] for i in others)],
        [list(DASHES[0]), *(list(DASHES[(1 + i) % len(DASHES)]) for i in others)],
    )


def config(background: str) -> dict[str, Any]:
    """The look of every chart, as a Vega-Lite config."""
    words = {"labelFont": FONT, "titleFont": FONT, "labelColor": SOFT, "titleColor": SOFT}
    return {
        "background": background,
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **words,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "gridColor": GRID,
            "domainColor": GRID,
            "tickColor": GRID,
            "labelOverlap": True,
            "labelFlush": False,
        },
        "legend": {
            **words,
            "labelFontSize": 12,
            "labelColor": INK,
            "labelLimit": 300,
            "orient": "top",
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "columnPadding": 24,
            "title": None,
        },
        "title": {
            "font": FONT,
            "color": INK,
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "frame": "group",
            "subtitleColor": SOFT,
        },
        "concat": {"spacing": 26},
        "text": {"font": FONT, "fill": INK},
    }
