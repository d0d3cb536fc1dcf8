"""Write docs/recipes.md from the recipe files and the figures of their full runs.

    python tools/recipes.py                  write the page anew
    python tools/recipes.py --runs FOLDER    first take the figures of the runs in FOLDER/NAME into docs/figures
    python tools/recipes.py --decoding FOLDER    the same for a folder of `h2h decode`

The page says nothing that is not in one of these files, so that it cannot fall behind them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from headtohead.config import experiment
from headtohead.config import loading as config_loading
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view, loading, run_folder
from headtohead.findings import compute
from headtohead.presentation import number_format
from headtohead.presentation.table import Table
from headtohead.replication import published, tables
from headtohead.report.sections import comparisons
from headtohead.search import phrasing
from headtohead.search import tables as search_tables

ROOT = Path(__file__).parents[1]
FIGURES, PAGE = ROOT / "docs" / "figures", ROOT / "docs" / "recipes.md"
KEPT = (
    "metric",
    "split",
    "rows",
    "verdicts",
    "claims",
    "published",
    "lengths",
    "axis",
    "results",
    "sentences",
    "comparisons",
)
HEAD = """# Recipes

Every experiment of the five course reports that Head to Head grew out of, as a file that comes with the package, and
a few of our own. Each is run with one command on the default corpus, or on the original data with `--data`; `--quick`
shows in a minute or two what the report will look like. To start an experiment of your own from one of them:

    h2h recipes --show positions > mine.toml
    h2h run mine.toml

The figures below are of full runs on the original data. Perplexity and accuracy are means over seeds ± the standard
deviation of one seed. Intervals are 95 %. A published figure stands directly beside ours only where the texts are the
same. This page is made by `tools/recipes.py` from the recipes and from the figures of the runs in docs/figures.
"""


def take(runs: Path) -> None:
    """The figures of full runs, without what belongs to one machine."""
    for name in config_loading.list_recipes():
        if not (runs / name / "experiment.json").is_file():
            continue
        opened = run_folder.open_runs(runs / name)
        # Claims and published figures as the recipe has them now: what was trained does not depend on them.
        current = loading.load_experiment(name)
        replaced = {key: getattr(current, key) for key in ("claims", "published", "comparisons")}
        experiment = opened.experiment.model_copy(update=replaced)
        opened.__dict__["metadata"] = opened.metadata.model_copy(update={"experiment": experiment})
        findings = compute.compute_findings(opened, interim_analyses=compute.list_interim_analyses(opened))
        found = findings.to_json()
        corpus = found["corpus"]
        kept = {key: found[key] for key in KEPT}
        kept["experiment"] = {"model": {"context": opened.experiment.model.context}}
        kept["seeds"] = max(len(pairs) for by_split in found["scores"].values() for pairs in by_split.values())
        kept["missing"] = len(found["failures"])
        if found.get("teacher"):
            kept |= _distilled(found)
        if found.get("search"):
            kept["search"] = {key: value for key, value in found["search"].items() if key not in ("seals", "history")}
        kept["corpus"] = {
            "origin": re.sub(r"(folder|file) \S*/", r"\1 ", corpus["origin"]),
            "digest": corpus["digest"],
            "splits": corpus["splits"],
            "simple": corpus.get("simple") or {},
            "whose": corpus.get("whose") or {},
        }
        FIGURES.mkdir(exist_ok=True)
        (FIGURES / f"{name}.json").write_text(json.dumps(_rounded(kept), indent=1, ensure_ascii=False) + "\n")


def _distilled(found: dict[str, Any]) -> dict[str, Any]:
    """Of a distillation the figures, and not the documents: they are other people's."""
    teacher = {key: value for key, value in found["teacher"].items() if key != "documents"}
    distilled = {key: value for key, value in (found["distilled"] or {}).items() if key != "side_by_side"}
    pairing = {name: {"parameters": row.get("parameters")} for name, row in found["pairing"].items()}
    return {"teacher": teacher, "distilled": distilled, "pairing": pairing, "by_seed": found["by_seed"]}


def take_decoding(folder: Path) -> None:
    """The figures of a comparison of decoding strategies."""
    found = json.loads((folder / "decoding.json").read_text(encoding="utf-8"))
    kept = {key: found[key] for key in ("model", "settings", "signatures", "measures", "figures", "people", "laws")}
    kept["second"] = {**found["second"], "name": "a small decoder of ours"} if found["second"] else None
    kept["pairs"] = [row for row in found["pairs"] if row["against"] == found["baseline"]]
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / "decode.json").write_text(json.dumps(_rounded(kept), indent=1, ensure_ascii=False) + "\n")


