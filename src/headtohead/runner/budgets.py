"""Convert training budgets to steps before the first run, and equalize a variant's cost or size with the baseline's.

The result depends on the corpus, the models and, for time budgets, on a timed probe. It is recorded in experiment.json
and reused when an experiment is resumed, so that every run is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headtohead.config.budget import STEP_UNITS, parse_budget
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.overlays import RawConfig
from headtohead.config.tables.model import TransformerConfig
from headtohead.config.trial_settings import build_trial
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import HeadToHeadError, RequestError
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.schemas import ResolvedBudget
from headtohead.json_files import compute_json_checksum
from headtohead.trials.step_cost import StepCost, compute_step_cost
from headtohead.trials.timing import compare_step_seconds

MAX_PARAMETER_DIFFERENCE = 0.01
"""largest relative difference that counts as equal parameters"""
RESIZABLE_SETTINGS = ("model.feedforward.hidden", "model.width")
"""settings that are solved for equal parameters, in this order"""
MAX_SIZE = 2**17
"""largest hidden size or width that is tried"""
TIMING_TOLERANCE = 0.02
"""smaller relative differences in seconds per step are noise of the probe and count as equal"""
COST_UNITS = ("tokens", "flops", "seconds")
"""budget units that are converted to steps through the cost of a step"""

ResolvedBudgets = Mapping[str, ResolvedBudget]


def read_budgets(folder: Path) -> ResolvedBudgets:
    """Return the budgets recorded in an experiment folder; empty if the experiment has not been started."""
    return ExperimentRuns(folder).metadata.budgets if (folder / "experiment.json").is_file() else {}


def resolve_budgets(
    experiment: Experiment, recorded_budgets: ResolvedBudgets
) -> tuple[Experiment, dict[str, ResolvedBudget]]:
    """Convert all budgets to steps.

    Args:
        experiment: The experiment. Budgets in steps or epochs are unchanged, unless `equal` is set.
        recorded_budgets: Recorded budgets, which are reused for variants with the same settings.

    Returns:
        The experiment with budgets in steps, and a record of each conversion.
    """
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    units = {parse_budget(trial.training.budget).unit for trial in trials.values()}
    if experiment.equal is None and units <= {*STEP_UNITS}:
        return experiment, {}
    if experiment.equal == "seconds" or "seconds" in units:  # timed before tuning, and not again
        untuned_experiment = experiment.model_copy(update={"tuned": {}})
        trials = {name: build_trial(untuned_experiment, name, 0) for name in experiment.names}
    resolver = _BudgetResolver(experiment, trials, recorded_budgets)
    for name in experiment.names:
        resolver.budgets[name] = resolver.resolve_budget(name)
    unit = parse_budget(experiment.training.budget).unit
    resolved_experiment = experiment.model_copy(
        update={
            "training": experiment.training.model_copy(update={"budget": _format_steps(resolver.budgets[BASELINE])}),
            "variants": {name: resolver.build_variant_changes(name) for name in experiment.variants},
            "equal": unit if experiment.equal is None and unit in COST_UNITS else experiment.equal,
        }
    )
    return resolved_experiment, resolver.budgets


def compute_equal_cost_steps(experiment: Experiment, trial: Trial) -> int | None:
    """Return the budget in steps with which a trial costs as many tokens or FLOPs as the baseline.

    Return None unless the experiment equalizes tokens or FLOPs.
    """
    if experiment.equal not in ("tokens", "flops"):
        return None
    baseline_cost, trial_cost = compute_step_cost(build_trial(experiment, BASELINE, 0)), compute_step_cost(trial)
    baseline_steps = experiment.training.compute_total_steps(baseline_cost.steps_per_epoch)
    cost_ratio = _get_step_cost(BASELINE, baseline_cost, experiment.equal) / _get_step_cost(
        trial.variant, trial_cost, experiment.equal
    )
    return max(1, round(baseline_steps * cost_ratio))


def _format_steps(budget: ResolvedBudget) -> str:
    return f"{budget.steps} steps"


@dataclass
class _BudgetResolver:
    """Convert the budgets of one experiment to steps, the baseline's first: variants are equalized with it."""

    experiment: Experiment
    trials: dict[str, Trial]
    recorded_budgets: ResolvedBudgets
    budgets: dict[str, ResolvedBudget] = field(default_factory=dict)
    """resolved budgets so far, by variant"""
    seconds_per_step: dict[str, float] = field(default_factory=dict)
    """timed durations of a step, by variant"""

    def resolve_budget(self, name: str) -> ResolvedBudget:
        """Return the recorded budget of a variant, or resolve it."""
        trial = self.trials[name]
        settings_digest = compute_json_checksum(
            {"trial": trial.dump_variant_settings(), "equal": self.experiment.equal}
        )
        recorded_budget = self.recorded_budgets.get(name)
        if recorded_budget is not None and recorded_budget.settings == settings_digest:
            return recorded_budget
        resized_settings: dict[str, int] = {}
        if self.experiment.equal == "parameters" and name != BASELINE:
            resized_settings = _solve_size_for_parameters(self.experiment, name, self.budgets[BASELINE].parameters)
            trial = build_trial(_add_resized_settings(self.experiment, name, resized_settings), name, 0)
        cost = compute_step_cost(trial)
        return ResolvedBudget(
            settings=settings_digest,
            budget=trial.training.budget,
            equal=self.experiment.equal,
            steps=self._count_steps(name, cost),
            tokens_per_step=cost.tokens,
            flops_per_step=cost.flops,
            seconds_per_step=self.seconds_per_step.get(name),
            parameters=cost.parameters,
            resized=resized_settings,
        )

    def build_variant_changes(self, name: str) -> RawConfig:
        """Return a variant's changes to the baseline, including its number of steps and its resized settings."""
        budget = self.budgets[name]
        changes = _add_resized_settings(self.experiment, name, budget.resized).variants[name]
        if not self._sets_budget(name) and budget.steps == self.budgets[BASELINE].steps:
            return changes
        return {**changes, "training": {**changes.get("training", {}), "budget": _format_steps(budget)}}

    def _sets_budget(self, name: str) -> bool:
        """Return whether a variant sets a budget that replaces the baseline's."""
        return "budget" in self.experiment.variants.get(name, {}).get("training", {})

    def _count_steps(self, name: str, cost: StepCost) -> int:
        """Return the training steps that use up a variant's budget, or that cost as much as the baseline's steps."""
        budget, equal_term = parse_budget(self.trials[name].training.budget), self.experiment.equal
        if name == BASELINE or self._sets_budget(name) or equal_term in (None, "parameters"):
            if budget.unit in STEP_UNITS:
                return self.trials[name].training.compute_total_steps(cost.steps_per_epoch)
            return max(1, round(budget.amount / self._compute_step_cost(name, cost, budget.unit)))
        baseline_steps = self.budgets[BASELINE].steps
        if equal_term == "steps":
            return baseline_steps
        baseline_cost = self._compute_step_cost(BASELINE, compute_step_cost(self.trials[BASELINE]), equal_term)
        return max(1, round(baseline_steps * baseline_cost / self._compute_step_cost(name, cost, equal_term)))

    def _compute_step_cost(self, name: str, cost: StepCost, unit: str) -> float:
        """Return the tokens, FLOPs or measured seconds per step."""
        if unit != "seconds":
            return _get_step_cost(name, cost, unit)
        if name not in self.seconds_per_step:
            self.seconds_per_step[name] = self._time_baseline() if name == BASELINE else self._time_variant(name)
        return self.seconds_per_step[name]

    def _time_baseline(self) -> float:
        """Return the baseline's seconds per step: the recorded duration of a resumed experiment, or a timed one."""
        budget = self.budgets.get(BASELINE)
        if budget is not None and budget.seconds_per_step is not None:
            return budget.seconds_per_step
        return compare_step_seconds({BASELINE: self.trials[BASELINE]})[BASELINE]

    def _time_variant(self, name: str) -> float:
        """Return the baseline's seconds per step times the ratio of both durations, which are timed alternately."""
        durations = compare_step_seconds({BASELINE: self.trials[BASELINE], name: self.trials[name]})
        ratio = durations[name] / durations[BASELINE]
        baseline_seconds = self._compute_step_cost(BASELINE, compute_step_cost(self.trials[BASELINE]), "seconds")
        return baseline_seconds * (1.0 if abs(ratio - 1) < TIMING_TOLERANCE else ratio)


