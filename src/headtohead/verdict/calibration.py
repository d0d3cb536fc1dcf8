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

from headtohead.verdict.interim import confidence_at, schedule
from headtohead.verdict.rule import HELPED, HURT, SAME, UNSURE, Word, decide
from headtohead.verdict.simulations import Draw, World
from headtohead.verdict.statistics import Components, components, detectable, power_to_differ, spread, spread_of_seeds

CELLS = 2_000_000  # numbers held at a time
FAR_BAND = 10.0  # standard errors: a band so wide that only one of its edges can be crossed by chance


@dataclass(frozen=True)
class Row:
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

    def as_row(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class AutoRow:
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

    def as_row(self) -> dict[str, object]:
        return dict(vars(self))


def calibrate(
    world: World,
    *,
    seeds: Sequence[int] = (3, 5, 8, 12),
    examples: int = 200,
    experiments: int = 2_000,
    confidence: float = 0.95,
    random_seed: int = 0,
) -> list[Row]:
    """A row for each number of seeds.

    Coverage is that of the interval that decides, for new seeds and examples; `coverage_here` that of the seeds' own
    interval for this test set. `false_verdicts` are helped or hurt at a true 0 with matters = 0, the strictest case;
    `false_agreement` is "no practical difference" at a truth just as large as `matters`. `power` is at the effect for
    which `theory` gives it.
    """
    rng = np.random.default_rng(random_seed)
    return [_row(world, rng, number, examples, experiments, confidence) for number in seeds]


def _row(world: World, rng: np.random.Generator, seeds: int, examples: int, experiments: int, confidence: float) -> Row:
    confidence_90 = 2 * confidence - 1
    kinds = _kinds(world, seeds, examples)
    effect = _typical_effect(kinds, confidence)
    edge = FAR_BAND * float(np.sqrt(max(kind.of_seeds[0] + kind.of_examples[0] for kind in kinds)))
    counts = np.zeros(6)
    for draw in _draws(world, rng, seeds, examples, experiments):
        parts = components(draw.differences, draw.weights)
        d, half = parts.difference, spread(parts, confidence).half
        half_90 = spread(parts, confidence_90).half
        here = spread_of_seeds(parts, confidence).half
        null = decide(d, half, half_90, (0.0, 0.0), lower_is_better=True)
        at_edge = decide(d + edge, half, half_90, (-edge, edge), lower_is_better=True)
        counts += (
            (np.abs(d) <= half).sum(),
            (np.abs(d) <= half_90).sum(),
            (np.abs(d - draw.here) <= here).sum(),
            sum(word in (HELPED, HURT) for word in null),
            at_edge.count(SAME),
            (np.abs(d + effect) > half).sum(),
        )
    shares = [float(count) / experiments for count in counts]
    theory = float(np.mean([power_to_differ(kind, effect, confidence) for kind in kinds]))
    coverage, coverage_90, coverage_here, false_verdicts, false_agreement, power = shares
    return Row(
        world.name,
        seeds,
        examples,
        experiments,
        coverage,
        coverage_90,
        coverage_here,
        false_verdicts,
        false_agreement,
        power,
        theory,
    )


def calibrate_auto(
    world: World,
    *,
    limit: int = 12,
    examples: int = 200,
    experiments: int = 2_000,
    confidence: float = 0.95,
    random_seed: int = 0,
) -> list[AutoRow]:
    """The same for `seeds = "auto"`: seeds are added look by look until the verdict is settled.

    Three truths: no difference; one just as large as `matters`; one twice as large. `matters` is what all the seeds
    together would detect four times in five.
    """
    rng = np.random.default_rng(random_seed)
    looks = schedule(limit)
    matters = _typical_effect(_kinds(world, limit, examples), confidence)
    truths = {"no difference": 0.0, "just matters": matters, "twice what matters": 2 * matters}
    results: dict[str, list[_Stop]] = {name: [] for name in truths}
    for draw in _draws(world, rng, limit, examples, experiments):
        seen = [components(np.ascontiguousarray(draw.differences[:, :look]), draw.weights) for look in looks]
        for name, truth in truths.items():
            results[name].append(_run(seen, looks, truth, matters, confidence))
    rows = []
    for name, stops in results.items():
        words = [word for stop in stops for word in stop.words]
        wrong = (HELPED, HURT) if name == "no difference" else (SAME, HELPED)
        rows.append(
            AutoRow(
                world.name,
                name,
                limit,
                examples,
                experiments,
                coverage=float(np.concatenate([stop.covered for stop in stops]).mean()),
                wrong=sum(word in wrong for word in words) / experiments,
                settled=sum(word != UNSURE for word in words) / experiments,
                seeds_used=float(np.concatenate([stop.seeds for stop in stops]).mean()),
            )
        )
    return rows


@dataclass(frozen=True, eq=False)
class _Stop:
    """Where each experiment stopped, what it said, and whether its interval held the truth."""

    words: list[Word]
    covered: np.ndarray
    seeds: Float[np.ndarray, " experiments"]


def _run(seen: list[Components], looks: Sequence[int], truth: float, matters: float, confidence: float) -> _Stop:
    experiments = len(seen[0].difference)
    said: list[Word] = [UNSURE] * experiments
    covered, seeds = np.zeros(experiments, bool), np.zeros(experiments)
    for parts, look in zip(seen, looks, strict=True):
        level = confidence_at(look, looks, confidence)
        half, half_90 = spread(parts, level).half, spread(parts, 2 * level - 1).half
        words = decide(parts.difference + truth, half, half_90, (-matters, matters), lower_is_better=True)
        going = np.array([word == UNSURE for word in said])
        covered[going] = (np.abs(parts.difference) <= half)[going]
        seeds[going] = look
        said = [new if old == UNSURE else old for old, new in zip(said, words, strict=True)]
    return _Stop(said, covered, seeds)


def _kinds(world: World, seeds: int, examples: int) -> list[Components]:
    """The kinds of experiments that a world mixes, one by one."""
    truth = world.truth(seeds, examples)
    return [truth.only(kind) for kind in range(len(truth.difference))]


def _typical_effect(kinds: Sequence[Components], confidence: float) -> float:
    """What the middle one of a world's experiments detects four times in five."""
    return float(np.median([detectable(kind, confidence) for kind in kinds]))


def to_markdown(rows: Sequence[Row] | Sequence[AutoRow]) -> str:
    """The rows as a Markdown table, shares in per cent."""
    if not rows:
        return ""
    table = [row.as_row() for row in rows]
    lines = [[name.replace("_", " ") for name in table[0]]]
    lines += [[_cell(name, value) for name, value in row.items()] for row in table]
    lines.insert(1, ["---" if isinstance(value, str) else "---:" for value in table[0].values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if name == "seeds_used" else f"{100 * value:.1f} %"


def _draws(world: World, rng: np.random.Generator, seeds: int, examples: int, experiments: int) -> Iterator[Draw]:
    batch = max(CELLS // (seeds * examples), 1)
    for start in range(0, experiments, batch):
        yield world.draw(rng, min(batch, experiments - start), seeds, examples)
