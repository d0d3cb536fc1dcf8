"""Print the plan of an experiment for `h2h plan`: sizes, time, detectable effects, and what fits into a time budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.config.experiment import Experiment
from headtohead.presentation import number_format
from headtohead.presentation.renderers.terminal import get_stdout_console, print_table
from headtohead.presentation.table import make_numeric_columns, make_table, make_text_columns
from headtohead.progress import format_duration
from headtohead.report.sweep_sentences import shorten_axis_name
from headtohead.verdict.interim import MIN_SEEDS


def print_plan(experiment: Experiment, plan: Any) -> None:
    """Print the size and estimated cost of each variant, or of each cell of a sweep, and of the whole experiment."""
    if plan.cells:
        _print_cell_costs(experiment, plan)
    else:
        _print_variant_costs(experiment, plan)
    preparation_note = (
        f", of which {format_duration(plan.preparation_seconds)} precede the trials" if plan.preparation_seconds else ""
    )
    num_variants = len((plan.cells[0].plan if plan.cells else plan).plan)
    cell_count = f"{len(plan.cells)} cells x " if plan.cells else ""
    get_stdout_console().print(
        f"{cell_count}{num_variants} variants x {experiment.max_seeds} seeds = {plan.trials} trials on {plan.workers} "
        f"workers: about {format_duration(plan.seconds)}{preparation_note}, estimated from a few real steps. Memory of "
        f"all workers: {number_format.format_bytes(plan.memory_bytes)}."
    )
    _print_tuning_trials(experiment, plan)
    if not plan.cells:
        _print_detectable_effects(experiment.primary.metric, plan.detectable)


def _print_variant_costs(experiment: Experiment, plan: Any) -> None:
    """Print for `h2h plan` the size and estimated time of each variant."""
    columns = make_text_columns("variant")
    columns += make_numeric_columns("parameters", "FLOPs/token", "memory", "steps", "one trial")
    rows = [
        [
            variant.variant,
            number_format.format_count(variant.parameters),
            number_format.format_si_number(variant.flops_per_token),
            number_format.format_bytes(variant.training_bytes),
            number_format.format_count(variant.steps),
            format_duration(variant.seconds),
        ]
        for variant in plan.plan
    ]
    print_table(make_table("plan", experiment.question, "", columns, rows))


def _print_cell_costs(experiment: Experiment, plan: Any) -> None:
    """Print for `h2h plan` the size and estimated time of each cell of a sweep, in the order in which they run."""
    axes = list(plan.cells[0].coordinates)
    columns = make_text_columns(*map(shorten_axis_name, axes))
    columns += make_numeric_columns("parameters", "steps", "trials", "time", "detects")
    rows = [
        [
            *cell.coordinates.values(),
            number_format.format_count(cell.plan.plan[0].parameters),
            number_format.format_count(cell.plan.plan[0].steps),
            number_format.format_count(cell.plan.trials + (cell.plan.tuning.trials or 0 if cell.plan.tuning else 0)),
            format_duration(cell.plan.seconds),
            _format_largest_planned_effect(experiment, cell.plan.detectable),
        ]
        for cell in plan.cells
    ]
    print_table(make_table("plan", experiment.question, "", columns, rows))
    get_stdout_console().print(
        "Cells run in this order, which covers all values early. Parameters and steps are those of the baseline; "
        f"effects of the size in the last column are detected by {experiment.max_seeds} seeds with a probability of "
        "80 %."
    )


def _format_largest_planned_effect(experiment: Experiment, detectable: Sequence[Any]) -> str:
    """Return the smallest effect that the seeds of the experiment detect for every variant."""
    effects = [row.effects[max(experiment.max_seeds, MIN_SEEDS)] for row in detectable]
    return _format_planned_effect(experiment.primary.metric, max(effects)) if effects else number_format.MISSING_VALUE


def _format_planned_effect(metric: str, effect: float) -> str:
    """Format a detectable effect with two digits; effects of 100 % or more are not meaningful."""
    return number_format.format_margin(metric, float(f"{effect:.2g}")) if effect < 1 else "too few seeds"


def _print_tuning_trials(experiment: Experiment, plan: Any) -> None:
    """Print for `h2h plan` the number of tuning trials, which come before the others."""
    tune, tuning = experiment.tune, (plan.cells[0].plan if plan.cells else plan).tuning
    if tune is None or tuning is None:
        return
    cell_note = " in every cell" if plan.cells else ""
    if tuning.trials is None:
        text = f"First, every side is tuned for {tune.budget}{cell_note}."
    else:
        num_sides = len(experiment.names)
        seconds = tuning.estimate_seconds(plan.workers)
        grid_note = f" (of {tuning.grid_size:,} in the grid)" if tuning.grid_size else ""
        text = (
            f"First, every side is tuned{cell_note}: {num_sides} sides x {tuning.points:,} points{grid_note} x "
            f"{tune.seeds} seeds = {tuning.trials:,} trials, about {format_duration(seconds)} of the time above."
        )
        if tune.method == "grid" and tune.extend:
            text += " An optimum at the edge extends the grid of all sides, which costs more."
    get_stdout_console().print(text)


def print_time_fit(experiment: Experiment, plan: Any, fit: Any, command: str) -> None:
    """Print for `h2h plan --within` how many seeds and cells fit into a time budget, and the command that runs them."""
    console, time_limit = get_stdout_console(), format_duration(fit.budget_seconds)
    num_cells = max(len(plan.cells), 1)
    if fit.cells == 0:
        first_part = "the first cell" if plan.cells else "the experiment"
        console.print(
            f"Within {time_limit}: not even {MIN_SEEDS} seeds of {first_part} fit. Everything with {MIN_SEEDS} seeds "
            f"needs about {format_duration(fit.needed_seconds)}; train for fewer steps or compare fewer variants.",
            soft_wrap=True,
        )
        return
    fitting_part = f"{fit.seeds} seeds"
    if plan.cells:
        fitting_part += f" in all {num_cells} cells" if fit.cells == num_cells else f" in the first {fit.cells} cells"
    console.print(
        f"Within {time_limit}: {fitting_part}, about {format_duration(fit.seconds)}. {command}", soft_wrap=True
    )
    if fit.cells < num_cells:
        console.print(
            f"All {num_cells} cells with {fit.seeds} seeds need about {format_duration(fit.needed_seconds)}. The run "
            "can be interrupted with Ctrl-C at any time; --resume continues with the next cell.",
            soft_wrap=True,
        )


def _print_detectable_effects(metric: str, detectable: Sequence[Any]) -> None:
    """Print for `h2h plan` the smallest effect that each number of seeds can detect."""
    if not detectable:
        return
    columns = make_text_columns("variant")
    columns += make_numeric_columns(*(f"{seeds} seeds" for seeds in detectable[0].effects))
    rows = [
        [
            row.variant,
            *(_format_planned_effect(metric, effect) for effect in row.effects.values()),
        ]
        for row in detectable
    ]
    print_table(make_table("detectable", "Effects that are detected with a probability of 80 %", "", columns, rows))
    documents = detectable[0].documents
    scope = f"for new text, with {documents} test documents" if documents > 1 else "on this test set, not for new text"
    text = f"Noise: {detectable[0].noise_source}. The effects hold {scope}."
    if detectable[0].is_typical_noise:
        text += (
            " If a variant differs little from its baseline, the noise is lower and smaller effects are detected: run "
            "3 seeds, then plan again, which uses the noise of these runs."
        )
    get_stdout_console().print(text)
