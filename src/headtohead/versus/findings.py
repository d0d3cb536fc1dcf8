"""Judge a command comparison: verdicts, curves, failures, and what can be observed about its fairness from outside."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from headtohead.audit.result import list_blocking_reasons
from headtohead.config.experiment import BASELINE
from headtohead.experiment.error_budget import list_analyses, read_error_budget, record_analysis
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.schemas import FailureRecord, Findings, read_record, write_record
from headtohead.experiment.schemas.base import SeedScore
from headtohead.experiment.schemas.versus import NoiseEstimate, VersusFindings
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_min_detectable_effect, estimate_variance_components
from headtohead.versus.command_runner import OUTPUT_FOLDER
from headtohead.versus.comparison import ComparisonFolder
from headtohead.versus.config import replace_fields
from headtohead.versus.metric_readers import ExampleScores, join_examples, read_examples
from headtohead.versus.observations import observe
from headtohead.versus.records import RECORD_FILE, CommandRun, Runs

DETECTABLE_SEEDS = (3, 5, 8, 12, 20)
IGNORED_SEED = (
    "gives exactly the same values with every seed, so the script ignores it; check that the script uses {seed} or "
    "H2H_SEED"
)


def write_findings(comparison: ComparisonFolder, command: list[str] | None = None) -> Findings:
    """Compute a comparison's findings, record the analysis in its journal and write findings.json.

    If no command line is given, the one in the previous findings is kept.
    """
    path = comparison.path / "findings.json"
    if command is None:
        command = read_record(path, Findings).command if path.is_file() else []
    with lock_folder(comparison.path):
        findings = compute_findings(comparison, command)
        budget = read_error_budget(comparison.path, comparison.config.variants, comparison.config.seeds)
        record_analysis(comparison.path, findings.verdicts, budget)
        write_record(path, findings, with_checksum=True)
    return findings


def compute_findings(comparison: ComparisonFolder, command: list[str]) -> Findings:
    """Return a comparison's findings. `command` is the command line that produced them."""
    config, runs = comparison.config, comparison.read_runs()
    counted = {name: {seed: run for seed, run in by_seed.items() if run.is_counted} for name, by_seed in runs.items()}
    lost = {
        name: tuple(seed for seed, run in by_seed.items() if run.status == "not finite")
        for name, by_seed in runs.items()
    }
    scores = {
        name: replace(_build_scores(comparison, name, by_seed), lost=lost[name])
        for name, by_seed in counted.items()
        if by_seed
    }
    withheld = list_withheld(counted)
    budget = read_error_budget(comparison.path, config.variants, config.seeds)
    verdicts = []
    if BASELINE in scores:
        weights = scores[BASELINE].weights
        scores |= {
            name: Scores((), np.empty((0, len(weights))), weights, lost=seeds)
            for name, seeds in lost.items()
            if seeds and name not in scores
        }
        variants = {name: scores[name] for name in config.variants if name in scores}
        withheld |= {name: ["no run has a result"] for name in config.variants if name not in scores}
        verdicts = compare_scores(
            scores[BASELINE],
            variants,
            metric=config.metric.kind,
            equivalence_margin=config.equivalence_margin,
            withheld=withheld,
            budget=budget,
        )
    primary: dict[str, list[SeedScore]] = {
        name: [(seed, run.value) for seed, run in by_seed.items()] for name, by_seed in counted.items()
    }
    return Findings(
        versions=comparison.file.versions,
        command=command,
        metric=config.metric.kind,
        split=config.metric.name,
        verdicts=verdicts,
        interim_analyses=list_analyses(budget, verdicts),
        primary_scores=primary,
        scores={name: {config.metric.name: values} for name, values in primary.items()},
        curves={
            name: {config.metric.name: {str(seed): run.curve for seed, run in by_seed.items() if len(run.curve) > 1}}
            for name, by_seed in counted.items()
        },
        audits={
            name: next(run.audits for run in by_seed.values() if run.audits)
            for name, by_seed in counted.items()
            if any(run.audits for run in by_seed.values())
        },
        failures=[
            FailureRecord(
                variant=name, seed=seed, message=f"{run.status}: {run.message}", is_lost=run.status == "not finite"
            )
            for name, by_seed in runs.items()
            for seed, run in by_seed.items()
            if not run.is_counted
        ],
        versus=VersusFindings(
            question=config.question,
            metric_name=config.metric.name,
            commands={name: variant.text for name, variant in config.commands.items()},
            revisions={
                name: f"{record.name} ({record.commit[:12]}{', with uncommitted changes' if record.patch else ''})"
                for name, record in comparison.file.revisions.items()
            },
            diffs=comparison.file.diffs,
            observations=observe(comparison, counted),
            noise=estimate_noise(counted) if config.is_noise else None,
        ),
    )