def _rounded(value: Any) -> Any:
    """Six digits are more than any of these figures has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def page() -> str:
    names = sorted(config_loading.list_recipes(), key=lambda name: (name.startswith("best"), name))
    experiments = {name: loading.load_experiment(name) for name in names}
    parts = [HEAD, _claims(names), *(_section(name, experiments[name]) for name in names), _decoding()]
    return "\n".join(parts)


def _decoding() -> str:
    """The strategies of report D on a pretrained model."""
    found = _read("decode")
    if found is None:
        return ""
    strategies = [*found["figures"], "people"]
    figures_of = {**found["figures"], "people": found["people"]}
    asked = found["settings"]
    about = (
        f"`h2h decode` with {found['model']['name']} on {asked['prompts']} prompts, the first one report D's own; "
        f"{asked['samples']} samples of {asked['max_new_tokens']} tokens. Figures with their 95 % interval over "
        "prompts; people: their own continuation, cut to the same length. Report D shows samples and no figures. "
        "Likelier text is not better text: people's own is far less likely than greedy text."
    )
    lines = [
        "## Decoding (report D)",
        "",
        about,
        "",
        "| | " + " | ".join(strategies) + " |",
        "|---|" + "---:|" * len(strategies),
    ]
    for measure in found["measures"]:
        cells = [_figure(figures_of[name].get(measure["name"])) for name in strategies]
        lines.append(f"| {measure['title']} | {' | '.join(cells)} |")
    lines += ["", "Laws, tried on this model and these prompts:", ""]
    lines += [
        f"- {row['law']}: {'holds' if row['passed'] else 'DOES NOT HOLD'} ({row['found']})" for row in found["laws"]
    ]
    signatures = "; ".join(f"{name}: `{said}`" for name, said in found["signatures"].items())
    return "\n".join([*lines, "", f"Signatures: {signatures}.", ""])


def _figure(row: dict[str, Any] | None) -> str:
    if row is None:
        return number_format.MISSING_VALUE
    places = 3 if abs(row["value"]) < 1 else 2 if abs(row["value"]) < 10 else 1
    low, high = row["interval"] or (None, None)
    ends = "" if low is None else f" ({low:.{places}f} to {high:.{places}f})"
    return f"{row['value']:.{places}f}{ends}"


def _read(name: str) -> dict[str, Any] | None:
    path = FIGURES / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _claims(names: list[str]) -> str:
    """All claims of all reports with their answers."""
    rows = []
    for name in names:
        found = _read(name)
        for one in (found or {}).get("claims", []):
            metric = found["metric"]  # type: ignore[index]
            places = number_format.choose_decimals(metric, one.get("interval"))
            change = number_format.format_effect(metric, one.get("effect"), places)
            ends = number_format.format_effect_interval(metric, one.get("interval"), places)
            rows.append(f"| {one['source']} | {one['says']} | **{one['answer']}** | {change} ({ends}) | `{name}` |")
    if not rows:
        return ""
    return "\n".join(
        ["## The reports' claims", "", "| report | says | here | change | recipe |", "|---|---|---|---|---|", *rows, ""]
    )


def _section(name: str, experiment: experiment.Experiment) -> str:
    found = _read(name)
    lines = [f"## {name}", "", f"**{experiment.question}**", "", " ".join(experiment.about.split()), ""]
    variants = ", ".join(f"`{variant}`" for variant in experiment.variants)
    lines += [f"Task {experiment.task}, {experiment.seeds} seeds. Variants: {variants}.", ""]
    if experiment.taught:
        lines += [" ".join(experiment.taught.split()), ""]
    if found is None:
        return "\n".join([*lines, "No full run on the original data yet.", ""])
    lines += [f"Figures: {found['corpus']['origin']}; {found['seeds']} seeds.", "", *_results(found), ""]
    said = (*distillation_tables.build_headline_verdicts(found), *found["verdicts"])
    lines += [f"- {row['summary']}" for row in said] + [""]
    if found.get("search"):
        lines += [" ".join(phrasing.describe_search(found)), ""]
    for made in (
        search_tables.build_search_points_table(found),
        comparisons.build_comparison_table(found),
        *distillation_tables.build_tables(found),
        published.build_published_table(found),
        tables.build_context_length_table(found),
        tables.build_context_cost_table(found),
        tables.build_simple_baselines_table(found),
        tables.build_attribution_table(found),
    ):
        if made.rows:
            lines += [f"{made.title}. {made.caption}", "", *_markdown(made), ""]
    return "\n".join(lines)


def _results(found: dict[str, Any]) -> list[str]:
    splits = list(next(iter(found["scores"].values())))
    lines = [f"| {found['metric']} | {' | '.join(splits)} |", "|---|" + "---:|" * len(splits)]
    for variant, by_split in found["scores"].items():
        cells = []
        for split in splits:
            values = [value for _, value in by_split.get(split, [])]
            spread = statistics.stdev(values) if len(values) > 1 else None
            cells.append(_mean(found["metric"], values, spread))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    if unknown := findings_view.get_unknown_token_rates(found):
        lines.append(
            f"| unknown words | {' | '.join(number_format.format_percentage(unknown.get(split)) for split in splits)} |"
        )
    return lines


def _mean(metric: str, values: list[float], spread: float | None) -> str:
    if not values:
        return number_format.MISSING_VALUE
    scale = 100 if metric == "accuracy" else 1
    said = f"{scale * statistics.fmean(values):,.1f}"
    return said if spread is None else f"{said} ± {scale * spread:,.1f}"


def _markdown(made: Table) -> list[str]:
    lines = ["| " + " | ".join(column.title for column in made.columns) + " |"]
    lines.append("|" + "|".join("---:" if column.is_numeric else "---" for column in made.columns) + "|")
    lines += ["| " + " | ".join(cell.text.replace("|", "\\|") for cell in row) + " |" for row in made.rows]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="where the runs are, each in a folder of its recipe's name")
    parser.add_argument("--decoding", type=Path, help="a folder that h2h decode has written")
    given = parser.parse_args()
    if given.runs is not None:
        take(given.runs)
    if given.decoding is not None:
        take_decoding(given.decoding)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
