"""Check before training that variants will be scored on the text of the baseline."""

from __future__ import annotations

from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.loading import build_trial, diff_from_baseline
from headtohead.errors import RequestError
from headtohead.findings.comparability import TextColumns, add_settings, compare_texts
from headtohead.findings.evaluation_sets import ScoreUnit
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.evaluation import describe_scored_texts


def check_scored_texts(experiment: Experiment) -> None:
    """Raise RequestError if a variant would be scored on another text than every variant it is compared with."""
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    corpus = prepare_dataset(trials[BASELINE].data, experiment.task).corpus
    split = experiment.primary.split
    splits = [test.name for test in corpus.get_test_splits()] if split == "test" else [split]
    for name in experiment.variants:
        references = {
            BASELINE,
            *(comparison.baseline for comparison in experiment.comparisons if name in comparison.variants),
        }
        reasons = [_compare_trials(trials[reference], trials[name], splits) for reference in sorted(references)]
        if all(reasons):
            reason = add_settings(reasons[0], diff_from_baseline(experiment, name))
            raise RequestError(f"variants.{name}: it could not be compared with the baseline, because it {reason}")


def _compare_trials(reference: Trial, variant: Trial, splits: list[str]) -> str:
    """Return why two trials will not be scored on the same text; empty if they will."""
    if reference.data == variant.data and reference.model.context == variant.model.context:
        return ""
    by_example = variant.spec.target.is_class
    unit = compare_texts(_describe(reference), _describe(variant), splits, by_example=by_example)
    return "" if isinstance(unit, ScoreUnit) else unit


def _describe(trial: Trial) -> TextColumns:
    """Return the columns of scores.safetensors that do not depend on the model."""
    dataset = prepare_dataset(trial.data, trial.task)
    texts = describe_scored_texts(trial, dataset, dataset.corpus.splits)
    return {f"{split}.{name}": values for split, text in texts.items() for name, values in text.to_columns().items()}
