"""The page of a decoding comparison: one HTML file that needs nothing else, in the looks of the other report.

It reads what `h2h decode` left in a folder, decoding.json and samples.jsonl, and needs no torch. The same tables and
charts are written as Markdown, CSV, SVG, PDF and PNG when they are asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import read_json, read_lines, write_bytes, write_text
from headtohead.decoding_comparison import phrasing as say
from headtohead.decoding_comparison.charts import charts
from headtohead.decoding_comparison.tables import tables
from headtohead.errors import RunFolderError
from headtohead.presentation import style
from headtohead.presentation.exports import csv_text, latex, markdown, markdown_text
from headtohead.report.export import SUFFIXES, _drawn, _file_name, check
from headtohead.report.page import CLOSING, _chart, _environment, _file, _or_none, embedded

Found = dict[str, Any]
SCHEMA = 1
FILE, SAMPLES, REPORT = "decoding.json", "samples.jsonl", "report"
LINE_ENDS = re.compile(r"\s*\n\s*")
OPEN = 1
"""so many prompts are shown unfolded"""


def read(folder: Path) -> Found:
    """What a comparison found, with its samples."""
    found: Found = read_json(folder / FILE)
    if found.get("schema") != SCHEMA:
        raise RunFolderError(f"{folder / FILE}: written with schema {found.get('schema')}, this reads {SCHEMA}")
    return {**found, "samples": read_lines(folder / SAMPLES)}


def write(folder: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of a comparison's folder into it, and say which files were written."""
    check(formats)
    found = read(folder)
    written: list[Path] = []
    for one in dict.fromkeys(formats):
        if one in SUFFIXES:
            path = folder / f"{REPORT}{SUFFIXES[one]}"
            write_text(path, render(found) if one == "html" else markdown_report(found))
            written.append(path)
            continue
        place = folder / (f"{REPORT}-tables" if one in ("csv", "latex") else f"{REPORT}-charts")
        place.mkdir(exist_ok=True)
        for name, content in _files(one, found):
            write_bytes(place / name, content)
            written.append(place / name)
    return written


def _files(one: str, found: Found) -> list[tuple[str, bytes]]:
    if one in ("csv", "latex"):
        make, ending = (csv_text, "csv") if one == "csv" else (latex, "tex")
        return [(f"{_file_name(table.name)}.{ending}", make(table).encode()) for table in tables(found)]
    return [(f"{_file_name(chart.name)}.{one}", _drawn(chart, one)) for chart in charts(found)]


def markdown_report(found: Found) -> str:
    lines = [f"# {markdown_text(title(found))}", "", markdown_text(lead(found)), ""]
    for card in cards(found):
        name = markdown_text(card["strategy"])
        lines += [f"- **{name}, {line['word']}**: {markdown_text(line['sentence'])}" for line in card["lines"]]
    for one in tables(found):
        lines += ["", f"## {markdown_text(one.title)}", "", markdown(one).rstrip()]
    return "\n".join(lines) + "\n"


def render(found: Found) -> str:
    """The page."""
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    by_name = {table.name: table for table in tables(found)}
    drawn = {chart.name: _chart(chart) for chart in charts(found)}
    return (
        _environment()
        .get_template("decoding-page.html")
        .render(
            style=Markup(_file("report.css") + _file("decoding.css")),
            script=Markup(script),
            script_hash=digest,
            dark=list(style.AFTER_DARK.items()),
            data=Markup(embedded({name: value for name, value in found.items() if name != "samples"})),
            title=title(found),
            lead=lead(found),
            notes=found["notes"],
            baseline=found["baseline"],
            cards=cards(found),
            measures=found["measures"],
            has_people=bool(found["people"]),
            tables=_or_none(by_name),
            charts=_or_none(drawn),
            sweep=found["sweep"],
            traces=[
                {
                    **one,
                    "chart": drawn[f"trace-{one['strategy']}"],
                    "table": by_name.get(f"trace-{one['strategy']}"),
                    "prompt": found["prompts"][one["prompt"]]["text"],
                }
                for one in found["traces"]
            ],
            broken=[one["law"] for one in found["laws"] if not one["passed"]],
            samples=_samples(found),
            open=OPEN,
            reproduce=_reproduce(found),
        )
    )


