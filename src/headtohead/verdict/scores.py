"""Scores as they come from anywhere, and the pairing that makes a difference fair.

A score is kept as a total and a weight for every example (the summed negative log-likelihood and its tokens, or
0/1 and 1), because perplexity is exp(total loss / total tokens) and never a mean of perplexities. Bits per byte use
the same figures with bytes for weights. Two variants are compared on the seeds that both have, and on the very same
examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtohead.errors import ScoresError


@dataclass(frozen=True, eq=False)
class Scores:
    """What one variant scored: a row for each seed, a column for each example.

    `values` holds totals (summed negative log-likelihood, or correct answers), `weights` what they are totals of
    (tokens, bytes, or ones). One column means that only a score per seed is known. `examples`, when given, names the
    columns, so that two variants that were scored on different rows are not paired by accident.
    """

    seeds: tuple[int, ...]
    values: np.ndarray  # seeds x examples; checked here and not by annotation, as users bring these
    weights: np.ndarray  # examples
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = _to_float_array("values", self.values)
        weights = _to_float_array("weights", self.weights)
        faults = _find_errors(self.seeds, values, weights, self.examples)
        if faults:
            raise ScoresError("these scores cannot be judged: " + "; ".join(faults))
        for name, array in (("values", values), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "seeds", tuple(int(seed) for seed in self.seeds))
        object.__setattr__(self, "examples", tuple(str(example) for example in self.examples))

    def compute_seed_means(self) -> Float[np.ndarray, " seeds"]:
        """Total over total, one figure a seed: the score of the whole test set."""
        return np.asarray(self.values.sum(axis=1) / self.weights.sum())

    def aggregate_per_seed(self) -> Scores:
        """The same scores with only the figure per seed left."""
        return Scores(self.seeds, self.compute_seed_means()[:, None], np.ones(1))

    def of(self, seeds: Sequence[int]) -> Scores:
        """The same scores for these seeds only, in this order."""
        row = {seed: index for index, seed in enumerate(self.seeds)}
        return Scores(tuple(seeds), self.values[[row[seed] for seed in seeds]], self.weights, self.examples)


@dataclass(frozen=True, eq=False)
class PairedScores:
    """A variant beside the baseline: variant minus baseline for each common seed and each example."""

    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    baseline: Float[np.ndarray, "seeds examples"]
    variant: Float[np.ndarray, "seeds examples"]
    weights: Float[np.ndarray, " examples"]

    @property
    def differences(self) -> Float[np.ndarray, "seeds examples"]:
        return np.asarray(self.variant - self.baseline)

    @property
    def examples(self) -> int:
        return len(self.weights)


def pair_scores(variant_name: str, baseline: Scores, variant: Scores) -> PairedScores:
    """Pair by seed and by example; what only one of the two has is left out (seeds) or refused (examples)."""
    if 1 in (len(baseline.weights), len(variant.weights)):
        baseline, variant = baseline.aggregate_per_seed(), variant.aggregate_per_seed()
    _check_same_examples(variant_name, baseline, variant)
    common = tuple(sorted(set(baseline.seeds) & set(variant.seeds)))
    left_out = tuple(sorted(set(baseline.seeds) ^ set(variant.seeds)))
    if not common:
        empty = np.empty((0, len(baseline.weights)))
        return PairedScores(common, left_out, empty, empty, baseline.weights)
    return PairedScores(common, left_out, baseline.of(common).values, variant.of(common).values, baseline.weights)


def _check_same_examples(variant_name: str, baseline: Scores, variant: Scores) -> None:
    ours, theirs = len(baseline.weights), len(variant.weights)
    if ours != theirs:
        raise ScoresError(
            f"{variant_name}: scored on {theirs} examples, but the baseline on {ours}; both must be scored on the same ones"  # noqa: E501
        )
    if baseline.examples and variant.examples and baseline.examples != variant.examples:
        at = next(i for i, (a, b) in enumerate(zip(baseline.examples, variant.examples, strict=True)) if a != b)
        raise ScoresError(
            f"{variant_name}: example {at} is {variant.examples[at]!r}, but {baseline.examples[at]!r} for the baseline; "  # noqa: E501
            "both must be scored on the same examples in the same order"
        )
    if not np.array_equal(baseline.weights, variant.weights):
        at = int(np.flatnonzero(baseline.weights != variant.weights)[0])
        raise ScoresError(
            f"{variant_name}: example {at} weighs {variant.weights[at]:g}, but {baseline.weights[at]:g} for the baseline; "  # noqa: E501
            "both must be scored on the same examples (where tokenizers differ, weigh by bytes)"
        )


def _to_float_array(name: str, array_like: object) -> Float[np.ndarray, "..."]:
    try:
        return np.array(array_like, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScoresError(f"{name} must be a table of numbers: {error}") from error


def _find_errors(
    seeds: Sequence[int],
    totals: Float[np.ndarray, "..."],
    weights: Float[np.ndarray, "..."],
    example_ids: Sequence[str],
) -> list[str]:
    """Everything that is wrong, not only the first thing."""
    faults = []
    if not seeds:
        faults.append("no seed is given")
    if len(set(seeds)) != len(seeds):
        twice = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
        faults.append(f"seed {', '.join(map(str, twice))} is given more than once")
    if weights.ndim != 1 or not weights.size:
        faults.append(f"weights must hold one number for each example, but have the shape {weights.shape}")
    elif not (np.isfinite(weights).all() and (weights > 0).all()):
        at = int(np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))[0])
        faults.append(f"weights must be numbers above 0, but example {at} weighs {weights[at]:g}")
    if totals.shape != (len(seeds), weights.size):
        faults.append(
            f"values have the shape {totals.shape}, but {len(seeds)} seeds and {weights.size} examples "
            f"ask for {(len(seeds), weights.size)}"
        )
    elif not np.isfinite(totals).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(totals))[0])
        count = int((~np.isfinite(totals)).sum())
        faults.append(f"{count} of the values are not numbers, the first at seed {seeds[row]}, example {column}")
    if example_ids and len(example_ids) != weights.size:
        faults.append(f"{len(example_ids)} examples are named, but {weights.size} are weighed")
    return faults
