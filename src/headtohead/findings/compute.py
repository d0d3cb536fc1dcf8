"""Compute all sections of findings.json from an experiment's run folders, and write the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import numpy as np

from headtohead.atomic_io import compute_sha256
from headtohead.attention_analysis import trial_metrics
from headtohead.config.experiment import BASELINE
from headtohead.distillation.system_comparison import evaluate_distillation, read_teacher_file
from headtohead.errors import RunFolderError
from headtohead.experiment.provenance.run_membership import RunIssue, find_run_issues
from headtohead.experiment.recorded_analyses import list_analyzed_seed_counts, record_analysis
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns
from headtohead.experiment.schemas import (
    CorpusDescription,
    Findings,
    ResultWarning,
    translate_inconsistent_files_error,
    write_record,
)
from headtohead.findings import (
    audits,
    failures,
    length_generalization,
    pairing,
    probes,
    result_warnings,
    seed_scores,
    sweep,
    verdicts,
    withheld,
)
from headtohead.findings.evaluation_sets import resolve_split
from headtohead.json_files import verify_json_checksum
from headtohead.replication.claims import evaluate_claims
from headtohead.replication.published_scores import compare_with_published, is_original_corpus
from headtohead.search import phrasing, search_findings, tuning
from headtohead.search.points import list_finished_search_runs

CHECKSUMMED_FILES = ("experiment.json", "corpus.json", "teacher.json")
"""files of an experiment that contain their own checksum"""


def compute_findings(runs: ExperimentRuns, *, check_files: bool = True, is_live: bool = False) -> Findings:
    """Return the findings of all finished runs.

    Error rates account for all analyses in the journal. If `is_live`, differences not yet analyzed with this many
    seeds are left unjudged, because judging them would count as an additional analysis. Raise RunFolderError if a file
    was modified, unless `check_files` is false.
    """
    if runs.experiment.sweep is not None:
        compute_cell = partial(compute_findings, check_files=check_files, is_live=is_live)
        return sweep.compute_sweep_findings(runs, compute_cell)
    if check_files:
        _verify_input_files(runs)
    with translate_inconsistent_files_error(runs.folder), np.errstate(all="ignore"):
        findings = _compute_experiment_findings(runs, is_live=is_live)
        json.dumps(findings.to_json(), allow_nan=False)
        return findings


def write_findings(runs: ExperimentRuns) -> Findings:
    """Compute the findings, record the analysis in the journal and write findings.json. The folder must be locked."""
    findings = compute_findings(runs)
    if not runs.experiment.quick and runs.experiment.sweep is None:
        among_variants = [verdict for comparison in findings.comparisons for verdict in comparison.verdicts]
        record_analysis(runs.folder, [*findings.verdicts, *among_variants], verdicts.load_error_budget(runs))
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


def _verify_input_files(runs: ExperimentRuns) -> None:
    """Raise RunFolderError if a file that the findings are computed from was modified."""
    for name in CHECKSUMMED_FILES:
        if (runs.folder / name).is_file():
            verify_json_checksum(runs.folder / name, "run the experiment again with --resume, which rewrites it")
    for name in runs.experiment.names:
        for run in runs.finished(name).values():
            run.check()
    for _, run in [*list_finished_search_runs(runs.folder), *tuning.list_finished_tuning_runs(runs.folder)]:
        run.check()


def _select_valid_runs(runs: ExperimentRuns, issues: Sequence[RunIssue]) -> FinishedRuns:
    """Return the runs to compute findings from: finished, of this experiment, with requested seeds, and no copies.

    Raise RunFolderError if no baseline run is left.
    """
    excluded_runs = {
        (issue.variant, seed)
        for issue in issues
        if issue.kind in ("foreign", "surplus", "copied")
        for seed in issue.seeds
    }
    finished_runs = {
        name: {seed: run for seed, run in runs.finished(name).items() if (name, seed) not in excluded_runs}
        for name in runs.experiment.names
    }
    if not finished_runs[BASELINE]:
        reasons = "; ".join(issue.reason for issue in issues if issue.variant == BASELINE)
        explanation = f": the baseline {reasons}" if reasons else ", so there is nothing to compare with"
        raise RunFolderError(f"{runs.folder}: no run of the baseline is finished{explanation}")
    return finished_runs


def _compute_experiment_findings(runs: ExperimentRuns, *, is_live: bool) -> Findings:
    """Judge all variants and collect every section of findings.json."""
    experiment, corpus = runs.experiment, runs.corpus
    run_issues = find_run_issues(runs)
    finished_runs = _select_valid_runs(runs, run_issues)
    # Collect every reason for withholding a verdict before judging.
    merged_audits = {
        name: audits.merge_audits_over_seeds(runs_by_seed, experiment.spec.required_audits)
        for name, runs_by_seed in finished_runs.items()
    }
    pairs = {name: pairing.check_pairing(experiment, name, finished_runs) for name in experiment.variants}
    tuning_findings = tuning.build_tuning_findings(runs)
    withheld_reasons = withheld.collect_withheld_reasons(
        merged_audits, pairs, corpus, run_issues, phrasing.explain_edge_optima(tuning_findings)
    )
    lost_runs = failures.find_lost_runs(runs, finished_runs)
    error_budget = verdicts.load_error_budget(runs)
    tuning_variances = tuning.get_tuning_variances(tuning_findings)
    # Judge the variants on all evaluation sets.
    verdict_builder = verdicts.VerdictBuilder(
        experiment, finished_runs, corpus, withheld_reasons, lost_runs, error_budget, tuning_variances, is_live
    )
    all_verdicts = verdict_builder.build_all_verdicts()
    runs_on_same_text = verdict_builder.select_runs_on_same_text(all_verdicts.primary_set)
    is_original = is_original_corpus(experiment, corpus.digest)
    is_distillation = experiment.spec.has_teacher
    return Findings(
        experiment=experiment,
        versions=runs.metadata.versions,
        command=runs.metadata.command,
        metric=experiment.primary.metric,
        split=experiment.primary.split,
        rows=all_verdicts.primary_set.rows,
        interim_analyses=list_analyzed_seed_counts(error_budget, all_verdicts.primary),
        warnings=result_warnings.collect_warnings(experiment, finished_runs, corpus, pairs, all_verdicts.primary),
        verdicts=all_verdicts.primary,
        other_verdicts=all_verdicts.secondary,
        comparisons=all_verdicts.comparisons,
        scores=seed_scores.collect_seed_scores(finished_runs, corpus, runs_on_same_text),
        primary_scores=seed_scores.compute_primary_scores(
            runs_on_same_text, corpus, all_verdicts.primary_set, experiment.primary.metric
        ),
        curves=seed_scores.collect_learning_curves(finished_runs),
        loss_curves=seed_scores.collect_learning_curves(finished_runs, "loss")
        if experiment.primary.metric == "accuracy"
        else {},
        seconds_curves=seed_scores.collect_training_times(finished_runs),
        steps_per_epoch=seed_scores.get_steps_per_epoch(experiment, finished_runs),
        chosen_steps={
            name: [(seed, run.result.training.chosen_step) for seed, run in runs_by_seed.items()]
            for name, runs_by_seed in finished_runs.items()
        },
        pairing=pairs,
        audits=merged_audits,
        data_audits=corpus.audits,
        variant_data_audits=corpus.variant_audits,
        failures=failures.collect_failures(runs, finished_runs, lost_runs),
        samples={name: probes.collect_samples(runs_by_seed) for name, runs_by_seed in finished_runs.items()},
        sentences={
            name: probes.collect_probe_sentence_results(runs_by_seed) for name, runs_by_seed in finished_runs.items()
        },
        published=[
            compare_with_published(published, finished_runs, is_original_data=is_original)
            for published in experiment.published
        ],
        claims=evaluate_claims(
            experiment,
            finished_runs,
            all_verdicts.primary,
            all_verdicts.secondary,
            withheld_reasons,
            resolve_split(corpus, "test"),
            all_verdicts.by_variant_pair,
            error_budget,
        ),
        length_generalization={
            name: length_generalization.summarize_length_generalization(runs_by_seed)
            for name, runs_by_seed in finished_runs.items()
        },
        axis=seed_scores.collect_final_losses_by_axis_value(experiment, finished_runs),
        confusion=seed_scores.compute_confusion_matrices(runs_on_same_text, corpus),
        attention=trial_metrics.average_trial_head_metrics(finished_runs),
        teacher=read_teacher_file(runs.folder) if is_distillation else None,
        summarization=evaluate_distillation(runs, finished_runs, error_budget) if is_distillation else None,
        tuning=tuning_findings,
        search=search_findings.build_search_findings(runs, finished_runs),
        checksums={
            f"{name}/seed-{seed}": compute_sha256(run.folder / "result.json")
            for name, runs_by_seed in finished_runs.items()
            for seed, run in runs_by_seed.items()
        },
        corpus=CorpusDescription.model_validate(corpus.model_dump(include=set(CorpusDescription.model_fields))),
    )
