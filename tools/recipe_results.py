"""Store the results of complete runs in docs/figures, and measure noise and CPU time of the recipes."""

from __future__ import annotations

import json
import math
import re
import statistics
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from scipy import special

from headtohead.config import recipe_catalog
from headtohead.config.recipe_catalog import RecipeSummary
from headtohead.decoding_comparison.results import read_results
from headtohead.experiment import loading, run_folder
from headtohead.experiment.schemas import Findings, SummarizationTeacherFile
from headtohead.findings import compute
from headtohead.runner.plan import plan_experiment
from headtohead.verdict.record import Verdict

PROJECT_ROOT = Path(__file__).parents[1]
CORPUS_TITLES = {"sotu": "State of the Union", "summaries": "your documents (--data)"}
"""titles of the corpora of recipes, by `data.source`"""
RESULTS_FOLDER = PROJECT_ROOT / "docs" / "figures"
"""results of complete runs, from which the pages are written"""
CATALOG_FILE = PROJECT_ROOT / "src" / "headtohead" / "config" / "recipes" / "catalog.json"
NOISE_FILE = CATALOG_FILE.with_name("noise.json")
SHOWN_SECTIONS = {
    "schema_version",
    "metric",
    "split",
    "rows",
    "verdicts",
    "interim_analyses",
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


def store_run_results(runs: Path) -> None:
    """Write the findings of complete runs, without machine-specific details, to docs/figures."""
    for name in recipe_catalog.list_recipes():
        if not (runs / name / "experiment.json").is_file():
            continue
        experiment_runs = run_folder.open_runs(runs / name)
        # Use the recipe's current claims and published scores, because trained models do not depend on them.
        recipe = loading.load_experiment(name)
        current_values = {key: getattr(recipe, key) for key in ("claims", "published", "comparisons")}
        experiment = experiment_runs.experiment.model_copy(update=current_values)
        experiment_runs.__dict__["metadata"] = experiment_runs.metadata.model_copy(update={"experiment": experiment})
        findings = compute.compute_findings(experiment_runs)
        sections = SHOWN_SECTIONS | ({"search"} if findings.search else set())
        if findings.teacher:
            sections |= {"teacher", "summarization", "pairing", "primary_scores"}
        results = _remove_local_details(findings).model_dump(mode="json", include=sections)
        RESULTS_FOLDER.mkdir(exist_ok=True)
        (RESULTS_FOLDER / f"{name}.json").write_text(
            json.dumps(_round_numbers(results), indent=1, ensure_ascii=False) + "\n"
        )


def _remove_local_details(findings: Findings) -> Findings:
    """Return the findings without local paths and checksums, and without documents under the copyright of others."""
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


def store_decoding_results(folder: Path) -> None:
    """Write the results of a comparison of decoding strategies to docs/figures."""
    results = read_results(folder)
    pairs = [pair for pair in results.pairs if pair.reference == results.baseline]
    scoring_model = results.scoring_model and results.scoring_model.model_copy(update={"name": "our own small decoder"})
    results = results.model_copy(update={"pairs": pairs, "scoring_model": scoring_model})
    record = results.model_dump(mode="json", include=DECODING_SECTIONS)
    RESULTS_FOLDER.mkdir(exist_ok=True)
    (RESULTS_FOLDER / "decode.json").write_text(json.dumps(_round_numbers(record), indent=1, ensure_ascii=False) + "\n")


def _round_numbers(value: Any) -> Any:
    """Round numbers to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _round_numbers(item) for key, item in value.items()}
    return [_round_numbers(item) for item in value] if isinstance(value, list) else value


def collect_noise(findings_by_recipe: Mapping[str, Findings | None]) -> dict[str, dict[str, float]]:
    """Return the standard deviation of paired differences over seeds, by metric and recipe: the median of its variants.

    It follows from the interval over seeds. Differences of perplexity are logarithms of ratios.
    """
    noise: dict[str, dict[str, float]] = {}
    for name, findings in findings_by_recipe.items():
        stds = [_derive_seed_std(verdict) for verdict in findings.verdicts] if findings is not None else []
        known_stds = [std for std in stds if std is not None]
        if findings is not None and known_stds:
            noise.setdefault(findings.verdicts[0].metric, {})[name] = float(f"{statistics.median(known_stds):.3g}")
    return noise


def _derive_seed_std(verdict: Verdict) -> float | None:
    """Return the standard deviation of paired differences over seeds, computed from the interval of a verdict."""
    low, high = verdict.seed_interval
    if not (math.isfinite(low) and math.isfinite(high)) or verdict.seeds < 2:
        return None
    width = math.log1p(high) - math.log1p(low) if verdict.metric == "perplexity" else high - low
    quantile = float(special.stdtrit(verdict.seeds - 1, (1 + verdict.adjusted_confidence) / 2))
    return width / 2 / quantile * math.sqrt(verdict.seeds)


def measure_durations() -> None:
    """Write the CPU seconds of all trials of each recipe, extrapolated from a few training steps."""
    durations = read_durations()
    with mock.patch("time.perf_counter", time.process_time):  # excludes the time of other processes
        for name in recipe_catalog.list_recipes():
            experiment = loading.load_experiment(name)
            if Path(experiment.data.source).name == "summaries":  # no default corpus
                continue
            plan = plan_experiment(experiment)
            seconds = experiment.max_seeds * sum(variant.seconds for variant in plan.plan)
            if plan.search:
                seconds += plan.search.trials * plan.search.seconds
            durations[name] = round(seconds)
            print(name, durations[name])
    CATALOG_FILE.write_text(build_catalog(durations))


def read_durations() -> dict[str, float]:
    """Return the CPU seconds of all trials of each recipe, as measured before."""
    return {summary.name: summary.cpu_seconds for summary in recipe_catalog.list_recipe_summaries()}


def build_catalog(durations: Mapping[str, float]) -> str:
    """Return the content of catalog.json."""
    summaries = [_summarize_recipe(name, seconds) for name, seconds in sorted(durations.items())]
    summaries.sort(key=lambda summary: recipe_catalog.TOPICS.index(summary.topic))
    return json.dumps([asdict(summary) for summary in summaries], indent=1, ensure_ascii=False) + "\n"


def _summarize_recipe(name: str, cpu_seconds: float) -> RecipeSummary:
    """Return the catalog entry of a recipe."""
    raw = tomllib.loads(recipe_catalog.find_recipe(name).read_text(encoding="utf-8"))
    return RecipeSummary(
        name,
        topic=raw["topic"],
        question=raw["question"],
        varies=raw["varies"],
        task=raw["task"],
        corpus=CORPUS_TITLES[raw.get("data", {}).get("source", "sotu")],
        variants=tuple(raw.get("variants", {})),
        cpu_seconds=cpu_seconds,
        full="full" in raw,
    )