def list_withheld(counted: Runs) -> dict[str, list[str]]:
    """Return why verdicts on variants are withheld: the seed is ignored, or a check of the recorded model failed."""
    reasons = {}
    for name, by_seed in counted.items():
        audits = [result for run in by_seed.values() for result in run.audits]
        reasons[name] = list_blocking_reasons(audits)
        if is_independent_of_seed(by_seed):
            reasons[name].append(IGNORED_SEED)
    of_baseline = [f"{BASELINE}: {reason}" for reason in reasons.pop(BASELINE)]
    return {name: [*of_baseline, *own] for name, own in reasons.items() if of_baseline or own}


def is_independent_of_seed(by_seed: Mapping[int, CommandRun]) -> bool:
    """Return whether all seeds gave exactly the same values, which random initialisation and shuffling rule out."""
    curves = {tuple(run.curve) for run in by_seed.values()}
    return len(by_seed) >= 2 and len(curves) == 1


def _build_scores(comparison: ComparisonFolder, name: str, by_seed: Mapping[int, CommandRun]) -> Scores:
    """Return a variant's scores: per example if the script writes them, otherwise one per seed."""
    examples = comparison.config.metric.examples
    if examples is None:
        recorded = _read_recorded_examples(comparison, name, by_seed)
        if recorded is not None:
            return recorded
        values = np.array([[run.value] for run in by_seed.values()])
        if comparison.config.metric.kind == "perplexity":
            values = np.log(values)
        return Scores(tuple(by_seed), values, np.ones(1))
    tables: dict[int, ExampleScores] = {}
    for seed in by_seed:
        out = comparison.get_run_folder(name, seed) / OUTPUT_FOLDER
        fields = {"{seed}": str(seed), "{out}": str(out.resolve()), "{variant}": name}
        tables[seed] = read_examples(Path(comparison.file.directory) / replace_fields(examples, fields))
    return join_examples(tables)


def _read_recorded_examples(
    comparison: ComparisonFolder, name: str, by_seed: Mapping[int, CommandRun]
) -> Scores | None:
    """Return the per-example scores recorded with `run.examples(...)`, or None unless every run recorded them."""
    paths = {
        seed: comparison.get_run_folder(name, seed) / OUTPUT_FOLDER / f"{RECORD_FILE}.examples.jsonl"
        for seed in by_seed
    }
    if not all(path.is_file() for path in paths.values()):
        return None
    return join_examples({seed: read_examples(path) for seed, path in paths.items()})


def estimate_noise(counted: Runs) -> NoiseEstimate:
    """Return the between-seed noise of a command compared with itself, and the effects that can be detected despite it.

    A difference between runs with different seeds contains the noise of both, so its variance is twice that of a run.
    """
    groups = [[run.value for run in by_seed.values()] for by_seed in counted.values() if len(by_seed) > 1]
    freedom = sum(len(values) - 1 for values in groups)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in groups)
    deviation = math.sqrt(squares / freedom) if freedom else math.nan
    # Two paired differences with a difference's standard deviation, extrapolated to more seeds.
    differences = np.array([[[deviation], [-deviation]]])
    components = estimate_variance_components(differences, np.ones((1, 1)))
    return NoiseEstimate(
        standard_deviation=deviation,
        seeds=sum(map(len, groups)),
        detectable_effects={
            str(seeds): compute_min_detectable_effect(components.extrapolate(seeds, 1), 0.95)
            for seeds in DETECTABLE_SEEDS
        }
        if freedom
        else {},
    )
