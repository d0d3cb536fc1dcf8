"""Compute the findings of a comparison of commands: verdicts, curves, failures, warnings and observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from headtohead.config.experiment import BASELINE
from headtohead.experiment.recorded_analyses import list_analyzed_seed_counts, read_alpha_budget, record_analysis
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.schemas import FailureRecord, Findings, read_record, write_record
from headtohead.experiment.schemas.base import SeedScore
from headtohead.experiment.schemas.versus import VersusFindings
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.score_checks import run_score_checks
from headtohead.verdict.external_scores.score_issues import ScoreIssue, format_blocking_issues
from headtohead.verdict.scores import Scores
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.file_schemas import RECORDED_EXAMPLES_FILE, RevisionRecord, RunsByVariant
from headtohead.versus.findings.comparison_warnings import collect_comparison_warnings, convert_score_issues
from headtohead.versus.findings.noise import estimate_noise
from headtohead.versus.findings.observations import list_observations
from headtohead.versus.findings.withholding_reasons import list_withholding_reasons
from headtohead.versus.jobs import CommandJob
from headtohead.versus.outputs.example_scores import join_example_scores, read_example_scores


def write_findings(comparison: ComparisonFolder, command: list[str] | None = None) -> Findings:
    """Compute a comparison's findings, record the analysis in its journal and write findings.json.

    `command` is the command line that the report shows, by default that of the existing findings.
    """
    path = comparison.path / "findings.json"
    if command is None:
        command = read_record(path, Findings).command if path.is_file() else []
    with lock_folder(comparison.path):
        findings = compute_findings(comparison, command)
        budget = read_alpha_budget(comparison.path, comparison.config.variants, comparison.config.seeds)
        record_analysis(comparison.path, findings.verdicts, budget)
        write_record(path, findings, with_checksum=True)
    return findings


def compute_findings(comparison: ComparisonFolder, command: list[str]) -> Findings:
    """Return a comparison's findings. `command` is the command line that produced them."""
    config, runs = comparison.config, comparison.read_runs()
    valid_runs = {
        name: {seed: run for seed, run in runs_by_seed.items() if run.has_finite_value}
        for name, runs_by_seed in runs.items()
    }
    lost_seeds = {
        name: tuple(seed for seed, run in runs_by_seed.items() if run.status == "not finite")
        for name, runs_by_seed in runs.items()
    }
    scores = {
        name: replace(variant_scores, lost=lost_seeds[name])
        for name, variant_scores in build_scores(comparison, valid_runs).items()
    }
    withheld = list_withholding_reasons(comparison, valid_runs)
    budget = read_alpha_budget(comparison.path, config.variants, config.seeds)
    verdicts = []
    issues: list[ScoreIssue] = []
    if BASELINE in scores:
        variants_with_values = {name: scores[name] for name in config.variants if name in scores}
        issues = run_score_checks(BASELINE, scores[BASELINE], variants_with_values, config.metric.verdict_metric)
        for name in variants_with_values:
            if reasons := format_blocking_issues(issues, BASELINE, name):
                withheld[name] = withheld.get(name, []) + reasons
        weights = scores[BASELINE].weights
        scores |= {
            name: Scores((), np.empty((0, len(weights))), weights, lost=seeds)
            for name, seeds in lost_seeds.items()
            if seeds and name not in scores
        }
        variants = {name: scores[name] for name in config.variants if name in scores}
        withheld |= {name: ["no run has a result"] for name in config.variants if name not in scores}
        verdicts = compare_scores(
            scores[BASELINE],
            variants,
            metric=config.metric.verdict_metric,
            equivalence_margin=config.equivalence_margin,
            withheld=withheld,
            budget=budget,
        )
    primary_scores: dict[str, list[SeedScore]] = {
        name: [(seed, run.value) for seed, run in runs_by_seed.items()] for name, runs_by_seed in valid_runs.items()
    }
    return Findings(
        versions=comparison.record.versions,
        command=command,
        metric=config.metric.verdict_metric,
        split=config.metric.name,
        verdicts=verdicts,
        interim_analyses=list_analyzed_seed_counts(budget, verdicts),
        primary_scores=primary_scores,
        scores={name: {config.metric.name: values} for name, values in primary_scores.items()},
        warnings=collect_comparison_warnings(comparison, valid_runs, scores) + convert_score_issues(issues),
        curves={
            name: {
                config.metric.name: {str(seed): run.curve for seed, run in runs_by_seed.items() if len(run.curve) > 1}
            }
            for name, runs_by_seed in valid_runs.items()
        },
        audits={
            name: next(run.audits for run in runs_by_seed.values() if run.audits)
            for name, runs_by_seed in valid_runs.items()
            if any(run.audits for run in runs_by_seed.values())
        },
        failures=[
            FailureRecord(
                variant=name, seed=seed, message=f"{run.status}: {run.message}", is_lost=run.status == "not finite"
            )
            for name, runs_by_seed in runs.items()
            for seed, run in runs_by_seed.items()
            if not run.has_finite_value
        ],
        versus=VersusFindings(
            question=config.question,
            metric_name=config.metric.name,
            commands={name: command.command_line for name, command in config.commands.items()},
            revisions={name: _describe_revision(revision) for name, revision in comparison.record.revisions.items()},
            diffs=comparison.record.diffs,
            observations=list_observations(comparison, valid_runs),
            noise=estimate_noise(valid_runs) if config.is_aa_test else None,
        ),
    )


def _describe_revision(revision: RevisionRecord) -> str:
    """Return the name and the commit of a git revision, for the report's table of commands."""
    return f"{revision.name} ({revision.commit[:12]}{', with uncommitted changes' if revision.patch else ''})"


def build_scores(comparison: ComparisonFolder, valid_runs: RunsByVariant) -> dict[str, Scores]:
    """Return the scores of the baseline and of each variant that has any.

    There is one score per example if every run wrote them, and otherwise one per seed.
    """
    example_files = {
        name: {seed: _get_example_scores_path(comparison, name, seed) for seed in runs_by_seed}
        for name, runs_by_seed in valid_runs.items()
        if runs_by_seed
    }
    if all(path.is_file() for paths_by_seed in example_files.values() for path in paths_by_seed.values()):
        return {
            name: join_example_scores({seed: read_example_scores(path) for seed, path in paths_by_seed.items()})
            for name, paths_by_seed in example_files.items()
        }
    transform = np.log if comparison.config.metric.verdict_metric == "perplexity" else np.array
    return {
        name: Scores(tuple(runs_by_seed), transform([[run.value] for run in runs_by_seed.values()]), np.ones(1))
        for name, runs_by_seed in valid_runs.items()
        if runs_by_seed
    }


def _get_example_scores_path(comparison: ComparisonFolder, variant: str, seed: int) -> Path:
    """Return the file with a run's scores per example: that of the settings, or that of `run.examples(...)`."""
    folder = comparison.get_run_folder(variant, seed).resolve()
    job = CommandJob(variant, seed, folder, Path(comparison.record.directory))
    return job.get_example_scores_file(comparison.config) or job.output_folder / RECORDED_EXAMPLES_FILE
