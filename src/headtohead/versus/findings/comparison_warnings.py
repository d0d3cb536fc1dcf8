"""Warnings that are shown above the verdicts of a comparison of commands: possible flaws, which may be intended.

They are derived from the recorded runs alone, so that `h2h verify` reproduces them. Flaws that cannot be intended
withhold the verdict instead: withholding_reasons.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from headtohead.config.experiment import BASELINE
from headtohead.experiment.schemas import ResultWarning
from headtohead.verdict.external_scores.score_issues import ScoreIssue
from headtohead.verdict.scores import Scores
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.config import CommandConfig, VersusConfig, infer_direction
from headtohead.versus.file_schemas import CommandRun, RunsByVariant
from headtohead.versus.findings.withholding_reasons import ignores_seed, list_shared_files

MAX_LISTED_FILES = 3
MAX_LISTED_SEEDS = 3
MAX_SCORE_DEVIATION = 0.01
"""largest allowed difference between a metric and the mean score per example, relative to the metric"""
DATA_OPTION_PATTERN = re.compile(
    r"data|corpus|input|text|split|(train|val|valid|validation|eval|test)(_?file|_?path|_?dir)?$"
)
"""names of options that select the data of a script"""


def collect_comparison_warnings(
    comparison: ComparisonFolder, valid_runs: RunsByVariant, scores: Mapping[str, Scores]
) -> list[ResultWarning]:
    """Return the warnings about possible flaws of the comparison, those about the baseline first."""
    config, baseline = comparison.config, valid_runs[BASELINE]
    warnings = [_warn_if_not_repeatable(comparison, baseline), _warn_about_unusual_direction(config)]
    for name, runs_by_seed in valid_runs.items():
        warnings += [
            _warn_about_shared_files(name, runs_by_seed),
            _warn_about_changed_modules(comparison, name, runs_by_seed),
            _warn_about_equal_seeds(name, runs_by_seed),
            _warn_about_early_ends(name, runs_by_seed),
            _warn_about_different_example_scores(config, name, runs_by_seed, scores),
        ]
    for name in config.variants:
        warnings += [
            _warn_if_nothing_changed(name, baseline, valid_runs[name]),
            _warn_about_different_steps(name, baseline, valid_runs[name]),
            _warn_about_different_data(config, name),
            _warn_about_different_batches(name, baseline, valid_runs[name]),
        ]
    return [warning for warning in warnings if warning is not None]


def _warn_if_not_repeatable(comparison: ComparisonFolder, baseline: Mapping[int, CommandRun]) -> ResultWarning | None:
    """Warn if repeating the first seed of the baseline gave different values."""
    seed, repeated_run = comparison.config.first_seed, comparison.read_repeated_run()
    if repeated_run is None or seed not in baseline or repeated_run.curve == baseline[seed].curve:
        return None
    value = f"{repeated_run.value:.6g}" if repeated_run.has_finite_value else f"no value ({repeated_run.status})"
    return ResultWarning(
        kind="not repeatable",
        variant=BASELINE,
        message=f"Seed {seed} gives {baseline[seed].value:.6g} and, run a second time, {value}.",
        advice="Differences between runs with equal seeds contain this noise too. Seed every random generator.",
    )


def _warn_about_unusual_direction(config: VersusConfig) -> ResultWarning | None:
    """Warn if the metric is minimized although its name suggests that higher values are better, or vice versa."""
    usual_direction, direction = infer_direction(config.metric.name), config.metric.direction
    if direction is None or usual_direction in (None, direction):
        return None
    better, usually_better = ("Lower", "higher") if direction == "minimize" else ("Higher", "lower")
    return ResultWarning(
        kind="unusual direction",
        variant=BASELINE,
        message=f"{better} values of {config.metric.name} are judged as better.",
        advice=f"For metrics with this name, {usually_better} values are usually better. Check --direction.",
    )


def _warn_about_shared_files(name: str, runs_by_seed: Mapping[int, CommandRun]) -> ResultWarning | None:
    """Warn if runs share files outside of their folders."""
    shared_files = list_shared_files(runs_by_seed)
    if not shared_files:
        return None
    return ResultWarning(
        kind="shared files",
        variant=name,
        message=f"Runs of {name} write files that other runs write or read: "
        f"{', '.join(shared_files[:MAX_LISTED_FILES])}.",
        advice="A run that reads the checkpoint or cache of an earlier run depends on it. Write to {out}.",
    )


def _warn_about_changed_modules(
    comparison: ComparisonFolder, name: str, runs_by_seed: Mapping[int, CommandRun]
) -> ResultWarning | None:
    """Warn if Python files next to the script changed. A change of the script itself withholds the verdict."""
    changed_files = {file for run in runs_by_seed.values() for file in run.changed_files}
    changed_modules = sorted(changed_files - set(comparison.record.list_named_scripts(name)))
    if not changed_modules:
        return None
    return ResultWarning(
        kind="changed code",
        variant=name,
        message=f"{', '.join(changed_modules[:MAX_LISTED_FILES])} changed while the comparison ran.",
        advice="If the script imports these files, its runs are not comparable: start again, or compare git revisions.",
    )


def _warn_about_equal_seeds(name: str, runs_by_seed: Mapping[int, CommandRun]) -> ResultWarning | None:
    """Warn if some, but not all, seeds gave the same learning curve."""
    curve_counts = Counter(
        tuple(run.curve) for run in runs_by_seed.values() if len({value for _, value in run.curve}) > 2
    )
    num_equal = max(curve_counts.values(), default=0)
    if num_equal < 2 or ignores_seed(runs_by_seed):
        return None
    return ResultWarning(
        kind="equal seeds",
        variant=name,
        message=f"{num_equal} of {len(runs_by_seed)} seeds of {name} give the same values.",
        advice="Runs that do not depend on their seed vary too little, and the interval is too narrow.",
    )


def _warn_about_early_ends(name: str, runs_by_seed: Mapping[int, CommandRun]) -> ResultWarning | None:
    """Warn if some runs of a command end at an earlier step than others."""
    last_steps = {seed: run.curve[-1][0] for seed, run in runs_by_seed.items() if len(run.curve) > 1}
    max_step = max(last_steps.values(), default=0)
    early_seeds = [str(seed) for seed, step in last_steps.items() if step < max_step]
    if not early_seeds:
        return None
    listed_seeds = ", ".join(early_seeds[:MAX_LISTED_SEEDS]) + (", ..." if len(early_seeds) > MAX_LISTED_SEEDS else "")
    return ResultWarning(
        kind="different budget",
        variant=name,
        message=f"Runs of {name} end between step {min(last_steps.values()):g} and step {max_step:g}; seed "
        f"{listed_seeds} ended early.",
        advice="A run that stops early without an error, or resumes an earlier run, is not comparable with the others.",
    )


def _warn_about_different_example_scores(
    config: VersusConfig, name: str, runs_by_seed: Mapping[int, CommandRun], scores: Mapping[str, Scores]
) -> ResultWarning | None:
    """Warn if the mean of the scores per example, which decide the verdict, differs from the metric."""
    if not runs_by_seed or scores[name].values.shape[1] == 1:
        return None
    metric_values = np.array([runs_by_seed[seed].value for seed in scores[name].seeds])
    mean_scores = scores[name].compute_seed_means()
    mean_scores = np.exp(mean_scores) if config.metric.verdict_metric == "perplexity" else mean_scores
    if (np.abs(mean_scores - metric_values) <= MAX_SCORE_DEVIATION * np.abs(metric_values)).all():
        return None
    return ResultWarning(
        kind="different scores",
        variant=name,
        message=f"The mean of the scores per example of {name} is {mean_scores.mean():.4g}, and {config.metric.name} "
        f"is {metric_values.mean():.4g}.",
        advice="The verdict is based on the scores per example. Check that both are measured on the same data.",
    )


def _pair_runs_by_seed(
    baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> list[tuple[CommandRun, CommandRun]]:
    """Return the run of the baseline and the run of the variant for each seed that both have, to warn about pairs."""
    return [(baseline[seed], variant[seed]) for seed in baseline if seed in variant]


def _warn_if_nothing_changed(
    name: str, baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> ResultWarning | None:
    """Warn if every value of a variant equals the baseline's: its change may have no effect."""
    pairs = _pair_runs_by_seed(baseline, variant)
    if not pairs or any(baseline_run.curve != variant_run.curve for baseline_run, variant_run in pairs):
        return None
    return ResultWarning(
        kind="changed nothing",
        variant=name,
        message=f"All values of {name} are equal to those of the baseline for every seed.",
        advice="Check that the script uses the option and, with git revisions, that it does not import a package "
        "installed from a different folder (pip install -e).",
    )