def title(found: Found) -> str:
    """Five ways to decode SmolLM2."""
    count = len(found["figures"])
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    number = words[count] if count < len(words) else str(count)
    return f"{number} way{'s' if count != 1 else ''} to decode {found['model']['name']}"


def lead(found: Found) -> str:
    settings, prompts = found["settings"], len(found["prompts"])
    samples = settings["samples"]
    second = found["second"]
    return (
        f"{prompts:,} prompt{'s' if prompts != 1 else ''}, {samples} sample{'s' if samples != 1 else ''} each, up to "
        f"{settings['max_new_tokens']} new tokens, seed {settings['seed']}. "
        + (f"Second model: {second['name']}." if second else "No second model was given, so its column is left out.")
    )


def cards(found: Found) -> list[Found]:
    """What each strategy does beside the baseline: to how likely the text is, how varied, and how near to people's."""
    kinds = {one["name"]: one for one in found["measures"]}
    by_place = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in found["pairs"]}
    made = []
    for name in found["figures"]:
        lines = []
        for measure in ("perplexity", "second", "distinct-2", "repetition", "nearness"):
            pair = by_place.get((name, found["baseline"], measure))
            if pair is not None:
                sign = style.WORD_SIGNS[pair["word"]]
                said = say.sentence(pair, kinds[measure])
                lines.append({"word": pair["word"], "sign": sign, "sentence": said})
        if lines:
            made.append({"strategy": name, "lines": lines})
    return made


def _samples(found: Found) -> list[Found]:
    """By prompt: what people wrote, and what each strategy wrote; samples that are the same are shown once."""
    by_place: dict[tuple[str, str], list[Found]] = {}
    for one in found["samples"]:
        if _belongs(one, found):
            by_place.setdefault((one["strategy"], one["prompt"]), []).append(one)
    made = []
    for prompt in found["prompts"]:
        columns = []
        for name in found["figures"]:
            own = sorted(by_place.get((name, prompt["text"]), []), key=lambda one: int(one["sample"]))
            counts = Counter(LINE_ENDS.sub(" ↵ ", one["text"].strip()) for one in own)
            columns.append({"strategy": name, "texts": [{"text": text, "of": of} for text, of in counts.items()]})
        people = prompt["continuation"]
        made.append({**prompt, "columns": columns, "people": people and {"text": people, "joint": _joint(people)}})
    return made


def _belongs(line: Found, found: Found) -> bool:
    """A folder may hold samples of other settings as well: none is thrown away."""
    settings = found["settings"]
    return bool(
        line["model"] == found["model"]["digest"]
        and all(line[name] == settings[name] for name in ("seed", "max_new_tokens"))
        and line["sample"] < settings["samples"]
    )


def _joint(text: str) -> str:
    return "" if text.startswith((*CLOSING, " ", "\n")) else " "


def _reproduce(found: Found) -> Found:
    command = [str(word) for word in found.get("command") or []]
    if command:
        command[0] = Path(command[0]).name
    facts = {
        "Model": found["model"]["name"],
        "Digest of its weights": found["model"]["digest"],
        "Second model": found["second"]["name"] if found["second"] else None,
        "Digest of the second’s": found["second"]["digest"] if found["second"] else None,
        "Digest of the prompts": found["settings"]["digest"],
        **{f"{name} as sacrebleu counted it": how for name, how in found["signatures"].items()},
        **found["versions"],
    }
    return {
        "command": shlex.join(command),
        "facts": {name: str(fact) for name, fact in facts.items() if fact},
        "settings": json.dumps(found["settings"], indent=2, ensure_ascii=False),
    }
