"""The tables of the decoding comparison, made once for the page, for Markdown and for CSV."""

from __future__ import annotations

from typing import Any

from headtohead.decoding_comparison import phrasing as say
from headtohead.presentation import number_format, style
from headtohead.presentation.table import Cell, Column, Table, table, words

Found = dict[str, Any]
LISTED = 3
"""so many of a step's likeliest tokens are listed"""


def tables(found: Found) -> list[Table]:
    """Those that have a row, in the page's order."""
    made = [measured(found), matrix(found), tests(found), sweep(found), laws(found), *map(steps, found["traces"])]
    return [one for one in made if one.rows]


def measured(found: Found) -> Table:
    """Every measure, a column a strategy; people's last."""
    names = list(found["figures"])
    columns = [Column("measure", "measure"), *(Column(name, name, is_figure=True) for name in names)]
    if found["people"]:
        columns.append(Column("people", "people", is_figure=True))
    rows = []
    for one in found["measures"]:
        of = [found["figures"][name].get(one["name"]) for name in names]
        if found["people"]:
            of.append(found["people"].get(one["name"]))
        rows.append([words(one["title"]), *(_figure(one, figure) for figure in of)])
    prompts, samples = len(found["prompts"]), found["settings"]["samples"]
    caption = f"Figures over {prompts} prompts with {samples} samples each, and their 95 % intervals over prompts."
    if prompts < 2:
        caption = f"Figures of {samples} samples after one prompt; an interval needs more prompts."
    return table("measures", "Figures", caption, columns, rows)


def _figure(measure: Found, figure: Found | None) -> Cell:
    value = None if figure is None else [figure["value"], *(figure["interval"] or [])]
    return Cell(say.with_span(measure["kind"], figure), value)


def matrix(found: Found) -> Table:
    """Every pair of strategies with every measure, as a sign and a size."""
    judged = [one for one in found["measures"] if any(pair["measure"] == one["name"] for pair in found["pairs"])]
    by_place = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in found["pairs"]}
    pairs = dict.fromkeys((pair["strategy"], pair["against"]) for pair in found["pairs"])
    columns = [Column("pair", "strategy against another"), *(Column(one["name"], one["title"], True) for one in judged)]
    rows = []
    for strategy, against in pairs:
        cells = [_short(by_place.get((strategy, against, one["name"])), one) for one in judged]
        rows.append([words(f"{strategy} / {against}"), *cells])
    signs = ", ".join(f"{style.WORD_SIGNS[word]} {word}" for word in ("helped", "hurt", "no practical difference"))
    caption = f"The first strategy’s change against the second’s, paired by prompt: {signs}, ? cannot tell."
    return table("pairs", "Strategy against strategy", caption, columns, rows)


def _short(pair: Found | None, measure: Found) -> Cell:
    if pair is None:
        return Cell(number_format.UNKNOWN)
    said = say.change(measure["kind"], pair["effect"])
    return Cell(
        f"{style.WORD_SIGNS[pair['word']]}{number_format.SPACE}{said.removesuffix('points').strip()}", pair["effect"]
    )


def tests(found: Found) -> Table:
    """The same in full: a row for each pair and measure."""
    kinds = {one["name"]: one for one in found["measures"]}
    columns = [
        Column("strategy", "strategy"),
        Column("against", "against"),
        Column("measure", "measure"),
        Column("verdict", "verdict"),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
        Column("detectable", "could have been seen", True),
    ]
    rows = []
    for pair in found["pairs"]:
        one = kinds[pair["measure"]]
        interval = pair["interval"]
        rows.append(
            [
                words(pair["strategy"]),
                words(pair["against"]),
                words(one["title"]),
                words(pair["word"]),
                Cell(say.change(one["kind"], pair["effect"], interval), pair["effect"]),
                Cell(say.sizes(one["kind"], interval), interval),
                Cell(say.change(one["kind"], pair["detectable"]).lstrip("+"), pair["detectable"]),
            ]
        )
    caption = "Every test. Intervals hold for all pairs of a measure at once; the last column is the smallest change "
    return table("tests", "Every test", caption + "that would have been seen four times in five.", columns, rows)


def sweep(found: Found) -> Table:
    points = found["sweep"]["points"]
    measures = [one for one in found["measures"] if any(one["name"] in point["figures"] for point in points)]
    columns = [
        Column("family", "strategy"),
        Column("setting", "setting"),
        *(Column(one["name"], one["title"], is_figure=True) for one in measures),
    ]
    rows = [
        [
            words(point["family"]),
            words(point["label"]),
            *(_plain_figure(one, point["figures"].get(one["name"])) for one in measures),
        ]
        for point in points
    ]
    caption = (
        f"The sweep, with {found['sweep']['samples']} samples a prompt, on which distinct n-grams and self-BLEU hang."
    )
    return table("sweep", "Sweep", caption, columns, rows)


def _plain_figure(measure: Found, figure: Found | None) -> Cell:
    return Cell(say.value(measure["kind"], figure and figure["value"]), figure and figure["value"])


def laws(found: Found) -> Table:
    """The limits of the strategies, tried on this model and these prompts."""
    columns = [Column("law", "law"), Column("tried", "tried"), Column("found", "found"), Column("result", "result")]
    rows = [
        [words(one["law"]), words(one["tried"]), words(one["found"]), words("passed" if one["passed"] else "failed")]
        for one in found["laws"]
    ]
    return table("laws", "Limits as laws", "Limits of the strategies, on this model and these prompts.", columns, rows)


def steps(trace: Found) -> Table:
    """What was drawn, token by token."""
    columns = [
        Column("step", "step"),
        Column("token", "drawn"),
        Column("rank", "rank", True),
        Column("probability", "model’s", True),
        Column("kept", "tokens kept", True),
        Column("mass", "their share", True),
        Column("after", "then", True),
        Column("likeliest", "the model’s likeliest"),
    ]
    rows = []
    for one in trace["steps"]:
        likeliest = [top for top in one["top"] if top["token"] is not None][:LISTED]
        listed = ", ".join(f"{say.token(top['token'])} {say.percent(top['probability'])}" for top in likeliest)
        rows.append(
            [
                words(one["at"]),
                words(say.token(one["token"])),
                Cell(f"{one['rank']:,}", one["rank"]),
                Cell(say.percent(one["probability"]), one["probability"]),
                Cell(number_format.count(one["kept"]), one["kept"]),
                Cell(number_format.UNKNOWN if one["mass"] is None else say.percent(one["mass"]), one["mass"]),
                Cell(number_format.UNKNOWN if one["after"] is None else say.percent(one["after"]), one["after"]),
                words(listed),
            ]
        )
    caption = "What was drawn; its probability in the model’s distribution and in what the strategy made of it (then)."
    return table(f"trace-{trace['strategy']}", f"{trace['strategy']}, token by token", caption, columns, rows)
