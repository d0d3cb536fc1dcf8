"""Attention maps for paper: an SVG with real text around embedded pictures, and from it PDF and PNG. Offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from headtohead.atomic_io import disk_full_in_words, write_bytes
from headtohead.attention_analysis.pictures import LESS, MORE, Panel, Pictures, Sheet, label, pictures, ticks
from headtohead.errors import RequestError, nearest
from headtohead.presentation import style
from headtohead.presentation.png import uri

FORMATS = (".html", ".svg", ".pdf", ".png")
MARGIN, GAP = 18, 14
WIDE = 880
"""how wide all maps together are drawn, about"""
BIG, SMALL = 560, 56
"""the side of a map alone, and the smallest side of one among many"""
LEGIBLE = 8.5
"""a token needs so many pixels to have its name beside it"""
CHARACTER = 0.5
"""the width of a letter, of its height, on average"""


@dataclass
class Canvas:
    """SVG in the making."""

    width: float = 0
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, size: float = 11, colour: str = style.INK, **more: str) -> None:
        given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        place = f' x="{x:.1f}" y="{y:.1f}"' if "transform" not in more else ""
        self.parts.append(f'<text{place} font-size="{size:g}" fill="{colour}"{given}>{escape(words)}</text>')
        if "transform" not in more and more.get("text_anchor") != "end":
            half = more.get("text_anchor") == "middle"
            self.grow(x + len(words) * size * CHARACTER / (2 if half else 1), y + 4)

    def rect(self, x: float, y: float, width: float, height: float, **more: str) -> None:
        given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{given}/>')
        self.grow(x + width, y + height)

    def image(self, x: float, y: float, side: float, picture: bytes, words: str) -> None:
        self.parts.append(
            f'<image x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" preserveAspectRatio="none" '
            f'style="image-rendering: pixelated" href="{uri(picture)}"><title>{escape(words)}</title></image>'
        )

    def grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def svg(self, title: str, background: str) -> str:
        width, height = math.ceil(self.width + MARGIN), math.ceil(self.height + MARGIN)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" font-family="{style.FONT}"><title>{escape(title)}</title>'
            f'<rect width="{width}" height="{height}" fill="{background}"/>{"".join(self.parts)}</svg>'
        )


@dataclass(frozen=True)
class Grid:
    """Where the maps of a panel stand."""

    side: float
    labelled: bool
    left: float
    """room for the tokens that look"""
    top: float
    """room for the tokens that are looked at"""
    names: float
    """room for the names of the layers"""
    columns: int
    """maps side by side: the heads of a layer, or of one layer alone as many as there is room for"""

    @property
    def step(self) -> float:
        return self.side + GAP


def svg(sheet: Sheet, background: str = "white") -> str:
    """All layers and heads as small multiples; a map alone stands large with its tokens on both axes."""
    length = len(sheet.tokens)
    made = pictures(sheet, fine=False, enlarge=max(1, 256 // length))
    canvas = Canvas()
    across = 1 if len(sheet.panels) * len(sheet.panels[0].head_numbers) > 12 else len(sheet.panels)
    grid = _grid(sheet, across)
    wide = across * (grid.names + grid.left + grid.columns * grid.step)
    y = _head(canvas, sheet, made, max(460, wide))
    x: float = MARGIN
    bottom = y
    for index, panel in enumerate(sheet.panels):
        if index and index % across == 0:
            x, y = MARGIN, bottom + 2 * GAP
        right, low = _panel(canvas, sheet, panel, made, index, grid, x, y)
        x, bottom = right + 2 * GAP, max(bottom, low)
    return canvas.svg(f"{sheet.title}: attention on {label(sheet.text, 200)}", background)


def _head(canvas: Canvas, sheet: Sheet, made: Pictures, wide: float) -> float:
    """What is shown, on which text, and what strength means; gives the place where the maps begin."""
    canvas.text(MARGIN, 32, label(sheet.title, int(wide / 15 / CHARACTER)), size=15, font_weight="600")
    y = 50.0
    for line in (f"“{label(sheet.text, 280)}”", *sheet.notes, *_pooling(made)):
        for piece in _broken(line, int(wide / 11 / CHARACTER)):
            canvas.text(MARGIN, y, piece, colour=style.SOFT)
            y += 15
    _legend(canvas, y, made.scale.power, any(panel.signed for panel in sheet.panels))
    return y + 44


def _pooling(made: Pictures) -> list[str]:
    pool = made.scale.pool
    return [f"A pixel is the largest of {pool} × {pool} weights."] if pool > 1 else []


def _broken(line: str, longest: int) -> list[str]:
    lines = [""]
    for word in line.split():
        if len(lines[-1]) + len(word) >= longest:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _legend(canvas: Canvas, y: float, power: float, signed: bool) -> None:
    """From no weight to all of it, as it is drawn."""
    for part, (name, colour) in enumerate([("weight", MORE)] + ([("difference", LESS)] if signed else [])):
        x, width = MARGIN + part * 330.0, 170.0
        hue = f"rgb({','.join(map(str, colour))})"
        canvas.text(x, y + 10, name, colour=style.SOFT)
        left = x + 62
        if part == 0:
            stops: list[tuple[float, str, int]] = [(0, hue, 0), (1, hue, 1)]
            marks = [(one**power, one) for one in ticks(power)]
        else:
            other = f"rgb({','.join(map(str, MORE))})"
            stops = [(0, hue, 1), (0.5, hue, 0), (0.5, other, 0), (1, other, 1)]
            signs = [(math.copysign(abs(one) ** power, one), one) for one in ticks(power, signed=True)]
            marks = [((1 + at) / 2, one) for at, one in signs if abs(one) in (0, 0.1, 1)]
        ramp = "".join(f'<stop offset="{at}" stop-color="{c}" stop-opacity="{o}"/>' for at, c, o in stops)
        canvas.parts.append(f'<linearGradient id="ramp-{part}">{ramp}</linearGradient>')
        canvas.rect(left, y, width, 11, fill=f"url(#ramp-{part})", stroke=style.GRID)
        for at, one in marks:
            canvas.text(
                left + at * width,
                y + 24,
                f"{one:g}".replace("-", "−"),
                size=9.5,
                colour=style.SOFT,
                text_anchor="middle",
            )


def _grid(sheet: Sheet, across: int) -> Grid:
    panel, length = sheet.panels[0], len(sheet.tokens)
    heads = len(panel.head_numbers)
    columns = min(heads, 4) if len(panel.layers) == 1 else heads
    alone = len(panel.layers) == heads == 1
    side = min(BIG, max(240, 17 * length)) if alone else min(200, max(SMALL, WIDE / columns / across - GAP))
    if alone and across > 1:
        side = min(side, WIDE / across)
    labelled = alone or side / length >= LEGIBLE
    longest = max(len(label(token)) for token in sheet.tokens)
    room = longest * 10.5 * 0.58 + 8 if labelled else 0
    return Grid(side, labelled, room, room * 0.9 + 4 if labelled else 0, 0 if alone else 54, columns)


def _panel(
    canvas: Canvas, sheet: Sheet, panel: Panel, made: Pictures, index: int, grid: Grid, x: float, y: float
) -> tuple[float, float]:
    """One panel; gives its right and lower end."""
    alone = not grid.names
    title = panel.title if len(sheet.panels) > 1 else ""
    if alone:
        title += f"{', ' if title else ''}layer {panel.layer_numbers[0]}, head {panel.head_numbers[0]}"
    if title:
        canvas.text(x, y + 8, label(title, 60), size=13, font_weight="600")
        y += 18
    left, top = x + grid.names + grid.left, y + grid.top + (0 if alone else 20)
    wrapped = len(panel.layers) == 1 and len(panel.head_numbers) > grid.columns
    down = grid.step + (20 if wrapped else 0)
    rows = 0
    for at, (layer, head) in enumerate(
        (a, b) for a in range(len(panel.layers)) for b in range(len(panel.head_numbers))
    ):
        row, column = divmod(at, grid.columns)
        corner = left + column * grid.step, top + row * down
        rows = row + 1
        words = f"Layer {panel.layer_numbers[layer]}, head {panel.head_numbers[head]}"
        _map(canvas, sheet, *corner, grid.side, made.heads[index, layer, head], words)
        if not alone and (row == 0 or wrapped):
            middle, above = corner[0] + grid.side / 2, corner[1] - 6 - (0 if row else grid.top)
            named = f"head {panel.head_numbers[head]}"
            canvas.text(middle, above, named, colour=style.SOFT, text_anchor="middle")
        if not alone and column == 0 and not (wrapped and row):
            canvas.text(x, corner[1] + grid.side / 2 + 4, f"layer {panel.layer_numbers[layer]}", colour=style.SOFT)
        if grid.labelled and row == 0:
            _columns(canvas, sheet.tokens, *corner, grid.side)
        if grid.labelled and column == 0:
            _rows(canvas, sheet.tokens, *corner, grid.side)
    right = left + grid.columns * grid.step - GAP + (grid.top * 0.6 if grid.labelled else 0)
    canvas.grow(right, 0)
    return right, top + rows * down - GAP


def _map(canvas: Canvas, sheet: Sheet, x: float, y: float, side: float, picture: bytes, words: str) -> None:
    """The picture. Padding is grey: below it where it is looked at, so that a weight there would be seen; above it
    where it looks, since that means nothing."""
    kept = float(sheet.real.sum()) / len(sheet.tokens) * side
    if kept < side:
        canvas.rect(x + kept, y, side - kept, side, fill=style.GRID)
    canvas.image(x, y, side, picture, words)
    if kept < side:
        canvas.rect(x, y + kept, side, side - kept, fill=style.GRID)
        if side - kept > 60:
            middle = (side + kept) / 2
            canvas.text(x + middle, y + middle, "padding", colour=style.SOFT, text_anchor="middle")
    canvas.rect(x, y, side, side, fill="none", stroke="#9aa5b1", stroke_width="0.7")


def _every(tokens: Sequence[str], side: float) -> tuple[float, float, int]:
    """The room of a token, the size of its name, and that every so many is named."""
    cell = side / len(tokens)
    step = max(1, math.ceil(LEGIBLE / cell))
    return cell, min(10.5, max(8.0, 0.8 * cell * step)), step


def _rows(canvas: Canvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    cell, size, step = _every(tokens, side)
    for at in range(0, len(tokens), step):
        middle = top + (at + 0.5) * cell + 0.34 * size
        canvas.text(left - 5, middle, label(tokens[at]), size=size, text_anchor="end")


def _columns(canvas: Canvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    cell, size, step = _every(tokens, side)
    for at in range(0, len(tokens), step):
        place = f"translate({left + (at + 0.5) * cell + 0.3 * size:.1f},{top - 5:.1f}) rotate(-60)"
        canvas.text(0, 0, label(tokens[at]), size=size, transform=place)


def save(sheet: Sheet, path: str | Path) -> Path:
    """Write what is shown as .html, .svg, .pdf or .png."""
    target = Path(path)
    kind = target.suffix.lower()
    check_name(target)
    with disk_full_in_words(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, _drawn(sheet, kind))
    return target


def check_name(path: str | Path) -> None:
    """Is this a file that can be written? Asked before the work is done."""
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        near = nearest(kind, FORMATS)
        hint = f", did you mean {near!r}?" if near else ""
        raise RequestError(f"{path}: {kind or 'no ending'} is no picture{hint} (allowed: {', '.join(FORMATS)})")
    if Path(path).is_dir():
        raise RequestError(f"{path}: is a folder; give the name of a file")


def _drawn(sheet: Sheet, kind: str) -> bytes:
    if kind == ".html":
        from headtohead.attention_analysis.page import render

        return render(sheet).encode()
    drawn = svg(sheet)
    if kind == ".svg":
        return drawn.encode()
    import vl_convert

    return bytes(vl_convert.svg_to_pdf(drawn) if kind == ".pdf" else vl_convert.svg_to_png(drawn, scale=2))