def _get_step_cost(name: str, cost: StepCost, unit: str) -> float:
    """Return the tokens or FLOPs per step from which a budget is resolved; raise RequestError if not countable."""
    cost_per_step = cost.tokens if unit == "tokens" else cost.flops
    if cost_per_step is None:
        raise RequestError(f"{name}: the FLOPs of its model cannot be counted; use steps, tokens or minutes instead")
    return cost_per_step


def _add_resized_settings(experiment: Experiment, name: str, settings: Mapping[str, Any]) -> Experiment:
    """Return the experiment with model sizes, solved for an equal parameter budget, in a variant's changes.

    Parts keep their other options.
    """
    if not settings:
        return experiment
    model = build_trial(experiment, name, 0).model.model_dump(mode="json")
    changes = dict(experiment.variants[name])
    changes["model"] = {**changes.get("model", {}), **build_variant_changes({"model": model}, dict(settings))["model"]}
    return experiment.model_copy(update={"variants": {**experiment.variants, name: changes}})


def _solve_size_for_parameters(experiment: Experiment, name: str, num_parameters: int) -> dict[str, int]:
    """Return the size that gives a variant as many parameters as the baseline, within 1 % (`equal = "parameters"`).

    Empty if the variant already has as many.

    Raises:
        RequestError: If no size is close enough. The message contains the nearest one.
    """
    candidates: list[tuple[int, dict[str, int]]] = []

    def count_parameters(settings: Mapping[str, int]) -> int:
        return compute_step_cost(build_trial(_add_resized_settings(experiment, name, settings), name, 0)).parameters

    def has_equal_parameters(settings: dict[str, int]) -> bool:
        candidates.append((count_parameters(settings), settings))
        return abs(candidates[-1][0] - num_parameters) <= MAX_PARAMETER_DIFFERENCE * num_parameters

    if has_equal_parameters({}):
        return {}
    for setting, size_step in _list_resizable_settings(experiment, name):

        def count_parameters_with_size(size: int, setting: str = setting) -> int:
            return count_parameters({setting: size})

        size = _find_nearest_size(count_parameters_with_size, num_parameters, size_step)
        if size is not None and has_equal_parameters({setting: size}):
            return {setting: size}
    nearest_count, settings = min(candidates, key=lambda candidate: abs(candidate[0] - num_parameters))
    nearest_sizes = ", ".join(f"{setting} = {size}" for setting, size in settings.items()) or "the model as it is"
    raise RequestError(
        f"variants.{name}: no hidden size or width gives it the {num_parameters:,} parameters of the baseline within "
        f"{MAX_PARAMETER_DIFFERENCE:.0%}; the nearest is {nearest_sizes} with {nearest_count:,}"
    )


