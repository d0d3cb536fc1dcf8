"""Find implausible results, such as variants that changed nothing, and warn of them above the verdicts.

Warnings do not withhold verdicts. Each one states what was measured and what to inspect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from headtohead.audit.opened_files import NO_FILE_OPENED, OPENED_FILES_CHECK
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.tables.model import CustomModelConfig
from headtohead.experiment.provenance.environment_comparison import describe_mixed_environments
from headtohead.experiment.provenance.run_identity import DATA_FILE_PREFIX
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import CorpusFile, PairingRecord, ResultWarning
from headtohead.findings.evaluation_sets import resolve_split
from headtohead.verdict.record import Verdict

MIN_LOSS_GAP_NATS = 0.3
MIN_LOSS_GAP_STANDARD_ERRORS = 4.0
"""the test loss is far below the training loss if the gap exceeds both limits"""
MAX_PERPLEXITY_REDUCTION = 0.5
"""reduction of perplexity, relative to the baseline, above which a gain is unusual"""
MAX_ERROR_RATE_REDUCTION = 0.8
"""the same for the error rate, 1 - accuracy"""
BUDGET_SETTINGS = ("training.budget", "training.batch_size", "data.train_rows")
MIN_BUDGET_RATIO = 1.05
"""ratio of the numbers of training rows from which two budgets count as different"""
AuditWarningKind = Literal[
    "random scores", "untrained weights", "reads padding", "shared layers", "wrong token", "not repeatable"
]
COUNT_BASED_MODELS = {
    "uniform": "a uniform guess has",
    "unigram": "token counts have",
    "bigram": "counts of token pairs have",
}

OPENED_FILES_ADVICE = "The audits cannot know what such files were made from: check that no test text is in them."
AUDIT_ADVICE: dict[str, tuple[AuditWarningKind, str]] = {
    "determinism": (
        "random scores",
        "Check that dropout and noise are off in evaluation mode (F.dropout needs training=self.training).",
    ),
    "gradients": (
        "untrained weights",
        "Look for detach(), torch.no_grad(), requires_grad_(False) and layers that forward() does not use.",
    ),
    "changed-weights": (
        "untrained weights",
        "Check that the optimizer writes to the parameter in place, and that its learning rate is not 0.",
    ),
    "padding": (
        "reads padding",
        "Accept attention_mask in forward() and exclude padding from attention, pooling and statistics.",
    ),
    "separate-layers": (
        "shared layers",
        "Unless the layers are meant to share weights, build one per entry: nn.ModuleList(Layer() for _ in range(4)).",
    ),
    "predicted-token": (
        "wrong token",
        "Labels are already shifted by one position: a loss must compare logits[:, t] with labels[:, t].",
    ),
    "reproducible-training": (
        "not repeatable",
        "Draw from the global generators of torch, numpy or Python, which are seeded, or seed your own generator.",
    ),
}
"""non-blocking audits whose failure is stated above the verdicts, with what to inspect"""


def collect_warnings(
    experiment: Experiment,
    finished_runs: FinishedRuns,
    corpus: CorpusFile,
    pairs: Mapping[str, PairingRecord],
    verdicts: Sequence[Verdict],
) -> list[ResultWarning]:
    """Return all warnings about implausible results, starting with those about the baseline."""
    splits = resolve_split(corpus, experiment.primary.split)
    warnings = [
        _find_mixed_machines(finished_runs),
        _find_weak_baseline(experiment, finished_runs[BASELINE], corpus, splits),
    ]
    warnings += [
        _find_test_loss_below_train(name, runs_by_seed, splits) for name, runs_by_seed in finished_runs.items()
    ]
    warnings += [_find_identical_initial_weights(name, runs_by_seed) for name, runs_by_seed in finished_runs.items()]
    warnings += [
        warning for name, runs_by_seed in finished_runs.items() for warning in _iter_audit_warnings(name, runs_by_seed)
    ]
    warnings += [_find_files_read_by_code(name, runs_by_seed) for name, runs_by_seed in finished_runs.items()]
    warnings += [_find_ineffective_change(name, finished_runs, pairs[name], splits) for name in experiment.variants]
    if experiment.equal not in ("tokens", "flops", "seconds"):  # these budgets differ on purpose
        warnings += [_find_different_budget(name, finished_runs, pairs[name]) for name in experiment.variants]
    warnings += [_find_large_gain(verdict, experiment.primary.metric) for verdict in verdicts]
    return [warning for warning in warnings if warning is not None]


def _find_mixed_machines(finished_runs: FinishedRuns) -> ResultWarning | None:
    """Warn of an implausible comparison: runs with different package versions, devices or processors."""
    differences = describe_mixed_environments(
        run for runs_by_seed in finished_runs.values() for run in runs_by_seed.values()
    )
    if not differences:
        return None
    return ResultWarning(
        kind="mixed machines",
        variant=BASELINE,
        message=f"The runs were not trained in one environment: {differences}.",
        advice="Results of other versions and processors differ by rounding. Train all runs in one environment.",
    )


def _find_ineffective_change(
    name: str, finished_runs: FinishedRuns, pair: PairingRecord, splits: Sequence[str]
) -> ResultWarning | None:
    """Warn of an implausible variant: weights, test losses or first step equal the baseline's for every seed."""
    run_pairs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[name].items()
        if seed in finished_runs[BASELINE]
    ]
    if not run_pairs:
        return None
    weight_digests = [[run.result.sha256.get("model.safetensors", "") for run in pair] for pair in run_pairs]
    first_step_digests = [[run.result.training.first_step_digest for run in pair] for pair in run_pairs]
    test_losses = [[run.scores.get(f"{split}.losses") for run in pair] for pair in run_pairs for split in splits]
    has_same_weights = all(baseline == variant != "" for baseline, variant in weight_digests)
    has_same_first_step = all(baseline == variant != "" for baseline, variant in first_step_digests)
    has_same_losses = all(
        baseline is not None and variant is not None and np.array_equal(baseline, variant)
        for baseline, variant in test_losses
    )
    kind: Literal["changed nothing", "same weights", "same first step"] = "changed nothing"
    if has_same_weights and has_same_losses:
        observation = "trained weights and test losses are equal to the baseline's, bit for bit, with every seed"
    elif has_same_losses:
        observation = "every test loss is equal to the baseline's, with every seed"
    elif has_same_weights:
        kind = "same weights"
        observation = "the trained weights are equal to the baseline's, with every seed: only scoring is different"
    elif has_same_first_step and not all(key.startswith("training.") for key in pair.settings):
        kind = "same first step"
        observation = "loss and gradients of the first training step are equal to the baseline's, with every seed"
    else:
        return None
    return ResultWarning(
        kind=kind,
        variant=name,
        message=f"{name} ({', '.join(pair.settings) or 'no other setting than the baseline'}): {observation}.",
        advice="Check that the model reads the setting, and that its value makes a difference.",
    )