def _warn_about_different_steps(
    name: str, baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> ResultWarning | None:
    """Warn if most runs of a variant reported the metric at different steps than those of the baseline."""
    if not baseline or not variant:
        return None
    baseline_steps, variant_steps = (
        Counter(tuple(step for step, _ in run.curve) for run in runs_by_seed.values()).most_common(1)[0][0]
        for runs_by_seed in (baseline, variant)
    )
    if baseline_steps == variant_steps:
        return None
    return ResultWarning(
        kind="different budget",
        variant=name,
        message=f"{BASELINE} reports {len(baseline_steps)} values up to step {baseline_steps[-1]}, {name} "
        f"{len(variant_steps)} up to step {variant_steps[-1]}.",
        advice="More training steps usually improve the metric, and so does taking the best of more values. Compare "
        "equal numbers of steps, unless they are the change.",
    )


def _warn_about_different_data(config: VersusConfig, name: str) -> ResultWarning | None:
    """Warn if the commands of baseline and variant differ in options that select their data."""
    baseline_options, variant_options = (_parse_command_options(config.commands[key]) for key in (BASELINE, name))
    differences = [
        f"{option} {baseline_options.get(option, 'missing')} and {variant_options.get(option, 'missing')}"
        for option in dict.fromkeys([*baseline_options, *variant_options])
        if DATA_OPTION_PATTERN.search(option.lower().lstrip("-").replace("-", "_"))
        and baseline_options.get(option) != variant_options.get(option)
    ]
    if not differences:
        return None
    return ResultWarning(
        kind="different data",
        variant=name,
        message=f"The commands of {BASELINE} and {name} read different data: {', '.join(differences)}.",
        advice="Values measured on different data cannot be compared.",
    )


def _parse_command_options(command: CommandConfig) -> dict[str, str]:
    """Return the options of a script's command by name, to warn if they select different data.

    Options are `--option value`, `option=value` and environment variables.
    """
    options = dict(command.env)
    for word, next_word in pairwise([*command.command_words, ""]):
        option, equals, value = word.partition("=")
        if equals:
            options[option] = value
        elif word.startswith("-"):
            options[word] = "" if next_word.startswith("-") else next_word
    return options


def _warn_about_different_batches(
    name: str, baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> ResultWarning | None:
    """Warn if the batches that a variant's script recorded differ from those of the baseline."""
    pairs = _pair_runs_by_seed(baseline, variant)
    num_different = sum(
        baseline_run.batch_digest != variant_run.batch_digest
        for baseline_run, variant_run in pairs
        if baseline_run.batch_digest and variant_run.batch_digest
    )
    if not num_different:
        return None
    return ResultWarning(
        kind="different batches",
        variant=name,
        message=f"{name} was trained on different batches than {BASELINE} for {num_different} of {len(pairs)} seeds.",
        advice="Small effects become harder to detect, and the data may differ. headtohead.paired draws batches by "
        "(seed, step).",
    )


def convert_score_issues(issues: Sequence[ScoreIssue]) -> list[ResultWarning]:
    """Return the issues of the scores that do not withhold a verdict as warnings about a comparison."""
    return [
        ResultWarning(kind=issue.kind, variant=issue.variant, message=issue.message, advice=issue.advice)
        for issue in issues
        if not issue.is_blocking
    ]
