"""Compute findings.json from an experiment's run folders."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from headtohead.atomic_io import compute_sha256, verify_checksum
from headtohead.attention_analysis import trial_metrics
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.distillation.evaluation import evaluate_distillation, read_teacher
from headtohead.errors import RunFolderError
from headtohead.experiment.error_budget import list_analyses, read_error_budget, record_analysis
from headtohead.experiment.run_checks import RunIssue, find_issues
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns
from headtohead.experiment.schemas import (
    CorpusDescription,
    Findings,
    ResultWarning,
    report_inconsistent_data,
    write_record,
)
from headtohead.findings import lost_runs, pairing, plausibility, probes, scores, verdicts, withheld
from headtohead.findings.evaluation_sets import resolve_split
from headtohead.replication.claims import compare_with_published, evaluate_claims, is_original_corpus
from headtohead.search import selection_bias
from headtohead.search.points import list_finished_runs
from headtohead.verdict.compare import ErrorBudget

CHECKSUMMED_FILES = ("experiment.json", "corpus.json", "teacher.json")
"""files of an experiment that contain their own checksum"""


def compute_findings(runs: ExperimentRuns, *, check_files: bool = True, is_live: bool = False) -> Findings:
    """Return the findings of all finished runs.

    Error rates account for all analyses in the journal. If `is_live`, differences not yet analysed with this many
    seeds are left unjudged, because judging them would count as an additional analysis. Raise RunFolderError if a file
    was modified, unless `check_files` is false.
    """
    if check_files:
        _check_integrity(runs)
    with report_inconsistent_data(runs.folder), np.errstate(all="ignore"):
        findings = _compute_findings(runs, is_live=is_live)
        json.dumps(findings.to_json(), allow_nan=False)
        return findings


def write_findings(runs: ExperimentRuns) -> Findings:
    """Compute the findings, record the analysis in the journal and write findings.json. The folder must be locked."""
    findings = compute_findings(runs)
    if not runs.experiment.quick:
        record_analysis(runs.folder, findings.verdicts, _read_error_budget(runs))
    write_record(runs.folder / "findings.json", findings, with_checksum=True)
    return findings


def compute_unfinished_findings(runs: ExperimentRuns) -> Findings:
    """Return the findings so far of a running experiment, with a warning. No analysis is recorded."""
    findings = compute_findings(runs, is_live=True)
    experiment = runs.experiment
    num_finished = sum(len(runs.finished(name)) for name in experiment.names)
    warning = ResultWarning(
        kind="unfinished",
        variant=BASELINE,
        message=(
            f"The experiment is running: {num_finished} of up to {experiment.max_seeds * len(experiment.names)} trials "
            "have finished."
        ),
        advice="Differences are judged when all trials of an analysis have finished.",
    )
    return findings.model_copy(update={"warnings": [warning, *findings.warnings]})


def _check_integrity(runs: ExperimentRuns) -> None:
    """Raise RunFolderError if a file that the findings are computed from was modified."""
    for name in CHECKSUMMED_FILES:
        if (runs.folder / name).is_file():
            verify_checksum(runs.folder / name, "run the experiment again with --resume, which rewrites it")
    for name in runs.experiment.names:
        for run in runs.finished(name).values():
            run.check()
    for _, run in list_finished_runs(runs.folder):
        run.check()


def _select_own_runs(runs: ExperimentRuns, issues: Sequence[RunIssue]) -> FinishedRuns:
    """Return the finished runs, excluding those from different trials, those with unrequested seeds, and copies.

    Raise RunFolderError if no baseline run is left.
    """
    excluded = {
        (issue.variant, seed)
        for issue in issues
        if issue.kind in ("foreign", "surplus", "copied")
        for seed in issue.seeds
    }
    finished_runs = {
        name: {seed: run for seed, run in runs.finished(name).items() if (name, seed) not in excluded}
        for name in runs.experiment.names
    }
    if not finished_runs[BASELINE]:
        reasons = "; ".join(issue.reason for issue in issues if issue.variant == BASELINE)
        explanation = f": the baseline {reasons}" if reasons else ", so there is nothing to compare with"
        raise RunFolderError(f"{runs.folder}: no run of the baseline is finished{explanation}")
    return finished_runs


def _compute_findings(runs: ExperimentRuns, *, is_live: bool) -> Findings:
    """Judge all variants and collect every section of findings.json."""
    experiment, corpus = runs.experiment, runs.corpus
    run_issues = find_issues(runs)
    finished_runs = _select_own_runs(runs, run_issues)
    # Collect every reason for withholding a verdict before judging.
    audits = {
        name: probes.read_audits(by_seed, experiment.spec.required_audits) for name, by_seed in finished_runs.items()
    }
    pairs = {name: pairing.check_pairing(experiment, name, finished_runs) for name in experiment.variants}
    withheld_reasons = withheld.collect_withheld_reasons(audits, pairs, corpus, run_issues)
    lost = lost_runs.find_lost_runs(runs, finished_runs)
    budget = _read_error_budget(runs)
    # Judge the variants on all evaluation sets.
    judge = verdicts.Judge(experiment, finished_runs, corpus, withheld_reasons, lost, budget, is_live)
    judged_variants = judge.judge_all()
    same_text = judge.select_same_text(judged_variants.primary_set)
    is_original = is_original_corpus(experiment, corpus.digest)
    is_distillation = experiment.spec.has_teacher
    return Findings(
        experiment=experiment,
        versions=runs.metadata.versions,
        command=runs.metadata.command,
        metric=experiment.primary.metric,
        split=experiment.primary.split,
        rows=judged_variants.primary_set.rows,
        interim_analyses=list_analyses(budget, judged_variants.primary),
        warnings=plausibility.collect_warnings(experiment, finished_runs, corpus, pairs, judged_variants.primary),
        verdicts=judged_variants.primary,
        other_verdicts=judged_variants.secondary,
        comparisons=judged_variants.comparisons,
        scores=scores.collect_scores(finished_runs, corpus, same_text),
        primary_scores=scores.compute_primary_scores(
            same_text, corpus, judged_variants.primary_set, experiment.primary.metric
        ),
        curves=scores.collect_curves(finished_runs),
        loss_curves=scores.collect_curves(finished_runs, "loss") if experiment.primary.metric == "accuracy" else {},
        seconds_curves=scores.collect_seconds_curves(finished_runs),
        steps_per_epoch=scores.get_steps_per_epoch(experiment, finished_runs),
        chosen_steps={
            name: [(seed, run.result.training.chosen_step) for seed, run in by_seed.items()]
            for name, by_seed in finished_runs.items()
        },
        pairing=pairs,
        audits=audits,
        data_audits=corpus.audits,
        variant_data_audits=corpus.variant_audits,
        failures=probes.collect_failures(runs, finished_runs, lost),
        samples={name: probes.collect_samples(by_seed) for name, by_seed in finished_runs.items()},
        sentences={name: probes.collect_sentence_results(by_seed) for name, by_seed in finished_runs.items()},
        published=[
            compare_with_published(published, finished_runs, is_original_data=is_original)
            for published in experiment.published
        ],
        claims=evaluate_claims(
            experiment,
            finished_runs,
            judged_variants.primary,
            judged_variants.secondary,
            withheld_reasons,
            resolve_split(corpus, "test"),
            judged_variants.pairwise,
            budget,
        ),
        length_generalization={
            name: probes.summarize_length_generalization(by_seed) for name, by_seed in finished_runs.items()
        },
        axis=scores.collect_axis_values(experiment, finished_runs),
        confusion=scores.compute_confusion_matrices(same_text, corpus),
        attention=trial_metrics.summarize_over_seeds(finished_runs),
        teacher=read_teacher(runs.folder) if is_distillation else None,
        summarization=evaluate_distillation(runs, finished_runs) if is_distillation else None,
        search=selection_bias.summarize_search(runs, finished_runs),
        checksums={
            f"{name}/seed-{seed}": compute_sha256(run.folder / "result.json")
            for name, by_seed in finished_runs.items()
            for seed, run in by_seed.items()
        },
        corpus=CorpusDescription.model_validate(corpus.model_dump(include=set(CorpusDescription.model_fields))),
    )


def _read_error_budget(runs: ExperimentRuns) -> ErrorBudget:
    experiment = runs.experiment
    num_others = _count_other_comparisons(experiment)
    return read_error_budget(runs.folder, experiment.variants, experiment.max_seeds, num_others)


def _count_other_comparisons(experiment: Experiment) -> int:
    """Return the number of confirmatory comparisons beyond those of each variant with the baseline."""
    among_variants = sum(
        len(comparison.variants)
        for comparison in experiment.comparisons
        if comparison.confirmatory and comparison.baseline != BASELINE
    )
    return among_variants + sum(claim.confirmatory and claim.needs_own_comparison for claim in experiment.claims)
