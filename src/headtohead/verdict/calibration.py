"""Are the verdicts calibrated? Many simulated experiments with a known truth, judged by the very code that judges
real ones: how often the intervals hold the truth, how often a verdict is false, and whether the power is as theory
has it.

Scores drawn at one truth serve for all: adding a constant to every token moves d by it and leaves the noise alone.
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

MAX_BATCH_CELLS = 2_000_000  # numbers held at a time
WIDE_BAND_STANDARD_ERRORS = 10.0  # standard errors: a band so wide that only one of its edges can be crossed by chance


@dataclass(frozen=True)
class CalibrationRow:
    """One line of the calibration: a world, a number of seeds, and what came out. Shares of the experiments."""

    world: str
    seeds: int
    examples: int
    experiments: int
    coverage: float
    coverage_90: float
    coverage_here: float
    false_verdicts: float
    false_agreement: float
    power: float
    theory: float

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class SequentialCalibrationRow:
    """One line of the calibration of `seeds = "auto"`: what came out at one truth, judged where it stopped.

    `wrong` is "helped" or "hurt" where there is no difference, the wrong one of the two, or "no practical difference"
    where the difference matters. `settled` is any verdict but "cannot tell".
    """

    world: str
    truth: str
    limit: int
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
    """A row for each number of seeds.

    Coverage is that of the interval that decides, for new seeds and examples; `coverage_here` that of the seeds' own
    interval for this test set. `false_verdicts` are helped or hurt at a true 0 with matters = 0, the strictest case;
    `false_agreement` is "no practical difference" at a truth just as large as `matters`. `power` is at the effect for
    which `theory` gives it.
    """
    rng = np.random.default_rng(rng_seed)
    return [
        _calibrate_seed_count(simulation, rng, number, num_examples, num_experiments, confidence)
        for number in seed_counts
    ]


def _calibrate_seed_count(
    simulation: Simulation,
    rng: np.random.Generator,
    num_seeds: int,
    num_examples: int,
    num_experiments: int,
    confidence: float,
) -> CalibrationRow:
    confidence_90 = 2 * confidence - 1
    kinds = _list_true_components(simulation, num_seeds, num_examples)
    effect = _compute_median_detectable_effect(kinds, confidence)
    edge = WIDE_BAND_STANDARD_ERRORS * float(np.sqrt(max(kind.of_seeds[0] + kind.of_examples[0] for kind in kinds)))
    counts = np.zeros(6)
    for draw in _sample_in_batches(simulation, rng, num_seeds, num_examples, num_experiments):
        parts = estimate_variance_components(draw.differences, draw.weights)
        d, half = parts.difference, compute_interval(parts, confidence).half
        half_90 = compute_interval(parts, confidence_90).half
        here = compute_seed_interval(parts, confidence).half
        null = decide_outcomes(d, half, half_90, (0.0, 0.0), lower_is_better=True)
        at_edge = decide_outcomes(d + edge, half, half_90, (-edge, edge), lower_is_better=True)
        counts += (
            (np.abs(d) <= half).sum(),
            (np.abs(d) <= half_90).sum(),
            (np.abs(d - draw.test_set_differences) <= here).sum(),
            sum(word in (HELPED, HURT) for word in null),
            at_edge.count(NO_PRACTICAL_DIFFERENCE),
            (np.abs(d + effect) > half).sum(),
        )
    shares = [float(count) / num_experiments for count in counts]
    theory = float(np.mean([compute_detection_power(kind, effect, confidence) for kind in kinds]))
    coverage, coverage_90, coverage_here, false_verdicts, false_agreement, power = shares
    return CalibrationRow(
        simulation.name,
        num_seeds,
        num_examples,
        num_experiments,
        coverage,
        coverage_90,
        coverage_here,
        false_verdicts,
        false_agreement,
        power,
        theory,
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
    """The same for `seeds = "auto"`: seeds are added look by look until the verdict is settled.

    Three truths: no difference; one just as large as `matters`; one twice as large. `matters` is what all the seeds
    together would detect four times in five.
    """
    rng = np.random.default_rng(rng_seed)
    looks = plan_interim_analyses(max_seeds)
    matters = _compute_median_detectable_effect(_list_true_components(simulation, max_seeds, num_examples), confidence)
    truths = {"no difference": 0.0, "just matters": matters, "twice what matters": 2 * matters}
    results: dict[str, list[_StoppingResults]] = {name: [] for name in truths}
    for draw in _sample_in_batches(simulation, rng, max_seeds, num_examples, num_experiments):
        seen = [
            estimate_variance_components(np.ascontiguousarray(draw.differences[:, :look]), draw.weights)
            for look in looks
        ]
        for name, truth in truths.items():
            results[name].append(_run_interim_analyses(seen, looks, truth, matters, confidence))
    rows = []
    for name, stops in results.items():
        words = [word for stop in stops for word in stop.words]
        wrong = (HELPED, HURT) if name == "no difference" else (NO_PRACTICAL_DIFFERENCE, HELPED)
        rows.append(
            SequentialCalibrationRow(
                simulation.name,
                name,
                max_seeds,
                num_examples,
                num_experiments,
                coverage=float(np.concatenate([stop.is_covered for stop in stops]).mean()),
                wrong=sum(word in wrong for word in words) / num_experiments,
                settled=sum(word != CANNOT_TELL for word in words) / num_experiments,
                seeds_used=float(np.concatenate([stop.seeds for stop in stops]).mean()),
            )
        )
    return rows


@dataclass(frozen=True, eq=False)
class _StoppingResults:
    """Where each experiment stopped, what it said, and whether its interval held the truth."""

    words: list[VerdictOutcome]
    is_covered: np.ndarray
    seeds: Float[np.ndarray, " experiments"]


def _run_interim_analyses(
    components_by_analysis: list[VarianceComponents],
    analyses: Sequence[int],
    true_difference: float,
    equivalence_margin: float,
    confidence: float,
) -> _StoppingResults:
    experiments = len(components_by_analysis[0].difference)
    said: list[VerdictOutcome] = [CANNOT_TELL] * experiments
    covered, seeds = np.zeros(experiments, bool), np.zeros(experiments)
    for parts, look in zip(components_by_analysis, analyses, strict=True):
        level = compute_analysis_confidence(look, analyses, confidence)
        half, half_90 = compute_interval(parts, level).half, compute_interval(parts, 2 * level - 1).half
        words = decide_outcomes(
            parts.difference + true_difference,
            half,
            half_90,
            (-equivalence_margin, equivalence_margin),
            lower_is_better=True,
        )
        going = np.array([word == CANNOT_TELL for word in said])
        covered[going] = (np.abs(parts.difference) <= half)[going]
        seeds[going] = look
        said = [new if old == CANNOT_TELL else old for old, new in zip(said, words, strict=True)]
    return _StoppingResults(said, covered, seeds)


def _list_true_components(simulation: Simulation, num_seeds: int, num_examples: int) -> list[VarianceComponents]:
    """The kinds of experiments that a world mixes, one by one."""
    truth = simulation.truth(num_seeds, num_examples)
    return [truth.select_experiment(kind) for kind in range(len(truth.difference))]


def _compute_median_detectable_effect(true_components: Sequence[VarianceComponents], confidence: float) -> float:
    """What the middle one of a world's experiments detects four times in five."""
    return float(np.median([compute_min_detectable_effect(kind, confidence) for kind in true_components]))


def to_markdown(rows: Sequence[CalibrationRow] | Sequence[SequentialCalibrationRow]) -> str:
    """The rows as a Markdown table, shares in per cent."""
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
        yield simulation.draw(rng, min(batch, num_experiments - start), num_seeds, num_examples)
