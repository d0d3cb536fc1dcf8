"""Scores per seed and example, and their pairing.

Each score is a total and a weight (summed negative log-likelihood and tokens, or 0/1 and 1), because perplexity is
exp(total loss / total tokens), not a mean of perplexities. Bits per byte use bytes as weights. Two variants are
compared on the seeds that both have, and on the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from headtohead.errors import ScoresError


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one variant.

    `values` (seeds, examples) holds totals: summed negative log-likelihood, or correct answers. `weights` (examples)
    holds the tokens, bytes or ones that they are totals of. A single column means that only one score per seed is
    known. `examples` optionally names the columns, so that scores of different examples are not paired by accident.
    `documents` names the document that each example belongs to; empty if every example is its own document.
    """

    seeds: tuple[int, ...]
    values: np.ndarray  # (seeds, examples); validated below, since users pass these
    weights: np.ndarray  # (examples,)
    examples: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = _to_float_array("values", self.values)
        weights = _to_float_array("weights", self.weights)
        errors = _find_errors(self.seeds, values, weights, self.examples)
        if self.documents and len(self.documents) != weights.size:
            errors.append(f"{len(self.documents)} document names for {weights.size} weights")
        if errors:
            raise ScoresError("invalid scores: " + "; ".join(errors))
        for name, array in (("values", values), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "seeds", tuple(int(seed) for seed in self.seeds))
        object.__setattr__(self, "examples", tuple(str(example) for example in self.examples))
        object.__setattr__(self, "documents", tuple(str(document) for document in self.documents))

    def compute_seed_means(self) -> Float[np.ndarray, " seeds"]:
        """Return total value / total weight for each seed."""
        return np.asarray(self.values.sum(axis=1) / self.weights.sum())

    def aggregate_per_seed(self) -> Scores:
        """Return one score per seed, as a single example."""
        return Scores(self.seeds, self.compute_seed_means()[:, None], np.ones(1))

    def select_seeds(self, seeds: Sequence[int]) -> Scores:
        """Return the scores of these seeds, in this order."""
        row_index = {seed: index for index, seed in enumerate(self.seeds)}
        return replace(self, seeds=tuple(seeds), values=self.values[[row_index[seed] for seed in seeds]])


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Totals of a variant and the baseline on their common seeds and examples."""

    seeds: tuple[int, ...]
    unpaired_seeds: tuple[int, ...]
    baseline_totals: Float[np.ndarray, "seeds examples"]
    variant_totals: Float[np.ndarray, "seeds examples"]
    weights: Float[np.ndarray, " examples"]
    documents: Int[np.ndarray, " examples"]
    """number of the document of each example, from 0"""

    @property
    def differences(self) -> Float[np.ndarray, "seeds examples"]:
        return np.asarray(self.variant_totals - self.baseline_totals)

    @property
    def num_examples(self) -> int:
        return len(self.weights)

    @property
    def num_documents(self) -> int:
        return int(self.documents.max()) + 1

    def sum_by_document(self, values: Float[np.ndarray, "*rows examples"]) -> Float[np.ndarray, "*rows documents"]:
        """Return the total of each document."""
        order = np.argsort(self.documents, kind="stable")
        starts = np.flatnonzero(np.diff(self.documents[order], prepend=-1))
        return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


def pair_scores(variant_name: str, baseline: Scores, variant: Scores) -> PairedScores:
    """Pair the scores of baseline and variant by seed and example.

    Seeds that only one of the two has are dropped. Raise ScoresError if the examples differ.
    """
    if 1 in (len(baseline.weights), len(variant.weights)):
        baseline, variant = baseline.aggregate_per_seed(), variant.aggregate_per_seed()
    _check_same_examples(variant_name, baseline, variant)
    common = tuple(sorted(set(baseline.seeds) & set(variant.seeds)))
    unpaired = tuple(sorted(set(baseline.seeds) ^ set(variant.seeds)))
    names = baseline.documents or variant.documents or range(len(baseline.weights))
    documents = np.unique(names, return_inverse=True)[1]
    if not common:
        empty = np.empty((0, len(baseline.weights)))
        return PairedScores(common, unpaired, empty, empty, baseline.weights, documents)
    baseline_totals, variant_totals = (scores.select_seeds(common).values for scores in (baseline, variant))
    return PairedScores(common, unpaired, baseline_totals, variant_totals, baseline.weights, documents)


def _check_same_examples(variant_name: str, baseline: Scores, variant: Scores) -> None:
    """Raise ScoresError unless baseline and variant are scored on the same examples with the same weights."""
    if len(baseline.weights) != len(variant.weights):
        raise ScoresError(
            f"{variant_name}: scored on {len(variant.weights)} examples, but the baseline on {len(baseline.weights)}; "
            "both must be scored on the same examples"
        )
    if baseline.examples and variant.examples and baseline.examples != variant.examples:
        index = next(
            position
            for position, (baseline_id, variant_id) in enumerate(zip(baseline.examples, variant.examples, strict=True))
            if baseline_id != variant_id
        )
        raise ScoresError(
            f"{variant_name}: example {index} is {variant.examples[index]!r}, but {baseline.examples[index]!r} for the "
            "baseline; both must be scored on the same examples in the same order"
        )
    if baseline.documents and variant.documents and baseline.documents != variant.documents:
        raise ScoresError(f"{variant_name}: its examples belong to other documents than those of the baseline")
    if not np.array_equal(baseline.weights, variant.weights):
        index = int(np.flatnonzero(baseline.weights != variant.weights)[0])
        raise ScoresError(
            f"{variant_name}: example {index} has weight {variant.weights[index]:g}, but {baseline.weights[index]:g} "
            "for the baseline; both must be scored on the same examples (if tokenizers differ, use bytes as weights)"
        )


def _to_float_array(name: str, array_like: object) -> Float[np.ndarray, "..."]:
    """Convert to a float64 array; raise ScoresError if that is not possible."""
    try:
        return np.array(array_like, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScoresError(f"{name} must be an array of numbers: {error}") from error


def _find_errors(
    seeds: Sequence[int],
    totals: Float[np.ndarray, "..."],
    weights: Float[np.ndarray, "..."],
    example_ids: Sequence[str],
) -> list[str]:
    """Return a message for each error in the arrays of `Scores`."""
    errors = []
    if not seeds:
        errors.append("no seeds")
    if len(set(seeds)) != len(seeds):
        duplicates = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
        errors.append(f"seed {', '.join(map(str, duplicates))} occurs more than once")
    if weights.ndim != 1 or not weights.size:
        errors.append(f"weights must have the shape (examples,), got {weights.shape}")
    elif not (np.isfinite(weights).all() and (weights > 0).all()):
        index = int(np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))[0])
        errors.append(f"weights must be finite and positive, but example {index} has weight {weights[index]:g}")
    if totals.shape != (len(seeds), weights.size):
        errors.append(
            f"values must have the shape {(len(seeds), weights.size)} for {len(seeds)} seeds and {weights.size} "
            f"examples, got {totals.shape}"
        )
    elif not np.isfinite(totals).all():
        row, column = (int(position) for position in np.argwhere(~np.isfinite(totals))[0])
        count = int((~np.isfinite(totals)).sum())
        errors.append(f"{count} values are not finite, the first at seed {seeds[row]}, example {column}")
    if example_ids and len(example_ids) != weights.size:
        errors.append(f"{len(example_ids)} example names for {weights.size} weights")
    return errors
