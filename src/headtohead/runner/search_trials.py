"""Build the trials of a hyperparameter search, and check before the search starts that they can run."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch

from headtohead.config import experiment as config_experiment
from headtohead.config.overlays import VARIANT_TABLES, RawConfig
from headtohead.config.tables.search import FIRST_SEARCH_SEED, SettingValues
from headtohead.config.trial_settings import build_trial
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import HeadToHeadError, RequestError
from headtohead.runner.budgets import compute_equal_cost_steps
from headtohead.runner.preflight import check_runnable
from headtohead.search import samplers
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_training

MAX_CHECKED_MODELS = 32
"""number of distinct models that are built as a check before training"""
MAX_CHECKED_POINTS = 64 * MAX_CHECKED_MODELS
"""number of points among which distinct models are looked for"""


def build_search_trial(
    experiment: config_experiment.Experiment, variant: str, settings: SettingValues, seed: int
) -> config_experiment.Trial:
    """Return a trial of the search: the baseline with the settings of a point, without probes and without test data."""
    changes = build_variant_changes(dump_baseline_tables(experiment), settings)
    trial = build_trial(experiment.model_copy(update={"variants": {variant: changes}}), variant, seed)
    data = trial.data.model_copy(update={"monitor": ()})
    if "training.budget" not in settings and (steps := compute_equal_cost_steps(experiment, trial)) is not None:
        training = trial.training.model_copy(update={"budget": f"{steps} steps"})
        trial = trial.model_copy(update={"training": training})
    return trial.model_copy(update={"data": data, "probe": config_experiment.ProbeConfig(), "is_search": True})


def dump_baseline_tables(experiment: config_experiment.Experiment) -> RawConfig:
    """Return the baseline's tables that a variant or a search point can change, as plain JSON values."""
    return experiment.model_dump(mode="json", include={*VARIANT_TABLES})


def list_distinct_search_trials(
    experiment: config_experiment.Experiment,
) -> list[tuple[SettingValues, config_experiment.Trial]]:
    """Return one trial of the search for each distinct combination of model and optimizer, with its settings."""
    assert experiment.search is not None
    distinct_trials: list[tuple[SettingValues, config_experiment.Trial]] = []
    for settings in itertools.islice(experiment.search.iter_corner_points(), MAX_CHECKED_POINTS):
        trial = build_search_trial(experiment, "point", settings, FIRST_SEARCH_SEED)
        if len(distinct_trials) < MAX_CHECKED_MODELS and not any(
            (trial.model, trial.training.optimizer) == (known_trial.model, known_trial.training.optimizer)
            for _, known_trial in distinct_trials
        ):
            distinct_trials.append((settings, trial))
    return distinct_trials


def check_search_is_runnable(experiment: config_experiment.Experiment) -> None:
    """Raise RequestError if a trial of the search cannot be built, or if there is no validation data to select on."""
    assert experiment.search is not None
    samplers.check_optuna_installed(experiment.search)
    check_runnable(experiment)
    trial = build_trial(experiment, config_experiment.BASELINE, 0)
    if prepare_dataset(trial.data, trial.task).corpus.validation is None:
        raise RequestError(
            "search: the winner is selected on validation data, and there is none; set data.validation_fraction, "
            "or name a validation file in data.files"
        )
    for settings, search_trial in list_distinct_search_trials(experiment):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                build_training(
                    search_trial,
                    prepare_dataset(search_trial.data, search_trial.task),
                    Path(scratch),
                    torch.device("cpu"),
                    with_dependencies=False,
                )
        except (HeadToHeadError, ValueError) as error:
            values = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise RequestError(f"search.space: the point with {values} cannot be built: {error}") from None