def _find_identical_initial_weights(name: str, runs: Mapping[int, Run]) -> ResultWarning | None:
    """Warn of implausible initial weights: a custom network starts from the same ones for every seed."""
    initial_hashes = [run.start.tensor_hashes for run in runs.values()]
    is_custom = all(isinstance(run.trial.model, CustomModelConfig) for run in runs.values())
    if len(initial_hashes) < 2 or not is_custom or any(hashes != initial_hashes[0] for hashes in initial_hashes):
        return None
    return ResultWarning(
        kind="equal seeds",
        variant=name,
        message=f"{name} starts from the same weights with all {len(initial_hashes)} seeds.",
        advice="Remove torch.manual_seed() from the model's code: seeds that share their weights vary too little, and "
        "the interval is too narrow.",
    )


def _iter_audit_warnings(name: str, runs: Mapping[int, Run]) -> Iterator[ResultWarning]:
    """Yield a warning of each kind in `AUDIT_ADVICE` for which an audit failed, with the first such observation."""
    kinds = set()
    is_custom = all(isinstance(run.trial.model, CustomModelConfig) for run in runs.values())
    for audit, (kind, advice) in AUDIT_ADVICE.items():
        if kind == "reads padding" and not is_custom:
            continue  # a setting of the experiment file
        results = [result for run in runs.values() for result in run.audits or () if result.name == audit]
        failed_results = [result for result in results if result.passed is False]
        if failed_results and kind not in kinds:
            kinds.add(kind)
            yield ResultWarning(
                kind=kind, variant=name, message=f"{name}: {failed_results[0].observation}.", advice=advice
            )


def _find_files_read_by_code(name: str, runs: Mapping[int, Run]) -> ResultWarning | None:
    """Warn of implausible scores: code of a network or part reads files, which may have been made from test data."""
    checks = [check for run in runs.values() for check in run.audits or () if check.name == OPENED_FILES_CHECK]
    data_dependencies = {
        dependency
        for run in runs.values()
        for dependency in run.trial_file.dependencies
        if dependency.startswith(DATA_FILE_PREFIX)
    }
    # Files that native code opens are not recorded: these are known by their names only.
    named_files = sorted(
        path
        for dependency in data_dependencies
        if (path := dependency.removeprefix(DATA_FILE_PREFIX)).endswith(".safetensors") or not checks
    )
    observations = sorted(
        {check.observation for check in checks if check.passed and check.observation != NO_FILE_OPENED}
    )
    if observations and not named_files:
        return ResultWarning(
            kind="reads files",
            variant=name,
            message=f"the code of {name} {observations[0]}.",
            advice=OPENED_FILES_ADVICE,
        )
    if not named_files:
        return None
    num_others = len(named_files) - 3
    file_list = ", ".join(named_files[:3]) + (f" and {num_others} more" if num_others > 0 else "")
    return ResultWarning(
        kind="reads files",
        variant=name,
        message=f"the code of {name} reads {file_list}.",
        advice=OPENED_FILES_ADVICE,
    )


