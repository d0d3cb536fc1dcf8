"""Calibrate verdicts on simulated experiments with a known truth, judged by the same code as real ones.

Measures how often intervals contain the truth, how often a verdict is wrong, and whether power agrees with theory. The
same samples are used for every true difference: adding a constant to every token shifts d by that constant and leaves
the noise unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtohead.verdict.interim import compute_analysis_confidence, plan_interim_analyses
from headtohead.verdict.rule import (
    CANNOT_TELL,
    HELPED,
    HURT,
    NO_PRACTICAL_DIFFERENCE,
    VerdictOutcome,
    decide_outcomes,
)
from headtohead.verdict.simulations import SimulatedExperiments, Simulation
from headtohead.verdict.statistics import (
    VarianceComponents,
    compute_detection_power,
    compute_interval,
    compute_min_detectable_effect,
    compute_seed_interval,
    estimate_variance_components,
)

MAX_BATCH_CELLS = 2_000_000
"""maximum number of simulated values in memory"""
WIDE_BAND_STANDARD_ERRORS = 10.0
"""half width of an equivalence band so wide that noise can cross only one of its edges"""


@dataclass(frozen=True)
class CalibrationRow:
    """Results for one simulation and number of seeds, as fractions of the experiments.

    `coverage` is that of the deciding interval, for new seeds and examples; `equivalence_coverage` that of the 90 %
    interval, `test_set_coverage` that of the seed interval on its test set. `false_verdicts` are helped or hurt at a
    true difference of 0 with an equivalence margin of 0, the strictest case. `false_equivalence` is "no practical
    difference" at a true difference equal to the margin. `power` is measured at the effect for which theory predicts
    `theoretical_power`.
    """

    simulation: str
    seeds: int
    examples: int
    experiments: int
    coverage: float
    equivalence_coverage: float
    test_set_coverage: float
    false_verdicts: float
    false_equivalence: float
    power: float
    theoretical_power: float

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class SequentialCalibrationRow:
    """Results of `seeds = "auto"` for one simulation and true difference, as fractions of the experiments.

    `wrong` is "helped" or "hurt" at no difference, the wrong one of the two, or "no practical difference" at a
    difference of at least the margin. `settled` is any verdict but "cannot tell".
    """

    simulation: str
    true_difference: str
    max_seeds: int
    examples: int
    experiments: int
    coverage: float
    wrong: float
    settled: float
    seeds_used: float

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


def calibrate_fixed_seeds(
    simulation: Simulation,
    *,
    seed_counts: Sequence[int] = (3, 5, 8, 12),
    num_examples: int = 200,
    num_experiments: int = 2_000,
    confidence: float = 0.95,
    rng_seed: int = 0,
) -> list[CalibrationRow]:
    """Return a row for each number of seeds."""
    rng = np.random.default_rng(rng_seed)
    return [
        _calibrate_seed_count(simulation, rng, num_seeds, num_examples, num_experiments, confidence)
        for num_seeds in seed_counts
    ]


def _calibrate_seed_count(
    simulation: Simulation,
    rng: np.random.Generator,
    num_seeds: int,
    num_examples: int,
    num_experiments: int,
    confidence: float,
) -> CalibrationRow:
    """Return the calibration for one number of seeds."""
    true_components = _list_true_components(simulation, num_seeds, num_examples)
    effect = _compute_median_detectable_effect(true_components, confidence)
    margin = WIDE_BAND_STANDARD_ERRORS * max(
        float(np.sqrt(true_component.seed_variance[0] + true_component.document_variance[0]))
        for true_component in true_components
    )
    counts = np.zeros(6)
    for sample in _sample_in_batches(simulation, rng, num_seeds, num_examples, num_experiments):
        components = estimate_variance_components(sample.differences, sample.weights)
        difference, half_width = components.difference, compute_interval(components, confidence).half_width
        equivalence_half_width = compute_interval(components, 2 * confidence - 1).half_width
        seed_half_width = compute_seed_interval(components, confidence).half_width
        outcomes_without_margin = decide_outcomes(
            difference, half_width, equivalence_half_width, (0.0, 0.0), lower_is_better=True
        )
        outcomes_at_margin = decide_outcomes(
            difference + margin, half_width, equivalence_half_width, (-margin, margin), lower_is_better=True
        )
        counts += (
            (np.abs(difference) <= half_width).sum(),
            (np.abs(difference) <= equivalence_half_width).sum(),
            (np.abs(difference - sample.test_set_differences) <= seed_half_width).sum(),
            sum(outcome in (HELPED, HURT) for outcome in outcomes_without_margin),
            outcomes_at_margin.count(NO_PRACTICAL_DIFFERENCE),
            (np.abs(difference + effect) > half_width).sum(),
        )
    fractions = [float(count) / num_experiments for count in counts]
    theoretical_power = float(
        np.mean([compute_detection_power(true_component, effect, confidence) for true_component in true_components])
    )
    coverage, equivalence_coverage, test_set_coverage, false_verdicts, false_equivalence, power = fractions
    return CalibrationRow(
        simulation.name,
        num_seeds,
        num_examples,
        num_experiments,
        coverage,
        equivalence_coverage,
        test_set_coverage,
        false_verdicts,
        false_equivalence,
        power,
        theoretical_power,
    )


def calibrate_sequential(
    simulation: Simulation,
    *,
    max_seeds: int = 12,
    num_examples: int = 200,
    num_experiments: int = 2_000,
    confidence: float = 0.95,
    rng_seed: int = 0,
) -> list[SequentialCalibrationRow]:
    """Return rows for `seeds = "auto"`: seeds are added at each interim analysis until the verdict is settled.

    The true difference is zero, equal to the margin, and twice the margin. The margin is the effect that `max_seeds`
    seeds detect with a probability of 80 %.
    """
    rng = np.random.default_rng(rng_seed)
    analyses = plan_interim_analyses(max_seeds)
    margin = _compute_median_detectable_effect(_list_true_components(simulation, max_seeds, num_examples), confidence)
    true_differences = {"no difference": 0.0, "the margin": margin, "twice the margin": 2 * margin}
    results: dict[str, list[_StoppingResults]] = {name: [] for name in true_differences}
    for sample in _sample_in_batches(simulation, rng, max_seeds, num_examples, num_experiments):
        components = [
            estimate_variance_components(np.ascontiguousarray(sample.differences[:, :num_seeds]), sample.weights)
            for num_seeds in analyses
        ]
        for name, difference in true_differences.items():
            results[name].append(_run_interim_analyses(components, analyses, difference, margin, confidence))
    rows = []
    for name, stops in results.items():
        outcomes = [outcome for stop in stops for outcome in stop.outcomes]
        wrong_outcomes = (HELPED, HURT) if name == "no difference" else (NO_PRACTICAL_DIFFERENCE, HELPED)
        rows.append(
            SequentialCalibrationRow(
                simulation.name,
                name,
                max_seeds,
                num_examples,
                num_experiments,
                coverage=float(np.concatenate([stop.is_covered for stop in stops]).mean()),
                wrong=sum(outcome in wrong_outcomes for outcome in outcomes) / num_experiments,
                settled=sum(outcome != CANNOT_TELL for outcome in outcomes) / num_experiments,
                seeds_used=float(np.concatenate([stop.num_seeds for stop in stops]).mean()),
            )
        )
    return rows


@dataclass(frozen=True, eq=False)
class _StoppingResults:
    """Per experiment: its outcome, whether its interval contains the truth, and the seeds at which it stopped."""

    outcomes: list[VerdictOutcome]
    is_covered: np.ndarray
    num_seeds: Float[np.ndarray, " experiments"]


def _run_interim_analyses(
    components_by_analysis: list[VarianceComponents],
    analyses: Sequence[int],
    true_difference: float,
    equivalence_margin: float,
    confidence: float,
) -> _StoppingResults:
    num_experiments = len(components_by_analysis[0].difference)
    outcomes: list[VerdictOutcome] = [CANNOT_TELL] * num_experiments
    is_covered, num_seeds = np.zeros(num_experiments, bool), np.zeros(num_experiments)
    for components, analysis in zip(components_by_analysis, analyses, strict=True):
        adjusted = compute_analysis_confidence(analysis, analyses, confidence)
        half_width = compute_interval(components, adjusted).half_width
        current = decide_outcomes(
            components.difference + true_difference,
            half_width,
            compute_interval(components, 2 * adjusted - 1).half_width,
            (-equivalence_margin, equivalence_margin),
            lower_is_better=True,
        )
        is_open = np.array([outcome == CANNOT_TELL for outcome in outcomes])
        is_covered[is_open] = (np.abs(components.difference) <= half_width)[is_open]
        num_seeds[is_open] = analysis
        outcomes = [new if old == CANNOT_TELL else old for old, new in zip(outcomes, current, strict=True)]
    return _StoppingResults(outcomes, is_covered, num_seeds)


def _list_true_components(simulation: Simulation, num_seeds: int, num_examples: int) -> list[VarianceComponents]:
    """Return the true components of each kind of experiment that a simulation mixes."""
    components = simulation.compute_true_components(num_seeds, num_examples)
    return [
        components.map_arrays(lambda array, index=index: array[[index]])  # type: ignore[misc]
        for index in range(len(components.difference))
    ]


def _compute_median_detectable_effect(true_components: Sequence[VarianceComponents], confidence: float) -> float:
    """Return the median over kinds of experiments of the smallest effect detected with the target power."""
    return float(np.median([compute_min_detectable_effect(kind, confidence) for kind in true_components]))


def to_markdown(rows: Sequence[CalibrationRow] | Sequence[SequentialCalibrationRow]) -> str:
    """Return the rows as a Markdown table, shares as percentages."""
    if not rows:
        return ""
    table = [row.to_dict() for row in rows]
    lines = [[name.replace("_", " ") for name in table[0]]]
    lines += [[_format_cell(name, value) for name, value in row.items()] for row in table]
    lines.insert(1, ["---" if isinstance(value, str) else "---:" for value in table[0].values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _format_cell(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if name == "seeds_used" else f"{100 * value:.1f} %"


def _sample_in_batches(
    simulation: Simulation, rng: np.random.Generator, num_seeds: int, num_examples: int, num_experiments: int
) -> Iterator[SimulatedExperiments]:
    batch = max(MAX_BATCH_CELLS // (num_seeds * num_examples), 1)
    for start in range(0, num_experiments, batch):
        yield simulation.sample(rng, min(batch, num_experiments - start), num_seeds, num_examples)