def _list_resizable_settings(experiment: Experiment, name: str) -> list[tuple[str, int]]:
    """Return the sizes that may be solved for equal parameter budgets, each with the step between valid values.

    Sizes that the variant sets itself are excluded.
    """
    model, changes = build_trial(experiment, name, 0).model, experiment.variants[name].get("model", {})
    if not isinstance(model, TransformerConfig):
        return []
    feedforward = changes.get("feedforward")
    is_set_by_variant = {
        "model.feedforward.hidden": isinstance(feedforward, dict) and "hidden" in feedforward,
        "model.width": "width" in changes,
    }
    size_steps = {
        "model.feedforward.hidden": 1,
        "model.width": 2 * model.heads,
    }  # a head has an even number of dimensions
    return [(setting, size_steps[setting]) for setting in RESIZABLE_SETTINGS if not is_set_by_variant[setting]]


def _find_nearest_size(count_parameters: Callable[[int], int], num_parameters: int, size_step: int) -> int | None:
    """Return the size whose parameter count is nearest to the budget `num_parameters`, by bisection.

    The parameter count must increase with the size. Return None if the model does not have this setting.
    """
    try:
        low, high = size_step, 2 * size_step
        while count_parameters(high) < num_parameters and high <= MAX_SIZE:
            low, high = high, 2 * high
        while high - low > size_step:
            middle = (low + high) // (2 * size_step) * size_step
            low, high = (middle, high) if count_parameters(middle) < num_parameters else (low, middle)
        return min((low, high), key=lambda size: abs(count_parameters(size) - num_parameters))
    except (HeadToHeadError, ValueError, TypeError):
        return None