def _find_different_budget(name: str, finished_runs: FinishedRuns, pair: PairingRecord) -> ResultWarning | None:
    """Warn of a comparison on unequal terms: a variant sees more or fewer rows and also changes something else."""
    run_pairs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[name].items()
        if seed in finished_runs[BASELINE]
    ]
    other_settings = [setting for setting in pair.settings if setting not in BUDGET_SETTINGS]
    if not run_pairs or not other_settings or len(other_settings) == len(pair.settings):
        return None
    baseline_rows, variant_rows = (run.result.training.steps * run.trial.training.batch_size for run in run_pairs[0])
    ratio = variant_rows / max(1, baseline_rows)
    if 1 / MIN_BUDGET_RATIO < ratio < MIN_BUDGET_RATIO:
        return None
    return ResultWarning(
        kind="different budget",
        variant=name,
        message=f"{name} is trained on {ratio:.2g} times as many rows as the baseline, and also changes "
        f"{', '.join(other_settings)}.",
        advice="Compare with a baseline that has the same budget, to tell which change made the difference.",
    )


def _find_weak_baseline(
    experiment: Experiment, runs: Mapping[int, Run], corpus: CorpusFile, splits: Sequence[str]
) -> ResultWarning | None:
    """Warn of an implausible baseline: it predicts worse than a count-based model of the training data."""
    is_accuracy = experiment.primary.metric == "accuracy"
    for split in splits:
        seed_scores = [run.result.scores[split] for run in runs.values()]
        score = float(np.mean([scores.accuracy if is_accuracy else scores.loss for scores in seed_scores]))
        if is_accuracy:
            majority_share = corpus.count_baselines.get("most common class", {}).get(split, 0.0)
            better_references = (
                [f"the most common class alone is right on {majority_share:.1%}"] if score < majority_share else []
            )
            message = f"the baseline is right on {score:.1%} of {split}"
        else:
            # A quick preview is undertrained by design.
            names = ["uniform"] if experiment.quick else list(COUNT_BASED_MODELS)
            reference_losses = {name: corpus.count_losses.get(name, {}).get(split, np.inf) for name in names}
            better_references = [
                f"{COUNT_BASED_MODELS[name]} {loss:.2f}" for name, loss in reference_losses.items() if score > loss
            ]
            message = f"the baseline has a loss of {score:.2f} nats per token on {split}"
        if better_references:
            return ResultWarning(
                kind="weak baseline",
                variant=BASELINE,
                message=f"{message}; {', '.join(better_references)}.",
                advice="Train it longer or tune its learning rate: differences between models that have learned so "
                "little rarely hold for better ones.",
            )
    return None


def _find_test_loss_below_train(name: str, runs: Mapping[int, Run], splits: Sequence[str]) -> ResultWarning | None:
    """Warn of an implausible score: the test loss is far below the training loss."""
    for split in splits:
        scored_runs = [run for run in runs.values() if {"train.losses", f"{split}.losses"} <= run.scores.keys()]
        if not scored_runs:
            continue
        train_estimates = [_estimate_mean_loss(run, "train") for run in scored_runs]
        test_estimates = [_estimate_mean_loss(run, split) for run in scored_runs]
        estimate_pairs = list(zip(train_estimates, test_estimates, strict=True))
        gap = float(np.mean([train[0] - test[0] for train, test in estimate_pairs]))
        standard_error = float(np.mean([np.hypot(train[1], test[1]) for train, test in estimate_pairs]))
        if gap > max(MIN_LOSS_GAP_NATS, MIN_LOSS_GAP_STANDARD_ERRORS * standard_error):
            return ResultWarning(
                kind="test below train",
                variant=name,
                message=f"the loss of {name} on {split} is {gap:.2f} nats below its loss on the training data.",
                advice="Check how the splits were made, and whether the model computes something else while scoring.",
            )
    return None


def _estimate_mean_loss(run: Run, split: str) -> tuple[float, float]:
    """Return a split's mean loss per prediction and its standard error across examples."""
    losses, counts = run.scores[f"{split}.losses"], run.scores[f"{split}.counts"]
    mean = losses.sum() / counts.sum()
    return float(mean), float(np.sqrt(((losses - mean * counts) ** 2).sum()) / counts.sum())


def _find_large_gain(verdict: Verdict, metric: str) -> ResultWarning | None:
    """Warn of an implausibly large gain, one that changing a single setting rarely achieves."""
    if verdict.outcome not in ("helped", "too few seeds") or not verdict.is_better:
        return None
    if metric == "accuracy":
        quantity = "error rate"
        reduction = verdict.effect / max(1e-9, 1 - verdict.baseline_mean)
        max_reduction = MAX_ERROR_RATE_REDUCTION
    else:
        quantity = "perplexity"
        reduction = -verdict.effect
        max_reduction = MAX_PERPLEXITY_REDUCTION
    if not reduction > max_reduction:
        return None
    return ResultWarning(
        kind="large gain",
        variant=verdict.variant,
        message=f"the {quantity} of {verdict.variant} is {reduction:.0%} lower, an unusually large gain.",
        advice="Inspect whether the baseline is tuned and trained as long, whether both are scored on the same text, "
        "whether the variant's code can see what it predicts, and the losses of single tokens (`h2h score`).",
    )
