"""Coverage of the prediction interval for the result of an experiment on a new corpus.

python -m tools.calibration.corpora    print the table in docs/how-to/sweep.md

The effect of a corpus is its true effect, drawn around a mean, plus the error of its measurement. Spreads are in
standard errors of a corpus.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from headtohead.verdict.prediction_interval import compute_prediction_interval

NUM_EXPERIMENTS = 20_000
NUM_CORPORA = (3, 5, 10)
SPREADS = (0.0, 0.5, 1.0, 2.0)
CASES = ("normal", "unequal errors", "skewed corpora")
"""normal; standard errors that differ between corpora by up to a factor of 3; true effects with an exponential tail"""
SEED = 26


def draw_effects(case: str, num_corpora: int, spread: float, random: np.random.Generator) -> Float[np.ndarray, "n k"]:
    """Return the measured effects of many experiments on `num_corpora` corpora."""
    shape = (NUM_EXPERIMENTS, num_corpora)
    errors = 3.0 ** random.uniform(-0.5, 0.5, shape) if case == "unequal errors" else np.ones(shape)
    true_effects = random.exponential(1.0, shape) - 1 if case == "skewed corpora" else random.standard_normal(shape)
    return spread * true_effects + errors * random.standard_normal(shape)


def measure_coverage(case: str, num_corpora: int, spread: float) -> float:
    """Return the share of experiments whose interval contains the result on one more corpus."""
    random = np.random.default_rng((SEED, CASES.index(case), num_corpora, int(10 * spread)))
    effects = draw_effects(case, num_corpora + 1, spread, random)
    num_covered = 0
    for corpus_effects in effects:
        low, high = compute_prediction_interval(corpus_effects[:-1].tolist()) or (0.0, 0.0)
        num_covered += low <= corpus_effects[-1] <= high
    return num_covered / NUM_EXPERIMENTS


def main() -> None:
    spread_titles = [f"spread {spread:g}" for spread in SPREADS]
    print(f"| corpora | case | {' | '.join(spread_titles)} |\n|---:|---|{'---:|' * len(spread_titles)}")
    for num_corpora in NUM_CORPORA:
        for case in CASES:
            coverages = [f"{100 * measure_coverage(case, num_corpora, spread):.1f}" for spread in SPREADS]
            print(f"| {num_corpora} | {case} | {' | '.join(coverages)} |", flush=True)


if __name__ == "__main__":
    main()
