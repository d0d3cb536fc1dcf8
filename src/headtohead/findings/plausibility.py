"""Warnings shown above the verdicts: variants that changed nothing, and implausible scores.

Warnings do not withhold verdicts. Each one states what was measured and what to inspect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.model import CustomModelConfig
from headtohead.experiment.machines import describe_mixed_machines
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import CorpusFile, PairingRecord, ResultWarning
from headtohead.findings.evaluation_sets import resolve_split
from headtohead.verdict.record import Verdict

MIN_LOSS_GAP, MIN_STANDARD_ERRORS = 0.3, 4.0
"""the test loss is far below the training loss if the gap exceeds both, in nats and in standard errors"""
MAX_PERPLEXITY_GAIN, MAX_ERROR_GAIN = 0.5, 0.8
"""reductions of perplexity and of the error rate, relative to the baseline, above which a gain is unusual"""
BUDGET_SETTINGS = ("training.steps", "training.batch_size", "data.train_rows")
MIN_BUDGET_RATIO = 1.05
"""ratio of training rows from which two budgets are different"""
COUNT_MODELS = {
    "uniform": "a uniform guess has",
    "unigram": "token counts have",
    "bigram": "counts of token pairs have",
}

AUDIT_ADVICE: dict[Literal["determinism", "gradients"], str] = {
    "determinism": "Check that dropout and noise are off in evaluation mode (F.dropout needs training=self.training).",
    "gradients": "Look for detach(), torch.no_grad() and layers that forward() does not use.",
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
        _compare_with_counts(experiment, finished_runs[BASELINE], corpus, splits),
    ]
    warnings += [_compare_with_train(name, by_seed, splits) for name, by_seed in finished_runs.items()]
    warnings += [_find_identical_initial_weights(name, by_seed) for name, by_seed in finished_runs.items()]
    for audit in AUDIT_ADVICE:
        warnings += [_find_failed_audit(name, by_seed, audit) for name, by_seed in finished_runs.items()]
    warnings += [_find_ineffective_change(name, finished_runs, pairs[name], splits) for name in experiment.variants]
    warnings += [_find_different_budget(name, finished_runs, pairs[name]) for name in experiment.variants]
    warnings += [_find_large_gain(verdict, experiment.primary.metric) for verdict in verdicts]
    return [warning for warning in warnings if warning is not None]


def _find_mixed_machines(finished_runs: FinishedRuns) -> ResultWarning | None:
    """Warn if the runs were trained with different package versions, devices or processors."""
    differences = describe_mixed_machines(run for by_seed in finished_runs.values() for run in by_seed.values())
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
    """Warn if a variant's weights, test losses or first step are identical to the baseline's for every seed."""
    runs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[name].items()
        if seed in finished_runs[BASELINE]
    ]
    if not runs:
        return None
    weights = [[run.result.sha256.get("model.safetensors", "") for run in pair] for pair in runs]
    steps = [[run.result.training.first_step_digest for run in pair] for pair in runs]
    losses = [[run.scores.get(f"{split}.losses") for run in pair] for pair in runs for split in splits]
    has_same_weights = all(a == b != "" for a, b in weights)
    has_same_losses = all(a is not None and b is not None and np.array_equal(a, b) for a, b in losses)
    kind: Literal["changed nothing", "same weights", "same first step"] = "changed nothing"
    if has_same_weights and has_same_losses:
        equal = "trained weights and test losses are equal to the baseline's, bit for bit, with every seed"
    elif has_same_losses:
        equal = "every test loss is equal to the baseline's, with every seed"
    elif has_same_weights:
        kind = "same weights"
        equal = "the trained weights are equal to the baseline's, with every seed: only scoring is different"
    elif all(a == b != "" for a, b in steps) and not all(key.startswith("training.") for key in pair.settings):
        kind = "same first step"
        equal = "loss and gradients of the first training step are equal to the baseline's, with every seed"
    else:
        return None
    return ResultWarning(
        kind=kind,
        variant=name,
        message=f"{name} ({', '.join(pair.settings)}): {equal}.",
        advice="Check that the model reads the setting, and that its value makes a difference.",
    )


def _find_identical_initial_weights(name: str, runs: Mapping[int, Run]) -> ResultWarning | None:
    """Warn if a custom network starts from the same weights for every seed."""
    starts = [run.start.tensor_hashes for run in runs.values()]
    has_own_weights = all(isinstance(run.trial.model, CustomModelConfig) for run in runs.values())
    if len(starts) < 2 or not has_own_weights or any(start != starts[0] for start in starts):
        return None
    return ResultWarning(
        kind="equal seeds",
        variant=name,
        message=f"{name} starts from the same weights with all {len(starts)} seeds.",
        advice="Remove torch.manual_seed() from the model's code: seeds that share their weights vary too little, and "
        "the interval is too narrow.",
    )


def _find_failed_audit(
    name: str, runs: Mapping[int, Run], audit: Literal["determinism", "gradients"]
) -> ResultWarning | None:
    """Warn if a non-blocking audit failed for any seed, quoting the observation from the first such seed."""
    results = [result for run in runs.values() for result in run.audits or ()]
    failed = [result for result in results if result.name == audit and result.passed is False]
    if not failed:
        return None
    return ResultWarning(
        kind="random scores" if audit == "determinism" else "untrained weights",
        variant=name,
        message=f"{name}: {failed[0].observation}.",
        advice=AUDIT_ADVICE[audit],
    )


def _find_different_budget(name: str, finished_runs: FinishedRuns, pair: PairingRecord) -> ResultWarning | None:
    """Warn if a variant is trained on more or fewer rows than the baseline and also changes something else."""
    runs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[name].items()
        if seed in finished_runs[BASELINE]
    ]
    other_settings = [setting for setting in pair.settings if setting not in BUDGET_SETTINGS]
    if not runs or not other_settings or len(other_settings) == len(pair.settings):
        return None
    baseline, variant = (run.result.training.steps * run.trial.training.batch_size for run in runs[0])
    ratio = variant / max(1, baseline)
    if 1 / MIN_BUDGET_RATIO < ratio < MIN_BUDGET_RATIO:
        return None
    return ResultWarning(
        kind="other budget",
        variant=name,
        message=f"{name} is trained on {ratio:.2g} times as many rows as the baseline, and also changes "
        f"{', '.join(other_settings)}.",
        advice="Compare with a baseline that has the same budget, to tell which change made the difference.",
    )


def _compare_with_counts(
    experiment: Experiment, runs: Mapping[int, Run], corpus: CorpusFile, splits: Sequence[str]
) -> ResultWarning | None:
    """Warn if the baseline predicts worse than a count-based model of the training data."""
    is_accuracy = experiment.primary.metric == "accuracy"
    for split in splits:
        scores = [run.result.scores[split] for run in runs.values()]
        score = float(np.mean([s.accuracy if is_accuracy else s.loss for s in scores]))
        if is_accuracy:
            share = corpus.count_baselines.get("most common class", {}).get(split, 0.0)
            better_references = [f"the most common class alone is right on {share:.1%}"] if score < share else []
            message = f"the baseline is right on {score:.1%} of {split}"
        else:
            # A quick preview is undertrained by design.
            names = ["uniform"] if experiment.quick else list(COUNT_MODELS)
            references = {name: corpus.count_losses.get(name, {}).get(split, np.inf) for name in names}
            better_references = [
                f"{COUNT_MODELS[name]} {loss:.2f}" for name, loss in references.items() if score > loss
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


def _compare_with_train(name: str, runs: Mapping[int, Run], splits: Sequence[str]) -> ResultWarning | None:
    """Warn if the test loss is far below the training loss."""
    for split in splits:
        scored_runs = [run for run in runs.values() if {"train.losses", f"{split}.losses"} <= run.scores.keys()]
        if not scored_runs:
            continue
        pairs = [(_estimate_loss(run, "train"), _estimate_loss(run, split)) for run in scored_runs]
        gap = float(np.mean([train[0] - test[0] for train, test in pairs]))
        error = float(np.mean([np.hypot(train[1], test[1]) for train, test in pairs]))
        if gap > max(MIN_LOSS_GAP, MIN_STANDARD_ERRORS * error):
            return ResultWarning(
                kind="test below train",
                variant=name,
                message=f"the loss of {name} on {split} is {gap:.2f} nats below its loss on the training data.",
                advice="Check how the splits were made, and whether the model computes something else while scoring.",
            )
    return None


def _estimate_loss(run: Run, split: str) -> tuple[float, float]:
    """Return a split's mean loss per prediction and its standard error across examples."""
    losses, counts = run.scores[f"{split}.losses"], run.scores[f"{split}.counts"]
    mean = losses.sum() / counts.sum()
    return float(mean), float(np.sqrt(((losses - mean * counts) ** 2).sum()) / counts.sum())


def _find_large_gain(verdict: Verdict, metric: str) -> ResultWarning | None:
    """Warn about an implausibly large gain, one that changing a single setting rarely achieves."""
    if verdict.outcome != "helped":
        return None
    if metric == "accuracy":
        gain, limit, noun = verdict.effect / max(1e-9, 1 - verdict.baseline_mean), MAX_ERROR_GAIN, "error rate"
    else:
        gain, limit, noun = -verdict.effect, MAX_PERPLEXITY_GAIN, "perplexity"
    if not gain > limit:
        return None
    return ResultWarning(
        kind="large gain",
        variant=verdict.variant,
        message=f"the {noun} of {verdict.variant} is {gain:.0%} lower, an unusually large gain.",
        advice="Inspect whether the baseline is tuned and trained as long, whether both are scored on the same text, "
        "whether the variant's code can see what it predicts, and the losses of single tokens (`h2h score`).",
    )
